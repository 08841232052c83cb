// Package tasktest is the conformance suite of the stores of durable tasks. Every driver passes all of it.
package tasktest

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Store is all that a driver implements.
type Store interface {
	task.Store
	task.Reservations
	task.Workers
}

// Bench is a store on a database of its own, and what a test does to that behind the store's back.
type Bench struct {
	Store
	// Pass moves all times in the database back by d, as if that much time had gone by.
	Pass func(t *testing.T, d time.Duration)
	// Events takes the events that were appended since the last time.
	Events func(t *testing.T) []outbox.Event
	// Count counts the rows of a table.
	Count func(t *testing.T, table string) int
	// Exec runs a statement that both engines understand.
	Exec func(t *testing.T, statement string)
	// Refuse has the database refuse the attempts of a worker from here on.
	Refuse func(t *testing.T, worker string)
}

// Open returns a bench whose store follows the policy.
type Open func(t *testing.T, p task.Policy) Bench

// Policy is that of most tests: the defaults of an installation.
func Policy() task.Policy {
	return task.Policy{
		PollInterval: 5 * time.Second, Lease: 30 * time.Second, MaxPollBackoff: 300 * time.Second,
		InputRequiredPollInterval: time.Minute, MaxAge: 720 * time.Hour, Retention: 720 * time.Hour,
		TrackingDegradedAfterErrors: 3, MaxResultBytes: 65536, ResultPreviewMaxChars: 2000,
	}
}

var ada = authn.Scope{UserID: "ada", ThreadID: "t1"}

// intent returns an intent that differs from those of other numbers.
func intent(n int) task.Intent {
	return task.Intent{
		Principal: "agent", Scope: ada, RequestID: fmt.Sprint("request-", n), RequestHash: fmt.Sprint("hash-", n),
		Binding: []byte(`{"entry":1}`), Fingerprint: "fp-1", TaskName: fmt.Sprint("task ", n), Server: "s1",
		RunID: "run", ToolCallID: "call", NotifySink: "ops", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

func handle(n int) (h []byte, remoteID string) {
	return fmt.Appendf(nil, "handle-%d", n), fmt.Sprint("remote-", n)
}

func (b Bench) reserve(t *testing.T, n int) task.Hold {
	t.Helper()
	r, err := b.Reserve(t.Context(), intent(n))
	if err != nil {
		t.Fatalf("reserve %d: %v", n, err)
	}
	if r.Committed != nil {
		t.Fatalf("reserve %d: it was committed before, as %s", n, r.TaskID)
	}
	return task.Hold{TaskID: r.TaskID, Fence: r.Fence}
}

func commitment(h task.Hold, n int) task.Commitment {
	c := task.Commitment{Hold: h, Status: task.Submitted}
	c.Handle, c.RemoteID = handle(n)
	return c
}

// submit makes a task.
func (b Bench) submit(t *testing.T, n int) *task.Task {
	t.Helper()
	got, err := b.Commit(t.Context(), commitment(b.reserve(t, n), n))
	if err != nil {
		t.Fatalf("commit %d: %v", n, err)
	}
	return got
}

func (b Bench) get(t *testing.T, id string) *task.Task {
	t.Helper()
	got, err := b.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (b Bench) claim(t *testing.T, limit int) []task.Claim {
	t.Helper()
	claims, err := b.Claim(t.Context(), "w1", limit)
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

// one claims the one task that is due.
func (b Bench) one(t *testing.T, want task.Kind) task.Claim {
	t.Helper()
	claims := b.claim(t, 10)
	if len(claims) != 1 || claims[0].Kind != want {
		t.Fatalf("claimed %v, want one %s", brief(claims), want)
	}
	return claims[0]
}

// none wants nothing to be due.
func (b Bench) none(t *testing.T, why string) {
	t.Helper()
	if claims := b.claim(t, 10); len(claims) != 0 {
		t.Fatalf("%s: claimed %v, want none", why, brief(claims))
	}
}

func brief(claims []task.Claim) []string {
	out := make([]string, len(claims))
	for i, c := range claims {
		out[i] = fmt.Sprintf("%s of %s under fence %d", c.Kind, c.TaskID, c.Fence)
	}
	return out
}

func (b Bench) settle(t *testing.T, outcomes ...task.Outcome) []task.Settled {
	t.Helper()
	out, err := b.Settle(t.Context(), outcomes)
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != len(outcomes) {
		t.Fatalf("settled %d of %d outcomes", len(out), len(outcomes))
	}
	for i, s := range out {
		if s.TaskID != outcomes[i].Claim.TaskID {
			t.Fatalf("outcome %d is answered for %s, want %s", i, s.TaskID, outcomes[i].Claim.TaskID)
		}
	}
	return out
}

// done settles one outcome that is to be written.
func (b Bench) done(t *testing.T, o task.Outcome) task.Settled {
	t.Helper()
	s := b.settle(t, o)[0]
	if s.Dropped {
		t.Fatalf("the outcome of fence %d was dropped", o.Claim.Fence)
	}
	return s
}

func says(c task.Claim, s task.Snapshot) task.Outcome {
	return task.Outcome{Claim: c, Worker: "w1", Snapshot: &s}
}

func fails(c task.Claim, f task.Failure) task.Outcome {
	return task.Outcome{Claim: c, Worker: "w1", Failure: &f}
}

func acks(c task.Claim) task.Outcome { return task.Outcome{Claim: c, Worker: "w1"} }

func working() task.Snapshot { return task.Snapshot{Status: task.Working} }

func completed(result string) task.Snapshot {
	return task.Snapshot{Status: task.Completed, Result: json.RawMessage(result)}
}

// in returns how long after the call that just ended something happens, give or take.
func (b Bench) in(t *testing.T) time.Duration {
	t.Helper()
	d, ok, err := b.NextDue(t.Context())
	if err != nil || !ok {
		t.Fatalf("next due: %v, %v", ok, err)
	}
	return d
}
