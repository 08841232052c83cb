package worker

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// A remote that asks to be polled sooner than the poll interval is, by an idle worker too, whom no other task wakes.
func TestAHintBelowThePollIntervalIsHonoured(t *testing.T) {
	var polls atomic.Int32
	b := startWorker(t, time.Minute, func(context.Context, string) (*toolproxyv1.RemoteTaskSnapshot, error) {
		if polls.Add(1) > 3 {
			return completed(), nil
		}
		return &toolproxyv1.RemoteTaskSnapshot{
			Status: corev1.TaskStatus_TASK_STATUS_WORKING, PollAfter: durationpb.New(250 * time.Millisecond),
		}, nil
	}, func(b *bench) { b.policy.PollInterval = time.Hour })
	id := b.take(t, "x")
	b.await(t, "the task has ended", func() bool { return b.status(t, id) == task.Completed })
}
