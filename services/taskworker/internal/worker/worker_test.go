package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/wake"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/hint"
	"github.com/toolherd/toolherd/services/taskworker/internal/metric"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/litestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faulty is the SQLite store with faults.
type faulty struct {
	*litestore.Store

	mu       sync.Mutex
	renewals []time.Time
	released []task.Hold
	claims   int
	asked    int // of NextDue

	lose   bool  // Renew says that everything is lost
	settle error // what Settle fails with
	due    func() (time.Duration, bool, error)
}

func (f *faulty) Claim(ctx context.Context, worker string, limit int) ([]task.Claim, error) {
	f.mu.Lock()
	f.claims++
	f.mu.Unlock()
	return f.Store.Claim(ctx, worker, limit)
}

func (f *faulty) NextDue(ctx context.Context) (time.Duration, bool, error) {
	f.mu.Lock()
	f.asked++
	due := f.due
	f.mu.Unlock()
	if due != nil {
		return due()
	}
	return f.Store.NextDue(ctx)
}

func (f *faulty) Renew(ctx context.Context, holds []task.Hold) ([]task.Hold, error) {
	f.mu.Lock()
	f.renewals = append(f.renewals, time.Now())
	lose := f.lose
	f.mu.Unlock()
	if lose {
		return holds, nil
	}
	return f.Store.Renew(ctx, holds)
}

func (f *faulty) Release(ctx context.Context, holds []task.Hold) error {
	f.mu.Lock()
	f.released = append(f.released, holds...)
	f.mu.Unlock()
	return f.Store.Release(ctx, holds)
}

func (f *faulty) Settle(ctx context.Context, outcomes []task.Outcome) ([]task.Settled, error) {
	f.mu.Lock()
	err := f.settle
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return f.Store.Settle(ctx, outcomes)
}

func (f *faulty) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// poller is a remote of which only polls matter.
type poller struct {
	toolproxyv1.BackgroundToolServiceClient
	poll func(ctx context.Context, handle string) (*toolproxyv1.RemoteTaskSnapshot, error)
}

func (p poller) GetRemoteTask(ctx context.Context, q *toolproxyv1.GetRemoteTaskRequest, _ ...grpc.CallOption) (*toolproxyv1.GetRemoteTaskResponse, error) {
	s, err := p.poll(ctx, string(q.GetRef().GetHandle()))
	return &toolproxyv1.GetRemoteTaskResponse{Snapshot: s}, err
}

// bench is a worker that runs, and what it works with.
type bench struct {
	store   *faulty
	metrics *metric.Metrics
	spans   *tracetest.SpanRecorder
	bus     wake.Bus
	policy  task.Policy
	stop    func()
}

