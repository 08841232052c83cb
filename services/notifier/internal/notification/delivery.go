package notification

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"time"
)

// Delivery is what a store keeps of a notification. Its methods are the rules; a store locks a row, asks a rule with the
// database's now, and writes what has become of it. A zero time means never.
//
// Event is the one that is, or was last, delivered. It stays the same while an attempt is under way and while a run is
// awaited, in the states claimed and dispatched; an event that comes meanwhile is Waiting, and follows. In every other
// state a newer event takes its place at once.
type Delivery struct {
	ID       string
	Sink     string
	Event    Event
	Sequence int64  // of Event, among all events
	Waiting  *Event // newer than Event; nil if there is none

	Status          Status
	Due             time.Time // when it may be claimed: its next attempt, or the end of its lease
	Lessee          string    // the notifier that has it; empty without a lease
	Fence           int64     // rises with every claim and redrive
	DispatchAttempt int       // of Event, from 0
	RunID           string    // while dispatched
	Failures        int       // consecutive ones of Event
	AttemptNumber   int64     // of the newest attempt, over all events; 0 if there was none
	LastError       string
	Delivered       time.Time

	Redriven     bool // until it ends, or a newer event takes its place
	RedriveTime  time.Time
	RedriveActor string
}

// NewDelivery returns the delivery of a task's first event to a sink.
func NewDelivery(sink string, e Event, now time.Time) *Delivery {
	d := &Delivery{ID: newID(), Sink: sink}
	d.begin(e, now)
	return d
}

func newID() string {
	var random [16]byte
	rand.Read(random[:]) // never fails
	return "ntf_" + hex.EncodeToString(random[:])
}

// Record takes note of an event. False: it is not newer than what is known, and changes nothing.
func (d *Delivery) Record(e Event, now time.Time) bool {
	switch {
	case e.Version <= d.newest().Version:
		return false
	case d.inFlight():
		d.Waiting = &e
	case d.Status == Retry:
		d.begin(e, d.Due) // the sink just failed: its back-off holds for the newer event too
	default:
		d.begin(e, now)
	}
	return true
}

func (d *Delivery) newest() *Event {
	if d.Waiting != nil {
		return d.Waiting
	}
	return &d.Event
}

func (d *Delivery) inFlight() bool { return d.Status == Claimed || d.Status == Dispatched }

// begin makes e the event, with fresh counters.
func (d *Delivery) begin(e Event, due time.Time) {
	d.Event, d.Waiting = e, nil
	d.Status, d.Due, d.Lessee = Pending, due, ""
	d.DispatchAttempt, d.RunID, d.Failures, d.LastError = 0, "", 0, ""
	d.Delivered, d.Redriven = time.Time{}, false
	if !json.Valid(e.Body) {
		d.end(DeadLetter)
		d.LastError = "the event's body is not JSON, so no sink can be told: the taskworker that wrote it has a defect"
	}
}

func (d *Delivery) end(s Status) {
	d.Status, d.Due, d.Lessee, d.RunID, d.Redriven = s, time.Time{}, "", "", false
}

// Claimable reports whether the delivery may be claimed now, if its sink may be sent to.
func (d *Delivery) Claimable(now time.Time) bool { return !d.Due.IsZero() && !d.Due.After(now) }

// Claim leases the delivery to a notifier until now + lease. A delivery whose lease ran out is sent again: as it was,
// with the same dispatch attempt, or with the newer event if one waits. A run that was started is looked up.
// False: there is nothing to claim.
func (d *Delivery) Claim(notifier string, now time.Time, lease time.Duration) (Claim, bool) {
	if !d.Claimable(now) {
		return Claim{}, false
	}
	if d.Status == Claimed && d.Waiting != nil {
		d.begin(*d.Waiting, now)
		if d.Due.IsZero() {
			return Claim{}, false
		}
	}
	if d.Status != Dispatched {
		d.Status = Claimed
	}
	d.Fence++
	d.Lessee, d.Due = notifier, now.Add(lease)
	return Claim{
		ID: d.ID, Fence: d.Fence, Sink: d.Sink, Phase: d.Status, Event: d.Event, DispatchAttempt: d.DispatchAttempt,
		AttemptCount: d.Failures, RunID: d.RunID, Redriven: d.Redriven,
	}, true
}

// Held reports whether c still holds its lease: same fence, version and phase, and not expired.
func (d *Delivery) Held(c Claim, now time.Time) bool {
	return d.Lessee != "" && d.Fence == c.Fence && d.Event.Version == c.Event.Version && d.Status == c.Phase && d.Due.After(now)
}

