package taskworker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/wake"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// metric returns the value of a counter or gauge, the sum over its labels but for those given as "label=value".
func (n *node) metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	families, err := n.metrics.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum, found := 0.0, false
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		found = true
		for _, m := range f.GetMetric() {
			have := prometheus.Labels{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			ok := true
			for _, l := range labels {
				key, value, _ := strings.Cut(l, "=")
				ok = ok && have[key] == value
			}
			if ok {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	if !found {
		t.Fatalf("no metric %s", name)
	}
	return sum
}

// overTheWire is a remote behind a gRPC server of its own.
type overTheWire struct {
	toolproxyv1.UnimplementedBackgroundToolServiceServer
	r *remote
}

func (w overTheWire) GetRemoteTask(ctx context.Context, q *toolproxyv1.GetRemoteTaskRequest) (*toolproxyv1.GetRemoteTaskResponse, error) {
	return w.r.GetRemoteTask(ctx, q)
}

func (w overTheWire) CancelRemoteTask(ctx context.Context, q *toolproxyv1.CancelRemoteTaskRequest) (*toolproxyv1.CancelRemoteTaskResponse, error) {
	return w.r.CancelRemoteTask(ctx, q)
}

func wired(t testing.TB, r *remote) toolproxyv1.BackgroundToolServiceClient {
	t.Helper()
	conn, stop := serve(t, true, func(s grpc.ServiceRegistrar) {
		toolproxyv1.RegisterBackgroundToolServiceServer(s, overTheWire{r: r})
	})
	t.Cleanup(stop)
	return toolproxyv1.NewBackgroundToolServiceClient(conn)
}

// TASK-054
func TestATaskIsPolledToItsEndWithEveryWakeUpLost(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: wired(t, r), wake: wake.None()})
		ends := map[string]answer{
			"completed": says(done(`{"ok":true}`)),
			"failed":    says(&remoteSnapshot{Status: failed, Error: "disk full", FailureReason: "remote_lost"}),
			"cancelled": says(&remoteSnapshot{Status: cancelled}),
			"tool said": says(&remoteSnapshot{Status: completed, IsError: true, ResultJson: `"no"`}),
		}
		ids := map[string]string{}
		for handle, end := range ends {
			r.onPoll(handle, inTurn(says(busy(time.Millisecond)), says(&remoteSnapshot{Status: inputRequired, InputRequiredJson: `{"q":1}`}), end))
			ids[handle] = n.submit(t, alice, handle).GetTaskId()
		}
		w := n.watch(t, ids["completed"], 0)
		for {
			resp, err := w.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if resp.GetTask().GetStatus() == completed {
				break
			}
		}
		for handle, id := range ids {
			got := n.ended(t, id)
			if got.GetNextPollTime() != nil {
				t.Errorf("%s: polled again at %v", handle, got.GetNextPollTime())
			}
			switch handle {
			case "completed":
				if got.GetStatus() != completed || got.GetResultJson() != `{"ok":true}` || got.GetIsError() {
					t.Errorf("got %v", got)
				}
			case "failed":
				if got.GetStatus() != failed || got.GetError() != "disk full" || got.GetFailureReason() != "remote_lost" {
					t.Errorf("got %v", got)
				}
			case "cancelled":
				if got.GetStatus() != cancelled {
					t.Errorf("got %v", got)
				}
			case "tool said":
				if got.GetStatus() != completed || !got.GetIsError() {
					t.Errorf("got %v", got)
				}
			}
			if calls := len(r.calls("poll", handle)); calls != 3 {
				t.Errorf("%s: %d polls, want 3: a final task is not polled", handle, calls)
			}
		}
	})
}

