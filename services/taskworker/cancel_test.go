package taskworker_test

import (
	"context"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/wake"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

func (n *node) cancel(t testing.TB, id string) *taskv1.Task {
	t.Helper()
	resp, err := n.CancelTask(t.Context(), &taskv1.CancelTaskRequest{TaskId: id})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetTask()
}

// TASK-028, TASK-029
func TestACancelDoesNotWaitForTheRemoteAndEndsThePollInFlightFirst(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		cfg := quick()
		cfg.Lease = time.Minute
		n := start(t, d, options{cfg: cfg, remote: r})
		late := make(chan struct{})
		r.onPoll("x", func(ctx context.Context, _ asked) (*remoteSnapshot, error) {
			<-ctx.Done()
			<-late // a remote that takes its time to notice
			return done(`"late"`), nil
		})
		r.onCancel("x", says(&remoteSnapshot{Status: cancelled}))
		id := n.submit(t, alice, "x").GetTaskId()
		r.awaitCalls(t, "poll", "x", 1)

		first := n.cancel(t, id)
		if first.GetCancelRequestedTime() == nil || first.GetStatus() == cancelled {
			t.Errorf("got %v", first)
		}
		for range 3 {
			if again := n.cancel(t, id); again.GetVersion() != first.GetVersion() || !again.GetCancelRequestedTime().AsTime().Equal(first.GetCancelRequestedTime().AsTime()) {
				t.Errorf("repeated: %v, first %v", again, first)
			}
		}
		if len(r.calls("cancel", "x")) != 0 {
			t.Error("the remote was asked to cancel while a poll was in flight")
		}
		close(late)
		got := n.ended(t, id)
		if got.GetStatus() != cancelled || got.GetResultJson() != "" {
			t.Errorf("got %v: the fenced poll was written", got)
		}
		if again := n.cancel(t, id); again.GetVersion() != got.GetVersion() || again.GetStatus() != cancelled {
			t.Errorf("a final task: %v, want %v", again, got)
		}
		n.stop()
		if r.overlaps != 0 {
			t.Errorf("%d calls of one task overlapped", r.overlaps)
		}
	})
}

// TASK-029
func TestACancelInFlightIsNotRepeatedByAnother(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: r})
		answer := make(chan struct{})
		r.onCancel("x", func(ctx context.Context, _ asked) (*remoteSnapshot, error) {
			select {
			case <-answer:
				return &remoteSnapshot{Status: cancelled}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		id := n.submit(t, alice, "x").GetTaskId()
		r.awaitCalls(t, "poll", "x", 1)
		n.cancel(t, id)
		r.awaitCalls(t, "cancel", "x", 1)
		polls := len(r.calls("poll", "x"))
		for range 5 {
			n.cancel(t, id)
		}
		close(answer)
		n.ended(t, id)
		n.stop()
		if r.overlaps != 0 || len(r.calls("cancel", "x")) != 1 || len(r.calls("poll", "x")) != polls {
			t.Errorf("%d overlaps, %d cancels, %d polls beside it", r.overlaps, len(r.calls("cancel", "x")), len(r.calls("poll", "x"))-polls)
		}
	})
}

// TASK-031
func TestACancelledTaskEndsAsTheRemoteSays(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: r})
		for handle, end := range map[string]*remoteSnapshot{
			"stopped": {Status: cancelled},
			"too far": done(`{"made":"it"}`),
			"broke":   {Status: failed, Error: "broke while it stopped"},
		} {
			r.onCancel(handle, says(end))
			id := n.submit(t, alice, handle).GetTaskId()
			n.cancel(t, id)
			got := n.ended(t, id)
			if got.GetStatus() != end.GetStatus() || got.GetResultJson() != end.GetResultJson() || got.GetError() != end.GetError() || got.GetCancelRequestedTime() == nil {
				t.Errorf("%s: got %v", handle, got)
			}
		}
		// A remote that only acknowledges decides later.
		acked := make(chan struct{})
		r.onCancel("acks", func(context.Context, asked) (*remoteSnapshot, error) { close(acked); return nil, nil })
		r.onPoll("acks", func(ctx context.Context, _ asked) (*remoteSnapshot, error) {
			select {
			case <-acked:
				return &remoteSnapshot{Status: cancelled}, nil
			default:
				return busy(time.Hour), nil
			}
		})
		id := n.submit(t, alice, "acks").GetTaskId()
		r.awaitCalls(t, "poll", "acks", 1)
		n.cancel(t, id)
		if got := n.ended(t, id); got.GetStatus() != cancelled || len(r.calls("cancel", "acks")) != 1 {
			t.Errorf("got %v after %d cancels", got, len(r.calls("cancel", "acks")))
		}
	})
}

// TASK-031
func TestACancelWithoutALiveWorkerIsRefusedAndLeavesNoTrace(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		r.onPoll("ended", says(done(`1`)))
		n := start(t, d, options{cfg: quick(), remote: r})
		id, ended := n.submit(t, alice, "x").GetTaskId(), n.submit(t, alice, "ended").GetTaskId()
		n.ended(t, ended)
		n.stop()

		idle := start(t, d, options{cfg: quick(), idle: true})
		before := idle.get(t, id)
		_, err := idle.CancelTask(t.Context(), &taskv1.CancelTaskRequest{TaskId: id})
		wantReason(t, err, fault.NoWorker)
		if after := idle.get(t, id); after.GetVersion() != before.GetVersion() || after.GetCancelRequestedTime() != nil {
			t.Errorf("it left %v", after)
		}
		if got := idle.cancel(t, ended); got.GetStatus() != completed {
			t.Errorf("a final task: %v", got)
		}
		// Any worker will do, not only that of the process which is asked.
		start(t, d, options{cfg: quick(), remote: r, wake: wake.None()})
		eventually(t, func() error {
			_, err := idle.CancelTask(t.Context(), &taskv1.CancelTaskRequest{TaskId: id})
			return err
		})
	})
}
