package scenario

import (
	"strings"
	"testing"
	"time"

	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
)

const (
	commitTask       = "/toolherd.task.v1.TaskIntakeService/CommitTask"
	renewReservation = "/toolherd.task.v1.TaskIntakeService/RenewReservation"
)

// outcomeUnknown waits for the one task of a job's user, which must have failed so, and for its news.
func (s *Stage) outcomeUnknown(t testing.TB, j Job) *taskv1.Task {
	t.Helper()
	var task *taskv1.Task
	Eventually(t, "a task says that nobody knows what became of the submit of "+j.Name, func() bool {
		if tasks := s.tasksOf(t, j); len(tasks) == 1 {
			task = tasks[0]
		}
		return task != nil
	})
	if statusOf(task) != failed || task.GetFailureReason() != "outcome_unknown" || task.GetError() == "" {
		t.Errorf("the task is %v, want one that failed, outcome_unknown", task)
	}
	AwaitNews(t, func() []News { return s.Told(t) }, task.GetTaskId(), failed)
	return task
}

// TASK-009, TASK-055: a toolproxy that is killed while the remote takes a submit leaves a reservation, which becomes a task
// that says that nobody knows; whoever asks again gets that task, and the remote no second submit and no cancel.
func TestCrashOfToolproxyInASubmit(t *testing.T) {
	for _, topology := range Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			s := NewStage(t, topology, StageOptions{})
			gate, open := s.Gate(t, "submit")
			j := Job{Name: "torn", RequestID: "request-torn", Sink: hookSink, Spec: map[string]any{"submit_file": gate}}
			done := make(chan error, 1)
			go func() {
				_, err := s.Submit(t, j)
				done <- err
			}()
			Eventually(t, "the remote has the submit", func() bool { return len(s.callsOf(t, fakemcp.SubmitJob, j.Name)) == 1 })
			if tasks := s.tasksOf(t, j); len(tasks) != 0 {
				t.Errorf("a reservation is listed: %v", tasks)
			}
			s.Proxy.Kill(t)
			if err := <-done; err == nil {
				t.Error("the submit succeeded")
			}
			open()
			s.Launch(t, s.Proxy.Name)
			s.AwaitReady(t, s.Proxy.Name)
			s.SettledOK(t, "jobs")
			s.AwaitTasks(t)
			task := s.outcomeUnknown(t, j)
			if id := s.Begin(t, j); id != task.GetTaskId() {
				t.Errorf("submitted again it is task %s, it was %s", id, task.GetTaskId())
			}
			s.submittedOnce(t, j, 0)
		})
	}
}

// submittedOnce checks that the remote has one job of that name and was told to cancel it so often.
func (s *Stage) submittedOnce(t testing.TB, j Job, cancels int) {
	t.Helper()
	if n := len(s.callsOf(t, fakemcp.SubmitJob, j.Name)); n != 1 {
		t.Errorf("the remote took %d submits of %s, want 1", n, j.Name)
	}
	if n := len(s.callsOf(t, fakemcp.CancelJob, j.Name)); n != cancels {
		t.Errorf("the remote was told to cancel %s %d times, want %d", j.Name, n, cancels)
	}
}

// In a split deployment the answer to a commit travels, and what travels gets lost. An all-in-one has no such way.

// TASK-012: a commit whose answers get lost is asked again, nothing is cancelled, and the agent gets the task.
func TestCrashLosesTheAnswerToACommit(t *testing.T) {
	t.Parallel()
	var r *relay
	s := NewStage(t, Split, StageOptions{Setup: func(s *Stage) { r = s.newRelay(t, taskworker) }})
	r.when(commitTask, func(n int) relayed {
		if n <= 2 {
			return lost
		}
		return passes
	})
	j := Job{Name: "committed", Sink: hookSink}
	id := s.Begin(t, j)
	if n := r.count(commitTask); n != 3 {
		t.Errorf("the commit was asked for %d times, want 3", n)
	}
	s.Await(t, j, id, completed)
	if tasks := s.tasksOf(t, j); len(tasks) != 1 || tasks[0].GetTaskId() != id {
		t.Errorf("the tasks are %v", tasks)
	}
	AwaitNews(t, func() []News { return s.Told(t) }, id, completed)
	s.submittedOnce(t, j, 0)
}

