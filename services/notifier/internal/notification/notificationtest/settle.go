package notificationtest

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

var settleTests = map[string]func(*testing.T, *fixture){
	"a lost lease, another version or the wrong phase writes nothing":     fences,
	"a run is awaited, and looked up again when the look-up fails":        lookUps,
	"a failed run is dispatched again under the next attempt":             redispatch,
	"a start of unknown outcome is repeated under the same attempt":       sameAttempt,
	"a deferred delivery counts nothing and takes the newest event":       deferral,
	"failures count up, success clears them, the delay is waited for":     failures,
	"the newest 20 attempts are kept, with status and a bounded excerpt":  attempts,
	"outcomes that are settled together are as if they were one by one":   together,
	"text that an engine could not hold is stored without what it cannot": oddText,
}

func together(t *testing.T, f *fixture) {
	f.record(event("a", 1), event("b", 1), event("c", 1), event("d", 1))
	claims := map[string]notification.Claim{}
	for _, c := range f.claim(ops) {
		claims[c.Event.TaskID] = c
	}
	stale := claims["d"]
	if n, err := f.Redrive(t.Context(), notification.Redrive{ID: stale.ID, Actor: "me"}); n != 1 || err != nil {
		t.Fatalf("redriven: %d, %v", n, err)
	}
	unknown := claims["a"]
	unknown.ID = "ntf_00000000000000000000000000000000"
	settled, err := f.SettleAll(t.Context(), []notification.Outcome{
		{Claim: claims["c"], Verdict: notification.Failed, Error: "no", Delay: time.Hour},
		{Claim: stale, Verdict: notification.Done},
		{Claim: claims["a"], Verdict: notification.Handed, RunID: "run_1"},
		{Claim: unknown, Verdict: notification.Done},
		{Claim: claims["b"], Verdict: notification.Done, Status: "204"},
		{Claim: claims["b"], Verdict: notification.Dead},
	})
	if diff := cmp.Diff([]bool{true, false, true, false, true, false}, settled); err != nil || diff != "" {
		t.Errorf("settled: %v, %s", err, diff)
	}
	f.stands("a", 1, notification.Dispatched)
	f.stands("b", 1, notification.Delivered)
	if got := f.stands("c", 1, notification.Retry); got.AttemptCount != 1 || got.LastError != "no" {
		t.Errorf("failed: %+v", got)
	}
	f.stands("d", 1, notification.Pending)
	if none, err := f.SettleAll(t.Context(), nil); err != nil || len(none) != 0 {
		t.Errorf("nothing settled: %v, %v", none, err)
	}
}

// NOTE-007
func fences(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	verdicts := []notification.Verdict{
		notification.Done, notification.Handed, notification.Waiting, notification.Failed, notification.Redispatch,
		notification.Deferred, notification.Dead, "",
	}
	refused := func(what string, c notification.Claim, verdicts ...notification.Verdict) {
		t.Helper()
		before := f.of("a")
		for _, v := range verdicts {
			if f.trySettle(c, v, after(time.Hour), as("run_2"), because("no")) {
				t.Errorf("%s: %q was written", what, v)
			}
		}
		if diff := cmp.Diff(before, f.of("a")); diff != "" {
			t.Errorf("%s changed (-before +after):\n%s", what, diff)
		}
	}
	expired := f.claimOne()
	f.pass(lease)
	refused("an expired lease", expired, verdicts...)

	c := f.claimOne()
	refused("an older fence", expired, verdicts...)
	newer := c
	newer.Fence++
	refused("a fence nobody has", newer, verdicts...)
	other := c
	other.Event.Version++
	refused("another version", other, verdicts...)
	phase := c
	phase.Phase = notification.Dispatched
	refused("another phase", phase, verdicts...)
	unknown := c
	unknown.ID = "ntf_00000000000000000000000000000000"
	refused("an unknown delivery", unknown, verdicts...)
	refused("a verdict of the other phase", c, notification.Waiting, notification.Redispatch, "")

	f.settle(c, notification.Handed, as("run_1"))
	refused("a second settlement", c, verdicts...)
	c = f.claimOne()
	refused("a verdict of the other phase", c, notification.Handed, notification.Deferred, "")
	f.settle(c, notification.Done)
	refused("a settlement of what is delivered", c, verdicts...)
}

