package notificationtest

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

var claimTests = map[string]func(*testing.T, *fixture){
	"claims come by due time, then id, up to the limit":                   claimOrder,
	"pending, claimed, retry and dispatched are claimed when due":         claimPredicate,
	"a lease keeps others away until it has run out":                      claimLease,
	"only deliveries to the sinks that are asked for are claimed":         claimSinks,
	"a renewed lease lasts, a lost one is named":                          renewal,
	"the next due time is that of the first delivery that can be claimed": nextDue,
}

// NOTE-006
func claimOrder(t *testing.T, f *fixture) {
	f.record(event("a", 1), event("b", 1), to(chat, event("c", 1)), event("d", 1), event("e", 1))
	// All are due at the same time, but for d, which is due later.
	f.exec("update notification_delivery set due_time = (select min(due_time) from notification_delivery)")
	f.pass(time.Hour)
	f.exec("update notification_delivery set due_time = event_time where task_id = 'd'")
	var want []string
	for _, n := range f.list(notification.Filter{}) {
		if n.TaskID != "d" {
			want = append(want, n.ID)
		}
	}
	slices.Sort(want)
	want = append(want, f.of("d").ID)

	var got []string
	for _, limit := range []int{0, 2, 1, 100, 100} {
		claims := f.claimAs(notification.ClaimRequest{Notifier: "n1", Sinks: []string{ops, chat}, Limit: limit, Lease: lease})
		if len(claims) > limit {
			t.Errorf("claimed %d, the limit is %d", len(claims), limit)
		}
		for _, c := range claims {
			got = append(got, c.ID)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

// NOTE-006
func claimPredicate(t *testing.T, f *fixture) {
	for _, name := range []string{"pending", "claimed", "retry", "dispatched", "delivered", "dead_letter"} {
		f.record(event(name, 1))
		if name == "pending" {
			continue
		}
		for _, c := range f.claim(ops) {
			switch c.Event.TaskID {
			case "retry":
				f.settle(c, notification.Failed, after(time.Hour))
			case "dispatched":
				f.settle(c, notification.Handed, as("run_1"), after(time.Hour))
			case "delivered":
				f.settle(c, notification.Done)
			case "dead_letter":
				f.settle(c, notification.Dead)
			}
		}
	}
	for _, n := range f.list(notification.Filter{}) {
		if want := map[bool]string{true: "claimed", false: n.TaskID}[n.TaskID == "pending"]; string(n.Status) != want {
			t.Fatalf("%s is %s", n.TaskID, n.Status)
		}
	}
	if claims := f.claim(ops); len(claims) != 0 {
		t.Errorf("claimed %v, none of which is due", claims)
	}
	f.pass(2 * time.Hour)
	got := map[string]notification.Status{}
	for _, c := range f.claim(ops) {
		got[c.Event.TaskID] = c.Phase
	}
	want := map[string]notification.Status{
		"pending": notification.Claimed, "claimed": notification.Claimed, "retry": notification.Claimed, "dispatched": notification.Dispatched,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

// NOTE-003 (in part: the event id over a crash), NOTE-006
func claimLease(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	first := f.claimOne()
	if claims := f.claimAs(notification.ClaimRequest{Notifier: "n2", Sinks: []string{ops}, Limit: 100, Lease: lease}); len(claims) != 0 {
		t.Errorf("claimed %v, which another notifier holds", claims)
	}
	f.pass(lease)
	second := f.claimAs(notification.ClaimRequest{Notifier: "n2", Sinks: []string{ops}, Limit: 100, Lease: lease})
	if len(second) != 1 || second[0].ID != first.ID || second[0].Fence <= first.Fence {
		t.Fatalf("claimed %+v after the lease of %+v", second, first)
	}
	want := first
	want.Fence = second[0].Fence
	if diff := cmp.Diff(want, second[0]); diff != "" {
		t.Errorf("the attempt is not repeated as it was (-first +second):\n%s", diff)
	}
}

func claimSinks(t *testing.T, f *fixture) {
	f.record(event("a", 1), to(chat, event("b", 1)), to(feed, event("c", 1)))
	if claims := f.claim("none"); len(claims) != 0 {
		t.Errorf("claimed %v for another sink", claims)
	}
	if claims := f.claim(); len(claims) != 0 {
		t.Errorf("claimed %v for no sink", claims)
	}
	if claims := f.claim(chat, chat); len(claims) != 1 || claims[0].Event.TaskID != "b" || claims[0].Sink != chat {
		t.Errorf("claimed %v, want b", claims)
	}
}

func renewal(t *testing.T, f *fixture) {
	f.record(event("kept", 1), event("expired", 1), event("settled", 1), event("taken", 1))
	claims := map[string]notification.Claim{}
	for _, c := range f.claim(ops) {
		claims[c.Event.TaskID] = c
	}
	f.settle(claims["settled"], notification.Done)
	f.exec("update notification_delivery set fence = fence + 1 where task_id = 'taken'")
	f.pass(lease / 2)
	f.exec("update notification_delivery set due_time = event_time where task_id = 'expired'")
	unknown := claims["kept"]
	unknown.ID = "ntf_00000000000000000000000000000000"

	lost, err := f.Renew(t.Context(), []notification.Claim{claims["taken"], claims["kept"], unknown, claims["settled"], claims["expired"]}, lease)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{claims["taken"].ID, unknown.ID, claims["settled"].ID, claims["expired"].ID}
	if diff := cmp.Diff(want, lost); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	f.pass(lease * 3 / 4) // past the first lease
	f.settle(claims["kept"], notification.Done)
	if lost, err := f.Renew(t.Context(), nil, lease); err != nil || len(lost) != 0 {
		t.Errorf("renewing nothing: %v, %v", lost, err)
	}
}

func nextDue(t *testing.T, f *fixture) {
	wait := func(sinks ...string) (time.Duration, bool) {
		t.Helper()
		d, ok, err := f.NextDue(t.Context(), sinks)
		if err != nil {
			t.Fatal(err)
		}
		return d, ok
	}
	in := func(want time.Duration, sinks ...string) {
		t.Helper()
		if d, ok := wait(sinks...); !ok || d > want || d < want-30*time.Second {
			t.Errorf("next due of %v in %v, %v, want %v", sinks, d, ok, want)
		}
	}
	none := func(sinks ...string) {
		t.Helper()
		if d, ok := wait(sinks...); ok {
			t.Errorf("next due of %v in %v, want never", sinks, d)
		}
	}
	none(ops, chat)
	f.record(event("a", 1), to(chat, event("b", 1)))
	in(0, ops)
	in(0, chat, ops)
	none(feed)
	none()
	a := f.claimOne()
	in(lease, ops)
	f.settle(a, notification.Failed, after(time.Hour))
	in(time.Hour, ops)
	f.pause(chat, true)
	none(chat)
	f.redrive(notification.Redrive{Filter: notification.Filter{Sink: chat}, Actor: "ada"}, 1)
	in(0, chat)
	f.settle(f.claim(chat)[0], notification.Done)
	f.pause(chat, false)
	none(chat)
	f.pass(time.Hour)
	f.settle(f.claimOne(), notification.Dead)
	none(ops, chat)
}
