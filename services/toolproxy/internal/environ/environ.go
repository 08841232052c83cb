// Package environ looks up the variables that server entries refer to: in the environment of the process, then in the
// user's own files, the first that sets a name winning. A project's .env file is never one of them.
//
// A file has lines NAME=VALUE, optionally behind `export`. A value in single quotes is literal; in double quotes \n, \r,
// \t, \", \\ and \$ are escapes; without quotes it ends at white space and `#`, or at the end of the line. Nothing is
// expanded. Lines that are none of this are skipped.
package environ

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// maxFileBytes bounds a file; what lies behind is not read.
const maxFileBytes = 1 << 20

// Lookup returns the value of a variable and whether it is set.
type Lookup func(name string) (string, bool)

// Files returns the user's files in the order in which they are asked.
func Files(home string) []string {
	if home == "" {
		return nil
	}
	return []string{filepath.Join(home, ".toolherd", ".env"), filepath.Join(home, ".deepagents", ".env")}
}

// Read reads the files as they are at this moment and returns a look-up over process and them. A file that is missing
// is skipped; one that cannot be read is reported.
func Read(process Lookup, files []string, log *slog.Logger) Lookup {
	var layers []map[string]string
	for _, path := range files {
		content, err := readFile(path)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				log.Warn("environment file cannot be read", "path", path, "err", err)
			}
			continue
		}
		layers = append(layers, Parse(content))
	}
	return func(name string) (string, bool) {
		if v, ok := process(name); ok {
			return v, true
		}
		for _, layer := range layers {
			if v, ok := layer[name]; ok {
				return v, true
			}
		}
		return "", false
	}
}

func readFile(path string) (content string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes))
	return string(b), err
}

// Parse returns the variables that content sets; of several with one name the last counts.
func Parse(content string) map[string]string {
	vars := map[string]string{}
	content = strings.TrimPrefix(content, "\ufeff")
	for line := range strings.Lines(content) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "export"); ok && strings.TrimLeft(rest, " \t") != rest {
			line = strings.TrimSpace(rest)
		}
		name, value, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); !ok || !isName(name) {
			continue
		}
		if value, ok = unquote(strings.TrimSpace(value)); ok {
			vars[name] = value
		}
	}
	return vars
}

func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// unquote returns the value that text spells, and false for a quote that is not closed.
func unquote(text string) (string, bool) {
	switch {
	case strings.HasPrefix(text, "'"):
		value, _, ok := strings.Cut(text[1:], "'")
		return value, ok
	case strings.HasPrefix(text, `"`):
		return unescape(text[1:])
	}
	for i := range len(text) {
		if text[i] == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\t') {
			return strings.TrimSpace(text[:i]), true
		}
	}
	return text, true
}

func unescape(text string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return b.String(), true
		case c == '\\' && i+1 < len(text):
			i++
			switch text[i] {
			case 'n':
				b.WriteByte('\n')
			case 'r':
				b.WriteByte('\r')
			case 't':
				b.WriteByte('\t')
			case '"', '\\', '$':
				b.WriteByte(text[i])
			default:
				b.WriteByte('\\')
				b.WriteByte(text[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}
