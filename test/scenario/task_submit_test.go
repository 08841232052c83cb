package scenario

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
)

// tasksOf lists the tasks of a job's scope, as its agent.
func (s *Stage) tasksOf(t testing.TB, j Job) []*taskv1.Task {
	t.Helper()
	page, err := s.Tasks(t).ListTasks(t.Context(), &taskv1.ListTasksRequest{Scope: j.scope()})
	if err != nil {
		t.Fatalf("list the tasks of %s: %v", j.user(), err)
	}
	return page.GetTasks()
}

// TASK-007: a submit that was taken is answered again with the same task, another one under its id is a conflict.
func theSameRequestAgain(t *testing.T, s *Stage) {
	j := Job{Name: "again", RequestID: "request-again", Spec: map[string]any{"polls": 2}}
	id := s.Begin(t, j)
	if again := s.Begin(t, j); again != id {
		t.Errorf("the same request is task %s and then %s", id, again)
	}
	s.Await(t, j, id, completed)
	if again := s.Begin(t, j); again != id {
		t.Errorf("after its end the same request is task %s, it was %s", again, id)
	}
	other := j
	other.Spec = map[string]any{"polls": 3}
	if _, err := s.Submit(t, other); reasonOf(err).Reason != "REQUEST_ID_CONFLICT" {
		t.Errorf("other arguments under the same request_id end with %v", err)
	}
	// The id is the user's own.
	stranger := j
	stranger.Name, stranger.User = "again-stranger", "again-stranger"
	if strange := s.Begin(t, stranger); strange == id {
		t.Error("another user got the task")
	}
	if n := len(s.callsOf(t, fakemcp.SubmitJob, j.Name)); n != 1 {
		t.Errorf("the remote took %d submits", n)
	}
	if n := len(s.tasksOf(t, j)); n != 1 {
		t.Errorf("the user has %d tasks", n)
	}
}

// TASK-007: while a submit is under way the same one is told so, and gets the same task afterwards.
func theSameRequestAtOnce(t *testing.T, s *Stage) {
	gate, open := s.Gate(t, "at-once")
	j := Job{Name: "at-once", RequestID: "request-at-once", Spec: map[string]any{"submit_file": gate}}
	const callers = 5
	type outcome struct {
		id  string
		err error
	}
	outcomes := make(chan outcome, callers)
	var running sync.WaitGroup
	defer running.Wait()
	for range callers {
		running.Go(func() {
			out, err := s.Submit(t, j)
			outcomes <- outcome{out.GetTask().GetTaskId(), err}
		})
	}
	for range callers - 1 {
		if o := <-outcomes; reasonOf(o.err).Reason != "REQUEST_IN_PROGRESS" {
			t.Errorf("a submit beside the one under way ends with %q, %v", o.id, o.err)
		}
	}
	open()
	first := <-outcomes
	if first.err != nil {
		t.Fatalf("the one submit ends with %v", first.err)
	}
	if again := s.Begin(t, j); again != first.id {
		t.Errorf("afterwards the same request is task %s, it was %s", again, first.id)
	}
	s.Await(t, j, first.id, completed)
	if n := len(s.callsOf(t, fakemcp.SubmitJob, j.Name)); n != 1 {
		t.Errorf("the remote took %d submits", n)
	}
}

// TASK-010: a tool that refuses the submit is answered to the agent; there is no task, and the request may be made again.
func aSubmitThatTheToolRefuses(t *testing.T, s *Stage) {
	j := Job{Name: "refused", RequestID: "request-refused", Spec: map[string]any{"submit_answer": "is_error"}}
	for range 2 {
		out, err := s.Submit(t, j)
		if err != nil || !strings.Contains(out.GetResult().GetResultJson(), "no capacity for refused") {
			t.Errorf("the refused submit ends with %v, %v", out, err)
		}
	}
	if tasks := s.tasksOf(t, j); len(tasks) != 0 {
		t.Errorf("there are tasks: %v", tasks)
	}
}

// TASK-010: so is one that wants to know more first.
func aSubmitThatAsks(t *testing.T, s *Stage) {
	j := Job{Name: "submit-asks", Server: "modern", Spec: map[string]any{"submit_answer": "asks"}}
	out, err := s.Submit(t, j)
	if err != nil && reasonOf(err).Reason == "" || out.GetTask() != nil {
		t.Errorf("a submit that asks ends with %v, %v", out, err)
	}
	if err == nil && out.GetInputRequired() == nil && out.GetResult() == nil {
		t.Errorf("a submit that asks ends with %v", out)
	}
	if tasks := s.tasksOf(t, j); len(tasks) != 0 {
		t.Errorf("there are tasks: %v", tasks)
	}
}

