// Package worker works on durable tasks: it claims those that are due, asks toolproxy about each, and writes what came
// of it.
//
//	claimer ──claims──▶ callers (at most Concurrency) ──outcomes──▶ settler ──▶ store
//	   ▲  slots ◀──────────┘      ▲ cancel
//	   └─ due, hint, interval     └── keeper: renews the leases of running calls at a third
//
// One claimer per process claims as many tasks as there are callers free: there is no batch to wait for, and a call that
// hangs, fails or panics delays no other task. What a call brings is written in batches, as they come: a batch is what
// arrived while the one before was written.
//
// # Leases
//
// A claim is a lease by the database's clock. The worker counts it from before it asked, so that its own idea of a lease
// ends earlier than the database's. A call has a deadline below the lease. The keeper renews the leases of running calls;
// a lease that is lost cancels the call, and nothing of it is written. An outcome that the database does not take is
// tried again while its lease lives and then left to whoever claims the task next.
//
// # Shutdown
//
//	ctx ends ─▶ Leave, no more claims ─▶ claims not begun are released ─▶ calls drain ≤ 10 s, then are cancelled
//	         ─▶ the settler writes what is left ─▶ Run returns
//
// The lease of a call that was cancelled runs out. A call that fails while the worker drains says nothing about its
// remote, which may be shutting down as well: the task is released.
package worker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/wake"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/hint"
	"github.com/toolherd/toolherd/services/taskworker/internal/loop"
	"github.com/toolherd/toolherd/services/taskworker/internal/metric"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// TopicFenced is the wake-up topic that tells workers that a call under way may have been fenced, by a cancel. It is a
// hint: each renewal of a lease finds out as well.
const TopicFenced = "task.fenced"

const (
	maxBatch     = 100 // claims, and outcomes, of one statement
	storeTimeout = 15 * time.Second
	drainTimeout = 10 * time.Second
	flushTimeout = 5 * time.Second // for what the settler still has when the calls have ended
)

// Options are what a worker works with. All are required.
type Options struct {
	Store   task.Store
	Workers task.Workers
	Remote  toolproxyv1.BackgroundToolServiceClient
	Bus     wake.Bus
	Hints   *hint.Sender
	Metrics *metric.Metrics
	Tracer  trace.Tracer
	Log     *slog.Logger
	// Lease is how long the store leases a task for.
	Lease time.Duration
	// PollInterval bounds how long the worker goes without a look at what is due.
	PollInterval time.Duration
	// Concurrency is the most remote calls at once.
	Concurrency int
}

// Worker is a worker. Make one with [New] and run it once.
type Worker struct {
	o    Options
	name string

	slots   *slots
	jobs    chan *claimed
	calls   *calls
	settler *settler
	counts  *counts
}

// New returns a worker with a name of its own. It starts nothing.
func New(o Options) *Worker {
	w := &Worker{
		o: o, name: newName(), slots: newSlots(o.Concurrency),
		jobs:  make(chan *claimed, o.Concurrency),
		calls: newCalls(o.Lease), counts: newCounts(o.Metrics),
	}
	w.settler = newSettler(o, w.counts)
	return w
}

// newName returns `<hostname>:<32 hex>`.
func newName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var b [16]byte
	rand.Read(b[:])
	return strings.ToValidUTF8(host[:min(len(host), 64)], "") + ":" + hex.EncodeToString(b[:])
}

// Name returns the worker's name, which no other worker has or had.
func (w *Worker) Name() string { return w.name }

// errDrained ends the calls that still run when the time to drain is over.
var errDrained = errors.New("the worker shuts down")

// Run works until ctx ends, drains, and returns nil.
func (w *Worker) Run(ctx context.Context) error {
	calling, cancelCalls := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancelCalls(nil)
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	called, written := make(chan struct{}), make(chan struct{}) // closed when the last call has ended, the last outcome is written
	w.o.Log.InfoContext(ctx, "working", "worker", w.name, "concurrency", w.o.Concurrency, "lease", w.o.Lease)
	return run.All(ctx,
		run.Task{Name: "presence", Run: w.attend},
		run.Task{Name: "claim", Run: func(ctx context.Context) error {
			defer close(w.jobs)
			w.claimLoop(ctx)
			return nil
		}},
		run.Task{Name: "call", Run: func(ctx context.Context) error {
			defer close(w.settler.items)
			defer close(called)
			var wg sync.WaitGroup
			for range w.o.Concurrency {
				wg.Go(func() {
					for c := range w.jobs {
						w.serve(ctx, calling, c)
						w.slots.release()
					}
				})
			}
			wg.Wait()
			return nil
		}},
		run.Task{Name: "keep leases", Run: func(context.Context) error {
			w.keepLoop(writing, called)
			return nil
		}},
		run.Task{Name: "settle", Run: func(context.Context) error {
			defer close(written)
			var wg sync.WaitGroup
			for n := range settlers {
				wg.Go(func() { w.settler.run(writing, n+1) })
			}
			wg.Wait()
			return nil
		}},
		run.Task{Name: "drain", Run: func(ctx context.Context) error {
			<-ctx.Done()
			if !within(drainTimeout, called) {
				w.o.Log.WarnContext(ctx, "calls still run at the end of the drain time and are cancelled", "calls", w.calls.len())
				cancelCalls(errDrained)
				<-called
			}
			if !within(flushTimeout, written) {
				stopWriting()
			}
			return nil
		}},
	)
}

// within waits for done, and reports whether it was closed in time.
func within(d time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

const (
	beatInterval = 3 * time.Second
	beatTTL      = 10 * time.Second
	leaveTimeout = 2 * time.Second
)

// attend says that this worker lives until ctx ends, and then that it has gone: what is asked for from then on is not for
// this worker.
func (w *Worker) attend(ctx context.Context) error {
	err := loop.Loop{
		Name: "worker presence", Every: beatInterval, Timeout: beatTTL, Log: w.o.Log,
		Step: func(ctx context.Context) (bool, error) { return false, w.o.Workers.Beat(ctx, w.name, beatTTL) },
	}.Run(ctx)
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if leave := w.o.Workers.Leave(leaving, w.name); leave != nil {
		w.o.Log.WarnContext(ctx, "cannot say that this worker leaves: it will be missed soon", "err", leave)
	}
	return err
}
