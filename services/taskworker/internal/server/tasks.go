package server

import (
	"context"
	"log/slog"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/hint"
	"github.com/toolherd/toolherd/services/taskworker/internal/message"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/watch"
	"github.com/toolherd/toolherd/services/taskworker/internal/worker"
)

const (
	// maxPageBytes keeps a page below 3 MiB, so that it reaches clients with gRPC's default limit of 4 MiB.
	maxPageBytes = 5 << 19
	// chunkBytes is the largest piece of a result.
	chunkBytes = 1 << 20
)

// TasksOptions are what [Tasks] works with. All are required.
type TasksOptions struct {
	Store   task.Store
	Workers task.Workers
	Hub     *watch.Hub
	Hints   *hint.Sender
	Log     *slog.Logger
}

// Tasks serves TaskService.
type Tasks struct {
	taskv1.UnsafeTaskServiceServer

	o TasksOptions
}

// NewTasks returns the server.
func NewTasks(o TasksOptions) *Tasks { return &Tasks{o: o} }

// get returns a task that a may see.
func (s *Tasks) get(ctx context.Context, a access, id string) (*task.Task, error) {
	if id == "" {
		return nil, invalid("task_id", "is empty")
	}
	t, err := s.o.Store.Get(ctx, id)
	if err != nil {
		return nil, readFault(err)
	}
	if !a.admits(t) {
		return nil, task.NotFound(id)
	}
	return t, nil
}

// GetTask implements the contract.
func (s *Tasks) GetTask(ctx context.Context, req *taskv1.GetTaskRequest) (*taskv1.GetTaskResponse, error) {
	a, err := accessOf(ctx, req.GetScope())
	if err != nil {
		return nil, err
	}
	t, err := s.get(ctx, a, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return &taskv1.GetTaskResponse{Task: message.Task(t, a.view)}, nil
}

// GetTaskResult implements the contract.
func (s *Tasks) GetTaskResult(req *taskv1.GetTaskResultRequest, stream grpc.ServerStreamingServer[taskv1.GetTaskResultResponse]) error {
	ctx := stream.Context()
	a, err := accessOf(ctx, req.GetScope())
	if err != nil {
		return err
	}
	t, err := s.get(ctx, a, req.GetTaskId())
	switch {
	case err != nil:
		return err
	case !t.Status.Terminal():
		return fault.Of(fault.FailedPrecondition, "task %q is %s and has no result yet: WatchTask tells when it ends", t.ID, t.Status)
	case t.ResultTruncated:
		return fault.Of(fault.FailedPrecondition,
			"the result of task %q was larger than what is kept (16 MiB): GetTask has its beginning in result_preview", t.ID)
	}
	result, err := s.o.Store.Result(ctx, t.ID)
	if err != nil {
		return readFault(err)
	}
	for {
		n := min(len(result), chunkBytes)
		last := n == len(result)
		if err := stream.Send(&taskv1.GetTaskResultResponse{Data: result[:n], Last: last}); err != nil || last {
			return err
		}
		result = result[n:]
	}
}

// ListTasks implements the contract.
func (s *Tasks) ListTasks(ctx context.Context, req *taskv1.ListTasksRequest) (*taskv1.ListTasksResponse, error) {
	a, err := accessOf(ctx, req.GetScope())
	if err != nil {
		return nil, err
	}
	f, err := filter(a, req)
	if err != nil {
		return nil, err
	}
	page, err := s.o.Store.List(ctx, f)
	if err != nil {
		return nil, readFault(err)
	}
	out := &taskv1.ListTasksResponse{NextPageToken: page.Next}
	bytes := 0
	for i, t := range page.Tasks {
		m := message.Task(t, a.view)
		m.ResultJson = ""
		bytes += proto.Size(m)
		if i > 0 && bytes > maxPageBytes {
			last := page.Tasks[i-1]
			out.NextPageToken = task.Cursor{Created: last.Created, ID: last.ID}.Token()
			break
		}
		out.Tasks = append(out.Tasks, m)
	}
	return out, nil
}

func filter(a access, req *taskv1.ListTasksRequest) (task.Filter, error) {
	f := task.Filter{Scope: a.scope, Server: req.GetServer(), Limit: int(req.GetPageSize()), After: req.GetPageToken()}
	switch {
	case f.Limit < 0:
		return f, invalid("page_size", "must not be negative")
	case strings.ContainsRune(f.Server, 0):
		return f, invalid("server", "contains NUL, which no name does")
	case f.Server != "" && !a.view.Operator:
		return f, fault.New(fault.Forbidden, "only operators may list the tasks of a server: leave `server` empty")
	}
	for _, m := range req.GetStatuses() {
		status, ok := message.StatusOf(m)
		if !ok {
			return f, invalid("statuses", "has a value that is no state: "+m.String())
		}
		f.Statuses = append(f.Statuses, status)
	}
	return f, nil
}

// CancelTask implements the contract.
func (s *Tasks) CancelTask(ctx context.Context, req *taskv1.CancelTaskRequest) (*taskv1.CancelTaskResponse, error) {
	a, err := accessOf(ctx, req.GetScope())
	if err != nil {
		return nil, err
	}
	t, err := s.get(ctx, a, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if t.Status.Terminal() {
		return &taskv1.CancelTaskResponse{Task: message.Task(t, a.view)}, nil
	}
	switch alive, err := s.o.Workers.Alive(ctx); {
	case err != nil:
		return nil, readFault(err)
	case !alive:
		return nil, fault.New(fault.NoWorker,
			"no taskworker is working, so nobody could cancel task %q, and nothing was recorded: start one, with tasks.enabled", t.ID)
	}
	if t, err = s.o.Store.RequestCancel(ctx, t.ID); err != nil {
		return nil, writeFault(err)
	}
	s.o.Hints.Send(worker.TopicFenced, task.TopicDue, task.TopicChanged)
	return &taskv1.CancelTaskResponse{Task: message.Task(t, a.view)}, nil
}

// AnswerTask is declared and not built.
func (s *Tasks) AnswerTask(context.Context, *taskv1.AnswerTaskRequest) (*taskv1.AnswerTaskResponse, error) {
	return nil, rpc.Unimplemented("AnswerTask: this version cannot deliver answers to a task that waits for input; CancelTask ends it")
}
