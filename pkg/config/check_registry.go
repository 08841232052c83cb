package config

import (
	"regexp"
	"strings"

	"github.com/toolherd/toolherd/pkg/envref"
	"github.com/toolherd/toolherd/pkg/fault"
)

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// check refuses words in the lists that could never match anything.
func (r Registry) check(from origins) error {
	for _, name := range r.EnvRefs {
		switch {
		case !variable.MatchString(name):
			return fault.New(fault.ConfigInvalid, "configuration: %s has %q, want names of variables, without $ and braces", from.name("registry.env_refs"), name)
		case envref.Forbidden(name):
			return fault.New(fault.ConfigInvalid, "configuration: %s has %s, which never resolves in a server entry: pass the value in a variable of another name",
				from.name("registry.env_refs"), name)
		}
	}
	for _, name := range r.StdioCommandAllowlist {
		if name == "" || strings.ContainsAny(name, "/\\;|&`$<> \t\r\n") {
			return fault.New(fault.ConfigInvalid, "configuration: %s has %q, want names of programs, without a path and without arguments",
				from.name("registry.stdio_command_allowlist"), name)
		}
	}
	return nil
}
