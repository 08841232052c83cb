package scenario

import (
	"net/http"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
	fakeruntime "github.com/toolherd/toolherd/test/fakeruntime/fake"
)

const second = "taskworker-2"

// twoWorkers starts a split Stage with one worker running and a second one to come.
func twoWorkers(t *testing.T) *Stage {
	t.Helper()
	s := NewStage(t, Split, StageOptions{Options: Options{Idle: true, Workers: 2}})
	for _, name := range s.programs() {
		if name != second {
			s.Launch(t, name)
		}
	}
	for _, name := range s.programs() {
		if name != second {
			s.AwaitReady(t, name)
		}
	}
	s.SettledOK(t, "jobs")
	s.AwaitTasks(t)
	return s
}

func (s *Stage) startSecond(t *testing.T) {
	t.Helper()
	s.Launch(t, second)
	s.AwaitReady(t, second)
}

// metric reads the sum of a metric's samples at a program's /metrics.
func (s *Stage) metric(t testing.TB, program, name string) (sum float64) {
	t.Helper()
	_, body := s.httpGet(t, program, "/metrics")
	for _, found := range regexp.MustCompile(`(?m)^`+name+`(?:\{[^}]*\})? (\S+)$`).FindAllStringSubmatch(body, -1) {
		v, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += v
	}
	return sum
}

// workersOf lists who made the attempts of a task, newest first.
func (s *Stage) workersOf(t testing.TB, id string) []string {
	t.Helper()
	out, err := s.TasksAt(t, second, "operator").GetTask(t.Context(), &taskv1.GetTaskRequest{TaskId: id})
	if err != nil {
		t.Fatal(err)
	}
	var workers []string
	for _, a := range out.GetTask().GetAttempts() {
		workers = append(workers, a.GetWorker())
	}
	return workers
}

// TASK-018, TASK-020, TASK-055: a worker that stands still with an answer in hand loses its lease; another takes the task
// over and ends it, and what the first then writes is refused. In an all-in-one the one worker stands still with everything
// else.
func TestCrashFreezesAWorkerWithItsLease(t *testing.T) {
	t.Parallel()
	s := twoWorkers(t)
	gate, open := s.Gate(t, "frozen")
	j := Job{Name: "frozen", Sink: hookSink, Spec: map[string]any{"polls": 2, "status_file": gate}}
	id := s.Begin(t, j)
	Eventually(t, "the first worker polls", func() bool { return len(s.callsOf(t, fakemcp.JobStatus, j.Name)) == 1 })
	first := s.started[taskworker]
	first.Signal(t, syscall.SIGSTOP)
	thawed := false
	t.Cleanup(func() {
		if !thawed {
			first.Signal(t, syscall.SIGCONT)
		}
	})
	open() // the answer reaches a process that does not read it
	s.startSecond(t)
	owner := s.TasksAt(t, second, "operator")
	var task *taskv1.Task
	Eventually(t, "the second worker ends the task", func() bool {
		out, err := owner.GetTask(t.Context(), &taskv1.GetTaskRequest{TaskId: id})
		if err != nil {
			t.Fatal(err)
		}
		task = out.GetTask()
		return statusOf(task) == completed
	})
	before := s.workersOf(t, id)
	dropped := "toolherd_task_dropped_total"
	first.Signal(t, syscall.SIGCONT)
	thawed = true
	Eventually(t, "the first worker's late outcome is dropped", func() bool { return s.metric(t, taskworker, dropped) >= 1 })
	after := s.Get(t, j, id)
	if statusOf(after) != completed || after.GetVersion() != task.GetVersion() {
		t.Errorf("the late write changed the task from %v to %v", task, after)
	}
	if workers := s.workersOf(t, id); len(workers) != len(before) {
		t.Errorf("the attempts were by %q, then by %q", before, workers)
	}
	ledger := &Ledger{}
	ledger.Add(j, id, completed)
	ledger.AwaitEnds(t, s, s.everybody(t))
	ledger.Check(t, s, s.Told(t))
}