func lookUps(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	f.settle(f.claimOne(), notification.Handed, as("run_1"))
	f.stands("a", 1, notification.Dispatched)
	c := f.claimOne()
	for range 3 {
		if c.Phase != notification.Dispatched || c.RunID != "run_1" || c.AttemptCount != 0 || c.DispatchAttempt != 0 {
			t.Fatalf("claimed %+v, want a look-up of run_1 without failures", c)
		}
		f.settle(c, notification.Waiting, after(time.Hour))
		if claims := f.claim(ops); len(claims) != 0 {
			t.Fatalf("claimed %v before the delay", claims)
		}
		f.pass(time.Hour)
		c = f.claimOne()
	}
	f.settle(c, notification.Failed, because("the runtime does not answer"))
	c = f.claimOne()
	if c.Phase != notification.Dispatched || c.RunID != "run_1" || c.AttemptCount != 1 || c.DispatchAttempt != 0 {
		t.Errorf("claimed %+v, want the look-up of run_1 again, one failure", c)
	}
	f.settle(c, notification.Waiting)
	c = f.claimOne()
	if c.AttemptCount != 1 {
		t.Errorf("the count is %d after a run that goes on, want 1", c.AttemptCount)
	}
	f.settle(c, notification.Done)
	if n := f.stands("a", 1, notification.Delivered); n.AttemptCount != 0 || n.LastError != "" || len(n.Attempts) != 2 {
		t.Errorf("it is %+v, want two attempts: a failed look-up and the delivery", n)
	}
}

// NOTE-003 (in part: the dispatch attempt)
func redispatch(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	for attempt := range 3 {
		c := f.claimOne()
		if c.Phase != notification.Claimed || c.DispatchAttempt != attempt || c.AttemptCount != attempt || c.Event.ID != "a:1" || c.RunID != "" {
			t.Fatalf("claimed %+v, want dispatch attempt %d of a:1", c, attempt)
		}
		f.settle(c, notification.Handed, as(fmt.Sprint("run_", attempt)))
		c = f.claimOne()
		if c.RunID != fmt.Sprint("run_", attempt) {
			t.Fatalf("claimed %+v, want run_%d", c, attempt)
		}
		f.settle(c, notification.Redispatch, because("the run failed"))
		f.stands("a", 1, notification.Retry)
	}
}

// NOTE-003 (in part: the event id over retries)
func sameAttempt(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	for count := range 3 {
		c := f.claimOne()
		if c.DispatchAttempt != 0 || c.AttemptCount != count || c.Event.ID != "a:1" || c.Phase != notification.Claimed {
			t.Fatalf("claimed %+v, want dispatch attempt 0 of a:1 after %d failures", c, count)
		}
		f.settle(c, notification.Failed, because("deadline exceeded"))
		if n := f.stands("a", 1, notification.Retry); n.LastError != "deadline exceeded" {
			t.Errorf("the last error is %q", n.LastError)
		}
	}
}

// NOTE-013 (in part: what a store does with a busy thread)
func deferral(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	f.settle(f.claimOne(), notification.Failed)
	c := f.claimOne()
	f.settle(c, notification.Deferred, after(5*time.Second), because("the thread is busy"))
	if n := f.stands("a", 1, notification.Pending); n.AttemptCount != 1 {
		t.Errorf("the count is %d, want the 1 of before", n.AttemptCount)
	}
	if claims := f.claim(ops); len(claims) != 0 {
		t.Errorf("claimed %v before the delay", claims)
	}
	f.pass(5 * time.Second)
	c = f.claimOne()
	if c.Event.Version != 1 || c.DispatchAttempt != 0 || c.AttemptCount != 1 {
		t.Errorf("claimed %+v, want event 1 as it was", c)
	}
	f.record(event("a", 2))
	f.settle(c, notification.Deferred, after(5*time.Second))
	f.pass(5 * time.Second)
	if c = f.claimOne(); c.Event.Version != 2 || c.AttemptCount != 0 {
		t.Errorf("claimed %+v, want event 2 with fresh counters", c)
	}
}