// TASK-012: a commit that comes when the reservation has expired is refused: the remote is told to cancel, once, and a task
// says that nobody knows. Until then nothing was cancelled.
func TestCrashDelaysACommitBeyondItsReservation(t *testing.T) {
	t.Parallel()
	var r *relay
	s := NewStage(t, Split, StageOptions{Setup: func(s *Stage) { r = s.newRelay(t, taskworker) }})
	r.when(renewReservation, func(int) relayed { return refused })
	j := Job{Name: "overdue", Sink: hookSink, Spec: map[string]any{"polls": 100_000}}
	expired := func() bool { return len(s.tasksOf(t, j)) > 0 }
	r.when(commitTask, func(int) relayed {
		if n := len(s.callsOf(t, fakemcp.CancelJob, j.Name)); n > 0 {
			t.Errorf("the remote was told to cancel %d times before the commit was refused", n)
		}
		if !expired() {
			return refused
		}
		return passes
	})
	before := time.Now()
	out, err := s.Submit(t, j)
	if err == nil || out.GetTask() != nil {
		t.Errorf("the submit ends with %v", out)
	}
	t.Logf("the submit ends after %s with %v", time.Since(before), err)
	s.outcomeUnknown(t, j)
	if r.count(commitTask) < 2 {
		t.Errorf("the commit was asked for %d times", r.count(commitTask))
	}
	Eventually(t, "the remote is told to cancel", func() bool { return len(s.callsOf(t, fakemcp.CancelJob, j.Name)) > 0 })
	s.submittedOnce(t, j, 1)
}

// TASK-009: a toolproxy that is killed with the remote's answer in hand, before the commit, leaves the same.
func TestCrashOfToolproxyBeforeTheCommit(t *testing.T) {
	t.Parallel()
	var r *relay
	s := NewStage(t, Split, StageOptions{Setup: func(s *Stage) { r = s.newRelay(t, taskworker) }})
	r.when(commitTask, func(int) relayed { return hangs })
	j := Job{Name: "in-hand", RequestID: "request-in-hand", Sink: hookSink}
	done := make(chan error, 1)
	go func() {
		_, err := s.Submit(t, j)
		done <- err
	}()
	Eventually(t, "the commit is on its way", func() bool { return r.count(commitTask) > 0 })
	s.Proxy.Kill(t)
	if err := <-done; err == nil {
		t.Error("the submit succeeded")
	}
	r.when(commitTask, nil)
	s.Launch(t, toolproxy)
	s.AwaitReady(t, toolproxy)
	s.SettledOK(t, "jobs")
	s.AwaitTasks(t)
	task := s.outcomeUnknown(t, j)
	if !strings.HasPrefix(task.GetTaskId(), "mcp-task-") {
		t.Errorf("the task is %v", task)
	}
	s.submittedOnce(t, j, 0)
}

// Without taskworkers nothing is submitted: the intent comes first. Other tools work.
func TestCrashOfTaskworkerTakesNoSubmit(t *testing.T) {
	t.Parallel()
	s := NewStage(t, Split, StageOptions{})
	s.started[taskworker].Kill(t)
	j := Job{Name: "unheard"}
	if out, err := s.Submit(t, j); err == nil {
		t.Errorf("a submit without a taskworker ends with %v", out)
	}
	if n := len(s.callsOf(t, fakemcp.SubmitJob, j.Name)); n != 0 {
		t.Errorf("the remote took %d submits", n)
	}
	if got := s.JSON(t, Call{Tool: "jobs_echo", Arguments: `{"n":1}`}); !strings.Contains(got, `{"n":1}`) {
		t.Errorf("an ordinary call gets %s", got)
	}
	s.Launch(t, taskworker)
	s.AwaitReady(t, taskworker)
	var id string
	Eventually(t, "a submit is taken again", func() bool {
		out, err := s.Submit(t, j)
		id = out.GetTask().GetTaskId()
		return err == nil
	})
	s.Await(t, j, id, completed)
}
