// Package outbox carries task events from taskworker to notifier through one table, the only one that two services
// write.
//
//	taskworker:  transaction { change a task; Append(events) }      notifier:  transaction { Take(events); keep them }
//
// An event is appended in the transaction that changes its task, and taken in the transaction that keeps it as
// notifications: a crash loses none and repeats none. Delivery is not the outbox's business.
package outbox

import (
	"encoding/json"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
)

// Topic is the wake-up topic that tells notifiers of new events.
const Topic = "outbox"

// Event is news of a task: it needs attention, is tracked with trouble, or has ended.
type Event struct {
	TaskID  string
	Version int64 // of the event within its task, from 1, rising
	Scope   authn.Scope
	// Sink is the one that the submit named; empty means the notifier's default.
	Sink     string
	TaskName string
	// Body is the event as JSON, snake_case, as every sink shows it. It holds no remote id and no server address.
	Body json.RawMessage
	// RunID is the agent's run that submitted the task; may be empty.
	RunID string
	// Traceparent is the W3C trace context of the submit; may be empty.
	Traceparent string
	// Created is when it was appended, by the database's clock; Append sets it.
	Created time.Time
}