// TASK-002
func TestASnapshotThatMakesNoSenseFailsTheTask(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: r})
		for handle, s := range map[string]*remoteSnapshot{
			"no status":      {},
			"unknown status": {Status: 99},
			"hint of zero":   busy(0),
			"hint below":     busy(-time.Second),
			"hint beyond":    {Status: working, PollAfter: &durationpb.Duration{Nanos: -5e8, Seconds: 3}},
			"no question":    {Status: inputRequired},
			"question list":  {Status: inputRequired, InputRequiredJson: `[1]`},
			"broken result":  {Status: completed, ResultJson: `{"a":NaN}`},
			"no snapshot":    nil,
		} {
			r.onPoll(handle, says(s))
			got := n.ended(t, n.submit(t, alice, handle).GetTaskId())
			if got.GetStatus() != failed || got.GetFailureReason() != "protocol_error" || got.GetError() == "" {
				t.Errorf("%s: got %v", handle, got)
			}
		}
	})
}

// TASK-027
func TestOnlyAProtocolErrorOrLostTrustEndsATask(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: wired(t, r)})
		r.onPoll("protocol", fails(fault.New(fault.UpstreamProtocol, "the status tool answered without structuredContent%s", strings.Repeat("!", 2000))))
		r.onPoll("trust", fails(fault.New(fault.ServerUntrusted, "the trust in server reports was revoked")))
		for handle, reason := range map[string]string{"protocol": "protocol_error", "trust": "untrusted"} {
			got := n.ended(t, n.submit(t, alice, handle).GetTaskId())
			if got.GetStatus() != failed || got.GetFailureReason() != reason || len(got.GetError()) == 0 || len(got.GetError()) > 500 {
				t.Errorf("%s: got %v", handle, got)
			}
		}
		for handle, err := range map[string]error{
			"driver":  fault.New(fault.ServerError, "no driver of that name"),
			"plain":   errors.New("a mistake of toolproxy"),
			"away":    fault.New(fault.NotReady, "starting"),
			"circuit": fault.New(fault.CircuitOpen, "open"),
		} {
			r.onPoll(handle, inTurn(fails(err), fails(err), says(done(`1`))))
			got := n.ended(t, n.submit(t, alice, handle).GetTaskId())
			if got.GetStatus() != completed {
				t.Errorf("%s: got %v", handle, got)
			}
		}
	})
}

// TASK-022
func TestFailedPollsAreCountedUnlessForWantOfASession(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: wired(t, r)})
		full, broken := fails(fault.New(fault.SessionLimit, "full")), fails(fault.New(fault.UpstreamError, "broken"))
		r.onPoll("limit", inTurn(full, full, full, full, full, hangs))
		r.onPoll("broken", inTurn(broken, broken, broken, hangs))
		r.onPoll("heals", inTurn(broken, broken, says(busy(time.Millisecond)), broken, broken, broken, says(busy(time.Hour))))
		limit, bad, heals := n.submit(t, alice, "limit"), n.submit(t, alice, "broken"), n.submit(t, alice, "heals")
		r.awaitCalls(t, "poll", "limit", 6)
		r.awaitCalls(t, "poll", "broken", 4)
		if got := n.get(t, limit.GetTaskId()); got.GetTrackingDegraded() || got.GetAttempts()[0].GetOutcome() != "session_limit" {
			t.Errorf("after five refusals for want of a session: %v", got)
		}
		if got := n.get(t, bad.GetTaskId()); !got.GetTrackingDegraded() {
			t.Errorf("after three failures: %v", got)
		}
		// Two failures, a success and three failures make it degraded once, and a success ends that.
		r.awaitCalls(t, "poll", "heals", 7)
		n.until(t, heals.GetTaskId(), "tracked without trouble", func(x *taskv1.Task) bool {
			return !x.GetTrackingDegraded() && x.GetStatus() == working && len(x.GetAttempts()) == 7
		})
	})
}

// panics is a client that panics for one task.
type panics struct{ *remote }

func (p panics) GetRemoteTask(ctx context.Context, q *toolproxyv1.GetRemoteTaskRequest, o ...grpc.CallOption) (*toolproxyv1.GetRemoteTaskResponse, error) {
	if resp, err := p.remote.GetRemoteTask(ctx, q, o...); string(q.GetRef().GetHandle()) != "panics" {
		return resp, err
	}
	panic("a driver's mistake")
}

