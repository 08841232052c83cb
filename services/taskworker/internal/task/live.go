package task

import (
	"encoding/json"
	"time"

	"github.com/toolherd/toolherd/pkg/outbox"
)

// Lease says what a lease on a task is for. The empty one means that nobody holds it.
type Lease string

// fenced is the lease of a poll whose outcome no longer counts. It keeps the remote from being called twice at once:
// until the poll is over, or the lease has run out, nobody claims the task.
const fenced Lease = "fenced"

// Live is a task that is not final, as a store locked it, with all that the rules ask and answer. A step of the rules
// changes it in place, and the store writes it back.
//
//	due ──Claim──▶ leased(kind) ──Settle, Release──▶ due later, or final
//	 ▲                │  │
//	 │  lease runs out│  │RequestCancel, of a poll
//	 ├────────────────┘  ▼
//	 └────────────── fenced ◀ the poll's Settle is dropped, and frees the task
type Live struct {
	Task

	Traceparent      string
	ExpireLimit      time.Time // Expires, were it not for the remote
	EventFingerprint string
	InputRound       int // how often it began to wait for input

	Fence int64
	Lease Lease
	Due   time.Time // when it may be claimed: the end of the lease, or when Poll or Cancel is due

	Poll   time.Time // when the next poll is due; zero while a cancel comes first
	Cancel time.Time // when the next cancel is due; zero if none was requested

	Errors         int // consecutive failed polls
	Unchanged      int // consecutive polls without news
	CancelFailures int // consecutive
	AttemptCount   int64
	LastPollReason string // a word for it; set in the step that failed, and not kept
}

// Step is what the rules did to a task: what a store has to write, and what to tell its caller.
type Step struct {
	Settled
	// Moved: the schedule or the lease changed. A final task has neither, and loses its row of both.
	Moved   bool
	Attempt *Attempt        // the one that Live.AttemptCount counts
	Beside  json.RawMessage // a result that is kept beside the task
	Event   *outbox.Event
}

// held reports whether h is a live lease.
func (l *Live) held(h Hold, now time.Time) bool {
	return !l.Status.Terminal() && l.Lease != "" && l.Lease != fenced && l.Fence == h.Fence && l.Due.After(now)
}

// unfence frees a task whose poll was fenced and is over.
func (l *Live) unfence(h Hold) bool {
	if l.Status.Terminal() || l.Lease != fenced || l.Fence != h.Fence+1 {
		return false
	}
	l.free()
	return true
}

func (l *Live) free() {
	l.Lease = ""
	l.Due = earliest(l.Poll, l.Cancel)
}

// NextKind says what a claimed task is claimed for.
func NextKind(cancel, now time.Time) Kind {
	if !cancel.IsZero() && !cancel.After(now) {
		return Cancel
	}
	return Poll
}

// HoldFor says how long the session of a claimed task is needed. Times are those of the task's row.
func (p Policy) HoldFor(lastPoll, poll time.Time) time.Duration {
	if lastPoll.IsZero() || poll.IsZero() {
		return p.holdFor(0)
	}
	return p.holdFor(poll.Sub(lastPoll))
}

// face is what an owner sees of a task that is not final, and whose change makes a version.
type face struct {
	status, message    string
	current, total     float64
	progress, totalled bool
	input              string
	degraded           bool
	expires            time.Time
}

func (l *Live) face() face {
	f := face{
		status: string(l.Status), message: l.StatusMessage, input: string(l.InputRequired),
		degraded: l.TrackingDegraded, expires: l.Expires,
	}
	if l.Progress != nil {
		f.progress, f.current = true, l.Progress.Current
		if l.Progress.Total != nil {
			f.totalled, f.total = true, *l.Progress.Total
		}
	}
	return f
}

// Settle ends a claim. Now is the database's, after the row was locked; jitter is in [0, 1). An outcome whose lease is
// gone changes nothing of what a task is.
func (p Policy) Settle(l *Live, o Outcome, now time.Time, jitter float64) Step {
	if !l.held(o.Claim.Hold, now) {
		return Step{Settled: Settled{TaskID: l.ID, Dropped: true, Status: l.Status}, Moved: l.unfence(o.Claim.Hold)}
	}
	before := l.face()
	attempt := &Attempt{Kind: o.Claim.Kind, Time: now, Worker: o.Worker, Outcome: "ok"}
	step := Step{Moved: true, Attempt: attempt}
	l.AttemptCount++
	switch {
	case o.Failure != nil:
		attempt.Outcome = clip(o.Failure.Reason, 100)
		p.fail(l, o, now)
	case o.Snapshot != nil:
		step.Beside = p.take(l, *o.Snapshot, now)
	}
	if o.Claim.Kind == Poll {
		l.LastPoll = now
	}
	changed := l.face() != before
	if o.Failure == nil && !l.Status.Terminal() {
		p.schedule(l, o, changed, now, jitter)
	}
	p.finish(l, &step, changed, now)
	attempt.NextDue = l.NextPoll
	return step
}