func failures(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	for i := range 4 {
		f.settle(f.claimOne(), notification.Failed, after(time.Hour), because("503"))
		n := f.stands("a", 1, notification.Retry)
		if n.AttemptCount != i+1 {
			t.Errorf("the count is %d, want %d", n.AttemptCount, i+1)
		}
		if wait := n.NextAttempt.Sub(n.Attempts[0].Time); wait != time.Hour {
			t.Errorf("the next attempt is %v after the end of the last, want 1h", wait)
		}
		if claims := f.claim(ops); len(claims) != 0 {
			t.Fatalf("claimed %v before the delay", claims)
		}
		f.pass(time.Hour)
	}
	f.settle(f.claimOne(), notification.Done)
	if n := f.stands("a", 1, notification.Delivered); n.AttemptCount != 0 || n.LastError != "" {
		t.Errorf("it is %+v, want no failure", n)
	}
}

// NOTE-021 (in part: what a store keeps)
func attempts(t *testing.T, f *fixture) {
	f.record(event("a", 1), to(chat, event("b", 1)))
	for i := range 25 {
		f.settle(f.claimOne(), notification.Failed, func(o *notification.Outcome) {
			o.Status, o.Excerpt = fmt.Sprint(500+i), strings.Repeat("é", 1+i*100)
		})
	}
	f.settle(f.claimOne(), notification.Deferred)
	f.settle(f.claimOne(), notification.Dead, func(o *notification.Outcome) { o.Status = "410" })
	n := f.of("a")
	if len(n.Attempts) != notification.MaxAttempts || f.count("notification_attempt") != notification.MaxAttempts {
		t.Fatalf("%d attempts are shown, %d kept, want %d", len(n.Attempts), f.count("notification_attempt"), notification.MaxAttempts)
	}
	var outcomes []string
	for i, a := range n.Attempts {
		outcomes = append(outcomes, a.Outcome)
		if a.Number != int64(27-i) || a.Time.IsZero() || a.Time.Location() != time.UTC {
			t.Errorf("attempt %d from the end is %+v", i, a)
		}
		if len(a.Excerpt) > 1024 || !utf8.ValidString(a.Excerpt) {
			t.Errorf("the excerpt has %d bytes", len(a.Excerpt))
		}
	}
	if diff := cmp.Diff([]string{"dead_letter", "deferred", "retry", "retry"}, outcomes[:4]); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if a := n.Attempts[2]; a.Status != "524" || len(a.Excerpt) != 1024 || n.Attempts[0].Status != "410" {
		t.Errorf("attempts are %+v, want statuses 410, empty, 524", n.Attempts[:3])
	}
	if got := f.of("b").Attempts; len(got) != 0 {
		t.Errorf("the other delivery has attempts: %v", got)
	}
}

func oddText(t *testing.T, f *fixture) {
	f.record(event("a", 1))
	odd := "a\x00b\xffc" + strings.Repeat("é", 5000)
	f.settle(f.claimOne(), notification.Failed, because(odd), func(o *notification.Outcome) { o.Status, o.Excerpt = odd, odd })
	n := f.of("a")
	for name, got := range map[string]string{"error": n.LastError, "status": n.Attempts[0].Status, "excerpt": n.Attempts[0].Excerpt} {
		if !strings.HasPrefix(got, "a?bcé") || !utf8.ValidString(got) || len(got) > 4000 {
			t.Errorf("the %s is %d bytes, %.20q", name, len(got), got)
		}
	}
}
