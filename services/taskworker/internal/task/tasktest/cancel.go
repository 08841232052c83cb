package tasktest

import (
	"strings"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

func (b Bench) cancel(t *testing.T, id string) *task.Task {
	t.Helper()
	got, err := b.RequestCancel(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TASK-028
func requestCancel(t *testing.T, b Bench) {
	_, err := b.RequestCancel(t.Context(), "mcp-task-"+strings.Repeat("0", 32))
	b.refuse(t, "an unknown task", err, fault.TaskNotFound)

	id := b.submit(t, 1).ID
	first := b.cancel(t, id)
	if first.CancelRequested.IsZero() || first.Version != 2 || first.Status != task.Submitted {
		t.Errorf("the cancelled task is %+v", first)
	}
	b.Pass(t, time.Second)
	second := b.cancel(t, id)
	if second.Version != 2 || !near(first.CancelRequested.Sub(second.CancelRequested), time.Second) {
		t.Errorf("the second request made %+v of %+v", second, first)
	}
	// It is due at once, and polls wait for it.
	c := b.one(t, task.Cancel)
	b.done(t, says(c, task.Snapshot{Status: task.Cancelled}))
	ended := b.cancel(t, id)
	if ended.Status != task.Cancelled || ended.Version != 3 {
		t.Errorf("after the end: %+v", ended)
	}
	b.none(t, "after the end")
}

// TASK-028 TASK-029
func cancelFencesPoll(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	b.Pass(t, Policy().PollInterval)
	poll := b.one(t, task.Poll)
	b.cancel(t, id)
	if lost, err := b.Renew(t.Context(), []task.Hold{poll.Hold}); err != nil || len(lost) != 1 {
		t.Errorf("the fenced poll was renewed: lost %v, %v", lost, err)
	}
	b.none(t, "while the fenced poll is under way")
	b.wantDropped(t, says(poll, completed(`"the poll was fenced"`)))
	c := b.one(t, task.Cancel)
	if c.Fence <= poll.Fence {
		t.Errorf("the cancel has fence %d after %d", c.Fence, poll.Fence)
	}
	b.wantDropped(t, says(poll, working()))
	b.none(t, "while the cancel is under way")
	b.done(t, acks(c))

	// A poll that ends without an outcome frees the task as well, and so does one whose worker died.
	for n, end := range map[int]func(task.Claim){
		2: func(c task.Claim) {
			if err := b.Release(t.Context(), []task.Hold{c.Hold}); err != nil {
				t.Fatal(err)
			}
		},
		3: func(task.Claim) { b.Pass(t, Policy().Lease) },
	} {
		b.Exec(t, "delete from task_live") // of the tasks before
		other := b.submit(t, n).ID
		b.Pass(t, Policy().PollInterval)
		poll := b.one(t, task.Poll)
		b.cancel(t, other)
		b.none(t, "while the fenced poll is under way")
		end(poll)
		b.one(t, task.Cancel)
	}
}

// TASK-029
func cancelKeepsLease(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	b.cancel(t, id)
	c := b.one(t, task.Cancel)
	b.Pass(t, 10*time.Second)
	b.cancel(t, id)
	b.none(t, "while the first cancel is under way")
	b.done(t, acks(c))
}

// TASK-030
func cancelAcked(t *testing.T, b Bench) {
	for n, ack := range map[int]func(c task.Claim) task.Outcome{
		1: acks,
		2: func(c task.Claim) task.Outcome {
			return says(c, task.Snapshot{Status: task.Working, StatusMessage: "stopping"})
		},
	} {
		b.Exec(t, "delete from task_live")
		id := b.submit(t, n).ID
		b.cancel(t, id)
		s := b.done(t, ack(b.one(t, task.Cancel)))
		if got := b.get(t, id); s.Changed != (n == 2) || n == 2 && (got.Status != task.Working || got.StatusMessage != "stopping") {
			t.Errorf("acknowledged as %+v: %+v", s, got)
		}
		b.done(t, says(b.one(t, task.Poll), working())) // at once
		b.none(t, "right after the poll")
		b.Pass(t, 4*time.Minute)
		b.done(t, says(b.one(t, task.Poll), working()))
		b.Pass(t, time.Minute+time.Second)
		b.done(t, acks(b.one(t, task.Cancel))) // 5 min after it was acknowledged; it comes before the poll that is due too
		b.one(t, task.Poll)
	}
}

// TASK-030
func cancelFails(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	b.cancel(t, id)
	full := task.Failure{Reason: "session_limit", Message: "full", Uncounted: true}
	b.done(t, fails(b.one(t, task.Cancel), full))
	broken := task.Failure{Reason: task.ProtocolError, Message: "what?", Permanent: task.ProtocolError} // of a cancel tool alone
	for n, seconds := range []int{5, 10, 20, 40, 80} {
		b.Pass(t, 41*time.Second)
		b.done(t, fails(b.one(t, task.Cancel), broken))
		a := b.get(t, id).Attempts[0]
		if a.Kind != task.Cancel || a.Outcome != task.ProtocolError {
			t.Errorf("attempt %d: %+v", n+1, a)
		}
		if n < 4 {
			if g := a.NextDue.Sub(a.Time); !near(g, time.Duration(seconds)*time.Second) {
				t.Errorf("after %d failed cancels the next is due in %v, want %v s", n+1, g, seconds)
			}
			b.none(t, "before it is due, and no poll either")
		}
	}
	b.done(t, says(b.one(t, task.Poll), working())) // resumed at once after five
	got := b.get(t, id)
	if got.Status != task.Working || got.TrackingDegraded {
		t.Errorf("the task is %+v", got)
	}
	b.Pass(t, time.Minute)
	b.done(t, says(b.one(t, task.Poll), working()))
	b.Pass(t, 21*time.Second)
	b.done(t, fails(b.one(t, task.Cancel), broken))
	if s := b.done(t, fails(b.next(t, task.Cancel), task.Failure{Reason: task.Untrusted, Permanent: task.Untrusted})); s.Status != task.Failed {
		t.Errorf("a cancel on a server that is no longer trusted left %+v", s)
	}
}

// TASK-031
func cancelOutcome(t *testing.T, b Bench) {
	for n, c := range map[int]struct {
		says   task.Snapshot
		byPoll bool
	}{
		1: {says: task.Snapshot{Status: task.Cancelled}},
		2: {says: completed(`{"too":"late"}`)},
		3: {says: task.Snapshot{Status: task.Failed, Error: "boom"}},
		4: {says: completed(`{"too":"late"}`), byPoll: true},
		5: {says: task.Snapshot{Status: task.Cancelled}, byPoll: true},
	} {
		id := b.submit(t, n).ID
		if got := b.cancel(t, id); got.Status != task.Submitted {
			t.Errorf("the request alone made it %s", got.Status)
		}
		claim := b.one(t, task.Cancel)
		if c.byPoll {
			b.done(t, acks(claim))
			claim = b.one(t, task.Poll)
		}
		s := b.done(t, says(claim, c.says))
		got := b.get(t, id)
		if !s.Event || got.Status != c.says.Status || got.Error != c.says.Error || string(got.Result) != string(c.says.Result) {
			t.Errorf("%+v ended it as %+v", c, got)
		}
	}
}