// TASK-009: a submit whose answer nobody understands may have started something: a task says so, and its owner is told.
func aSubmitAnswerThatMakesNoSense(t *testing.T, s *Stage) {
	for _, answer := range []string{"no_structured", "no_task_id", "not_running"} {
		j := Job{Name: "nonsense-" + answer, Sink: hookSink, Spec: map[string]any{"submit_answer": answer}}
		if _, err := s.Submit(t, j); reasonOf(err).Reason != "UPSTREAM_PROTOCOL" {
			t.Errorf("a submit whose answer has %s ends with %v", answer, err)
		}
		tasks := s.tasksOf(t, j)
		if len(tasks) != 1 || statusOf(tasks[0]) != failed || tasks[0].GetFailureReason() != "outcome_unknown" {
			t.Errorf("%s leaves the tasks %v", answer, tasks)
			continue
		}
		AwaitNews(t, func() []News { return s.Told(t) }, tasks[0].GetTaskId(), failed)
		if n := len(s.callsOf(t, fakemcp.CancelJob, j.Name)); n != 0 {
			t.Errorf("%s: the remote was told to cancel %d times", answer, n)
		}
	}
}

// TASK-013: two tasks of a user cannot be one at the remote; the one that was there first goes on.
func aRemoteIDThatIsKnown(t *testing.T, s *Stage) {
	gate, open := s.Gate(t, "known")
	first := Job{Name: "known", User: "known", Sink: hookSink, Spec: map[string]any{"job_id": "job-known-already", "file": gate}}
	id := s.Begin(t, first)
	second := first
	second.Thread = "another"
	if _, err := s.Submit(t, second); reasonOf(err).Reason != "DUPLICATE_REMOTE_TASK" {
		t.Errorf("a submit that is answered with a known id ends with %v", err)
	}
	if statusOf(s.Get(t, first, id)).final() {
		t.Error("the first task has ended")
	}
	open()
	s.Await(t, first, id, completed)
	if n := len(s.callsOf(t, fakemcp.CancelJob, first.Name)); n != 0 {
		t.Errorf("the remote was told to cancel %d times", n)
	}
	// For another user it is another task.
	stranger := first
	stranger.User = "known-stranger"
	s.Await(t, stranger, s.Begin(t, stranger), completed)
}

// TASK-006: a result of up to 64 KiB is in the task, a larger one beside it; what is not there is previewed.
func largeResults(t *testing.T, s *Stage) {
	for _, size := range []int{60_000, 200_000, 5 << 20} {
		j := Job{Name: "large-" + strings.Repeat("i", size/100_000), Spec: map[string]any{"result_bytes": size}}
		want := `{"data":"` + strings.Repeat("d", size) + `"}`
		id := s.Begin(t, j)
		task := s.Await(t, j, id, completed)
		whole, err := s.Result(t, j, id)
		if err != nil || whole != want {
			t.Errorf("%d bytes: the whole result has %d bytes, %v", size, len(whole), err)
		}
		inside := size < 65536
		if got := task.GetResultJson(); got != map[bool]string{true: want}[inside] {
			t.Errorf("%d bytes: the result in the task has %d bytes", size, len(got))
		}
		if got := task.GetResultPreview(); !inside && got != want[:2000] {
			t.Errorf("%d bytes: the preview has %d characters", size, len(got))
		}
		if task.GetResultTruncated() {
			t.Errorf("%d bytes are said to be kept nowhere", size)
		}
	}
	running := Job{Name: "no-result-yet", Spec: map[string]any{"polls": 100_000}}
	id := s.Begin(t, running)
	if _, err := s.Result(t, running, id); err == nil {
		t.Error("a task that runs has a result")
	}
	s.Cancel(t, running, id)
}

