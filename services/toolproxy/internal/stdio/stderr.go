package stdio

import (
	"bytes"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

const (
	maxLineChars = 4096      // of a line that is kept
	maxRingBytes = 16 << 10  // of all lines that are kept
	maxRawBytes  = 32 << 10  // of a line before it is cleaned: more than it can show, so that no secret is cut in half
	cutMark      = " …[cut]" // at the end of a line that was longer
)

// ring keeps the last lines of stderr. Its methods may be called concurrently.
type ring struct {
	redact func(string) string
	seen   func(line string) // called for each complete line

	mu    sync.Mutex
	lines []string // oldest first
	bytes int      // in lines
	raw   []byte   // the line that has not ended, up to maxRawBytes
	cut   bool     // there was more of it
}

// Write takes the next piece of stderr. It never fails.
func (r *ring) Write(p []byte) {
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		piece := p
		if end >= 0 {
			piece = p[:end]
		}
		r.extend(piece)
		if end < 0 {
			return
		}
		r.endLine()
		p = p[end+1:]
	}
}

func (r *ring) extend(piece []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if room := maxRawBytes - len(r.raw); len(piece) > room {
		piece = piece[:room]
		r.cut = true
	}
	r.raw = append(r.raw, piece...)
}

func (r *ring) endLine() {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := r.clean()
	r.raw, r.cut = r.raw[:0], false
	if cap(r.raw) > maxLineChars {
		r.raw = nil
	}
	if line == "" {
		return
	}
	r.seen(line)
	r.lines = append(r.lines, line)
	r.bytes += len(line)
	for r.bytes > maxRingBytes && len(r.lines) > 1 {
		r.bytes -= len(r.lines[0])
		r.lines = r.lines[1:]
	}
}

// clean returns the current line as it may be shown. r.mu is held.
//
// It is redacted after control characters were stripped, since these could hide a secret from the redactor and
// reveal it by being stripped, and before it is cut, since half a secret would not be recognised.
func (r *ring) clean() string {
	line := r.redact(strip(string(r.raw)))
	if !r.cut && utf8.RuneCountInString(line) <= maxLineChars {
		return line
	}
	n := 0
	for i := range line {
		if n++; n > maxLineChars-utf8.RuneCountInString(cutMark) {
			return line[:i] + cutMark
		}
	}
	return line + cutMark
}

// Tail returns what is kept, the unfinished line included, one line per line.
func (r *ring) Tail() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	if last := r.clean(); last != "" {
		lines = append(lines[:len(lines):len(lines)], last)
	}
	// Once more over all: a secret may have line ends in it.
	return r.redact(strings.Join(lines, "\n"))
}

// strip removes terminal sequences, control and invisible formatting characters; a tab becomes a space.
func strip(line string) string {
	line = strings.TrimRight(strings.ToValidUTF8(line, "\uFFFD"), " \t\r")
	clean := true
	for _, c := range line {
		if unprintable(c) {
			clean = false
			break
		}
	}
	if clean {
		return line
	}
	var b strings.Builder
	for i := 0; i < len(line); {
		c, size := utf8.DecodeRuneInString(line[i:])
		switch {
		case c == '\x1b':
			i += escape(line[i:])
			continue
		case c == '\t':
			b.WriteByte(' ')
		case !unprintable(c):
			b.WriteRune(c)
		}
		i += size
	}
	return b.String()
}

func unprintable(c rune) bool { return unicode.Is(unicode.Cc, c) || unicode.Is(unicode.Cf, c) }

// escape returns the length of the terminal sequence that s begins with: a colour, a cursor movement.
func escape(s string) int {
	if len(s) < 2 || s[1] != '[' {
		return 1
	}
	for i := 2; i < len(s); i++ {
		if c := s[i]; c >= 0x40 && c <= 0x7e {
			return i + 1
		} else if c < 0x20 || c > 0x3f {
			return 1
		}
	}
	return 1
}
