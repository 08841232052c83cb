package tasktest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// born makes a task with a time to live of its own, and one that the remote gives it; 0 is none.
func (b Bench) born(t *testing.T, n int, ttl, remote time.Duration) *task.Task {
	t.Helper()
	i := intent(n)
	i.TTL = ttl
	r, err := b.Reserve(t.Context(), i)
	if err != nil {
		t.Fatal(err)
	}
	c := commitment(task.Hold{TaskID: r.TaskID, Fence: r.Fence}, n)
	c.RemoteTTL = remote
	made, err := b.Commit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TASK-034
func expire(t *testing.T, b Bench) {
	id := b.born(t, 1, time.Hour, 0).ID
	b.born(t, 2, 2*time.Hour, 0)
	b.Pass(t, time.Hour-time.Minute)
	claims := b.claim(t, 10) // a call under way does not save it
	if len(claims) != 2 {
		t.Fatalf("claimed %v", brief(claims))
	}
	if ids, err := b.Expire(t.Context(), 10); err != nil || len(ids) != 0 {
		t.Fatalf("expired %v, %v", ids, err)
	}
	b.Pass(t, time.Minute)
	ids, err := b.Expire(t.Context(), 10)
	if diff := cmp.Diff([]string{id}, ids); diff != "" || err != nil {
		t.Fatalf("expired (-want +got): %s, %v", diff, err)
	}
	got := b.get(t, id)
	if got.Status != task.Failed || got.FailureReason != task.Expired || got.Error == "" || got.Ended.IsZero() || !got.NextPoll.IsZero() {
		t.Errorf("the task is %+v", got)
	}
	if e := b.Events(t); len(e) != 1 || e[0].TaskID != id || !strings.Contains(string(e[0].Body), `"failure_reason":"expired"`) {
		t.Errorf("events: %+v", e)
	}
	for _, c := range claims {
		if c.TaskID == id {
			b.wantDropped(t, says(c, completed(`1`)))
		}
	}
	if ids, err := b.Expire(t.Context(), 10); err != nil || len(ids) != 0 {
		t.Errorf("expired again: %v, %v", ids, err)
	}
}

// TASK-034
func expireTimes(t *testing.T, b Bench) {
	for n, c := range map[int]struct{ ttl, remote, want time.Duration }{
		1: {want: Policy().MaxAge},
		2: {ttl: time.Hour, want: time.Hour},
		3: {ttl: 2 * time.Hour, remote: time.Hour, want: time.Hour},
		4: {ttl: time.Hour, remote: 2 * time.Hour, want: time.Hour},
		5: {ttl: Policy().MaxAge * 2, remote: Policy().MaxAge * 2, want: Policy().MaxAge},
	} {
		made := b.born(t, n, c.ttl, c.remote)
		if got := made.Expires.Sub(made.Created); got != c.want {
			t.Errorf("%+v ends after %v", c, got)
		}
	}
	b.Exec(t, "delete from task_live")
	id := b.born(t, 6, 2*time.Hour, 0).ID
	for _, c := range []struct{ remote, want time.Duration }{{time.Hour, time.Hour}, {3 * time.Hour, 2 * time.Hour}, {0, 2 * time.Hour}, {time.Hour, time.Hour}} {
		b.done(t, says(b.next(t, task.Poll), task.Snapshot{Status: task.Working, TTL: c.remote}))
		if got := b.get(t, id); !near(got.Expires.Sub(got.Created), c.want) {
			t.Errorf("a remote that keeps it for %v makes it end after %v", c.remote, got.Expires.Sub(got.Created))
		}
	}
}

// TASK-034
func prune(t *testing.T, b Bench) {
	big := `"` + strings.Repeat("x", 100_000) + `"`
	old := b.submit(t, 1).ID
	b.done(t, says(b.next(t, task.Poll), completed(big)))
	running := b.submit(t, 2).ID
	b.Pass(t, Policy().Retention-time.Hour)
	b.Exec(t, "update task_task set expire_time = null")
	young := b.reserve(t, 3)
	if err := b.Abandon(t.Context(), young, true, "lost"); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Prune(t.Context(), 10); err != nil || n != 0 {
		t.Fatalf("pruned %d, %v an hour early", n, err)
	}
	b.Pass(t, time.Hour)
	if n, err := b.Prune(t.Context(), 10); err != nil || n != 1 {
		t.Fatalf("pruned %d, %v, want one", n, err)
	}
	if _, err := b.Get(t.Context(), old); !fault.Is(err, fault.TaskNotFound) {
		t.Errorf("the pruned task: %v", err)
	}
	for table, want := range map[string]int{"task_task": 2, "task_result": 0, "task_attempt": 0, "task_request": 2, "task_live": 1, "task_binding": 1} {
		if n := b.Count(t, table); n != want {
			t.Errorf("%s has %d rows, want %d", table, n, want)
		}
	}
	b.get(t, running)
	b.get(t, young.TaskID)
}

// TASK-045
func bindings(t *testing.T, b Bench) {
	for n := range 3 {
		b.submit(t, n)
	}
	other := intent(3)
	other.Fingerprint, other.Binding = "fp-2", []byte("{}")
	r, err := b.Reserve(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	stored := func(want int, when string) {
		t.Helper()
		if _, err := b.Prune(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		if n := b.Count(t, "task_binding"); n != want {
			t.Errorf("%s: %d bindings are stored, want %d", when, n, want)
		}
	}
	stored(2, "with three tasks and a reservation")
	if err := b.Abandon(t.Context(), task.Hold{TaskID: r.TaskID, Fence: r.Fence}, false, ""); err != nil {
		t.Fatal(err)
	}
	stored(1, "without the reservation")
	b.Pass(t, Policy().PollInterval)
	for _, c := range b.claim(t, 10) {
		b.done(t, says(c, completed(`1`)))
	}
	stored(1, "with ended tasks")
	b.Pass(t, Policy().Retention)
	stored(0, "without tasks")
}

// TASK-049
func pages(t *testing.T, b Bench) {
	var want []string
	for n := range 7 {
		want = append([]string{b.submit(t, n).ID}, want...)
		b.Pass(t, time.Second)
	}
	walk := func(limit int) (got []string) {
		t.Helper()
		f := task.Filter{Scope: ada, Limit: limit}
		for range 10 {
			p, err := b.List(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range p.Tasks {
				got = append(got, x.ID)
				if x.Result != nil || x.Attempts != nil {
					t.Errorf("a listed task has more than it should: %+v", x)
				}
			}
			if p.Next == "" {
				return got
			}
			f.After = p.Next
		}
		t.Fatal("the list does not end")
		return nil
	}
	for _, limit := range []int{1, 3, 7, 0} {
		if diff := cmp.Diff(want, walk(limit)); diff != "" {
			t.Errorf("pages of %d (-want +got):\n%s", limit, diff)
		}
	}
	// Those of one moment follow by id, and none is lost between pages.
	b.Exec(t, "update task_task set create_time = (select min(create_time) from task_task)")
	if got := walk(2); len(got) != 7 || !isDescending(got) {
		t.Errorf("pages of one moment: %v", got)
	}
	for _, token := range []string{"x", "e30", "bnVsbA", "eyJ0IjotMSwiaSI6ImEifQ", "eyJ0IjoxLCJpIjoiXHUwMDAwIn0"} {
		_, err := b.List(t.Context(), task.Filter{After: token})
		b.refuse(t, "the token "+token, err, fault.InvalidArguments)
		if f, _ := errors.AsType[*fault.Error](err); len(f.Violations()) != 1 || f.Violations()[0].Field != "page_token" {
			t.Errorf("violations: %v", f.Violations())
		}
	}
}

func isDescending(ids []string) bool {
	for k := range len(ids) - 1 {
		if ids[k] <= ids[k+1] {
			return false
		}
	}
	return true
}

// TASK-049
func filters(t *testing.T, b Bench) {
	ids := map[string]string{}
	for n, s := range map[int]authn.Scope{1: ada, 2: {UserID: "ada", ThreadID: "t2"}, 3: {UserID: "bob", ThreadID: "t1"}} {
		i := intent(n)
		i.Scope = s
		if n == 3 {
			i.Server = "s2"
		}
		r, err := b.Reserve(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Commit(t.Context(), commitment(task.Hold{TaskID: r.TaskID, Fence: r.Fence}, n)); err != nil {
			t.Fatal(err)
		}
		ids[s.UserID+" "+s.ThreadID] = r.TaskID
	}
	b.Pass(t, Policy().PollInterval)
	for _, c := range b.claim(t, 10) {
		if c.TaskID == ids["ada t2"] {
			b.done(t, says(c, completed(`1`)))
		}
	}
	for _, c := range []struct {
		f    task.Filter
		want []string
	}{
		{task.Filter{}, []string{"ada t1", "ada t2", "bob t1"}},
		{task.Filter{Scope: ada}, []string{"ada t1"}},
		{task.Filter{Scope: authn.Scope{UserID: "ada"}}, []string{"ada t1", "ada t2"}},
		{task.Filter{Scope: authn.Scope{ThreadID: "t1"}}, []string{"ada t1", "bob t1"}},
		{task.Filter{Server: "s2"}, []string{"bob t1"}},
		{task.Filter{Statuses: []task.Status{task.Completed, task.Failed}}, []string{"ada t2"}},
		{task.Filter{Statuses: []task.Status{task.Submitted}, Scope: authn.Scope{UserID: "ada"}}, []string{"ada t1"}},
		{task.Filter{Scope: authn.Scope{UserID: "ada", ThreadID: "t9"}}, nil},
	} {
		p, err := b.List(t.Context(), c.f)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, x := range p.Tasks {
			got[x.ID] = true
		}
		want := map[string]bool{}
		for _, w := range c.want {
			want[ids[w]] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c.f, diff)
		}
	}
}
