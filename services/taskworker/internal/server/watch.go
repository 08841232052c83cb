package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/message"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// rereadDelay is how long a watcher waits before it reads a task again that could not be read.
const rereadDelay = time.Second

// WatchTask implements the contract.
func (s *Tasks) WatchTask(req *taskv1.WatchTaskRequest, stream grpc.ServerStreamingServer[taskv1.WatchTaskResponse]) error {
	ctx := stream.Context()
	a, err := accessOf(ctx, req.GetScope())
	if err != nil {
		return err
	}
	if req.GetAfterVersion() < 0 {
		return invalid("after_version", "must not be negative")
	}
	// The watch begins before the first look, so that no change is between them.
	w := s.o.Hub.Watch(req.GetTaskId())
	defer w.Close()
	t, err := s.get(ctx, a, req.GetTaskId())
	if err != nil {
		return err
	}
	sent := req.GetAfterVersion()
	for {
		if t != nil {
			if t.Version > sent {
				if err := stream.Send(&taskv1.WatchTaskResponse{Task: message.Task(t, a.view)}); err != nil {
					return err
				}
				sent = t.Version
			}
			if t.Status.Terminal() {
				return nil
			}
			w.Saw(t.Version)
		}
		if err := s.await(ctx, w.News(), t == nil); err != nil {
			return err
		}
		if t, err = s.reread(ctx, req.GetTaskId()); err != nil {
			return err
		}
	}
}

// await waits for news, or for a moment if the last look has failed.
func (s *Tasks) await(ctx context.Context, news <-chan struct{}, failed bool) error {
	var again <-chan time.Time
	if failed {
		timer := time.NewTimer(rereadDelay)
		defer timer.Stop()
		news, again = nil, timer.C
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-rpc.Draining(ctx):
		return fault.New(fault.NotReady, "this taskworker shuts down: watch again with after_version")
	case <-news:
	case <-again:
	}
	return nil
}

// reread returns a task that is being watched, or nil while the database does not answer: watchers wait for it.
func (s *Tasks) reread(ctx context.Context, id string) (*task.Task, error) {
	t, err := s.o.Store.Get(ctx, id)
	if err == nil || stated(err) {
		return t, err
	}
	s.o.Log.DebugContext(ctx, "cannot read a watched task, trying again", "task_id", id, "err", err)
	return nil, nil
}
