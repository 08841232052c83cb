package notificationtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

var streamTests = map[string]func(*testing.T, *fixture){
	"an event comes again until it is acknowledged":                                comesAgain,
	"consumers of a group share its events":                                        sharing,
	"every group gets every event, the first acknowledgement delivers":             groups,
	"a group that comes later gets what nobody acknowledged, and all that follows": lateGroup,
	"a newer event takes the place of the older one in every group":                newerInStream,
	"what a consumer gives up is read at once, and in time by who is further":      releasing,
	"a reader that goes on after a token gets what follows, in order":              resuming,
	"a reader gets the events of its scope":                                        scopes,
	"an acknowledgement needs the event, its sink and its scope":                   foreignAck,
	"a redriven event is offered again to every group, and comes after a token":    redrivenInStream,
	"events that nobody reads go after their retention, idle groups too":           forgetting,
}

// read reads up to 100 events of feed as a consumer of a group, and returns their ids.
func (f *fixture) read(group string, after int64) []string {
	f.t.Helper()
	var ids []string
	for _, e := range f.next(notification.StreamRequest{Group: group, After: after}) {
		ids = append(ids, e.Event.ID)
	}
	return ids
}

func (f *fixture) next(r notification.StreamRequest) []notification.StreamEvent {
	f.t.Helper()
	if r.Sink == "" {
		r.Sink = feed
	}
	if r.Limit == 0 {
		r.Limit = 100
	}
	if r.Consumer == "" {
		r.Consumer = "c1"
	}
	r.Lease = lease
	events, err := f.Next(f.t.Context(), r)
	if err != nil {
		f.t.Fatal(err)
	}
	return events
}

func (f *fixture) reads(group string, after int64, want ...string) {
	f.t.Helper()
	if got := f.read(group, after); !slices.Equal(got, want) {
		f.t.Errorf("group %s reads %v after %d, want %v", group, got, after, want)
	}
}

func (f *fixture) ack(group, eventID string) {
	f.t.Helper()
	if err := f.Ack(f.t.Context(), feed, group, eventID, ada); err != nil {
		f.t.Errorf("acknowledging %s for %s: %v", eventID, group, err)
	}
}

// passStream lets d pass for the leases of consumers.
func (f *fixture) passStream(d time.Duration) {
	f.t.Helper()
	f.shift("notification_offer", "lease_expire_time", d)
}

// NOTE-018
func comesAgain(t *testing.T, f *fixture) {
	f.record(to("", event("a", 1)), to("", event("b", 1)))
	f.reads("g", 0, "a:1", "b:1")
	f.reads("g", 0)
	f.ack("g", "a:1")
	if n := f.stands("a", 1, notification.Delivered); n.Delivered.IsZero() || len(n.Attempts) != 1 || n.Attempts[0].Outcome != "delivered" {
		t.Errorf("it is %+v, want one attempt", n)
	}
	f.passStream(lease - time.Second)
	f.reads("g", 0)
	for range 3 {
		f.passStream(lease)
		f.reads("g", 1<<40, "b:1") // wherever the reader is
		f.stands("b", 1, notification.Pending)
	}
	f.ack("g", "b:1")
	f.ack("g", "b:1")
	f.passStream(lease)
	f.reads("g", 0)
	if n := f.stands("b", 1, notification.Delivered); len(n.Attempts) != 1 {
		t.Errorf("a repeated acknowledgement made %d attempts", len(n.Attempts))
	}
	if claims := f.claim(ops, chat); len(claims) != 0 {
		t.Errorf("claimed %v of the stream", claims)
	}
}

