package tasktest

import (
	"testing"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Times names the columns of time of each table.
func Times() map[string][]string {
	return map[string][]string{
		"task_reservation": {"create_time", "expire_time"},
		"task_task": {
			"cancel_requested_time", "last_poll_time", "create_time", "commit_time", "update_time", "end_time", "expire_time", "expire_limit_time",
		},
		"task_live":    {"due_time", "poll_time", "cancel_time", "last_poll_time"},
		"task_attempt": {"end_time", "next_due_time"},
		"task_worker":  {"expire_time"},
	}
}

// Run runs the suite. Open returns a bench on an empty database with the current schema.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, Bench){
		"a task goes from submit to its end": lifecycle,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t, Policy())) })
	}
}

func lifecycle(t *testing.T, b Bench) {
	made := b.submit(t, 1)
	if made.Status != task.Submitted || made.Version != 1 {
		t.Errorf("the new task is %+v", made)
	}
	b.none(t, "before the first poll is due")
	b.Pass(t, Policy().PollInterval)
	c := b.one(t, task.Poll)
	if s := b.done(t, says(c, working())); !s.Changed || s.Event || s.Status != task.Working {
		t.Errorf("settled as %+v", s)
	}
	b.Pass(t, Policy().PollInterval)
	if s := b.done(t, says(b.one(t, task.Poll), completed(`{"a":1}`))); !s.Changed || !s.Event || s.Status != task.Completed {
		t.Errorf("settled as %+v", s)
	}
	got := b.get(t, made.ID)
	if got.Status != task.Completed || string(got.Result) != `{"a":1}` || got.Version != 3 || len(got.Attempts) != 2 {
		t.Errorf("the task is %+v", got)
	}
	if e := b.Events(t); len(e) != 1 || e[0].TaskID != made.ID || e[0].Version != 1 {
		t.Errorf("events are %+v", e)
	}
}
