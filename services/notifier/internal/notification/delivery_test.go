package notification_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

func event(version int64) notification.Event {
	return notification.Event{ID: notification.EventID("a", version), TaskID: "a", Version: version, Body: []byte("{}")}
}

// walk is a delivery under random events, claims, verdicts, redrives and lost leases, and what must hold of it.
type walk struct {
	t      *testing.T
	r      *rand.Rand
	d      *notification.Delivery
	now    time.Time
	newest int64
	claims []notification.Claim // every one there was
	sent   int64                // the highest version that was claimed
}

func (w *walk) step() {
	w.now = w.now.Add(time.Duration(w.r.IntN(40)) * time.Second)
	before := *w.d
	switch w.r.IntN(6) {
	case 0:
		v := max(1, w.newest+int64(w.r.IntN(5))-2)
		if took := w.d.Record(event(v), w.now); took != (v > w.newest) {
			w.t.Fatalf("event %d after %d: taken is %v", v, w.newest, took)
		}
		w.newest = max(w.newest, v)
	case 1, 2:
		w.claim(before)
	case 3, 4:
		w.settle(before)
	case 5:
		if w.r.IntN(4) == 0 {
			w.d.Redrive("ada", w.now)
			if w.d.Status != notification.Pending || !w.d.Claimable(w.now) || w.d.Failures != 0 {
				w.t.Fatalf("a redrive made %+v", w.d)
			}
		}
	}
	w.check(before)
}

func (w *walk) claim(before notification.Delivery) {
	c, ok := w.d.Claim("n", w.now, 30*time.Second)
	if ok != before.Claimable(w.now) {
		w.t.Fatalf("claimed is %v of %+v at %v", ok, before, w.now)
	}
	if !ok {
		return
	}
	if c.Event.Version < w.sent {
		w.t.Fatalf("version %d is sent after %d", c.Event.Version, w.sent)
	}
	if w.sent = c.Event.Version; c.Phase == notification.Claimed && c.Event.Version != w.newest {
		w.t.Fatalf("a new attempt sends version %d, the newest is %d", c.Event.Version, w.newest)
	}
	if (c.Phase == notification.Dispatched) != (c.RunID != "") {
		w.t.Fatalf("phase %s with run %q", c.Phase, c.RunID)
	}
	w.claims = append(w.claims, c)
}

func (w *walk) settle(before notification.Delivery) {
	if len(w.claims) == 0 {
		return
	}
	c := w.claims[max(0, len(w.claims)-1-w.r.IntN(2))]
	verdicts := []notification.Verdict{
		notification.Done, notification.Handed, notification.Waiting, notification.Failed, notification.Redispatch, notification.Deferred, notification.Dead,
	}
	o := notification.Outcome{Claim: c, Verdict: verdicts[w.r.IntN(len(verdicts))], RunID: "run", Delay: time.Duration(w.r.IntN(60)) * time.Second, Error: "e"}
	held := before.Held(c, w.now)
	attempt, ok := w.d.Settle(o, w.now)
	switch {
	case ok && (!held || c.Fence != before.Fence):
		w.t.Fatalf("%s of a claim with fence %d was written at fence %d", o.Verdict, c.Fence, before.Fence)
	case !ok:
		if diff := cmp.Diff(&before, w.d); diff != "" || attempt != nil {
			w.t.Fatalf("a refused %s changed:\n%s", o.Verdict, diff)
		}
	case attempt != nil && attempt.EventVersion != c.Event.Version:
		w.t.Fatalf("the attempt of version %d is kept as of %d", c.Event.Version, attempt.EventVersion)
	}
}

// check looks for what the tables would refuse, and for an event that nobody would be told.
func (w *walk) check(before notification.Delivery) {
	d := w.d
	open := d.Status != notification.Delivered && d.Status != notification.DeadLetter
	inFlight := d.Status == notification.Claimed || d.Status == notification.Dispatched
	newest := d.Event.Version
	if d.Waiting != nil {
		newest = d.Waiting.Version
	}
	switch {
	case open == d.Due.IsZero():
		w.t.Fatalf("%s is due at %v", d.Status, d.Due)
	case d.Lessee != "" && !inFlight:
		w.t.Fatalf("%s is leased", d.Status)
	case d.Waiting != nil && (!inFlight || d.Waiting.Version <= d.Event.Version):
		w.t.Fatalf("version %d waits for %s version %d", d.Waiting.Version, d.Status, d.Event.Version)
	case newest != w.newest:
		w.t.Fatalf("the newest version is %d, want %d", newest, w.newest)
	case d.Fence < before.Fence || d.AttemptNumber < before.AttemptNumber:
		w.t.Fatalf("fence %d and attempt %d after %d and %d", d.Fence, d.AttemptNumber, before.Fence, before.AttemptNumber)
	case (d.Status == notification.Delivered) == d.Delivered.IsZero():
		w.t.Fatalf("%s was delivered at %v", d.Status, d.Delivered)
	case d.Event.Version != before.Event.Version && d.Failures != 0:
		w.t.Fatalf("version %d begins with %d failures", d.Event.Version, d.Failures)
	}
}

