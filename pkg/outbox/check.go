package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxIDBytes is how long a task id and the name of a sink may be.
const maxIDBytes = 128

// check returns what makes e impossible to append.
func (e Event) check() error {
	switch {
	case e.TaskID == "" || len(e.TaskID) > maxIDBytes:
		return fmt.Errorf("task id of %d bytes, want 1 to %d", len(e.TaskID), maxIDBytes)
	case e.Version < 1:
		return fmt.Errorf("version %d, want at least 1", e.Version)
	case len(e.Sink) > maxIDBytes:
		return fmt.Errorf("sink of %d bytes, want at most %d", len(e.Sink), maxIDBytes)
	case !json.Valid(e.Body) || !utf8.Valid(e.Body):
		return errors.New("body is not JSON in UTF-8")
	}
	for _, text := range []string{e.TaskID, e.Scope.UserID, e.Scope.ThreadID, e.Sink, e.TaskName, e.RunID, e.Traceparent} {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Errorf("%q is not text that every engine can hold", text)
		}
	}
	return nil
}

func checkAll(events []Event) error {
	for _, e := range events {
		if err := e.check(); err != nil {
			return fmt.Errorf("append event %d of task %s: %w", e.Version, e.TaskID, err)
		}
	}
	return nil
}
