package demo

import (
	"bytes"
	"io"
)

// indented writes lines as the story's own are written. A carriage return begins a line anew.
type indented struct{ w io.Writer }

// Write implements io.Writer. P holds whole lines, or one that is rewritten.
func (i indented) Write(p []byte) (int, error) {
	out := p
	switch {
	case bytes.HasPrefix(p, []byte("\r")):
		out = append([]byte("\r   "), p[1:]...)
	case len(p) > 0 && p[0] != '\n':
		out = append([]byte("   "), p...)
	}
	if _, err := i.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}
