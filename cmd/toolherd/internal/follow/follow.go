// Package follow watches a task to its end, across lost connections, and shows its progress to people.
package follow

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// Watch is a task to follow.
type Watch struct {
	Client taskv1.TaskServiceClient
	TaskID string
	Scope  *corev1.Scope
	// Patience is how long a lost connection is tried again before the watch gives up; 0 not at all.
	Patience time.Duration
	// Show is called with every state, the final one last. Its error ends the watch.
	Show func(*taskv1.Task) error
	// Lost is called when the connection is lost, once per loss. May be nil.
	Lost func(error)
}

// settled is how long a stream lasts that was not refused at once.
const settled = 5 * time.Second

// Run follows the task until it has ended, and returns its final state. Errors are those of WatchTask and of Show.
func (w Watch) Run(ctx context.Context) (*taskv1.Task, error) {
	var last *taskv1.Task
	var wait *backoff.Backoff
	var lost time.Time // zero while the connection holds
	for {
		began, before := time.Now(), last.GetVersion()
		task, err := w.stream(ctx, last)
		if task != nil {
			last = task
		}
		switch {
		case last != nil && Terminal(last.GetStatus()):
			return last, nil
		case last == nil, fault.KindOf(err) != fault.Unavailable:
			return nil, err
		case last.GetVersion() > before, time.Since(began) > settled:
			lost = time.Time{} // it had held again
		}
		if lost.IsZero() {
			lost, wait = time.Now(), backoff.New(backoff.Config{Base: 50 * time.Millisecond, Cap: time.Second})
			if w.Lost != nil && w.Patience > 0 {
				w.Lost(err)
			}
		}
		if time.Since(lost) >= w.Patience {
			return nil, err
		}
		if err := backoff.Sleep(ctx, wait.Next()); err != nil {
			return nil, err
		}
	}
}

// errEnded is a stream that ended before the task did: its server goes away.
var errEnded = fault.New(fault.NotReady, "the toolherd ended while the task went on: follow it again once one runs")

// stream follows the task over one stream, from the state after last on, and returns the newest state it saw.
func (w Watch) stream(ctx context.Context, last *taskv1.Task) (*taskv1.Task, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := w.Client.WatchTask(ctx, &taskv1.WatchTaskRequest{TaskId: w.TaskID, Scope: w.Scope, AfterVersion: last.GetVersion()})
	if err != nil {
		return nil, err
	}
	var newest *taskv1.Task
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return newest, errEnded
		}
		if err != nil {
			return newest, err
		}
		newest = msg.GetTask()
		if err := w.Show(newest); err != nil {
			return nil, err
		}
	}
}

// Terminal reports whether a state is final.
func Terminal(s corev1.TaskStatus) bool {
	return s == corev1.TaskStatus_TASK_STATUS_COMPLETED || s == corev1.TaskStatus_TASK_STATUS_FAILED || s == corev1.TaskStatus_TASK_STATUS_CANCELLED
}
