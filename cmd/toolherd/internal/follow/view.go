package follow

import (
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// View shows how a task gets on: one line that is rewritten on a terminal, else a line per change.
type View struct {
	w       io.Writer
	rewrite bool
	last    string
	open    bool // the cursor stands in a line that is rewritten
}

// NewView returns a view on w; rewrite says that w is a terminal.
func NewView(w io.Writer, rewrite bool) *View { return &View{w: w, rewrite: rewrite} }

// Show shows a state, if it differs from what is shown.
func (v *View) Show(t *taskv1.Task) error {
	line := Line(t)
	if line == v.last {
		return nil
	}
	v.last = line
	if !v.rewrite {
		_, err := fmt.Fprintln(v.w, line)
		return err
	}
	v.open = true
	_, err := fmt.Fprint(v.w, "\r", clip(line, 79), "\x1b[K")
	return err
}

// Say shows a line of its own.
func (v *View) Say(line string) error {
	if err := v.Done(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(v.w, line)
	return err
}

// Done ends the line that is rewritten, if there is one.
func (v *View) Done() error {
	if !v.open {
		return nil
	}
	v.open = false
	v.last = ""
	_, err := fmt.Fprintln(v.w)
	return err
}

// barWidth is the length of a progress bar.
const barWidth = 24

// Line returns a state in one line: the status, a bar if the task tells its progress, and what it says about itself.
func Line(t *taskv1.Task) string {
	parts := []string{fmt.Sprintf("%-14s", Word(t))}
	if p := t.GetProgress(); p != nil {
		if total := p.GetTotal(); p.Total != nil && total > 0 {
			done := min(1, max(0, p.GetCurrent()/total))
			filled := int(math.Round(done * barWidth))
			parts = append(parts, fmt.Sprintf("[%s%s] %3.0f%%", strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), 100*done))
		} else {
			parts = append(parts, fmt.Sprintf("%g done", p.GetCurrent()))
		}
	}
	if m := t.GetStatusMessage(); m != "" {
		parts = append(parts, terminal.Line(m))
	}
	if t.GetCancelRequestedTime() != nil && !Terminal(t.GetStatus()) {
		parts = append(parts, "(to be cancelled)")
	}
	if t.GetTrackingDegraded() {
		parts = append(parts, "(the server cannot be asked at the moment)")
	}
	return strings.TrimRight(strings.Join(parts, "  "), " ")
}

// Word returns the status of a task as people write it, such as "working".
func Word(t *taskv1.Task) string {
	return strings.ToLower(strings.TrimPrefix(t.GetStatus().String(), "TASK_STATUS_"))
}

// clip cuts a line to n characters, so that it does not wrap.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}
