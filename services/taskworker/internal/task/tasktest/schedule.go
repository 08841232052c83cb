package tasktest

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// gap returns the time from the end of the newest attempt to the next one.
func (b Bench) gap(t *testing.T, id string) time.Duration {
	t.Helper()
	a := b.get(t, id).Attempts
	if len(a) == 0 {
		t.Fatal("no attempt is on record")
	}
	return a[0].NextDue.Sub(a[0].Time)
}

// next claims the task after all that it may wait for has passed.
func (b Bench) next(t *testing.T, want task.Kind) task.Claim {
	t.Helper()
	b.Pass(t, 5*time.Minute)
	return b.one(t, want)
}

// near allows for the milliseconds of an engine.
func near(got, want time.Duration) bool { return (got - want).Abs() <= time.Millisecond }

// TASK-022
func pollErrors(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	for n := range 2 {
		b.done(t, fails(b.next(t, task.Poll), task.Failure{Reason: "unavailable", Message: "no route"}))
		got := b.get(t, id)
		if got.LastPollError != "no route" || got.Attempts[0].Outcome != "unavailable" || got.TrackingDegraded || got.LastPoll.IsZero() {
			t.Errorf("after %d errors: %+v", n+1, got)
		}
	}
	b.done(t, says(b.next(t, task.Poll), working()))
	if got := b.get(t, id); got.LastPollError != "" {
		t.Errorf("a good poll left the error %q", got.LastPollError)
	}
	// The count began anew, and what is not counted does not add to it.
	for range 2 {
		b.done(t, fails(b.next(t, task.Poll), task.Failure{Reason: "timeout", Message: "slow"}))
	}
	for range 5 {
		b.done(t, fails(b.next(t, task.Poll), task.Failure{Reason: "session_limit", Message: "full", Uncounted: true}))
	}
	got := b.get(t, id)
	if got.TrackingDegraded || got.LastPollError != "full" || got.Attempts[0].Outcome != "session_limit" {
		t.Errorf("after two counted errors: %+v", got)
	}
	if g := b.gap(t, id); !near(g, 20*time.Second) {
		t.Errorf("an error that is not counted is followed after %v, want the gap of two errors", g)
	}
}

// TASK-023
func pollGaps(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	want := []float64{5, 7.5, 11.25, 16.875, 25.3125, 37.96875, 56.953125, 60, 60}
	for n, seconds := range want {
		b.done(t, says(b.next(t, task.Poll), working()))
		if g := b.gap(t, id); !near(g, time.Duration(seconds*float64(time.Second))) {
			t.Errorf("after poll %d the next is due in %v, want %v s", n+1, g, seconds)
		}
	}
	if d := b.in(t); d > 60*time.Second || d < 50*time.Second {
		t.Errorf("by the database's clock it is due in %v", d)
	}
	b.done(t, says(b.next(t, task.Poll), task.Snapshot{Status: task.Working, StatusMessage: "news"}))
	if g := b.gap(t, id); !near(g, 5*time.Second) {
		t.Errorf("after news the next poll is due in %v, want 5s", g)
	}
	ask := task.Snapshot{Status: task.InputRequired, InputRequired: json.RawMessage(`{}`)}
	for range 2 {
		b.done(t, says(b.next(t, task.Poll), ask))
		if g := b.gap(t, id); !near(g, time.Minute) {
			t.Errorf("a task that waits for input is polled after %v, want 1m", g)
		}
	}
}

// TASK-023 TASK-024
func hints(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	ask := json.RawMessage(`{}`)
	for _, h := range []struct {
		hint       time.Duration
		status     task.Status
		least, max time.Duration
	}{
		{time.Millisecond, task.Working, 250 * time.Millisecond, 275 * time.Millisecond},
		{2 * time.Second, task.Working, 2 * time.Second, 2200 * time.Millisecond},
		{2 * time.Minute, task.Working, 2 * time.Minute, 132 * time.Second},
		{2 * time.Second, task.InputRequired, time.Minute, time.Minute},
		{3 * time.Minute, task.InputRequired, 3 * time.Minute, 198 * time.Second},
		{math.MaxInt64, task.Working, 24 * time.Hour, 24 * time.Hour},
	} {
		b.done(t, says(b.next(t, task.Poll), task.Snapshot{Status: h.status, InputRequired: ask, PollAfter: h.hint}))
		if g := b.gap(t, id); g < h.least-time.Millisecond || g > h.max+time.Millisecond {
			t.Errorf("%s with hint %v: the next poll is due in %v, want %v to %v", h.status, h.hint, g, h.least, h.max)
		}
	}
	b.none(t, "a day early")

	c := commitment(b.reserve(t, 2), 2)
	c.PollAfter = 3 * time.Second
	made, err := b.Commit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if g := made.NextPoll.Sub(made.Created); g < 3*time.Second || g > 3300*time.Millisecond {
		t.Errorf("the first poll is due in %v, want the hint of 3s and some", g)
	}
}

// TASK-025
func pollBackoff(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	want := []int{10, 20, 40, 80, 160, 300, 300}
	for n := range 25 {
		b.done(t, fails(b.next(t, task.Poll), task.Failure{Reason: "timeout", Message: "slow"}))
		if g, w := b.gap(t, id), time.Duration(want[min(n, len(want)-1)])*time.Second; !near(g, w) {
			t.Errorf("after %d errors the next poll is due in %v, want %v", n+1, g, w)
		}
	}
	if got := b.get(t, id); got.Status != task.Submitted {
		t.Errorf("after 25 errors the task is %s", got.Status)
	}
}

// TASK-026
func degraded(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	for n := range 6 {
		message := strings.Repeat("x", n)
		s := b.done(t, fails(b.next(t, task.Poll), task.Failure{Reason: "timeout", Message: "http://10.0.0.1/ " + message}))
		got := b.get(t, id)
		if want := n >= 2; got.TrackingDegraded != want || s.Event != (n == 2) {
			t.Errorf("after %d errors: degraded %v, event %v", n+1, got.TrackingDegraded, s.Event)
		}
	}
	e := b.Events(t)
	if len(e) != 1 {
		t.Fatalf("%d events, want one", len(e))
	}
	body := string(e[0].Body)
	if !strings.Contains(body, `"tracking_degraded":true`) || !strings.Contains(body, `"last_poll_error":"timeout"`) || strings.Contains(body, "10.0.0.1") {
		t.Errorf("the event is %s", body)
	}
	if s := b.done(t, says(b.next(t, task.Poll), task.Snapshot{Status: task.Submitted})); !s.Changed || s.Event {
		t.Errorf("recovered as %+v", s)
	}
	if got := b.get(t, id); got.TrackingDegraded {
		t.Error("a good poll left the task degraded")
	}
}

// TASK-027
func permanent(t *testing.T, b Bench) {
	for n, reason := range map[int]string{1: task.ProtocolError, 2: task.Untrusted} {
		id := b.submit(t, n).ID
		long := strings.Repeat("é", 5000)
		s := b.done(t, fails(b.next(t, task.Poll), task.Failure{Reason: reason, Message: long, Permanent: reason}))
		got := b.get(t, id)
		if got.Status != task.Failed || got.FailureReason != reason || got.Error != long[:2*task.MaxErrorChars] || !s.Event {
			t.Errorf("the task is %s, %s, with an error of %d bytes; event %v", got.Status, got.FailureReason, len(got.Error), s.Event)
		}
		if a := got.Attempts; len(a) != 1 || a[0].Outcome != reason || !a[0].NextDue.IsZero() {
			t.Errorf("attempts: %+v", a)
		}
	}
}
