package tasktest

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// TASK-017
func claimOrder(t *testing.T, b Bench) {
	var ids []string
	for n := range 6 {
		ids = append(ids, b.submit(t, n).ID)
	}
	slices.Sort(ids)
	// The last one is due first, the others at one time.
	b.Pass(t, time.Minute)
	b.Exec(t, "update task_live set due_time = (select min(due_time) from task_live), poll_time = (select min(due_time) from task_live)")
	last := ids[5]
	b.Exec(t, "update task_live set due_time = create_time, poll_time = create_time from task_task t where t.task_id = task_live.task_id and t.task_id = '"+last+"'")
	var got []string
	for range 4 {
		for _, c := range b.claim(t, 2) {
			got = append(got, c.TaskID)
		}
	}
	if diff := cmp.Diff(append([]string{last}, ids[:5]...), got); diff != "" {
		t.Errorf("claimed (-want +got):\n%s", diff)
	}
}

func claimContent(t *testing.T, b Bench) {
	made := b.submit(t, 7)
	b.Pass(t, Policy().PollInterval)
	got := b.one(t, task.Poll)
	i := intent(7)
	want := task.Claim{
		Hold: task.Hold{TaskID: made.ID, Fence: got.Fence}, Kind: task.Poll, Server: "s1", Scope: ada,
		Handle: []byte("handle-7"), Binding: i.Binding, Traceparent: i.Traceparent, HoldFor: got.HoldFor,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
	if got.HoldFor <= Policy().MaxPollBackoff {
		t.Errorf("the session is held for %v, which a failing poll outlasts", got.HoldFor)
	}
}

// TASK-017 TASK-020
func leases(t *testing.T, b Bench) {
	b.submit(t, 1)
	b.Pass(t, Policy().PollInterval)
	first := b.one(t, task.Poll)
	b.Pass(t, Policy().Lease-10*time.Second)
	b.none(t, "while the lease lives")
	if d := b.in(t); d <= 0 || d > 10*time.Second {
		t.Errorf("the next claim is possible in %v, want the rest of the lease", d)
	}
	b.Pass(t, 11*time.Second)
	if d := b.in(t); d > 0 {
		t.Errorf("the next claim is possible in %v, want now", d)
	}
	// Nobody has to say that the worker died.
	second := b.one(t, task.Poll)
	if second.TaskID != first.TaskID || second.Fence <= first.Fence {
		t.Errorf("the second claim is %+v after %+v", second.Hold, first.Hold)
	}
}

// TASK-018
func fences(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	b.Pass(t, Policy().PollInterval)
	old := b.one(t, task.Poll)

	// The lease ran out, and nobody has claimed since.
	b.Pass(t, Policy().Lease+time.Second)
	before := b.get(t, id)
	b.wantDropped(t, says(old, completed(`"late"`)))
	b.wantDropped(t, fails(old, task.Failure{Reason: "timeout", Message: "late", Permanent: task.ProtocolError}))
	if lost, err := b.Renew(t.Context(), []task.Hold{old.Hold}); err != nil || len(lost) != 1 {
		t.Errorf("a lease that ran out was renewed: lost %v, %v", lost, err)
	}
	if err := b.Release(t.Context(), []task.Hold{old.Hold}); err != nil {
		t.Error(err)
	}

	// Somebody else holds it.
	current := b.one(t, task.Poll)
	b.wantDropped(t, says(old, completed(`"stale"`)))
	forged := current
	forged.Fence += 5
	b.wantDropped(t, says(forged, completed(`"forged"`)))
	if err := b.Release(t.Context(), []task.Hold{old.Hold, forged.Hold}); err != nil {
		t.Error(err)
	}
	b.none(t, "after others released what they do not hold")
	if diff := cmp.Diff(before, b.get(t, id)); diff != "" {
		t.Errorf("stale writes changed the task (-before +after):\n%s", diff)
	}
	b.done(t, says(current, working()))
	b.wantDropped(t, says(current, completed(`"twice"`)))
	b.wantDropped(t, says(task.Claim{Hold: task.Hold{TaskID: "mcp-task-unknown", Fence: 1}}, working()))
}

func (b Bench) wantDropped(t *testing.T, o task.Outcome) {
	t.Helper()
	if s := b.settle(t, o)[0]; !s.Dropped || s.Changed || s.Event {
		t.Errorf("settled as %+v, want it dropped", s)
	}
}

// TASK-019
func renew(t *testing.T, b Bench) {
	for n := range 3 {
		b.submit(t, n)
	}
	b.Pass(t, Policy().PollInterval)
	claims := b.claim(t, 3)
	if len(claims) != 3 {
		t.Fatalf("claimed %v", brief(claims))
	}
	b.Pass(t, Policy().Lease-10*time.Second)
	foreign := task.Hold{TaskID: claims[2].TaskID, Fence: claims[2].Fence + 1}
	lost, err := b.Renew(t.Context(), []task.Hold{claims[0].Hold, foreign, claims[1].Hold, {TaskID: "none", Fence: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]task.Hold{foreign, {TaskID: "none", Fence: 1}}, lost); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	b.Pass(t, 20*time.Second)
	if again := b.one(t, task.Poll); again.TaskID != claims[2].TaskID {
		t.Errorf("claimed %s, want the one that was not renewed", again.TaskID)
	}
	b.done(t, says(claims[0], working()))
	b.done(t, says(claims[1], completed(`1`)))
	if lost, err := b.Renew(t.Context(), []task.Hold{claims[0].Hold, claims[1].Hold}); err != nil || len(lost) != 2 {
		t.Errorf("renewing what was settled lost %v, %v, want both", lost, err)
	}
}

func release(t *testing.T, b Bench) {
	b.submit(t, 1)
	b.Pass(t, Policy().PollInterval)
	first := b.one(t, task.Poll)
	if err := b.Release(t.Context(), []task.Hold{first.Hold}); err != nil {
		t.Fatal(err)
	}
	b.wantDropped(t, says(first, working()))
	second := b.one(t, task.Poll)
	if second.Fence <= first.Fence {
		t.Errorf("the second claim has fence %d after %d", second.Fence, first.Fence)
	}
	if a := b.get(t, first.TaskID).Attempts; len(a) != 0 {
		t.Errorf("a released claim is on record: %+v", a)
	}
}

// TASK-001 TASK-018
func terminalForEver(t *testing.T, b Bench) {
	for n, end := range map[int]task.Snapshot{
		1: completed(`"done"`), 2: {Status: task.Failed, Error: "boom"}, 3: {Status: task.Cancelled},
	} {
		id := b.submit(t, n).ID
		b.Pass(t, Policy().PollInterval)
		c := b.one(t, task.Poll)
		b.done(t, says(c, end))
		want := b.get(t, id)
		b.wantDropped(t, says(c, working()))
		if _, err := b.RequestCancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		b.Pass(t, Policy().MaxAge-time.Hour)
		if ids, err := b.Expire(t.Context(), 10); err != nil || len(ids) != 0 {
			t.Errorf("expired %v, %v", ids, err)
		}
		b.none(t, "of a final task")
		got := b.get(t, id)
		if got.Status != want.Status || got.Version != want.Version || got.Error != want.Error || string(got.Result) != string(want.Result) {
			t.Errorf("the final task became %+v, was %+v", got, want)
		}
	}
}

// TASK-049
func attempts(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	const made = 30
	for n := range made {
		b.Pass(t, 400*time.Second)
		c := b.one(t, task.Poll)
		if n%2 == 0 {
			b.done(t, says(c, working()))
		} else {
			b.done(t, fails(c, task.Failure{Reason: "timeout", Message: "slow"}))
		}
	}
	got := b.get(t, id).Attempts
	if len(got) != task.AttemptsKept {
		t.Fatalf("%d attempts are kept, want %d", len(got), task.AttemptsKept)
	}
	if n := b.Count(t, "task_attempt"); n != task.AttemptsKept {
		t.Errorf("%d rows are stored", n)
	}
	if !slices.IsSortedFunc(got, func(x, y task.Attempt) int { return y.Time.Compare(x.Time) }) {
		t.Errorf("attempts are not newest first: %+v", got)
	}
	for k, a := range got {
		want := []string{"timeout", "ok"}[k%2]
		if a.Kind != task.Poll || a.Worker != "w1" || a.Outcome != want || !a.NextDue.After(a.Time) {
			t.Errorf("attempt %d is %+v, want outcome %s", k, a, want)
		}
	}
	b.Pass(t, 400*time.Second)
	b.done(t, says(b.one(t, task.Poll), completed(`1`)))
	if a := b.get(t, id).Attempts[0]; a.Outcome != "ok" || !a.NextDue.IsZero() {
		t.Errorf("the last attempt is %+v", a)
	}
}

// TASK-049
func versions(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	version := int64(1)
	step := func(name string, rises bool, s task.Snapshot) {
		t.Helper()
		b.Pass(t, 2*time.Minute)
		settled := b.done(t, says(b.one(t, task.Poll), s))
		got := b.get(t, id).Version
		if rises != (got == version+1) || !rises && got != version || settled.Changed != rises {
			t.Errorf("%s: version %d after %d, changed: %v", name, got, version, settled.Changed)
		}
		version = got
	}
	step("the first poll", true, working())
	step("nothing new", false, working())
	step("another message", true, task.Snapshot{Status: task.Working, StatusMessage: "half way"})
	step("the same message", false, task.Snapshot{Status: task.Working, StatusMessage: "half way"})
	some := task.Snapshot{Status: task.Working, StatusMessage: "half way", Progress: &task.Progress{Current: 1}}
	step("progress", true, some)
	step("the same progress", false, some)
	some.Progress = &task.Progress{Current: 1, Total: new(2.5)}
	step("a total", true, some)
	step("back to submitted is working", false, task.Snapshot{Status: task.Submitted, StatusMessage: "half way", Progress: some.Progress})
	step("questions", true, task.Snapshot{Status: task.InputRequired, InputRequired: json.RawMessage(`{"q":1}`)})
	step("the same questions", false, task.Snapshot{Status: task.InputRequired, InputRequired: json.RawMessage(`{"q":1}`)})
	step("the end", true, completed(`1`))
	got, err := b.Versions(t.Context(), []string{id, "mcp-task-" + strings.Repeat("0", 32), "a\x00b"})
	if diff := cmp.Diff(map[string]int64{id: version}, got); diff != "" || err != nil {
		t.Errorf("versions (-want +got): %s, %v", diff, err)
	}
}

func workers(t *testing.T, b Bench) {
	alive := func(want bool, when string) {
		t.Helper()
		if got, err := b.Alive(t.Context()); err != nil || got != want {
			t.Errorf("%s: alive is %v, %v, want %v", when, got, err, want)
		}
	}
	beat := func(worker string) {
		t.Helper()
		if err := b.Beat(t.Context(), worker, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	alive(false, "at first")
	beat("w1")
	beat("w1")
	alive(true, "after a beat")
	b.Pass(t, 11*time.Second)
	alive(false, "after its time")
	beat("w2")
	beat("w3")
	if n := b.Count(t, "task_worker"); n != 2 {
		t.Errorf("%d workers are stored, want those that live", n)
	}
	if err := b.Leave(t.Context(), "w2"); err != nil {
		t.Fatal(err)
	}
	alive(true, "while one is left")
	if err := b.Leave(t.Context(), "w3"); err != nil {
		t.Fatal(err)
	}
	alive(false, "after the last has left")
}