// NOTE-018
func sharing(t *testing.T, f *fixture) {
	var want, got []string
	for i := range 9 {
		id := fmt.Sprint("t", i)
		f.record(to("", event(id, 1)))
		want = append(want, id+":1")
	}
	for i := range 4 {
		events, err := f.Next(t.Context(), notification.StreamRequest{Sink: feed, Group: "g", Consumer: fmt.Sprint("c", i), Limit: 3, Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			got = append(got, e.Event.ID)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the consumers got (-want +got):\n%s", diff)
	}
	if events := f.next(notification.StreamRequest{Group: "g", Limit: -1}); len(events) != 0 {
		t.Errorf("a reader of nothing got %v", events)
	}
}

func groups(t *testing.T, f *fixture) {
	f.reads("g", 0)
	f.reads("h", 0)
	f.record(to("", event("a", 1)))
	e := f.next(notification.StreamRequest{Group: "g"})
	if len(e) != 1 || e[0].Sequence <= 0 {
		t.Fatalf("read %+v", e)
	}
	want := notification.Event{ID: "a:1", TaskID: "a", Version: 1, TaskName: "report", Scope: ada, Body: event("a", 1).Body, Created: f.of("a").Created}
	if diff := cmp.Diff(want, e[0].Event); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	f.ack("g", "a:1")
	f.stands("a", 1, notification.Delivered)
	f.reads("h", 0, "a:1")
	f.passStream(lease)
	f.reads("h", 0, "a:1")
	f.ack("h", "a:1")
	f.passStream(lease)
	f.reads("h", 0)
	f.reads("g", 0)
	if n := f.of("a"); len(n.Attempts) != 1 {
		t.Errorf("the second group's acknowledgement made an attempt: %+v", n.Attempts)
	}
	if n := f.count("notification_offer"); n != 0 {
		t.Errorf("%d offers are left", n)
	}
}

func lateGroup(t *testing.T, f *fixture) {
	f.record(to("", event("a", 1)), to("", event("b", 1)), to(chat, event("c", 1)))
	f.reads("g", 0, "a:1", "b:1")
	f.ack("g", "a:1")
	f.reads("h", 0, "b:1")
	f.ack("g", "b:1")
	f.record(to("", event("d", 1)))
	f.reads("g", 0, "d:1")
	f.ack("g", "d:1")
	f.passStream(lease)
	f.reads("h", 0, "b:1", "d:1")
}

// NOTE-005
func newerInStream(t *testing.T, f *fixture) {
	f.reads("h", 0)
	f.record(to("", event("a", 1)))
	f.reads("g", 0, "a:1")
	f.record(to("", event("b", 1)), to("", event("a", 2)))
	f.reads("g", 0, "b:1", "a:2")
	f.reads("h", 0, "b:1", "a:2")
	f.ack("g", "a:1") // late, and of no effect
	f.stands("a", 2, notification.Pending)
	f.passStream(lease)
	f.reads("g", 0, "b:1", "a:2")
	f.record(to("", event("a", 1)), to("", event("a", 2)))
	f.reads("g", 0)
	f.ack("g", "a:2")
	f.stands("a", 2, notification.Delivered)
	f.record(to("", event("a", 3)))
	f.stands("a", 3, notification.Pending)
	f.reads("g", 0, "a:3")
	f.reads("h", 0, "b:1", "a:3") // its lease of b ran out, too
}

// NOTE-018
func releasing(t *testing.T, f *fixture) {
	f.record(to(feed, event("a", 1)), to(feed, event("b", 1)), to(feed, event("c", 1)))
	release := func(sink, consumer string, want int) {
		t.Helper()
		if n, err := f.Release(t.Context(), sink, "g", consumer); err != nil || n != want {
			t.Errorf("released %d of %s, %v, want %d", n, consumer, err, want)
		}
	}
	first := f.next(notification.StreamRequest{Group: "g", Consumer: "one", Limit: 2})
	f.next(notification.StreamRequest{Group: "g", Consumer: "two"})
	f.next(notification.StreamRequest{Group: "other", Consumer: "one"})
	release(feed, "three", 0)
	release("elsewhere", "one", 0)
	f.reads("g", 0)
	release(feed, "one", 2)
	release(feed, "one", 0)
	f.reads("g", first[1].Sequence) // which is further
	f.reads("g", 0, "a:1", "b:1")
	f.reads("other", 0) // its own consumer has them

	f.passStream(lease - time.Second)
	release(feed, "c1", 2)
	f.ack("g", "a:1")
	f.reads("g", first[1].Sequence)
	f.passStream(2 * time.Second)
	f.reads("g", first[1].Sequence, "b:1", "c:1")
}

// NOTE-018
func resuming(t *testing.T, f *fixture) {
	var last int64
	for i := range 6 {
		f.record(to("", event(fmt.Sprint("t", i), 1)))
		if i%2 == 1 {
			continue
		}
		for _, e := range f.next(notification.StreamRequest{Group: "g", After: last}) {
			if e.Sequence <= last {
				t.Errorf("%s has sequence %d after %d", e.Event.ID, e.Sequence, last)
			}
			last = e.Sequence
		}
	}
	f.reads("g", last, "t5:1")
	f.reads("g", last)
	// What nobody of a group was given comes whatever its reader has seen: an event that another reader had locked for a
	// moment was passed over, and must not be lost.
	f.reads("h", last, "t0:1", "t1:1", "t2:1", "t3:1", "t4:1", "t5:1")
	f.reads("h", 0)
}

func scopes(t *testing.T, f *fixture) {
	all := [][3]string{{"ada", "t1", "a"}, {"ada", "t2", "b"}, {"bob", "t1", "c"}, {"bob", "t2", "d"}}
	for name, tt := range map[string]struct {
		scope authn.Scope
		want  []string
	}{
		"one":            {authn.Scope{UserID: "ada", ThreadID: "t1"}, []string{"a"}},
		"a user":         {authn.Scope{UserID: "bob"}, []string{"c", "d"}},
		"a thread":       {authn.Scope{ThreadID: "t2"}, []string{"b", "d"}},
		"all":            {authn.Scope{}, []string{"a", "b", "c", "d"}},
		"another's":      {authn.Scope{UserID: "ada", ThreadID: "t3"}, nil},
		"another user's": {authn.Scope{UserID: "eve"}, nil},
	} {
		for version := range int64(2) { // before the group came, and after
			for _, e := range all {
				f.record(in(e[0], e[1], to("", event(name+" "+e[2], version+1))))
			}
			var got, want []string
			for _, e := range f.next(notification.StreamRequest{Group: name, Scope: tt.scope}) {
				if slices.ContainsFunc(all, func(a [3]string) bool { return e.Event.TaskID == name+" "+a[2] }) {
					got = append(got, e.Event.ID)
				}
			}
			for _, w := range tt.want {
				want = append(want, fmt.Sprintf("%s %s:%d", name, w, version+1))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}

	// A group is offered what it can read, and no more.
	if n := f.count("notification_offer where group_name = 'one'"); n != len(all)-3+5*1 {
		t.Errorf("the group of one scope has %d offers", n)
	}

	// A consumer without a scope and one with a scope in the same group share.
	f.reads("both", 0, f.read("another", 0)...)
	f.record(to("", event("z", 1)))
	f.next(notification.StreamRequest{Group: "both", Scope: ada})
	f.reads("both", 0)
}

// NOTE-018
func foreignAck(t *testing.T, f *fixture) {
	f.record(to("", event("a", 2)))
	f.reads("g", 0, "a:2")
	for name, tt := range map[string]struct {
		sink, id string
		scope    authn.Scope
	}{
		"an unknown task":      {feed, "b:1", ada},
		"a version to come":    {feed, "a:3", ada},
		"another sink":         {ops, "a:2", ada},
		"another user":         {feed, "a:2", authn.Scope{UserID: "bob", ThreadID: "t1"}},
		"another thread":       {feed, "a:2", authn.Scope{UserID: "ada", ThreadID: "t2"}},
		"an old one of others": {feed, "a:1", authn.Scope{UserID: "bob"}},
		"no event id":          {feed, "a", ada},
		"no version":           {feed, "a:", ada},
		"no task":              {feed, ":2", ada},
		"an odd version":       {feed, "a:02", ada},
		"version 0":            {feed, "a:0", ada},
		"nothing":              {feed, "", ada},
	} {
		if err := f.Ack(t.Context(), tt.sink, "g", tt.id, tt.scope); !fault.Is(err, fault.NotificationNotFound) {
			t.Errorf("%s: %v, want NOTIFICATION_NOT_FOUND", name, err)
		}
	}
	f.stands("a", 2, notification.Pending)
	if err := f.Ack(t.Context(), feed, "g", "a:2", authn.Scope{}); err != nil {
		t.Errorf("an operator's acknowledgement: %v", err)
	}
	f.stands("a", 2, notification.Delivered)
}

// NOTE-019
func redrivenInStream(t *testing.T, f *fixture) {
	f.record(to("", event("a", 1)))
	f.reads("h", 0, "a:1")
	e := f.next(notification.StreamRequest{Group: "g"})
	f.ack("g", "a:1")
	f.redrive(notification.Redrive{Filter: notification.Filter{TaskID: "a"}, Actor: "ada"}, 1)
	f.reads("g", e[0].Sequence, "a:1")
	f.reads("h", e[0].Sequence, "a:1")
	f.stands("a", 1, notification.Pending)
	f.ack("h", "a:1")
	f.stands("a", 1, notification.Delivered)
}

func forgetting(t *testing.T, f *fixture) {
	f.record(to("", event("a", 1)), event("b", 1), to("gone", event("c", 1)), to("", event("d", 1)))
	f.reads("g", 0, "a:1", "d:1")
	f.ack("g", "d:1")
	f.shift("notification_delivery", "event_time", time.Hour)
	f.record(to("", event("e", 1)))
	forget := func(want int) {
		t.Helper()
		if n, err := f.Forget(t.Context(), []string{ops, chat}, 30*time.Minute, 10); n != want || err != nil {
			t.Errorf("forgot %d, %v, want %d", n, err, want)
		}
	}
	forget(2) // a, which nobody acknowledged, and c, whose sink is no more
	forget(0)
	f.stands("b", 1, notification.Pending)
	f.stands("d", 1, notification.Delivered)
	f.stands("e", 1, notification.Pending)
	if n := f.count("notification_offer"); n != 1 {
		t.Errorf("%d offers are left, want that of e", n)
	}

	// The group is idle, but for one scope.
	f.record(in("bob", "t1", to("", event("bob's", 1))))
	f.shift("notification_group", "seen_time", 2*time.Hour)
	f.next(notification.StreamRequest{Group: "g", Scope: ada})
	forget(0)
	if n, left := f.count("notification_group"), f.count("notification_offer"); n != 1 || left != 1 {
		t.Errorf("%d groups and %d offers are left, want 1 and ada's", n, left)
	}
	f.next(notification.StreamRequest{Group: "g", Scope: ada})
	f.shift("notification_group", "seen_time", 45*time.Minute)
	f.shift("notification_group", "seen_time", 45*time.Minute)
	f.next(notification.StreamRequest{Group: "g", Scope: ada}) // seen again
	forget(0)
	if n := f.count("notification_group"); n != 1 {
		t.Errorf("%d groups are left, want 1", n)
	}
}