// TASK-021
func TestACallThatHangsFailsOrPanicsDelaysNoOther(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		cfg := quick()
		cfg.Concurrency, cfg.Lease = 4, time.Minute
		n := start(t, d, options{cfg: cfg, remote: panics{r}})
		free := make(chan struct{})
		r.onPoll("hangs", func(context.Context, asked) (*remoteSnapshot, error) { <-free; return busy(time.Hour), nil })
		r.onPoll("fails", fails(errors.New("broken")))
		n.submit(t, alice, "hangs")
		bad := n.submit(t, alice, "panics")
		n.submit(t, alice, "fails")
		r.awaitCalls(t, "poll", "hangs", 1)
		var ids []string
		for i := range 40 {
			handle := fmt.Sprint("r", i)
			r.onPoll(handle, inTurn(says(busy(time.Millisecond)), says(busy(time.Millisecond)), says(done(`1`))))
			ids = append(ids, n.submit(t, alice, handle).GetTaskId())
		}
		for _, id := range ids {
			n.ended(t, id)
		}
		r.awaitCalls(t, "poll", "panics", 2)
		if got := n.get(t, bad.GetTaskId()); got.GetEndTime() != nil || got.GetAttempts()[0].GetOutcome() != "panic" {
			t.Errorf("a panic made of the task %v", got)
		}
		if len(r.calls("poll", "hangs")) != 1 {
			t.Error("the call that hangs was repeated within its lease")
		}
		close(free)
		n.stop()
		if r.most > cfg.Concurrency {
			t.Errorf("%d calls at once, at most %d", r.most, cfg.Concurrency)
		}
	})
}

// TASK-020
func TestAStartingWorkerClaimsAtOnce(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		cfg := quick()
		cfg.PollInterval = time.Hour
		idle := start(t, d, options{cfg: cfg, idle: true})
		id := idle.submit(t, alice, "x").GetTaskId()
		r := newRemote()
		r.onPoll("x", says(done(`1`)))
		n := start(t, d, options{cfg: cfg, remote: r, wake: wake.None()})
		n.ended(t, id)
	})
}

// TASK-019
func TestACallHasADeadlineBelowTheLease(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		cfg := quick()
		cfg.Lease = 500 * time.Millisecond
		n := start(t, d, options{cfg: cfg, remote: r})
		r.onPoll("x", inTurn(hangs, says(done(`1`))))
		id := n.submit(t, alice, "x").GetTaskId()
		got := n.ended(t, id)
		first := r.calls("poll", "x")[0]
		if left := first.deadline.Sub(first.at); left <= 0 || left >= cfg.Lease {
			t.Errorf("the call may take %v, and the lease %v", left, cfg.Lease)
		}
		if a := got.GetAttempts()[1]; a.GetOutcome() != "timeout" {
			t.Errorf("the first attempt is %v: it was not written while the lease lived", a)
		}
	})
}

func TestThousandsOfTasksGoThroughAFewCallers(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: r})
		const tasks = 500
		var wg sync.WaitGroup
		for g := range 5 {
			wg.Go(func() {
				for i := range tasks / 5 {
					handle := fmt.Sprintf("%d-%d", g, i)
					r.onPoll(handle, inTurn(says(busy(time.Millisecond)), says(done(`1`))))
					n.submit(t, alice, handle)
				}
			})
		}
		wg.Wait()
		eventually(t, func() error {
			if got := n.metric(t, "toolherd_task_settled_total", "result=ok"); got < 2*tasks {
				return fmt.Errorf("%v outcomes, want %d", got, 2*tasks)
			}
			return nil
		})
		if r.overlaps != 0 || n.metric(t, "toolherd_task_dropped_total") != 0 {
			t.Errorf("%d overlaps, %v dropped", r.overlaps, n.metric(t, "toolherd_task_dropped_total"))
		}
		if n.metric(t, "toolherd_task_claims_total", "kind=poll") < 2*tasks {
			t.Error("claims are not counted")
		}
	})
}
