package task

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolherd/toolherd/pkg/fault"
)

// Limits of names, in characters.
const (
	maxServerChars   = 128
	maxNameChars     = 255
	maxRemoteIDChars = 255
	maxRefChars      = 255 // of ids that callers choose
	maxSinkBytes     = 128
)

// NewID returns an id that no task has.
func NewID() string {
	var random [16]byte
	rand.Read(random[:])
	return "mcp-task-" + hex.EncodeToString(random[:])
}

// Check returns the intent in a form that every engine can hold, or INVALID_ARGUMENTS.
func (i Intent) Check() (Intent, error) {
	for _, f := range []struct {
		field string
		value string
		min   int
		max   int
	}{
		{"server", i.Server, 1, maxServerChars},
		{"task_name", i.TaskName, 1, maxNameChars},
		{"request_id", i.RequestID, 0, maxRefChars},
		{"request_hash", i.RequestHash, 0, maxRefChars},
		{"binding_fingerprint", i.Fingerprint, 1, maxRefChars},
		{"run_id", i.RunID, 0, maxRefChars},
		{"tool_call_id", i.ToolCallID, 0, maxRefChars},
		{"traceparent", i.Traceparent, 0, maxRefChars},
		{"principal", i.Principal, 0, maxRefChars},
	} {
		if err := checkText(f.field, f.value, f.min, f.max); err != nil {
			return Intent{}, err
		}
	}
	switch {
	case len(i.NotifySink) > maxSinkBytes:
		return Intent{}, invalid("notify_sink", fmt.Sprintf("is longer than %d bytes", maxSinkBytes))
	case len(i.Binding) == 0:
		return Intent{}, invalid("binding", "is empty")
	case i.TTL < 0:
		return Intent{}, invalid("task_ttl", "is below zero")
	}
	return i, checkText("notify_sink", i.NotifySink, 0, maxSinkBytes)
}

// Check returns INVALID_ARGUMENTS for a handle that no task can have.
func (c Commitment) Check() error {
	if len(c.Handle) == 0 {
		return invalid("handle", "is empty")
	}
	if c.PollAfter < 0 || c.RemoteTTL < 0 {
		return invalid("poll_after", "is below zero, or remote_ttl is")
	}
	return checkText("remote_task_id", c.RemoteID, 1, maxRemoteIDChars)
}

func checkText(field, s string, least, most int) error {
	switch {
	case least > 0 && strings.TrimSpace(s) == "":
		return invalid(field, "is blank")
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return invalid(field, "is not valid text: it has bytes that are not UTF-8, or NUL")
	case utf8.RuneCountInString(s) > most:
		return invalid(field, fmt.Sprintf("is longer than %d characters", most))
	}
	return nil
}

func invalid(field, wrong string) error {
	return fault.New(fault.InvalidArguments, "%s %s", field, wrong).
		WithViolations(fault.Violation{Field: field, Description: wrong})
}

// born returns a task that is accepted now.
func (p Policy) born(id string, i Intent, now time.Time) *Live {
	l := &Live{Traceparent: i.Traceparent, ExpireLimit: p.expiry(now, i.TTL)}
	l.Task = Task{
		ID: id, Name: i.TaskName, Server: i.Server, Scope: i.Scope, RunID: i.RunID, ToolCallID: i.ToolCallID,
		NotifySink: i.NotifySink, Status: Submitted, Version: 1, Created: now, Updated: now, Expires: l.ExpireLimit,
	}
	return l
}

// Accept makes the task of a commitment. One whose remote has already ended is final at once, and has its event.
func (p Policy) Accept(id string, i Intent, c Commitment, now time.Time, jitter float64) (*Live, Step) {
	l := p.born(id, i, now)
	l.Fence = max(c.Fence, 1)
	if c.RemoteTTL > 0 {
		l.Expires = earliest(l.ExpireLimit, now.Add(c.RemoteTTL))
	}
	step := Step{Moved: true}
	switch c.Status {
	case Completed, Failed, Cancelled:
		l.end(now)
		l.Status = c.Status
	case InputRequired: // for which is what the first poll says
		l.Status, l.Poll = Working, now
	default:
		if c.Status == Working {
			l.Status = Working
		}
		l.Poll = now.Add(p.nextPoll(l.Status, c.PollAfter, 0, jitter))
	}
	p.finish(l, &step, false, now)
	return l, step
}

// Unknown makes the failed task of a submit of which nobody knows whether the remote took it.
func (p Policy) Unknown(id string, i Intent, why string, now time.Time) (*Live, Step) {
	l := p.born(id, i, now)
	l.end(now)
	l.Status, l.FailureReason, l.Error = Failed, OutcomeUnknown, text(why)
	step := Step{Moved: true}
	p.finish(l, &step, false, now)
	return l, step
}

// NeverHeard says why a reservation that ran out became a failed task.
const NeverHeard = "the submit was begun and nothing was heard of its outcome; the work may be under way: look there before you submit it again"
