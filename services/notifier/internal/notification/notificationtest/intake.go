package notificationtest

import (
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

var intakeTests = map[string]func(*testing.T, *fixture){
	"an event goes to the sink that it names, else to the given one":         addressed,
	"every field of an event reaches its claim":                              fieldsSurvive,
	"a newer event replaces an undelivered one and restarts its counters":    newerReplaces,
	"a newer event takes the place of one that failed, at the next attempt":  newerAfterRetry,
	"an older event that comes late, and the same again, change nothing":     olderIsIgnored,
	"an event that is under way keeps its place, the newer follows":          inFlightKeeps,
	"of two events that come during an attempt the newest follows":           newestFollows,
	"a lease that runs out is followed by the newest event":                  newestAfterLostLease,
	"a dead letter revives with a newer event":                               deadLetterRevives,
	"a delivered task is delivered again with its next event":                nextAfterDelivered,
	"an event that no sink can be told is a dead letter and hinders nothing": unfit,
	"intake takes what there is, up to the limit":                            intakeLimit,
}

func addressed(t *testing.T, f *fixture) {
	f.record(event("a", 1), to(chat, event("b", 1)), to("", event("c", 1)), to(chat, event("a", 2)))
	got := map[string]string{}
	for _, n := range f.list(notification.Filter{}) {
		got[n.EventID] = n.Sink
		if n.Status != notification.Pending || n.NextAttempt.IsZero() || n.NextAttempt.Location() != time.UTC {
			t.Errorf("%s is %s, due at %v, want pending and due", n.EventID, n.Status, n.NextAttempt)
		}
		if !regexp.MustCompile(`^ntf_[0-9a-f]{32}$`).MatchString(n.ID) {
			t.Errorf("the id is %s", n.ID)
		}
	}
	if diff := cmp.Diff(map[string]string{"a:1": ops, "b:1": chat, "c:1": feed, "a:2": chat}, got); diff != "" {
		t.Errorf("sinks (-want +got):\n%s", diff)
	}
}

func fieldsSurvive(t *testing.T, f *fixture) {
	began := time.Now().Add(-time.Minute)
	e := outbox.Event{
		TaskID: "task_1", Version: 9007199254740993, Scope: authn.Scope{UserID: "ünï", ThreadID: "t 1"}, Sink: ops, TaskName: "a <b>",
		Body:  []byte(`{"z":"nul \u0000, half a pair \ud800, ünïcode <&>",  "a":[1.10, 1e400, 9007199254740993]}`),
		RunID: "run_7", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	f.record(e)
	c := f.claimOne()
	want := notification.Event{
		ID: "task_1:9007199254740993", TaskID: e.TaskID, Version: e.Version, TaskName: e.TaskName, Scope: e.Scope, RunID: e.RunID,
		Body: e.Body, Traceparent: e.Traceparent, Created: c.Event.Created,
	}
	if diff := cmp.Diff(want, c.Event); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	if c.Event.Created.Before(began) || c.Event.Created.After(time.Now().Add(time.Minute)) || c.Event.Created.Location() != time.UTC {
		t.Errorf("it was created at %v", c.Event.Created)
	}
	n := f.of("task_1")
	wantN := &notification.Notification{
		ID: c.ID, EventID: c.Event.ID, TaskID: e.TaskID, EventVersion: e.Version, Sink: ops, Scope: e.Scope,
		Status: notification.Claimed, NextAttempt: n.NextAttempt, Created: c.Event.Created,
	}
	if diff := cmp.Diff(wantN, n); diff != "" {
		t.Errorf("notification (-want +got):\n%s", diff)
	}
}

// NOTE-005
func newerReplaces(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	f.settle(f.claimOne(), notification.Deferred, after(time.Hour))
	f.record(event("a", 2))
	n := f.stands("a", 2, notification.Pending)
	if n.EventID != "a:2" || n.LastError != "" {
		t.Errorf("it is %+v", n)
	}
	if c := f.claimOne(); c.Event.ID != "a:2" || string(c.Event.Body) != string(event("a", 2).Body) {
		t.Errorf("claimed %+v, want event 2, due at once", c)
	}
}

func newerAfterRetry(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	c := f.claimOne()
	f.settle(c, notification.Handed, as("run_1"))
	f.settle(f.claimOne(), notification.Redispatch, after(time.Hour), because("the run failed"))
	f.record(event("a", 3))
	if n := f.of("a"); n.EventVersion != 3 || n.AttemptCount != 0 || n.LastError != "" {
		t.Errorf("it is %+v, want event 3 with fresh counters", n)
	}
	if claims := f.claim(ops); len(claims) != 0 {
		t.Errorf("claimed %v during the back-off of the sink", claims)
	}
	f.pass(time.Hour)
	if c := f.claimOne(); c.Event.Version != 3 || c.AttemptCount != 0 || c.DispatchAttempt != 0 || c.RunID != "" {
		t.Errorf("claimed %+v, want event 3 as if nothing had failed", c)
	}
}

// NOTE-005
func olderIsIgnored(t *testing.T, f *fixture) {
	f.record(event("a", 5))
	f.settle(f.claimOne(), notification.Failed, after(time.Hour), because("no"))
	before := f.of("a")
	same := event("a", 5)
	same.Body = []byte(`{"other":true}`)
	f.record(event("a", 4), same, event("a", 1))
	if diff := cmp.Diff(before, f.of("a")); diff != "" {
		t.Errorf("late events changed (-before +after):\n%s", diff)
	}
	f.pass(time.Hour)
	c := f.claimOne()
	f.record(event("a", 3), same)
	f.settle(c, notification.Done)
	f.stands("a", 5, notification.Delivered)
	f.record(event("a", 4), same)
	f.stands("a", 5, notification.Delivered)

	// Both at once.
	f.add(event("b", 2), event("b", 1), event("b", 2))
	if n, err := f.Intake(t.Context(), feed, 100); n != 3 || err != nil {
		t.Fatalf("took %d, %v", n, err)
	}
	f.stands("b", 2, notification.Pending)
}

// NOTE-005
func inFlightKeeps(t *testing.T, f *fixture) {
	for name, tt := range map[string]struct {
		verdict notification.Verdict
		due     bool // at once, else after the delay
	}{
		"done":     {notification.Done, true},
		"dead":     {notification.Dead, true},
		"failed":   {notification.Failed, false},
		"deferred": {notification.Deferred, false},
	} {
		f.record(event(name, 1))
		c := f.claimOne()
		f.record(event(name, 2))
		if n := f.stands(name, 1, notification.Claimed); n.WaitingVersion != 2 {
			t.Errorf("%s: version %d waits, want 2", name, n.WaitingVersion)
		}
		f.settle(c, tt.verdict, after(time.Hour))
		if n := f.stands(name, 2, notification.Pending); n.AttemptCount != 0 || n.WaitingVersion != 0 || !n.Delivered.IsZero() || len(n.Attempts) != 1 || n.Attempts[0].EventVersion != 1 {
			t.Errorf("%s: it is %+v, want fresh counters and one attempt of event 1", name, n)
		}
		if !tt.due {
			if claims := f.claim(ops); len(claims) != 0 {
				t.Errorf("%s: claimed %v before the delay", name, claims)
			}
			f.pass(time.Hour)
		}
		if c = f.claimOne(); c.Event.Version != 2 || string(c.Event.Body) != string(event(name, 2).Body) {
			t.Errorf("%s: claimed %+v, want event 2", name, c)
		}
		f.settle(c, notification.Done)
		f.stands(name, 2, notification.Delivered)
	}
}

// NOTE-005
func newestFollows(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	f.settle(f.claimOne(), notification.Handed, as("run_1"))
	f.record(event("a", 2), event("a", 4), event("a", 3))
	c := f.claimOne()
	if c.Phase != notification.Dispatched || c.Event.Version != 1 || c.RunID != "run_1" || string(c.Event.Body) != string(event("a", 1).Body) {
		t.Fatalf("claimed %+v, want the run of event 1", c)
	}
	f.settle(c, notification.Failed, because("look-up failed"))
	c = f.claimOne()
	if c.Event.Version != 1 || c.RunID != "run_1" || c.AttemptCount != 1 {
		t.Fatalf("claimed %+v, want the run of event 1 again", c)
	}
	f.settle(c, notification.Redispatch)
	if c = f.claimOne(); c.Event.Version != 4 || c.AttemptCount != 0 || c.DispatchAttempt != 0 || c.Phase != notification.Claimed {
		t.Errorf("claimed %+v, want event 4 with fresh counters", c)
	}
}

func newestAfterLostLease(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	lost := f.claimOne()
	f.record(event("a", 2))
	f.pass(lease)
	c := f.claimOne()
	if c.Event.Version != 2 || c.Fence <= lost.Fence {
		t.Errorf("claimed %+v, want event 2 with a higher fence than %d", c, lost.Fence)
	}
	if f.trySettle(lost, notification.Done) {
		t.Error("the lost lease settled")
	}
	f.settle(c, notification.Done)
}

// NOTE-010
func deadLetterRevives(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	f.settle(f.claimOne(), notification.Failed)
	f.settle(f.claimOne(), notification.Dead, because("410 Gone"))
	n := f.stands("a", 1, notification.DeadLetter)
	if n.LastError != "410 Gone" || !n.NextAttempt.IsZero() {
		t.Errorf("it is %+v", n)
	}
	if claims := f.claim(ops); len(claims) != 0 {
		t.Errorf("claimed the dead letter: %v", claims)
	}
	f.record(event("a", 1)) // the same is no reason
	f.stands("a", 1, notification.DeadLetter)
	f.record(event("a", 2))
	f.stands("a", 2, notification.Pending)
	if c := f.claimOne(); c.Event.Version != 2 || c.AttemptCount != 0 {
		t.Errorf("claimed %+v, want event 2 with fresh counters", c)
	}
}

func nextAfterDelivered(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	f.settle(f.claimOne(), notification.Done)
	if n := f.stands("a", 1, notification.Delivered); n.Delivered.IsZero() || !n.NextAttempt.IsZero() {
		t.Errorf("it is %+v", n)
	}
	f.record(event("a", 2))
	if n := f.stands("a", 2, notification.Pending); !n.Delivered.IsZero() {
		t.Errorf("event 2 was delivered at %v", n.Delivered)
	}
	f.settle(f.claimOne(), notification.Done)
	if n := f.stands("a", 2, notification.Delivered); len(n.Attempts) != 2 || n.Attempts[0].EventVersion != 2 || n.Attempts[1].EventVersion != 1 {
		t.Errorf("attempts are %+v, want those of both events", n.Attempts)
	}
}

// NOTE-021 (in part: that such an event waits for an operator and blocks nothing)
func unfit(t *testing.T, f *fixture) {
	f.add(event("a", 1), event("b", 1), event("c", 1))
	f.spoil("b")
	if n, err := f.Intake(t.Context(), feed, 100); n != 3 || err != nil {
		t.Fatalf("took %d, %v, want 3", n, err)
	}
	if claims := f.claim(ops); len(claims) != 2 || claims[0].Event.TaskID == "b" || claims[1].Event.TaskID == "b" {
		t.Errorf("claimed %v, want a and c", claims)
	}
	n := f.stands("b", 1, notification.DeadLetter)
	if n.LastError == "" {
		t.Error("nothing says why")
	}
	f.redrive(notification.Redrive{ID: n.ID, Actor: "ada"}, 0)
	f.stands("b", 1, notification.DeadLetter)
	f.record(event("b", 2))
	f.stands("b", 2, notification.Pending)

	// One that comes during an attempt.
	c := f.claimOne()
	f.add(event("b", 3))
	f.spoil("b")
	if _, err := f.Intake(t.Context(), feed, 100); err != nil {
		t.Fatal(err)
	}
	f.settle(c, notification.Done)
	f.stands("b", 3, notification.DeadLetter)
}

func intakeLimit(t *testing.T, f *fixture) {
	f.add(event("a", 1), event("b", 1), event("c", 1))
	for _, want := range []int{2, 1, 0} {
		if n, err := f.Intake(t.Context(), feed, 2); n != want || err != nil {
			t.Errorf("took %d, %v, want %d", n, err, want)
		}
	}
	if n := f.count("outbox"); n != 0 {
		t.Errorf("%d events are left in the outbox", n)
	}
}
