// Package sink is what the kinds of sinks have in common: what they are asked, what they answer, and how an event looks
// to them.
//
//	delivery ──Claim──▶ Sender (webhook, agentrun) ──Result──▶ delivery ──Outcome──▶ store
//
// A sender knows its protocol alone. It counts nothing, waits for nothing but its answer, and never sees a database;
// back-off, limits and leases are package delivery's.
package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

// Sender makes attempts to deliver to one sink. It is safe for concurrent use.
type Sender interface {
	// Send makes one attempt and says what came of it. An attempt that ctx ends is of unknown outcome.
	Send(ctx context.Context, c notification.Claim) Result
	// Close releases connections. No attempt may be under way.
	Close() error
}

// Result is what came of one attempt. Its texts may hold secrets and be of any length: delivery redacts and bounds them.
type Result struct {
	Verdict notification.Verdict
	RunID   string // of Handed
	// After is when to go on: exactly then for Waiting and Deferred, not sooner for Failed and Redispatch.
	After   time.Duration
	Error   string // why it failed, for people
	Status  string // of the sink, such as an HTTP status code
	Excerpt string // of its answer
	// Pause says why the sink is to be paused; empty leaves it alone.
	Pause string
}

// Status returns the task's status in the event's body; empty if there is none.
func Status(e notification.Event) string { return read(e).Status }

// Degraded reports whether the event says that the task is tracked with trouble.
func Degraded(e notification.Event) bool { return read(e).Degraded }

type head struct {
	Status   string `json:"status"`
	Degraded bool   `json:"tracking_degraded"`
}

func read(e notification.Event) head {
	var h head
	if json.Unmarshal(e.Body, &h) != nil {
		return head{} // Data says that it is no object
	}
	return h
}

// Data returns the event's body with its own names in it: event_id, task_id, event_version and task_name. Members are
// in order, and values are as taskworker wrote them. It fails where the body is no JSON object.
func Data(e notification.Event) (json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(e.Body, &members); err != nil {
		return nil, fmt.Errorf("body of event %s: %w", e.ID, err)
	}
	if members == nil {
		return nil, errors.New("body of event " + e.ID + " is no JSON object")
	}
	for name, value := range map[string]any{"event_id": e.ID, "task_id": e.TaskID, "event_version": e.Version, "task_name": e.TaskName} {
		raw, err := Encode(value)
		if err != nil {
			return nil, err
		}
		members[name] = raw
	}
	return Encode(members)
}

// Encode returns v as JSON on one line, with < > & as they are.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
