package notificationtest

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

var operatorTests = map[string]func(*testing.T, *fixture){
	"an unknown delivery is not found":                               notFound,
	"the list has the newest first, page by page":                    pages,
	"the list is filtered by state, sink, task and time":             filters,
	"a page token that no list returned is refused":                  badTokens,
	"a redrive by id sends the same event again with fresh counters": redriveOne,
	"a redrive takes the lease of who is sending":                    redriveInFlight,
	"a redrive by filter counts, and a dry run only counts":          redriveMany,
	"a redriven delivery is claimed though its sink is paused":       redrivePaused,
	"a paused sink uses up nothing, a resumed one is due at once":    pausing,
	"the state of a sink counts what waits and what is dead":         sinkStates,
	"what is done goes after its retention, the oldest first":        pruning,
}

func notFound(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	for _, id := range []string{"", "a", "ntf_00000000000000000000000000000000"} {
		if n, err := f.Get(t.Context(), id); !fault.Is(err, fault.NotificationNotFound) {
			t.Errorf("Get(%q) = %v, %v, want NOTIFICATION_NOT_FOUND", id, n, err)
		}
		if id == "" {
			continue // a redrive of what the filter chooses
		}
		for _, dry := range []bool{false, true} {
			if n, err := f.Redrive(t.Context(), notification.Redrive{ID: id, DryRun: dry}); n != 0 || !fault.Is(err, fault.NotificationNotFound) {
				t.Errorf("Redrive(%q) = %d, %v, want NOTIFICATION_NOT_FOUND", id, n, err)
			}
		}
	}
}