// CRED-015: what another owns and what nobody has are told apart by no answer.
func foreignAndUnknownTasksAreAlike(t *testing.T, s *Stage) {
	j := Job{Name: "mine", Spec: map[string]any{"polls": 100_000}}
	id := s.Begin(t, j)
	const unknown = "mcp-task-00000000000000000000000000000000"
	client := s.Tasks(t)
	calls := map[string]func(id string, scope *corev1.Scope) error{
		"GetTask": func(id string, scope *corev1.Scope) error {
			_, err := client.GetTask(t.Context(), &taskv1.GetTaskRequest{TaskId: id, Scope: scope})
			return err
		},
		"GetTaskResult": func(id string, scope *corev1.Scope) error {
			stream, err := client.GetTaskResult(t.Context(), &taskv1.GetTaskResultRequest{TaskId: id, Scope: scope})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"WatchTask": func(id string, scope *corev1.Scope) error {
			stream, err := client.WatchTask(t.Context(), &taskv1.WatchTaskRequest{TaskId: id, Scope: scope})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"CancelTask": func(id string, scope *corev1.Scope) error {
			_, err := client.CancelTask(t.Context(), &taskv1.CancelTaskRequest{TaskId: id, Scope: scope})
			return err
		},
		"AnswerTask": func(id string, scope *corev1.Scope) error {
			_, err := client.AnswerTask(t.Context(), &taskv1.AnswerTaskRequest{TaskId: id, Scope: scope, InputResponsesJson: `{"a":1}`})
			return err
		},
	}
	for name, call := range calls {
		want := reasonOf(call(unknown, j.scope()))
		if want.Reason != "TASK_NOT_FOUND" && name != "AnswerTask" { // which this version does not deliver, to nobody alike
			t.Errorf("%s of an unknown task ends with %v", name, want)
		}
		for _, scope := range []*corev1.Scope{
			{UserId: "somebody-else", ThreadId: j.thread()}, {UserId: j.user(), ThreadId: "another"}, {UserId: "default", ThreadId: "default"},
		} {
			got := reasonOf(call(id, scope))
			got.Message = strings.ReplaceAll(got.Message, id, unknown)
			if got.Code != want.Code || got.Reason != want.Reason || got.Message != want.Message || len(got.Metadata) != len(want.Metadata) {
				t.Errorf("%s of a foreign task (%v) ends with %+v, of an unknown one with %+v", name, scope, got, want)
			}
		}
		if s.Topology == Split && name != "AnswerTask" { // elsewhere the caller is an operator too, who may leave it out
			if f := reasonOf(call(id, nil)); f.Reason != "INVALID_ARGUMENTS" {
				t.Errorf("%s without a scope ends with %v", name, f)
			}
		}
	}
	if got := len(s.tasksOf(t, Job{Name: "mine", User: "somebody-else"})); got != 0 {
		t.Errorf("somebody else has %d tasks", got)
	}
	task := s.Get(t, j, id)
	if task.GetCancelRequestedTime() != nil {
		t.Error("a stranger's cancel reached the task")
	}
	s.Cancel(t, j, id)
	s.Await(t, j, id, cancelled)
}

// agentsSeeNoServerAndNoRemoteID: an agent's task says nothing about the far side, an operator's does.
func agentsSeeNoServerAndNoRemoteID(t *testing.T, s *Stage) {
	const remote = "job-that-agents-never-see"
	j := Job{Name: "seen", Sink: hookSink, Spec: map[string]any{"job_id": remote, "status_answers": []string{"is_error"}}}
	id := s.Begin(t, j)
	task := s.Await(t, j, id, completed)
	all, err := s.TasksAt(t, taskworker, "operator").GetTask(t.Context(), &taskv1.GetTaskRequest{TaskId: id})
	if err != nil {
		t.Fatal(err)
	}
	if all.GetTask().GetServer() != "jobs" || len(all.GetTask().GetAttempts()) != 2 || all.GetTask().GetAttempts()[0].GetWorker() == "" {
		t.Errorf("an operator sees %v", all)
	}
	if task.GetServer() != "" || len(task.GetAttempts()) != 2 || task.GetAttempts()[0].GetWorker() != "" {
		t.Errorf("an agent sees %v", task)
	}
	n := AwaitNews(t, func() []News { return s.Told(t) }, id, completed)
	for what, text := range map[string]string{"task": task.String(), "list": listed(s.tasksOf(t, j)), "event": n.Raw} {
		for _, secret := range []string{remote, s.Jobs.URL} {
			if strings.Contains(text, secret) {
				t.Errorf("the %s shows %s: %s", what, secret, text)
			}
		}
	}
}

func listed(tasks []*taskv1.Task) string {
	var b strings.Builder
	for _, task := range tasks {
		b.WriteString(task.String())
	}
	return b.String()
}

// OPS-009: with the address of toolproxy alone an agent submits, follows, cancels, and hears of the end.
func oneAddressIsEnough(t *testing.T, s *Stage) {
	j := Job{Name: "one-address", Spec: map[string]any{"polls": 100_000}}
	f := s.Follow(t, eventsSink, j.scope())
	id := s.Begin(t, j)
	stream, err := s.Tasks(t).WatchTask(t.Context(), &taskv1.WatchTaskRequest{TaskId: id, Scope: j.scope()})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := stream.Recv(); err != nil || first.GetTask().GetTaskId() != id {
		t.Errorf("the watch begins with %v, %v", first, err)
	}
	if tasks := s.tasksOf(t, j); len(tasks) != 1 || tasks[0].GetTaskId() != id {
		t.Errorf("the list is %v", tasks)
	}
	s.Cancel(t, j, id)
	var last *taskv1.Task
	for err == nil {
		var m *taskv1.WatchTaskResponse
		if m, err = stream.Recv(); err == nil {
			last = m.GetTask()
		}
	}
	if !errors.Is(err, io.EOF) || statusOf(last) != cancelled {
		t.Errorf("the watch ends with %v after %v", err, last)
	}
	s.awaitDelivered(t, AwaitNews(t, f.Told, id, cancelled).EventID, eventsSink)
	// What is forwarded is forwarded for the agent: its own token counts, not the proxy's.
	if tools, err := s.Tools(t).ListTools(t.Context(), &toolproxyv1.ListToolsRequest{}); err != nil || len(tools.GetTools()) == 0 {
		t.Errorf("list tools: %v", err)
	}
	if _, err := s.TasksAt(t, toolproxy, "notifier").GetTask(t.Context(), &taskv1.GetTaskRequest{TaskId: id, Scope: j.scope()}); !reasonOf(err).byRole() {
		t.Errorf("a notifier's token asks for a task and gets %v", err)
	}
}
