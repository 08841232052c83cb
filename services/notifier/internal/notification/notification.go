// Package notification is the model of deliveries: one for each task and sink, of the task's newest event.
//
//	pending ─▶ claimed ─▶ dispatched ─▶ delivered
//	   ▲          └─▶ retry ◀─┘
//	   └─ redrive, newer event ── dead_letter
//
// A delivery's fate never changes its task. Time is the database's, everywhere. The rules are the methods of [Delivery]
// and hold on every engine.
package notification

import (
	"encoding/json"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
)

// TopicDue is the wake-up topic of deliveries that may be due sooner than before.
const TopicDue = "notification.due"

// Status is where a delivery stands.
type Status string

// The states.
const (
	Pending    Status = "pending"
	Claimed    Status = "claimed"
	Dispatched Status = "dispatched"
	Retry      Status = "retry"
	Delivered  Status = "delivered"
	DeadLetter Status = "dead_letter"
)

// Notification is the delivery of a task's newest event to one sink; while an attempt is under way, of the event that it
// began with. A zero time means never.
type Notification struct {
	ID             string
	EventID        string // `<task_id>:<event_version>`
	TaskID         string
	EventVersion   int64
	WaitingVersion int64 // of a newer event that follows this one; 0 if there is none
	Sink           string
	Scope          authn.Scope
	Status         Status
	AttemptCount   int // consecutive failures
	NextAttempt    time.Time
	LastError      string
	Created        time.Time // of the event
	Delivered      time.Time
	RedriveTime    time.Time // of the last redrive
	RedriveActor   string    // who wanted it
	Attempts       []Attempt // newest first, at most MaxAttempts; only from Store.Get
}

// Attempt is one try.
type Attempt struct {
	Number       int64 // within the delivery, from 1
	EventVersion int64 // of the event that was sent
	Time         time.Time
	Outcome      string // delivered, retry, deferred or dead_letter
	Status       string // of the sink, such as an HTTP status code
	Excerpt      string // of its answer, redacted, at most 1 KiB
}

// Event is what a sink is told. It does not change over the attempts to deliver it.
type Event struct {
	ID          string
	TaskID      string
	Version     int64
	TaskName    string
	Scope       authn.Scope
	RunID       string
	Body        json.RawMessage
	Traceparent string
	Created     time.Time
}

// Claim is a due delivery that a notifier holds a lease on.
type Claim struct {
	ID              string // of the notification
	Fence           int64
	Sink            string
	Phase           Status // Claimed: to be sent; Dispatched: RunID is to be looked up
	Event           Event
	DispatchAttempt int    // part of the StartRun key
	AttemptCount    int    // consecutive failures so far
	RunID           string // of the agent runtime, in phase Dispatched
	Redriven        bool   // by an operator: a pause of the sink does not count
}

// Verdict is what came of a claim.
type Verdict string

// The verdicts.
const (
	Done       Verdict = "done"       // delivered
	Handed     Verdict = "handed"     // dispatched; RunID says as what
	Waiting    Verdict = "waiting"    // dispatched and still going: look again after Delay
	Failed     Verdict = "failed"     // counts one; again after Delay, in the same phase
	Redispatch Verdict = "redispatch" // the run failed: counts one; again after Delay with the next dispatch attempt
	Deferred   Verdict = "deferred"   // counts nothing; again after Delay, with the newest event
	Dead       Verdict = "dead"       // never again, unless redriven or a newer event comes
)

// Outcome ends a claim.
type Outcome struct {
	Claim   Claim
	Verdict Verdict
	RunID   string        // of Handed
	Delay   time.Duration // from the database's now
	Error   string        // why, redacted and bounded; empty if it went well
	Status  string        // of the sink
	Excerpt string
}
