// Package version says which Toolherd this is.
package version

import (
	"cmp"
	"runtime/debug"
)

// Number is the version under development, by semver.org.
const Number = "0.1.0-dev"

// String returns the number and, where the build recorded it, the revision: "0.1.0-dev (1a2b3c4d5e6f)".
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Number
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && s.Value != "" {
			return Number + " (" + s.Value[:min(12, len(s.Value))] + ")"
		}
	}
	return Number
}

// Go returns the version of Go that built the program.
func Go() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return cmp.Or(info.GoVersion, "unknown")
}
