package notification

import (
	"context"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
)

// Filter chooses deliveries. Zero fields choose all.
type Filter struct {
	Statuses []Status
	Sink     string
	TaskID   string
	Since    time.Time // of the event
	Limit    int
	After    string // Page.Next of the page before
}

// Page is some deliveries, newest first, without attempts.
type Page struct {
	Notifications []*Notification
	Next          string
}

// ClaimRequest asks for due deliveries.
type ClaimRequest struct {
	Notifier string
	// Sinks are those that may be sent to now; a paused one among them counts as left out. A redriven delivery is claimed
	// for any sink of Known. Neither names a stream sink, whose deliveries are read and not sent.
	Sinks []string
	Known []string
	Limit int
	Lease time.Duration
}

// Redrive says what to deliver again, and who wants it.
type Redrive struct {
	ID     string // one delivery; empty: all that Filter chooses
	Filter Filter // Limit and After do not count
	Actor  string
	DryRun bool
}

// SinkState is how a sink fares.
type SinkState struct {
	Paused      bool
	PauseReason string
	Pending     int64
	DeadLetters int64
}

// Store keeps deliveries.
type Store interface {
	// Intake turns up to limit events of the outbox into deliveries, each newer event replacing an older one of the same task
	// and sink that is not in flight. Where an event names no sink, sink is the one. It returns how many it took. An event
	// that no sink can be told becomes a dead letter and hinders no other.
	Intake(ctx context.Context, sink string, limit int) (int, error)
	// Claim leases due deliveries: pending, claimed, retry or dispatched, lease absent or expired, by due time, then id,
	// skipping locked rows. What it costs does not depend on the deliveries of other sinks, nor on what is done.
	Claim(ctx context.Context, r ClaimRequest) ([]Claim, error)
	// Renew extends leases and returns the ids of those that are lost.
	Renew(ctx context.Context, claims []Claim, lease time.Duration) (lost []string, err error)
	// Settle ends a claim. False: the lease was lost, and nothing was written.
	Settle(ctx context.Context, o Outcome) (bool, error)
	// SettleAll ends claims, in order and in one transaction; each as Settle does.
	SettleAll(ctx context.Context, outcomes []Outcome) ([]bool, error)
	// NextDue returns how long it is until a delivery to one of sinks is claimable, 0 or less if one is. A paused sink has
	// only those that were redriven. False: none will be.
	NextDue(ctx context.Context, sinks []string) (time.Duration, bool, error)

	// Get returns a delivery with its attempts. Fault: NOTIFICATION_NOT_FOUND.
	Get(ctx context.Context, id string) (*Notification, error)
	// List returns a page.
	List(ctx context.Context, f Filter) (Page, error)
	// Redrive makes deliveries pending again, due now, counters zeroed, under the same event id, and returns how many; a
	// stream sink offers them to its groups again. Fault: NOTIFICATION_NOT_FOUND for an unknown ID.
	Redrive(ctx context.Context, r Redrive) (int64, error)
	// Prune deletes up to limit delivered and dead ones whose event is older than retention.
	Prune(ctx context.Context, retention time.Duration, limit int) (int, error)

	// SinkStates returns how each of the named sinks fares.
	SinkStates(ctx context.Context, sinks []string) (map[string]SinkState, error)
	// SetPaused pauses a sink, or resumes it; a resumed one has all its waiting deliveries due now.
	SetPaused(ctx context.Context, sink string, paused bool, why string) error
}

// StreamRequest asks a stream sink for what a group of consumers has not acknowledged.
type StreamRequest struct {
	Sink     string
	Group    string
	Consumer string      // who asks; an event goes to one consumer of a group at a time
	Scope    authn.Scope // zero parts choose all
	After    int64       // the highest sequence number seen: of what was given up, the rest waits out its lease
	Limit    int
	Lease    time.Duration // after which another consumer may get it
}

// StreamEvent is an event of a stream sink.
type StreamEvent struct {
	// Sequence rises in the order of recording, and of commits: who has seen one will never be shown a lower one for the
	// first time. The resume token carries the highest one seen; one that comes again is lower.
	Sequence int64
	Event    Event
}

// Streams serves sinks that consumers read and acknowledge. Several groups read a sink, each on its own: a group gets,
// of each scope that it asks for, what was not acknowledged by anyone when it first asked, and all that comes later.
// A newer event of a task takes the place of the older one in every group that has not acknowledged it.
// The delivery is delivered with the first acknowledgement.
//
//	recorded ─▶ offered to each group ─▶ leased to a consumer ─▶ acknowledged
//	                    ▲                        │
//	                    └──── lease ran out ◀────┘
type Streams interface {
	// Next leases events to a consumer, oldest first: those after r.After that nobody of the group had, and, wherever they
	// are, those that somebody had and did not acknowledge in time.
	Next(ctx context.Context, r StreamRequest) ([]StreamEvent, error)
	// Ack acknowledges an event for a group. A repeat changes nothing, nor does an event that a newer one has replaced.
	// Fault: NOTIFICATION_NOT_FOUND.
	Ack(ctx context.Context, sink, group, eventID string, scope authn.Scope) error
	// Release gives up the leases of a consumer that goes away, and returns how many they were: who goes on after an earlier
	// event gets those events at once, who goes on after a later one when the lease would have run out.
	Release(ctx context.Context, sink, group, consumer string) (int, error)
	// Forget deletes up to limit pending deliveries whose event is older than retention and whose sink is none of pushed:
	// nobody has read them. It also deletes groups that did not ask for as long.
	Forget(ctx context.Context, pushed []string, retention time.Duration, limit int) (int, error)
}