func pages(t *testing.T, f *fixture) {
	var want []string
	for i := range 7 {
		f.record(event(fmt.Sprint("task_", i), 1))
		if i%3 == 0 {
			f.shift("notification_delivery", "event_time", time.Second) // otherwise some are of the same moment
		}
	}
	for _, n := range f.list(notification.Filter{}) {
		want = append(want, n.ID)
		if len(want) > 1 && n.Created.After(f.byID(want[len(want)-2]).Created) {
			t.Errorf("%s is newer than the one before", n.TaskID)
		}
	}
	var got []string
	filter := notification.Filter{Limit: 3}
	for range 10 {
		p, err := f.List(t.Context(), filter)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range p.Notifications {
			got = append(got, n.ID)
		}
		if filter.After = p.Next; p.Next == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) != 7 {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
}

func (f *fixture) byID(id string) *notification.Notification {
	f.t.Helper()
	n, err := f.Get(f.t.Context(), id)
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

func filters(t *testing.T, f *fixture) {
	f.record(event("old", 1))
	f.shift("notification_delivery", "event_time", time.Hour)
	f.record(event("a", 1), to(chat, event("a", 1)), to(chat, event("b", 1)), event("dead", 1))
	for _, c := range f.claim(ops) {
		if c.Event.TaskID == "dead" {
			f.settle(c, notification.Dead)
		}
	}
	old := f.of("old").Created
	for name, tt := range map[string]struct {
		filter notification.Filter
		want   int
	}{
		"all":                 {notification.Filter{}, 5},
		"one state":           {notification.Filter{Statuses: []notification.Status{notification.DeadLetter}}, 1},
		"two states":          {notification.Filter{Statuses: []notification.Status{notification.DeadLetter, notification.Pending}}, 3},
		"a sink":              {notification.Filter{Sink: chat}, 2},
		"a task":              {notification.Filter{TaskID: "a"}, 2},
		"a task of a sink":    {notification.Filter{TaskID: "a", Sink: chat}, 1},
		"since the oldest":    {notification.Filter{Since: old}, 5},
		"since just after it": {notification.Filter{Since: old.Add(time.Microsecond)}, 4},
		"everything at once":  {notification.Filter{Statuses: []notification.Status{notification.Claimed}, Sink: ops, TaskID: "a", Since: old}, 1},
		"another sink":        {notification.Filter{Sink: "none"}, 0},
		"a state without any": {notification.Filter{Statuses: []notification.Status{notification.Retry}}, 0},
	} {
		if got := f.list(tt.filter); len(got) != tt.want {
			t.Errorf("%s: %d, want %d", name, len(got), tt.want)
		}
		n, err := f.Redrive(t.Context(), notification.Redrive{Filter: tt.filter, DryRun: true})
		if err != nil || n != int64(tt.want) {
			t.Errorf("%s: a redrive would take %d, %v, want %d", name, n, err, tt.want)
		}
	}
}

func badTokens(t *testing.T, f *fixture) {
	f.record(event("a", 1), event("b", 1))
	p, err := f.List(t.Context(), notification.Filter{Limit: 1})
	if err != nil || p.Next == "" {
		t.Fatalf("%+v, %v", p, err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	id := p.Notifications[0].ID
	for _, token := range []string{
		"x", p.Next + "A", p.Next + "=", p.Next[1:], encode([]byte("1")), encode([]byte("1 " + id[:35])), encode([]byte("1 " + id + "0")),
		encode([]byte("-1 " + id)), encode([]byte("01 " + id)), encode([]byte("9223372036854775807 " + id)), encode([]byte("1 ntf_' or true --")), "\x00",
	} {
		if _, err := f.List(t.Context(), notification.Filter{Limit: 1, After: token}); !fault.Is(err, fault.InvalidArguments) {
			t.Errorf("token %q: %v, want INVALID_ARGUMENTS", token, err)
		}
	}
}

// NOTE-019
func redriveOne(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	for range 3 {
		f.settle(f.claimOne(), notification.Handed, as("run_1"))
		f.settle(f.claimOne(), notification.Redispatch, because("the run failed"))
	}
	f.settle(f.claimOne(), notification.Dead, because("tried too often"))
	before := f.of("a")
	f.redrive(notification.Redrive{ID: before.ID, Actor: "ada", DryRun: true}, 1)
	if diff := cmp.Diff(before, f.of("a")); diff != "" {
		t.Fatalf("a dry run changed (-before +after):\n%s", diff)
	}
	f.redrive(notification.Redrive{ID: before.ID, Actor: "ada"}, 1)
	n := f.stands("a", 1, notification.Pending)
	if n.EventID != before.EventID || n.AttemptCount != 0 || n.RedriveActor != "ada" || n.RedriveTime.IsZero() || len(n.Attempts) != 4 {
		t.Errorf("it is %+v", n)
	}
	c := f.claimOne()
	if c.Event.ID != "a:1" || c.AttemptCount != 0 || !c.Redriven || c.Phase != notification.Claimed {
		t.Errorf("claimed %+v, want a:1 without failures, redriven", c)
	}
	// The runtime would answer a repeated dispatch attempt with the run that failed.
	if c.DispatchAttempt <= 3 {
		t.Errorf("the dispatch attempt is %d, one that was used", c.DispatchAttempt)
	}
	f.settle(c, notification.Done)

	// What was delivered can be delivered again, too.
	f.redrive(notification.Redrive{ID: n.ID, Actor: "bob"}, 1)
	if n := f.stands("a", 1, notification.Pending); !n.Delivered.IsZero() || n.RedriveActor != "bob" {
		t.Errorf("it is %+v", n)
	}
	f.settle(f.claimOne(), notification.Done)
	f.stands("a", 1, notification.Delivered)
}

// NOTE-007, NOTE-019
func redriveInFlight(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	old := f.claimOne()
	f.redrive(notification.Redrive{ID: old.ID, Actor: "ada"}, 1)
	if f.trySettle(old, notification.Dead) {
		t.Error("the attempt of before the redrive settled")
	}
	f.settle(f.claimOne(), notification.Handed, as("run_1"))
	f.record(event("a", 2))
	f.redrive(notification.Redrive{ID: old.ID, Actor: "ada"}, 1)
	if c := f.claimOne(); c.Event.Version != 2 || c.Phase != notification.Claimed || !c.Redriven || c.RunID != "" {
		t.Errorf("claimed %+v, want the newest event", c)
	}
}

// NOTE-019
func redriveMany(t *testing.T, f *fixture) {
	f.record(event("old", 1))
	f.settle(f.claimOne(), notification.Dead)
	f.shift("notification_delivery", "event_time", time.Hour)
	f.record(event("a", 1), to(chat, event("b", 1)), event("c", 1))
	for _, c := range f.claim(ops, chat) {
		if c.Event.TaskID != "c" {
			f.settle(c, notification.Dead)
		}
	}
	dead := []notification.Status{notification.DeadLetter}
	r := notification.Redrive{Actor: "ada", Filter: notification.Filter{Statuses: dead, Sink: ops, Since: f.of("old").Created.Add(time.Second), Limit: 1, After: "ignored"}}
	r.DryRun = true
	f.redrive(r, 1)
	if n := len(f.list(notification.Filter{Statuses: dead})); n != 3 {
		t.Errorf("%d are dead after a dry run, want 3", n)
	}
	r.DryRun = false
	f.redrive(r, 1)
	f.stands("a", 1, notification.Pending)
	r.Filter = notification.Filter{Statuses: dead}
	f.redrive(r, 2)
	f.redrive(r, 0)
	f.stands("c", 1, notification.Claimed)

	// More than one batch, and what a redrive makes pending is not redriven by the same call.
	for i := range 1200 {
		f.add(to(chat, event(fmt.Sprint("many_", i), 1)))
	}
	if n, err := f.Intake(t.Context(), feed, 2000); n != 1200 || err != nil {
		t.Fatalf("took %d, %v", n, err)
	}
	f.redrive(notification.Redrive{Actor: "ada", Filter: notification.Filter{Statuses: []notification.Status{notification.Pending}, Sink: chat}}, 1201)
}

// NOTE-019
func redrivePaused(t *testing.T, f *fixture) {
	f.record(event("a", 1), event("b", 1), to(chat, event("c", 1)))
	f.pause(ops, true)
	f.pause(chat, true)
	f.redrive(notification.Redrive{ID: f.of("a").ID, Actor: "ada"}, 1)
	f.redrive(notification.Redrive{ID: f.of("c").ID, Actor: "ada"}, 1)
	// Whether the notifier knows of the pause or not.
	for _, sinks := range [][]string{nil, {ops}} {
		claims := f.claimAs(notification.ClaimRequest{Notifier: "n1", Sinks: sinks, Known: []string{ops}, Limit: 100, Lease: lease})
		if len(claims) != 1 || claims[0].Event.TaskID != "a" || !claims[0].Redriven {
			t.Fatalf("claimed %+v, want a alone", claims)
		}
		f.settle(claims[0], notification.Failed) // its retries ignore the pause as well
	}
	f.settle(f.claimOne(), notification.Done)
	f.record(event("a", 2))
	if claims := f.claim(ops); len(claims) != 0 {
		t.Errorf("claimed %+v: a later event is not redriven", claims)
	}
}

func pausing(t *testing.T, f *fixture) {
	f.record(event("a", 1), to(chat, event("c", 1)))
	f.settle(f.claimOne(), notification.Failed, after(time.Hour))
	f.record(event("b", 1))
	f.pause(ops, true)
	f.pause(ops, true)
	if claims := f.claim(ops, chat); len(claims) != 1 || claims[0].Sink != chat {
		t.Errorf("claimed %+v, want that of the other sink alone", claims)
	}
	if n := f.of("a"); n.AttemptCount != 1 || n.Status != notification.Retry {
		t.Errorf("the pause changed %+v", n)
	}
	f.pause(ops, false)
	if claims := f.claim(ops); len(claims) != 2 {
		t.Errorf("claimed %+v, want both, due at once", claims)
	}
	f.pause(ops, false)
}

func sinkStates(t *testing.T, f *fixture) {
	f.record(event("a", 1), event("b", 1), event("c", 1), event("d", 1), to(chat, event("e", 1)))
	for _, c := range f.claim(ops) {
		switch c.Event.TaskID {
		case "a":
			f.settle(c, notification.Done)
		case "b":
			f.settle(c, notification.Dead)
		case "c":
			f.settle(c, notification.Failed)
		}
	}
	f.pause(chat, true)
	got, err := f.SinkStates(t.Context(), []string{ops, chat, feed})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]notification.SinkState{
		ops:  {Pending: 2, DeadLetters: 1},
		chat: {Paused: true, PauseReason: "it failed", Pending: 1},
		feed: {},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	f.pause(chat, false)
	if got, err = f.SinkStates(t.Context(), []string{chat}); err != nil || got[chat] != (notification.SinkState{Pending: 1}) || len(got) != 1 {
		t.Errorf("after the pause: %v, %v", got, err)
	}
}

func pruning(t *testing.T, f *fixture) {
	for _, task := range []string{"oldest", "dead", "pending", "waiting"} {
		f.record(event(task, 1))
		f.shift("notification_delivery", "event_time", time.Hour)
		switch c := f.claimOne(); task {
		case "oldest":
			f.settle(c, notification.Done)
		case "dead":
			f.settle(c, notification.Dead)
		default:
			f.settle(c, notification.Failed, after(time.Hour))
		}
	}
	f.record(event("young", 1))
	f.settle(f.claimOne(), notification.Done)
	prune := func(retention time.Duration, limit, want int) {
		t.Helper()
		if n, err := f.Prune(t.Context(), retention, limit); n != want || err != nil {
			t.Errorf("pruned %d, %v, want %d", n, err, want)
		}
	}
	prune(100*time.Hour, 10, 0)
	prune(30*time.Minute, 1, 1)
	if len(f.list(notification.Filter{TaskID: "oldest"})) != 0 {
		t.Error("the oldest is still there")
	}
	prune(30*time.Minute, 10, 1)
	prune(30*time.Minute, 10, 0)
	if n := len(f.list(notification.Filter{})); n != 3 {
		t.Errorf("%d are left, want the young one and the two that wait", n)
	}
	if n := f.count("notification_attempt"); n != 3 {
		t.Errorf("%d attempts are left, want 3", n)
	}
}
