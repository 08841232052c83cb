package catalog

import (
	"fmt"
	"strings"
)

// What a server may add to every answer that lists servers.
const (
	maxReasonChars  = 2000
	maxWarningChars = 500
	maxWarnings     = 20
)

// Shorten returns text, which a server may have written, as it may be shown: valid UTF-8 of at most so many characters,
// with an ellipsis where it was cut. Text must be redacted before: half a secret would not be recognised.
func Shorten(text string, most int) string {
	n := 0
	for i := range text {
		if n++; n > most {
			text = text[:i] + "…"
			break
		}
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// bounded returns warnings that are short and few; the last one counts those that are left out.
func bounded(warnings []string) []string {
	more := len(warnings) - maxWarnings
	if more > 0 {
		warnings = warnings[:maxWarnings:maxWarnings]
	}
	out := make([]string, 0, len(warnings)+1)
	for _, w := range warnings {
		out = append(out, Shorten(w, maxWarningChars))
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more warnings", more))
	}
	return out
}