// TASK-055: a worker that is killed in a poll is replaced by another one when its lease has expired, not sooner and not much
// later.
func TestCrashOfAWorkerWithItsLease(t *testing.T) {
	t.Parallel()
	s := twoWorkers(t)
	j := Job{Name: "orphaned", Sink: hookSink, Spec: map[string]any{"status_answers": []string{"hang"}, "polls": 2}}
	id := s.Begin(t, j)
	Eventually(t, "the first worker polls", func() bool { return len(s.callsOf(t, fakemcp.JobStatus, j.Name)) == 1 })
	s.startSecond(t)
	killed := time.Now()
	s.started[taskworker].Kill(t)
	Eventually(t, "the second worker polls", func() bool { return len(s.callsOf(t, fakemcp.JobStatus, j.Name)) == 2 })
	calls := s.callsOf(t, fakemcp.JobStatus, j.Name)
	if took := calls[1].Time.Sub(killed); took > 7*time.Second {
		t.Errorf("the takeover took %s, with a lease of 5 s", took)
	}
	// The first worker has the intake too: one address is all that toolproxy knows.
	s.Launch(t, taskworker)
	s.AwaitReady(t, taskworker)
	s.Await(t, j, id, completed)
	ledger := &Ledger{}
	ledger.Add(j, id, completed)
	ledger.AwaitEnds(t, s, s.everybody(t))
	ledger.Check(t, s, s.Told(t))
}

// TASK-053, OPS-007: a worker that is told to end is not ready any more, claims no more, waits for its calls for a while, and
// leaves the rest to others.
func TestAWorkerThatEndsLeavesItsTasksToOthers(t *testing.T) {
	t.Parallel()
	s := twoWorkers(t)
	gate, open := s.Gate(t, "drained")
	quickly := Job{Name: "drained", Sink: hookSink, Spec: map[string]any{"status_file": gate}}
	never := Job{Name: "not-drained", Sink: hookSink, Spec: map[string]any{"status_answers": []string{"hang", "hang", "hang"}, "polls": 4}}
	ledger := &Ledger{}
	for _, j := range []Job{quickly, never} {
		ledger.Add(j, s.Begin(t, j), completed)
		Eventually(t, "the poll of "+j.Name+" runs", func() bool { return len(s.callsOf(t, fakemcp.JobStatus, j.Name)) == 1 })
	}
	s.startSecond(t)
	first := s.started[taskworker]
	before := time.Now()
	first.Signal(t, syscall.SIGTERM)
	Eventually(t, "the worker is not ready", func() bool {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		resp, err := client.Get("http://" + s.http[taskworker] + "/readyz")
		if err != nil {
			return true // it listens no more
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusServiceUnavailable
	})
	if first.Exited() {
		t.Error("the worker did not wait for its calls")
	}
	open()
	code := first.Wait(t)
	if took := time.Since(before); code != 0 || took > 12*time.Second {
		t.Errorf("the worker ends with %d after %s, want 0 within its drain of 10 s", code, took)
	}
	s.Launch(t, taskworker)
	s.AwaitReady(t, taskworker)
	ledger.AwaitEnds(t, s, s.everybody(t))
	ledger.Check(t, s, s.Told(t))
	if n := len(s.callsOf(t, fakemcp.JobStatus, quickly.Name)); n != 1 {
		t.Errorf("the poll that ended in the drain was repeated: %d polls", n)
	}
}

// NOTE-003: a notifier that is killed when it has sent, and before it has noted that, sends again, under the same id.
func TestCrashOfTheNotifierAfterSending(t *testing.T) {
	for _, topology := range Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			s := NewStage(t, topology, StageOptions{})
			s.answerHooks(t, "200;delay=60s")
			j := Job{Name: "told-twice", Sink: hookSink}
			id := s.Begin(t, j)
			first := AwaitNews(t, func() []News { return s.Told(t) }, id, completed)
			program := s.started[notifier]
			if topology != Split {
				program = s.Proxy
			}
			program.Kill(t)
			s.answerHooks(t, "200")
			s.Launch(t, program.Name)
			s.AwaitReady(t, program.Name)
			Eventually(t, "the webhook comes again", func() bool { return len(s.Told(t)) >= 2 })
			s.awaitDelivered(t, first.EventID, hookSink)
			for _, n := range s.Told(t) {
				if n.EventID != first.EventID || n.Raw != first.Raw {
					t.Errorf("it came as %s and as %s", first.Raw, n.Raw)
				}
			}
		})
	}
}

func (s *Stage) answerHooks(t testing.TB, text string) {
	t.Helper()
	plan, err := fakeruntime.ParsePlan(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Hook.SetPlan("", plan); err != nil {
		t.Fatal(err)
	}
}