func startWorker(t *testing.T, lease time.Duration, poll func(context.Context, string) (*toolproxyv1.RemoteTaskSnapshot, error), prepare ...func(*bench)) *bench {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	b := &bench{bus: wake.NewLocal(), spans: tracetest.NewSpanRecorder()}
	b.policy = task.Policy{
		PollInterval: 50 * time.Millisecond, Lease: lease, MaxPollBackoff: 100 * time.Millisecond, InputRequiredPollInterval: time.Second,
		MaxAge: time.Hour, Retention: time.Hour, TrackingDegradedAfterErrors: 3, MaxResultBytes: 1000, ResultPreviewMaxChars: 100,
	}
	b.store = &faulty{Store: litestore.New(dbtest.SQLite(t), b.policy)}
	var err error
	if b.metrics, err = metric.New(prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(b.spans))
	for _, p := range prepare {
		p(b)
	}
	w := New(Options{
		Store: b.store, Workers: b.store, Remote: poller{poll: poll}, Bus: b.bus, Hints: hint.New(b.bus, log),
		Metrics: b.metrics, Tracer: tracing.Tracer("test"), Log: log, Lease: lease, PollInterval: b.policy.PollInterval, Concurrency: 8,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(b.stop)
	return b
}

// take takes a task in and returns its id.
func (b *bench) take(t *testing.T, handle string) string {
	t.Helper()
	got, err := b.store.Commit(t.Context(), task.Commitment{
		Unasked: &task.Intent{
			Principal: "p", Scope: authn.Scope{UserID: "u", ThreadID: "t"}, Binding: []byte("b"), Fingerprint: "f",
			TaskName: "n", Server: "s", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		},
		Handle: []byte(handle), RemoteID: handle, Status: task.Working, PollAfter: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.bus.Notify(t.Context(), task.TopicDue); err != nil {
		t.Fatal(err)
	}
	return got.ID
}

func (b *bench) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not so: %s", what)
		}
		<-tick.C
	}
}

func (b *bench) status(t *testing.T, id string) task.Status {
	t.Helper()
	got, err := b.store.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return got.Status
}

func completed() *toolproxyv1.RemoteTaskSnapshot {
	return &toolproxyv1.RemoteTaskSnapshot{Status: corev1.TaskStatus_TASK_STATUS_COMPLETED}
}

// TASK-019
func TestALeaseIsRenewedAtAThirdWhileItsCallRuns(t *testing.T) {
	const lease = 3 * time.Second
	began := make(chan time.Time, 1)
	b := startWorker(t, lease, func(ctx context.Context, _ string) (*toolproxyv1.RemoteTaskSnapshot, error) {
		began <- time.Now()
		timer := time.NewTimer(lease * 3 / 4)
		defer timer.Stop()
		select {
		case <-timer.C:
			return completed(), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	id := b.take(t, "x")
	start := <-began
	b.await(t, "the task has ended", func() bool { return b.status(t, id) == task.Completed })
	b.stop()
	last := start
	if len(b.store.renewals) < 2 {
		t.Fatalf("renewed %d times in three quarters of a lease", len(b.store.renewals))
	}
	for _, at := range b.store.renewals {
		if gap := at.Sub(last); gap > lease/2 || gap < lease/5 {
			t.Errorf("renewed after %v, a third of the lease is %v", gap, lease/3)
		}
		last = at
	}
}

// TASK-019
func TestTheLossOfItsLeaseCancelsACall(t *testing.T) {
	causes := make(chan error, 10)
	b := startWorker(t, 900*time.Millisecond, func(ctx context.Context, _ string) (*toolproxyv1.RemoteTaskSnapshot, error) {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return completed(), nil
	}, func(b *bench) { b.store.lose = true })
	id := b.take(t, "x")
	if cause := <-causes; !errors.Is(cause, errLeaseLost) {
		t.Errorf("the call ended for %v", cause)
	}
	b.await(t, "the loss is counted and the store told", func() bool {
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		return testutil.ToFloat64(b.metrics.Dropped.WithLabelValues(metric.LeaseLost)) >= 1 && len(b.store.released) >= 1
	})
	b.stop()
	if s := b.status(t, id); s != task.Working {
		t.Errorf("what the call brought was written: %s", s)
	}
}

func TestAHintThatATaskWasFencedIsLookedAtAtOnce(t *testing.T) {
	running := make(chan struct{}, 1)
	b := startWorker(t, time.Minute, func(ctx context.Context, _ string) (*toolproxyv1.RemoteTaskSnapshot, error) {
		running <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}, func(b *bench) { b.store.lose = true })
	b.take(t, "x")
	<-running
	if err := b.bus.Notify(t.Context(), TopicFenced); err != nil {
		t.Fatal(err)
	}
	b.await(t, "the call is cancelled", func() bool {
		return testutil.ToFloat64(b.metrics.Dropped.WithLabelValues(metric.LeaseLost)) == 1
	})
}

func TestAnOutcomeIsTriedAgainWhileItsLeaseLives(t *testing.T) {
	away := errors.New("the database is away")
	b := startWorker(t, 10*time.Second, func(context.Context, string) (*toolproxyv1.RemoteTaskSnapshot, error) { return completed(), nil },
		func(b *bench) { b.store.settle = away })
	var ids []string
	for i := range 20 {
		ids = append(ids, b.take(t, fmt.Sprint(i)))
	}
	b.await(t, "all are claimed", func() bool { return testutil.ToFloat64(b.metrics.Claims.WithLabelValues("poll")) == 20 })
	b.store.with(func() { b.store.settle = nil })
	for _, id := range ids {
		b.await(t, id+" has ended", func() bool { return b.status(t, id) == task.Completed })
	}
	if n := testutil.ToFloat64(b.metrics.Claims.WithLabelValues("poll")); n != 20 {
		t.Errorf("%v claims for 20 tasks: outcomes were lost", n)
	}
}

func TestAnOutcomeThatOutlivesItsLeaseIsDroppedAndTheTaskClaimedAgain(t *testing.T) {
	b := startWorker(t, 300*time.Millisecond, func(context.Context, string) (*toolproxyv1.RemoteTaskSnapshot, error) { return completed(), nil },
		func(b *bench) { b.store.settle = errors.New("the database is away") })
	id := b.take(t, "x")
	b.await(t, "the outcome is dropped", func() bool {
		return testutil.ToFloat64(b.metrics.Dropped.WithLabelValues(metric.Unwritten)) >= 1
	})
	b.store.with(func() { b.store.settle = nil })
	b.await(t, "another claim ends the task", func() bool { return b.status(t, id) == task.Completed })
}

func TestNothingDueCostsALookAtEachInterval(t *testing.T) {
	b := startWorker(t, time.Minute, nil)
	b.await(t, "some looks", func() bool { b.store.mu.Lock(); defer b.store.mu.Unlock(); return b.store.claims >= 3 })
	b.store.with(func() { b.store.claims, b.store.asked = 0, 0 })
	const periods = 10
	timer := time.NewTimer(periods * b.policy.PollInterval)
	defer timer.Stop()
	<-timer.C
	b.stop()
	if b.store.claims > periods+1 || b.store.asked > periods+1 {
		t.Errorf("%d claims and %d looks in %d intervals", b.store.claims, b.store.asked, periods)
	}
}

func TestTasksThatOthersHoldLockedAreNotAskedForAllTheTime(t *testing.T) {
	b := startWorker(t, time.Minute, nil, func(b *bench) {
		b.policy.PollInterval = time.Second
		b.store.due = func() (time.Duration, bool, error) { return -time.Second, true, nil } // and yet no claim gets one
	})
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	<-timer.C
	b.stop()
	if b.store.claims < 3 || b.store.claims > 15 {
		t.Errorf("%d claims in a second", b.store.claims)
	}
}

func TestTheSpanOfACallLinksToTheSubmit(t *testing.T) {
	b := startWorker(t, time.Minute, func(context.Context, string) (*toolproxyv1.RemoteTaskSnapshot, error) { return completed(), nil })
	id := b.take(t, "x")
	b.await(t, "the task has ended", func() bool { return b.status(t, id) == task.Completed })
	b.stop()
	spans := b.spans.Ended()
	if len(spans) != 1 || spans[0].Name() != "task poll" {
		t.Fatalf("got %v", spans)
	}
	links := spans[0].Links()
	if len(links) != 1 || links[0].SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("linked to %v", links)
	}
	if spans[0].SpanContext().TraceID() == links[0].SpanContext.TraceID() {
		t.Error("a poll is part of the trace of its submit: traces of days would be one")
	}
}

func TestALaterClaimOfATaskWaitsForTheEndOfAnEarlierCall(t *testing.T) {
	s := newCalls(time.Minute)
	c := &claimed{Claim: task.Claim{Hold: task.Hold{TaskID: "x", Fence: 1}}, taken: time.Now()}
	ctx, cancel := context.WithCancelCause(t.Context())
	first := s.begin(c, cancel)
	began := make(chan *call)
	later := &claimed{Claim: task.Claim{Hold: task.Hold{TaskID: "x", Fence: 2}}, taken: time.Now()}
	go func() { began <- s.begin(later, func(error) {}) }()
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), errLeaseLost) {
		t.Errorf("the earlier call ended for %v", context.Cause(ctx))
	}
	select {
	case <-began:
		t.Error("the later call began while the earlier one was under way")
	default:
	}
	s.end(first)
	second := <-began
	// What was said about the first hold does not concern the second.
	s.renewed([]task.Hold{first.hold}, []task.Hold{first.hold}, time.Now())
	if got := s.due(time.Now().Add(time.Second), time.Second); !slices.Equal(got, []task.Hold{later.Hold}) {
		t.Errorf("leases to renew: %v", got)
	}
	s.end(second)
	if s.len() != 0 {
		t.Error("calls are left over")
	}
	old := &claimed{Claim: later.Claim, taken: time.Now().Add(-31 * time.Second)}
	if s.begin(old, func(error) {}) != nil || s.len() != 0 {
		t.Error("a claim with less than half of its lease left was begun")
	}
}
