// Package terminal makes text from servers and files safe to show, and knows whether a person looks at it.
package terminal

import (
	"io"
	"os"
	"slices"
	"strings"
	"unicode"
)

// Line replaces what would move a terminal's cursor, change its colours, hide text or begin a new line.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return '\uFFFD'
		default:
			return r
		}
	}, s)
}

// Text is [Line] for text of several lines.
func Text(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = Line(l)
	}
	return strings.Join(lines, "\n")
}

// Is reports whether w is a terminal that can rewrite a line. Environ is the environment in the form of os.Environ.
func Is(w io.Writer, environ []string) bool {
	if slices.Contains(environ, "TERM=dumb") {
		return false
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