// Settle ends a claim. False: the lease is lost, or the verdict does not fit the phase, and nothing changes. The attempt
// is nil where none has ended: a run was started, or is still going.
//
//	verdict     phase       becomes                    failures  with a newer event waiting
//	Done        any         delivered                            pending, due now
//	Handed      claimed     dispatched                           the same
//	Waiting     dispatched  dispatched                           the same
//	Failed      claimed     retry                      +1        pending, due after the delay
//	Failed      dispatched  dispatched                 +1        the same
//	Redispatch  dispatched  retry, dispatch attempt+1  +1        pending, due after the delay
//	Deferred    claimed     pending                              pending, due after the delay
//	Dead        any         dead_letter                          pending, due now
//
// What becomes pending with a newer event has fresh counters.
func (d *Delivery) Settle(o Outcome, now time.Time) (*Attempt, bool) {
	if !d.Held(o.Claim, now) || !o.Verdict.fits(d.Status) {
		return nil, false
	}
	tried := d.Event.Version
	later := now.Add(max(o.Delay, 0))
	ended := ""
	switch o.Verdict {
	case Done:
		ended = outcomeDelivered
		d.deliver(now)
	case Handed:
		d.Status, d.RunID, d.Due = Dispatched, o.RunID, later
	case Waiting:
		d.Due = later
	case Failed:
		ended = outcomeRetry
		d.fail(o, later)
		if d.Status == Claimed {
			d.again(Retry)
		}
	case Redispatch:
		ended = outcomeRetry
		d.fail(o, later)
		d.DispatchAttempt++
		d.RunID = ""
		d.again(Retry)
	case Deferred:
		ended = outcomeDeferred
		d.Due, d.LastError = later, bounded(o.Error, maxErrorBytes)
		d.again(Pending)
	case Dead:
		ended = outcomeDeadLetter
		d.end(DeadLetter)
		d.LastError = bounded(o.Error, maxErrorBytes)
		d.follow(now)
	}
	d.Lessee = ""
	if ended == "" {
		return nil, true
	}
	return d.attempt(Attempt{
		EventVersion: tried, Time: now, Outcome: ended, Status: bounded(o.Status, maxStatusBytes), Excerpt: bounded(o.Excerpt, maxExcerptBytes),
	}), true
}

// fits reports whether v may end a claim in phase.
func (v Verdict) fits(phase Status) bool {
	switch v {
	case Done, Failed, Dead:
		return true
	case Handed, Deferred:
		return phase == Claimed
	case Waiting, Redispatch:
		return phase == Dispatched
	default:
		return false
	}
}

func (d *Delivery) attempt(a Attempt) *Attempt {
	d.AttemptNumber++
	a.Number = d.AttemptNumber
	return &a
}

func (d *Delivery) deliver(now time.Time) {
	d.end(Delivered)
	d.Failures, d.LastError, d.Delivered = 0, "", now
	d.follow(now)
}

func (d *Delivery) fail(o Outcome, due time.Time) {
	d.Failures++
	d.LastError, d.Due = bounded(o.Error, maxErrorBytes), due
}

// again leads to the next attempt, which is s, or pending if it is of a newer event.
func (d *Delivery) again(s Status) {
	d.Status = s
	d.follow(d.Due)
}

// follow makes the event that waits, if one does, the event.
func (d *Delivery) follow(due time.Time) {
	if d.Waiting != nil {
		d.begin(*d.Waiting, due)
	}
}

// Redrive makes the delivery pending and due, whatever became of it, under the id of its newest event. A notifier that
// holds it loses its lease. The dispatch attempt rises, since an agent runtime answers a repeated one with the old run.
// False: no sink can be told of the event, and nothing changes.
func (d *Delivery) Redrive(actor string, now time.Time) bool {
	if !json.Valid(d.newest().Body) {
		return false
	}
	if d.Waiting != nil {
		d.begin(*d.Waiting, now)
	} else {
		d.DispatchAttempt++
	}
	d.Status, d.Due, d.Lessee, d.RunID, d.Failures, d.Delivered = Pending, now, "", "", 0, time.Time{}
	d.Fence++
	d.Redriven, d.RedriveTime, d.RedriveActor = true, now, bounded(actor, maxStatusBytes)
	return true
}

// Acknowledge marks the delivery of a stream sink as delivered. False: it is, or another version of the event is
// current, and nothing changes.
func (d *Delivery) Acknowledge(version int64, group string, now time.Time) (*Attempt, bool) {
	if d.Status != Pending || d.Event.Version != version {
		return nil, false
	}
	d.deliver(now)
	status := bounded("acknowledged by "+group, maxStatusBytes)
	return d.attempt(Attempt{EventVersion: version, Time: now, Outcome: outcomeDelivered, Status: status}), true
}

// Notification returns what is shown of the delivery.
func (d *Delivery) Notification() *Notification {
	n := &Notification{
		ID: d.ID, EventID: d.Event.ID, TaskID: d.Event.TaskID, EventVersion: d.Event.Version, Sink: d.Sink,
		Scope: d.Event.Scope, Status: d.Status, AttemptCount: d.Failures, NextAttempt: d.Due, LastError: d.LastError,
		Created: d.Event.Created, Delivered: d.Delivered, RedriveTime: d.RedriveTime, RedriveActor: d.RedriveActor,
	}
	if d.Waiting != nil {
		n.WaitingVersion = d.Waiting.Version
	}
	return n
}
