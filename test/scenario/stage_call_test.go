package scenario

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"

	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// States of tasks.
const (
	working       = taskStatus(corev1.TaskStatus_TASK_STATUS_WORKING)
	inputRequired = taskStatus(corev1.TaskStatus_TASK_STATUS_INPUT_REQUIRED)
	completed     = taskStatus(corev1.TaskStatus_TASK_STATUS_COMPLETED)
	failed        = taskStatus(corev1.TaskStatus_TASK_STATUS_FAILED)
	cancelled     = taskStatus(corev1.TaskStatus_TASK_STATUS_CANCELLED)
)

type taskStatus corev1.TaskStatus

// String is the state as events have it.
func (s taskStatus) String() string {
	return strings.ToLower(strings.TrimPrefix(corev1.TaskStatus(s).String(), "TASK_STATUS_"))
}

func (s taskStatus) proto() corev1.TaskStatus { return corev1.TaskStatus(s) }

func (s taskStatus) final() bool { return s == completed || s == failed || s == cancelled }

func statusOf(task *taskv1.Task) taskStatus { return taskStatus(task.GetStatus()) }

// Tasks is the agent's client of TaskService, at the one address that it knows.
func (h *Herd) Tasks(t testing.TB) taskv1.TaskServiceClient {
	t.Helper()
	return taskv1.NewTaskServiceClient(h.Conn(t, toolproxy, "agent"))
}

// TasksAt is a client of the TaskService of one of the programs.
func (h *Herd) TasksAt(t testing.TB, program, role string) taskv1.TaskServiceClient {
	t.Helper()
	return taskv1.NewTaskServiceClient(h.Conn(t, program, role))
}

// Events is the agent's client of NotifierService, at the one address that it knows.
func (h *Herd) Events(t testing.TB) notifierv1.NotifierServiceClient {
	t.Helper()
	return notifierv1.NewNotifierServiceClient(h.Conn(t, toolproxy, "agent"))
}

// Notifications is the operator's client of the notifier.
func (h *Herd) Notifications(t testing.TB) notifierv1.NotifierServiceClient {
	t.Helper()
	return notifierv1.NewNotifierServiceClient(h.Conn(t, notifier, "operator"))
}

func (j Job) scope() *corev1.Scope { return &corev1.Scope{UserId: j.user(), ThreadId: j.thread()} }

// Submit starts a job and returns what the agent gets.
func (h *Herd) Submit(t testing.TB, j Job) (*toolproxyv1.CallToolResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return h.Tools(t).CallTool(ctx, &toolproxyv1.CallToolRequest{
		Name: j.tool(), Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: j.arguments(t)}, Scope: j.scope(),
		RequestId: j.RequestID, NotifySink: j.Sink, RunId: "run-" + j.Name, ToolCallId: "call-" + j.Name,
		View: toolproxyv1.ResultView_RESULT_VIEW_JSON,
	})
}

// Begin starts a job, which must become a task, and returns its id.
func (h *Herd) Begin(t testing.TB, j Job) string {
	t.Helper()
	out, err := h.Submit(t, j)
	if err != nil {
		t.Fatalf("submit %s: %v", j.Name, err)
	}
	id := out.GetTask().GetTaskId()
	if !strings.HasPrefix(id, "mcp-task-") {
		t.Fatalf("submit %s: the outcome is %v, want a task", j.Name, out)
	}
	return id
}

// Get returns a task as its owner sees it. What is said to be worth another try is tried again: a program may just be
// coming back.
func (h *Herd) Get(t testing.TB, j Job, id string) *taskv1.Task {
	t.Helper()
	var out *taskv1.GetTaskResponse
	Eventually(t, "task "+id+" can be asked for", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var err error
		out, err = h.Tasks(t).GetTask(ctx, &taskv1.GetTaskRequest{TaskId: id, Scope: j.scope()}, grpc.WaitForReady(true))
		if err != nil && !unavailable(err) {
			t.Fatalf("get task %s of job %s: %v", id, j.Name, err)
		}
		return err == nil
	})
	return out.GetTask()
}

// Await waits until a task is in a state and returns it. A task that ends in another one fails the test.
func (h *Herd) Await(t testing.TB, j Job, id string, want taskStatus) *taskv1.Task {
	t.Helper()
	var task *taskv1.Task
	Eventually(t, "the task of job "+j.Name+" is "+want.String(), func() bool {
		task = h.Get(t, j, id)
		if got := statusOf(task); got.final() && got != want {
			t.Fatalf("the task of job %s is %s, want %s: %v", j.Name, got, want, task)
		}
		return statusOf(task) == want
	})
	return task
}

// Cancel asks for the end of a task.
func (h *Herd) Cancel(t testing.TB, j Job, id string) *taskv1.Task {
	t.Helper()
	out, err := h.Tasks(t).CancelTask(t.Context(), &taskv1.CancelTaskRequest{TaskId: id, Scope: j.scope()})
	if err != nil {
		t.Fatalf("cancel the task of job %s: %v", j.Name, err)
	}
	return out.GetTask()
}

// Result returns the whole result of a task, put together from its pieces.
func (h *Herd) Result(t testing.TB, j Job, id string) (string, error) {
	t.Helper()
	stream, err := h.Tasks(t).GetTaskResult(t.Context(), &taskv1.GetTaskResultRequest{TaskId: id, Scope: j.scope()})
	if err != nil {
		return "", err
	}
	var whole []byte
	for last := false; ; {
		piece, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && last:
			return string(whole), nil
		case err != nil:
			return "", err
		case last || len(piece.GetData()) > 1<<20:
			t.Fatalf("a piece of %d bytes, after the last one: %t", len(piece.GetData()), last)
		}
		whole, last = append(whole, piece.GetData()...), piece.GetLast()
	}
}

// listAll returns every task that there is, as an operator sees it.
func (h *Herd) listAll(t testing.TB) map[string]*taskv1.Task {
	t.Helper()
	all := map[string]*taskv1.Task{}
	for token := ""; ; {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		page, err := h.TasksAt(t, taskworker, "operator").ListTasks(ctx, &taskv1.ListTasksRequest{PageToken: token, PageSize: 100}, grpc.WaitForReady(true))
		cancel()
		if err != nil {
			t.Fatalf("list tasks: %v", err)
		}
		for _, task := range page.GetTasks() {
			all[task.GetTaskId()] = task
		}
		if token = page.GetNextPageToken(); token == "" {
			return all
		}
	}
}
