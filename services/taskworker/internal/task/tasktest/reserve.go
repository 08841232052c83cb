package tasktest

import (
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

func (b Bench) refuse(t *testing.T, what string, err error, want fault.Reason) {
	t.Helper()
	if !fault.Is(err, want) {
		t.Fatalf("%s: %v, want %s", what, err, want)
	}
}

// TASK-003
func names(t *testing.T, b Bench) {
	long := func(n int) string { return strings.Repeat("é", n) }
	for name, change := range map[string]func(*task.Intent){
		"no server":         func(i *task.Intent) { i.Server = "" },
		"a blank server":    func(i *task.Intent) { i.Server = " \t" },
		"a long server":     func(i *task.Intent) { i.Server = long(129) },
		"a blank name":      func(i *task.Intent) { i.TaskName = " " },
		"a long name":       func(i *task.Intent) { i.TaskName = long(256) },
		"a name with NUL":   func(i *task.Intent) { i.TaskName = "a\x00" },
		"a name not UTF-8":  func(i *task.Intent) { i.TaskName = "\xff" },
		"a long request id": func(i *task.Intent) { i.RequestID = long(256) },
		"no binding":        func(i *task.Intent) { i.Binding = nil },
	} {
		i := intent(1)
		change(&i)
		_, err := b.Reserve(t.Context(), i)
		b.refuse(t, name, err, fault.InvalidArguments)
	}
	i := intent(1)
	i.Server, i.TaskName = long(128), long(255)
	r, err := b.Reserve(t.Context(), i)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^mcp-task-[0-9a-f]{32}$`).MatchString(r.TaskID) {
		t.Errorf("the id is %q", r.TaskID)
	}
	if other := b.reserve(t, 2); other.TaskID == r.TaskID {
		t.Errorf("two reservations have the id %q", r.TaskID)
	}
	c := commitment(task.Hold{TaskID: r.TaskID, Fence: r.Fence}, 1)
	for _, id := range []string{"", "  ", long(256)} {
		c.RemoteID = id
		_, err := b.Commit(t.Context(), c)
		b.refuse(t, "a remote id of "+id, err, fault.InvalidArguments)
	}
	c.RemoteID = long(255)
	if _, err := b.Commit(t.Context(), c); err != nil {
		t.Errorf("a remote id of 255 characters: %v", err)
	}
}

// TASK-008
func reservationIsNoTask(t *testing.T, b Bench) {
	h := b.reserve(t, 1)
	if _, err := b.Get(t.Context(), h.TaskID); !fault.Is(err, fault.TaskNotFound) {
		t.Errorf("get says %v, want TASK_NOT_FOUND", err)
	}
	if p, err := b.List(t.Context(), task.Filter{}); err != nil || len(p.Tasks) != 0 {
		t.Errorf("list has %v, %v", p.Tasks, err)
	}
	b.Pass(t, 10*time.Second)
	b.none(t, "with a reservation alone")
	if ids, err := b.Reap(t.Context(), 10); err != nil || len(ids) != 0 {
		t.Errorf("reaped %v, %v before 15 s", ids, err)
	}
}

// TASK-007
func repeatedRequest(t *testing.T, b Bench) {
	h := b.reserve(t, 1)
	_, err := b.Reserve(t.Context(), intent(1))
	b.refuse(t, "the same while reserved", err, fault.RequestInProgress)
	if f, _ := errors.AsType[*fault.Error](err); f.RetryDelay() <= 0 || f.RetryDelay() > task.ReservationTTL {
		t.Errorf("it says to retry in %v", f.RetryDelay())
	}
	other := intent(1)
	other.RequestHash = "another"
	_, err = b.Reserve(t.Context(), other)
	b.refuse(t, "another hash while reserved", err, fault.RequestIDConflict)

	made, err := b.Commit(t.Context(), commitment(h, 1))
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.Reserve(t.Context(), intent(1))
	if err != nil || again.Committed == nil || again.TaskID != made.ID || again.Committed.ID != made.ID {
		t.Errorf("the same after the commit is %+v, %v, want task %s", again, err, made.ID)
	}
	_, err = b.Reserve(t.Context(), other)
	b.refuse(t, "another hash after the commit", err, fault.RequestIDConflict)

	// For as long as the task is kept.
	b.Pass(t, Policy().PollInterval)
	b.done(t, says(b.one(t, task.Poll), completed(`1`)))
	if again, err = b.Reserve(t.Context(), intent(1)); err != nil || again.Committed == nil || again.Committed.Status != task.Completed {
		t.Errorf("the same after the end is %+v, %v", again, err)
	}
	b.Pass(t, Policy().Retention+time.Second)
	if n, err := b.Prune(t.Context(), 10); err != nil || n != 1 {
		t.Fatalf("pruned %d, %v", n, err)
	}
	if h := b.reserve(t, 1); h.TaskID == made.ID {
		t.Errorf("the pruned task's id came again")
	}
}

// TASK-007
func otherRequests(t *testing.T, b Bench) {
	b.reserve(t, 1)
	for name, change := range map[string]func(*task.Intent){
		"another principal": func(i *task.Intent) { i.Principal = "other" },
		"another user":      func(i *task.Intent) { i.Scope.UserID = "bob" },
		"another id":        func(i *task.Intent) { i.RequestID = "other" },
		"no id":             func(i *task.Intent) { i.RequestID = "" },
		"no id, again":      func(i *task.Intent) { i.RequestID = "" },
	} {
		i := intent(1)
		change(&i)
		if r, err := b.Reserve(t.Context(), i); err != nil || r.Committed != nil {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	i := intent(1)
	i.Scope.ThreadID = "another thread"
	_, err := b.Reserve(t.Context(), i)
	b.refuse(t, "another thread of the same user", err, fault.RequestInProgress)
}

// TASK-010
func notExecuted(t *testing.T, b Bench) {
	h := b.reserve(t, 1)
	if err := b.Abandon(t.Context(), task.Hold{TaskID: h.TaskID, Fence: h.Fence + 1}, false, ""); err != nil {
		t.Fatal(err)
	}
	_, err := b.Reserve(t.Context(), intent(1))
	b.refuse(t, "after an abandon with another fence", err, fault.RequestInProgress)
	for range 2 {
		if err := b.Abandon(t.Context(), h, false, "isError"); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.Count(t, "task_task") + b.Count(t, "task_reservation") + b.Count(t, "task_request"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if e := b.Events(t); len(e) != 0 {
		t.Errorf("events: %v", e)
	}
	_, err = b.Commit(t.Context(), commitment(h, 1))
	b.refuse(t, "a commit after it", err, fault.ReservationExpired)
	if again := b.reserve(t, 1); again.TaskID == h.TaskID {
		t.Error("the next reservation has the same id")
	}
}

// TASK-008
func extend(t *testing.T, b Bench) {
	h := b.reserve(t, 1)
	for range 3 {
		b.Pass(t, 10*time.Second)
		if _, err := b.Extend(t.Context(), h); err != nil {
			t.Fatalf("extend: %v", err)
		}
	}
	_, err := b.Extend(t.Context(), task.Hold{TaskID: h.TaskID, Fence: h.Fence + 1})
	b.refuse(t, "another fence", err, fault.ReservationExpired)
	b.Pass(t, 10*time.Second)
	if ids, err := b.Reap(t.Context(), 10); err != nil || len(ids) != 0 {
		t.Fatalf("reaped %v, %v", ids, err)
	}
	b.Pass(t, 6*time.Second)
	_, err = b.Extend(t.Context(), h)
	b.refuse(t, "after 16 s", err, fault.ReservationExpired)
}

func (b Bench) wantUnknown(t *testing.T, id, word string) {
	t.Helper()
	got := b.get(t, id)
	if got.Status != task.Failed || got.FailureReason != task.OutcomeUnknown || !strings.Contains(got.Error, word) || got.Ended.IsZero() {
		t.Errorf("the task is %+v", got)
	}
	if p, err := b.List(t.Context(), task.Filter{Scope: ada}); err != nil || len(p.Tasks) != 1 || p.Tasks[0].ID != id {
		t.Errorf("its owner lists %v, %v", p.Tasks, err)
	}
	e := b.Events(t)
	if len(e) != 1 || e[0].TaskID != id || e[0].Version != 1 || e[0].Sink != "ops" || !strings.Contains(string(e[0].Body), `"failure_reason":"outcome_unknown"`) {
		t.Errorf("events: %+v", e)
	}
	if n := b.Count(t, "task_reservation"); n != 0 {
		t.Errorf("%d reservations are left", n)
	}
	again, err := b.Reserve(t.Context(), intent(1))
	if err != nil || again.Committed == nil || again.TaskID != id {
		t.Errorf("the same request is %+v, %v, want the failed task", again, err)
	}
	b.Pass(t, time.Hour)
	b.none(t, "of a failed task")
}

// TASK-009
func reap(t *testing.T, b Bench) {
	h := b.reserve(t, 1)
	b.Pass(t, task.ReservationTTL+time.Second)
	ids, err := b.Reap(t.Context(), 10)
	if diff := cmp.Diff([]string{h.TaskID}, ids); diff != "" || err != nil {
		t.Fatalf("reaped (-want +got): %s, %v", diff, err)
	}
	if ids, err := b.Reap(t.Context(), 10); err != nil || len(ids) != 0 {
		t.Errorf("reaped again: %v, %v", ids, err)
	}
	b.wantUnknown(t, h.TaskID, "nothing was heard")
	for _, executed := range []bool{false, true} {
		if err := b.Abandon(t.Context(), h, executed, "late"); err != nil {
			t.Error(err)
		}
	}
	if e := b.Events(t); len(e) != 0 {
		t.Errorf("a late abandon made the event %+v", e)
	}
}

// TASK-009
func abandonUnknown(t *testing.T, b Bench) {
	h := b.reserve(t, 1)
	for range 2 {
		if err := b.Abandon(t.Context(), h, true, "the connection broke"); err != nil {
			t.Fatal(err)
		}
	}
	b.wantUnknown(t, h.TaskID, "the connection broke")
}

// TASK-011
func commitTwice(t *testing.T, b Bench) {
	h := b.reserve(t, 1)
	first, err := b.Commit(t.Context(), commitment(h, 1))
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.Commit(t.Context(), commitment(h, 1))
	if err != nil || second.ID != first.ID || second.Version != first.Version {
		t.Errorf("the second commit says %+v, %v, want %+v", second, err, first)
	}
	_, err = b.Commit(t.Context(), commitment(task.Hold{TaskID: h.TaskID, Fence: h.Fence + 1}, 1))
	b.refuse(t, "another fence", err, fault.ReservationExpired)
	_, err = b.Commit(t.Context(), commitment(h, 2))
	b.refuse(t, "another handle", err, fault.ReservationExpired)
	b.Pass(t, time.Minute)
	if ids, err := b.Reap(t.Context(), 10); err != nil || len(ids) != 0 {
		t.Errorf("reaped %v, %v after the commit", ids, err)
	}
	if c := b.one(t, task.Poll); string(c.Handle) != "handle-1" {
		t.Errorf("the task has handle %q", c.Handle)
	}
}

// TASK-012
func lateCommit(t *testing.T, b Bench) {
	for n, expire := range map[int]func(h task.Hold){
		1: func(task.Hold) {
			if _, err := b.Reap(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
		},
		2: func(task.Hold) {}, // nobody has reaped yet
		3: func(h task.Hold) {
			if err := b.Abandon(t.Context(), h, true, "time-out"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		h := b.reserve(t, n)
		b.Pass(t, task.ReservationTTL+time.Second)
		expire(h)
		for range 2 {
			_, err := b.Commit(t.Context(), commitment(h, n))
			b.refuse(t, "a late commit", err, fault.ReservationExpired)
		}
		if got := b.get(t, h.TaskID); got.FailureReason != task.OutcomeUnknown {
			t.Errorf("task %d is %+v", n, got)
		}
		if e := b.Events(t); len(e) != 1 || e[0].TaskID != h.TaskID {
			t.Errorf("events of task %d: %+v", n, e)
		}
		// The handle was recorded: whoever brings it again is told.
		other := b.reserve(t, n+100)
		_, err := b.Commit(t.Context(), commitment(other, n))
		b.refuse(t, "its remote id again", err, fault.DuplicateRemoteTask)
		if err := b.Abandon(t.Context(), other, false, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// TASK-013
func duplicate(t *testing.T, b Bench) {
	first := b.submit(t, 1)
	h := b.reserve(t, 2)
	for range 2 {
		_, err := b.Commit(t.Context(), commitment(h, 1))
		b.refuse(t, "the same remote task", err, fault.DuplicateRemoteTask)
	}
	_, err := b.Reserve(t.Context(), intent(2))
	b.refuse(t, "the reservation is kept", err, fault.RequestInProgress)
	b.Pass(t, task.ReservationTTL+time.Second)
	_, err = b.Commit(t.Context(), commitment(h, 1))
	b.refuse(t, "after it ran out", err, fault.DuplicateRemoteTask)
	if _, err := b.Reap(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	_, err = b.Commit(t.Context(), commitment(h, 1))
	b.refuse(t, "after it was reaped", err, fault.DuplicateRemoteTask)
	if c := b.one(t, task.Poll); c.TaskID != first.ID {
		t.Errorf("claimed %s, want the first task", c.TaskID)
	}

	for n, change := range map[int]func(*task.Intent){
		3: func(i *task.Intent) { i.Server = "s2" },
		4: func(i *task.Intent) { i.Scope.UserID = "bob" },
	} {
		i := intent(n)
		change(&i)
		r, err := b.Reserve(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Commit(t.Context(), commitment(task.Hold{TaskID: r.TaskID, Fence: r.Fence}, 1)); err != nil {
			t.Errorf("the same remote id under another server or user: %v", err)
		}
	}
}

func unasked(t *testing.T, b Bench) {
	c := commitment(task.Hold{}, 1)
	c.Unasked = new(intent(1))
	first, err := b.Commit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.Commit(t.Context(), c)
	if err != nil || again.ID != first.ID {
		t.Errorf("the second commit says %+v, %v, want %s", again, err, first.ID)
	}
	other := c
	other.Unasked = new(intent(2))
	_, err = b.Commit(t.Context(), other)
	b.refuse(t, "the handle of another call", err, fault.DuplicateRemoteTask)
	b.Pass(t, Policy().PollInterval)
	if got := b.one(t, task.Poll); got.TaskID != first.ID || string(got.Binding) != `{"entry":1}` {
		t.Errorf("claimed %+v", got)
	}
}

// TASK-007
func reserveAtOnce(t *testing.T, b Bench) {
	const n = 8
	results, errs := make([]task.Reserved, n), make([]error, n)
	atOnce(n, func(k int) { results[k], errs[k] = b.Reserve(t.Context(), intent(1)) })
	won := 0
	for k := range n {
		switch {
		case errs[k] == nil && results[k].Committed == nil:
			won++
		case !fault.Is(errs[k], fault.RequestInProgress):
			t.Errorf("a submit got %+v, %v", results[k], errs[k])
		}
	}
	if rows := b.Count(t, "task_reservation"); won != 1 || rows != 1 {
		t.Errorf("%d submits won, and %d reservations are stored, want one", won, rows)
	}
}

// TASK-013
func commitAtOnce(t *testing.T, b Bench) {
	const n = 8
	holds, errs := make([]task.Hold, n), make([]error, n)
	for k := range n {
		holds[k] = b.reserve(t, k)
	}
	atOnce(n, func(k int) { _, errs[k] = b.Commit(t.Context(), commitment(holds[k], 1)) })
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !fault.Is(err, fault.DuplicateRemoteTask) {
			t.Error(err)
		}
	}
	if tasks, kept := b.Count(t, "task_task"), b.Count(t, "task_reservation"); won != 1 || tasks != 1 || kept != n-1 {
		t.Errorf("%d commits won; %d tasks and %d reservations are stored, want 1, 1 and %d", won, tasks, kept, n-1)
	}
}

func atOnce(n int, do func(k int)) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for k := range n {
		wg.Go(func() {
			<-start
			do(k)
		})
	}
	close(start)
	wg.Wait()
}