func TestWhateverHappensTheNewestEventIsDeliveredInTheEnd(t *testing.T) {
	for seed := range uint64(2000) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			now := time.Unix(1_800_000_000, 0)
			w := &walk{t: t, r: rand.New(rand.NewPCG(seed, 0)), now: now, newest: 1, d: notification.NewDelivery("ops", event(1), now)}
			for range 60 {
				w.step()
			}
			if w.d.Status == notification.DeadLetter {
				return
			}
			for range 2 { // what is under way, and what follows it
				w.now = w.now.Add(time.Hour)
				if c, ok := w.d.Claim("n", w.now, time.Minute); ok {
					w.d.Settle(notification.Outcome{Claim: c, Verdict: notification.Done}, w.now)
				}
			}
			if w.d.Status != notification.Delivered || w.d.Event.Version != w.newest {
				t.Errorf("it ends %s with version %d, want version %d delivered", w.d.Status, w.d.Event.Version, w.newest)
			}
		})
	}
}

func TestAddressKeepsTheNewestEventOfEachTaskAndSink(t *testing.T) {
	events := []outbox.Event{
		{TaskID: "b", Version: 1}, {TaskID: "a", Version: 1, Sink: "ops"}, {TaskID: "a", Version: 3, Sink: "ops"},
		{TaskID: "a", Version: 2, Sink: "ops"}, {TaskID: "a", Version: 1}, {TaskID: "b", Version: 2, Sink: "events"},
	}
	var got []string
	for _, a := range notification.Address(events, "events") {
		got = append(got, a.Sink+" "+a.Event.ID)
	}
	if diff := cmp.Diff([]string{"events a:1", "ops a:3", "events b:2"}, got); diff != "" {
		t.Errorf("addressed (-want +got):\n%s", diff)
	}
}

func TestAdmits(t *testing.T) {
	owner := authn.Scope{UserID: "ada", ThreadID: "t1"}
	for asked, want := range map[authn.Scope]bool{
		{}:                                true,
		{UserID: "ada"}:                   true,
		{ThreadID: "t1"}:                  true,
		owner:                             true,
		{UserID: "bob"}:                   false,
		{ThreadID: "t2"}:                  false,
		{UserID: "ada", ThreadID: "t2"}:   false,
		{UserID: "bob", ThreadID: "t1"}:   false,
		{UserID: "adat1"}:                 false,
		{UserID: "ada", ThreadID: "t1\n"}: false,
	} {
		if got := notification.Admits(asked, owner); got != want {
			t.Errorf("%+v admits %v, want %v", asked, got, want)
		}
	}
}

func FuzzEventID(f *testing.F) {
	for _, id := range []string{"a:1", "a:b:2", "task_1:9223372036854775807", "a:0", "a:01", "a:-1", ":1", "a:", "a", "a:9223372036854775808", "a:+1"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		task, version, ok := notification.ParseEventID(id)
		if ok && (task == "" || version < 1 || notification.EventID(task, version) != id) {
			t.Errorf("%q is task %q, version %d", id, task, version)
		}
		if task, version, ok := notification.ParseEventID(notification.EventID("x:"+id, 7)); !ok || task != "x:"+id || version != 7 {
			t.Errorf("the id of task %q is read as %q, %d, %v", "x:"+id, task, version, ok)
		}
	})
}

func FuzzToken(f *testing.F) {
	id := "ntf_" + strings.Repeat("0f", 16)
	p := notification.Position{Created: time.UnixMicro(1_800_000_000_123_456).UTC(), ID: id}
	f.Add(p.Token())
	for _, text := range []string{"", "1", "1 " + id, "1 " + id + " ", "-1 " + id, "9223372036854775807 " + id, "1  " + id, "+1 " + id, "1 ntf_"} {
		f.Add(base64.RawURLEncoding.EncodeToString([]byte(text)))
	}
	f.Fuzz(func(t *testing.T, token string) {
		p, err := notification.ParseToken(token)
		if err != nil {
			if !fault.Is(err, fault.InvalidArguments) {
				t.Errorf("%q: %v", token, err)
			}
			return
		}
		if p.Token() != token || len(p.ID) != len(id) || p.Created.Year() > 9999 || p.Created.Unix() < 0 || !utf8.ValidString(p.ID) {
			t.Errorf("%q is %+v", token, p)
		}
	})
	if got, err := notification.ParseToken(p.Token()); err != nil || got != p {
		f.Errorf("%+v is read as %+v, %v", p, got, err)
	}
}
