package task

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/toolherd/toolherd/pkg/outbox"
)

// eventBody is an event as every sink shows it. It has no remote id, no server and no words of a failed connection,
// which may name an address.
type eventBody struct {
	EventID         string          `json:"event_id"`
	TaskID          string          `json:"task_id"`
	EventVersion    int64           `json:"event_version"`
	TaskName        string          `json:"task_name"`
	UserID          string          `json:"user_id"`
	ThreadID        string          `json:"thread_id"`
	RunID           string          `json:"run_id,omitempty"`
	ToolCallID      string          `json:"tool_call_id,omitempty"`
	Status          Status          `json:"status"`
	StatusMessage   string          `json:"status_message,omitempty"`
	IsError         bool            `json:"is_error"`
	FailureReason   string          `json:"failure_reason,omitempty"`
	Error           string          `json:"error,omitempty"`
	ResultPreview   string          `json:"result_preview,omitempty"`
	ResultTruncated bool            `json:"result_truncated"`
	ResultArtifact  json.RawMessage `json:"result_artifact,omitempty"`
	InputRequired   json.RawMessage `json:"input_required,omitempty"`
	Degraded        bool            `json:"tracking_degraded"`
	LastPollError   string          `json:"last_poll_error,omitempty"`
}

// event returns the event that the task as it is now makes, and counts it; nil if there is nothing to say, or it was
// said last. A task makes one when it waits for input, is tracked with trouble, or has ended.
func (p Policy) event(l *Live) *outbox.Event {
	if l.Status != InputRequired && !l.Status.Terminal() && !l.TrackingDegraded {
		return nil
	}
	print := l.fingerprint()
	if print == l.EventFingerprint {
		return nil
	}
	l.EventFingerprint = print
	l.EventVersion++
	body := eventBody{
		EventID: fmt.Sprintf("%s:%d", l.ID, l.EventVersion), TaskID: l.ID, EventVersion: l.EventVersion, TaskName: l.Name,
		UserID: l.Scope.UserID, ThreadID: l.Scope.ThreadID, RunID: l.RunID, ToolCallID: l.ToolCallID,
		Status: l.Status, StatusMessage: l.StatusMessage, IsError: l.IsError, FailureReason: l.FailureReason, Error: l.Error,
		ResultPreview: l.ResultPreview, ResultTruncated: l.ResultTruncated, ResultArtifact: l.ResultArtifact,
		InputRequired: l.InputRequired, Degraded: l.TrackingDegraded,
	}
	if l.TrackingDegraded {
		body.LastPollError = l.LastPollReason
	}
	return &outbox.Event{
		TaskID: l.ID, Version: l.EventVersion, Scope: l.Scope, Sink: l.NotifySink, TaskName: l.Name,
		Body: compact(body), RunID: l.RunID, Traceparent: l.Traceparent,
	}
}

// fingerprint is the hex SHA-256 over the sorted, compact JSON of what makes one event differ from another. The words
// of a failing poll are not part of it, for they change with every poll; the round is, so that a question that is asked
// again after an answer is news.
func (l *Live) fingerprint() string {
	sum := sha256.Sum256(compact(map[string]any{
		"status": l.Status, "is_error": l.IsError, "failure_reason": l.FailureReason, "error": l.Error,
		"result_preview": l.ResultPreview, "result_truncated": l.ResultTruncated, "result_artifact": sorted(l.ResultArtifact),
		"input_required": sorted(l.InputRequired), "input_round": l.InputRound, "tracking_degraded": l.TrackingDegraded,
	}))
	return hex.EncodeToString(sum[:])
}

// sorted returns JSON as a value that is written with its members in order and its numbers as they are.
func sorted(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return string(raw) // NewSnapshot lets only JSON pass
	}
	return v
}

// compact returns v as JSON without white space, members of maps in order.
func compact(v any) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("task: " + err.Error()) // none of our values is beyond JSON: NewSnapshot has checked what came from outside
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}
