// Package task is the model of durable tasks: what a task is, which step may follow which, and what a store must do.
//
//	            ┌──────────────────────────────┐
//	submitted ──┼─▶ working ◀──▶ input_required ┼──▶ completed | failed | cancelled
//	            └──────────────────────────────┘
//
// The first three states are polled, the last three are final. All rules are in this package and hold on every engine;
// the stores below it lock rows, ask these rules and write what they say. Time is the database's, everywhere.
package task

import (
	"encoding/json"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
)

// Status is the state of a task.
type Status string

// The states.
const (
	Submitted     Status = "submitted"
	Working       Status = "working"
	InputRequired Status = "input_required"
	Completed     Status = "completed"
	Failed        Status = "failed"
	Cancelled     Status = "cancelled"
)

// Terminal reports whether the state never changes again.
func (s Status) Terminal() bool { return s == Completed || s == Failed || s == Cancelled }

// Why a task failed, where the remote did not say.
const (
	OutcomeUnknown = "outcome_unknown" // nobody knows whether the remote took the submit
	Expired        = "expired"         // past its time to live
	RemoteLost     = "remote_lost"     // the remote no longer knows it
	ProtocolError  = "protocol_error"  // the remote's answer makes no sense
	Untrusted      = "untrusted"       // the trust in its server was revoked
)

// Progress is how far a task is.
type Progress struct {
	Current float64
	Total   *float64 // nil if unknown
}

// Task is a task as it is stored. A zero time means never.
type Task struct {
	ID     string
	Name   string
	Server string
	Scope  authn.Scope

	Status        Status
	StatusMessage string
	Progress      *Progress
	Version       int64 // rises with every change that an owner can see
	EventVersion  int64 // of the newest event; 0 if there was none

	IsError         bool
	FailureReason   string
	Error           string          // at most 4000 characters
	Result          json.RawMessage // nil if there is none, or it is larger than the policy allows here
	ResultPreview   string
	ResultStored    bool // Store.Result has it
	ResultTruncated bool // it is kept nowhere but in the preview
	ResultArtifact  json.RawMessage
	InputRequired   json.RawMessage

	TrackingDegraded bool
	LastPollError    string // of the newest poll, empty if that went well; may name addresses, so it is for operators
	CancelRequested  time.Time
	NextPoll         time.Time
	LastPoll         time.Time
	Created          time.Time
	Updated          time.Time
	Ended            time.Time
	Expires          time.Time

	RunID      string
	ToolCallID string
	NotifySink string

	Attempts []Attempt // newest first, at most 20; only from Store.Get
}

// Kind is what a worker does for a task. Where several are due the order is cancel, answer, poll.
type Kind string

// The kinds.
const (
	Poll   Kind = "poll"
	Cancel Kind = "cancel"
	Answer Kind = "answer"
)

// Attempt is one try to reach the remote.
type Attempt struct {
	Kind    Kind
	Time    time.Time // when it ended
	Worker  string
	Outcome string    // "ok", or the reason of the failure
	NextDue time.Time // zero if nothing is due
}

// Snapshot is how a remote task stands. [NewSnapshot] makes valid ones only.
type Snapshot struct {
	Status         Status
	StatusMessage  string
	Progress       *Progress
	Result         json.RawMessage
	Beginning      string // of a result that is too large to be passed on; then there is no Result
	IsError        bool
	FailureReason  string
	Error          string
	InputRequired  json.RawMessage
	ResultArtifact json.RawMessage
	PollAfter      time.Duration // 0 without a hint
	TTL            time.Duration // 0 if the remote does not say
}