// take makes the snapshot the task's own, and returns a result that is kept beside it.
func (p Policy) take(l *Live, s Snapshot, now time.Time) json.RawMessage {
	status := s.Status
	if status == Submitted && l.Status != Submitted {
		status = Working // the remote's queue is of no interest, and no state goes back to the first
	}
	if status == InputRequired && l.Status != InputRequired {
		l.InputRound++
	}
	l.Status, l.StatusMessage, l.Progress, l.InputRequired = status, s.StatusMessage, s.Progress, nil
	if status == InputRequired {
		l.InputRequired = s.InputRequired
	}
	if s.TTL > 0 {
		l.Expires = earliest(l.ExpireLimit, l.Created.Add(s.TTL))
	}
	l.Errors, l.LastPollError, l.TrackingDegraded = 0, "", false
	if !status.Terminal() {
		return nil
	}
	l.end(now)
	at := p.place(s)
	l.IsError, l.Error, l.ResultArtifact = s.IsError, s.Error, s.ResultArtifact
	if status == Failed {
		l.FailureReason = s.FailureReason
	}
	l.Result, l.ResultPreview, l.ResultTruncated = at.inside, at.preview, at.truncated
	l.ResultStored = at.inside != nil || at.beside != nil
	return at.beside
}

// schedule says when the remote is called next, after a call that went well.
func (p Policy) schedule(l *Live, o Outcome, changed bool, now time.Time, jitter float64) {
	var hint time.Duration
	if o.Snapshot != nil {
		hint = o.Snapshot.PollAfter
	}
	if o.Claim.Kind == Cancel {
		l.Cancel, l.CancelFailures, l.Unchanged = now.Add(cancelResendAfter), 0, 0
		l.Poll = now // to hear soon what became of it
		if hint > 0 {
			l.Poll = now.Add(p.nextPoll(Working, hint, 0, jitter))
		}
		return
	}
	l.Unchanged++
	if changed {
		l.Unchanged = 0
	}
	l.Poll = now.Add(p.nextPoll(l.Status, hint, l.Unchanged, jitter))
}

// fail deals with a call that did not go well.
func (p Policy) fail(l *Live, o Outcome, now time.Time) {
	f := o.Failure
	// A cancel whose answer makes no sense says nothing about the task, which polls may still see to its end.
	if f.Permanent != "" && (o.Claim.Kind != Cancel || f.Permanent != ProtocolError) {
		l.end(now)
		l.Status, l.FailureReason, l.Error = Failed, clip(f.Permanent, 100), text(f.Message)
		return
	}
	if o.Claim.Kind == Cancel {
		if !f.Uncounted {
			l.CancelFailures++
		}
		l.Cancel = now.Add(p.backoff(l.CancelFailures - 1))
		if l.CancelFailures >= cancelTriesAlone && l.Poll.IsZero() {
			l.Poll = now
		}
		return
	}
	if !f.Uncounted {
		l.Errors++
		l.TrackingDegraded = l.Errors >= p.TrackingDegradedAfterErrors
	}
	l.LastPollError, l.LastPollReason = text(f.Message), clip(f.Reason, 100)
	l.Poll = now.Add(p.backoff(l.Errors))
}

// end makes a task final but for its status and what it ended with.
func (l *Live) end(now time.Time) {
	l.Ended, l.InputRequired, l.TrackingDegraded = now, nil, false
	l.Poll, l.Cancel, l.NextPoll = time.Time{}, time.Time{}, time.Time{}
	l.Lease = ""
}

// finish brings schedule, version and event up to what a step did.
func (p Policy) finish(l *Live, step *Step, changed bool, now time.Time) {
	if !l.Status.Terminal() {
		l.free()
		l.NextPoll = l.Due
	}
	if changed {
		l.Version++
		l.Updated = now
	}
	step.Event = p.event(l)
	step.Settled = Settled{TaskID: l.ID, Changed: changed, Event: step.Event != nil, Status: l.Status}
}

// RequestCancel records the wish, once. It fences a poll that is under way; the cancel follows as soon as that is over.
func (p Policy) RequestCancel(l *Live, now time.Time) Step {
	if !l.CancelRequested.IsZero() || l.Status.Terminal() {
		return Step{Settled: Settled{TaskID: l.ID, Status: l.Status}}
	}
	l.CancelRequested, l.Cancel, l.Poll, l.CancelFailures = now, now, time.Time{}, 0
	l.NextPoll = now
	switch {
	case l.Lease == "" || !l.Due.After(now):
		l.free()
	case l.Lease == Lease(Poll):
		l.Fence++
		l.Lease = fenced
	}
	l.Version++
	l.Updated = now
	return Step{Settled: Settled{TaskID: l.ID, Changed: true, Status: l.Status}, Moved: true}
}

// Expire ends a task that is past its time, whoever holds it.
func (p Policy) Expire(l *Live, now time.Time) Step {
	if l.Status.Terminal() || l.Expires.IsZero() || l.Expires.After(now) {
		return Step{Settled: Settled{TaskID: l.ID, Status: l.Status}}
	}
	l.end(now)
	l.Status, l.FailureReason = Failed, Expired
	l.Error = "the task did not end within its time to live; submit it again with a longer task_ttl if it needs more"
	step := Step{Moved: true}
	p.finish(l, &step, true, now)
	return step
}

// Release ends a claim for which nothing was done.
func (p Policy) Release(l *Live, h Hold, now time.Time) Step {
	step := Step{Settled: Settled{TaskID: l.ID, Status: l.Status}}
	if l.held(h, now) {
		l.free()
		step.Moved = true
		return step
	}
	step.Dropped = true
	step.Moved = l.unfence(h)
	return step
}

// NextCall returns the earlier of the times of the next poll and the next cancel, of which a zero one means never.
func NextCall(poll, cancel time.Time) time.Time { return earliest(poll, cancel) }
