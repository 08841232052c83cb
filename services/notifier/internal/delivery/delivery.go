// Package delivery sends what is due to the sinks that events are pushed to, and writes what came of it.
//
//	claimer ──claims──▶ senders (Concurrency for each sink) ──outcomes──▶ settler ──▶ store
//	   ▲  room ◀───────────────────────────────────────────────────────────┘
//	   └─ due, hint, interval       keeper: renews leases at a third, cancels attempts that lost theirs
//
// One claimer per process claims for each sink what its senders need next, a few claims ahead. A sink that hangs fills its
// own senders and delays no other. Outcomes are written in batches, as they come: a batch is what arrived while the one
// before was written.
//
// # What is promised
//
// Deliveries are at least once: an attempt whose outcome was not written, because the process died or the database was
// away, is made again under the same event id. A delivery has one attempt under way at most while leases hold. How often a delivery failed
// in a row is looked at before anything is sent, so that one more failure than allowed is never made.
//
// Back-off is exponential with full jitter and counts from the end of the attempt, by the database's clock.
//
// # Shutdown
//
//	ctx ends ─▶ no more claims ─▶ attempts drain ≤ Drain, then are cancelled ─▶ the settler writes the rest ─▶ Run returns
//
// The lease of an attempt that was cancelled runs out.
package delivery

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/sink"
)

// Defaults of [Options].
const (
	DefaultLease = 30 * time.Second
	DefaultPoll  = time.Second
	DefaultDrain = 10 * time.Second
)

const (
	// storeTimeout bounds one statement, with the wait for its turn.
	storeTimeout = 15 * time.Second
	// flushTimeout bounds how long the settler may take once the last attempt has ended.
	flushTimeout = 5 * time.Second
	// ahead is how many claims a sink may have for each of its senders: those that are sent, wait to be, or are written.
	ahead = 8
)

// Sink is one that events are pushed to.
type Sink struct {
	Name   string
	Type   string // for spans
	Sender sink.Sender
	// MaxAttempts is how many failures in a row make a dead letter.
	MaxAttempts int
	// Base and Cap bound the back-off.
	Base, Cap time.Duration
	// Concurrency is the most attempts at once.
	Concurrency int
}

// Options are what deliveries are made with. Zero durations take the defaults; all else is required.
type Options struct {
	Store    notification.Store
	Bus      wake.Bus
	Sinks    []Sink
	Notifier string // names this process in leases; no other has or had it
	Redact   func(string) string
	Metrics  *Metrics
	Tracer   trace.Tracer
	Log      *slog.Logger

	// Lease is how long the store leases a delivery for.
	Lease time.Duration
	// Poll bounds how long goes by without a look at what is due.
	Poll time.Duration
	// Drain bounds how long attempts may go on after a shutdown began.
	Drain time.Duration
}

// Deliverer makes deliveries. Make one with [New] and run it once.
type Deliverer struct {
	o     Options
	sinks []*sinkState
	names []string
	freed chan struct{} // there is room for a claim, or something became due at once
	held  *held
	items chan item // outcomes for the settler
}

// sinkState is a sink and how many claims it has room for.
type sinkState struct {
	Sink
	backoff backoff.Config
	senders chan struct{} // holds one for each that is busy

	mu     sync.Mutex
	free   int
	paused time.Time // when this process last paused it
}

// pausedNow takes note that the sink was paused.
func (s *sinkState) pausedNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = time.Now()
}

// pausedSince reports whether the sink was paused after asked, so that a claim of then must not be sent.
func (s *sinkState) pausedSince(asked time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused.After(asked)
}

func (s *sinkState) take(n int) { s.give(-n) }

func (s *sinkState) give(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free += n
}

func (s *sinkState) capacity() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free
}

// New returns a deliverer. It starts nothing.
func New(o Options) *Deliverer {
	o.Lease = cmp.Or(o.Lease, DefaultLease)
	o.Poll = cmp.Or(o.Poll, DefaultPoll)
	o.Drain = cmp.Or(o.Drain, DefaultDrain)
	d := &Deliverer{o: o, freed: make(chan struct{}, 1), held: newHeld(o.Lease), items: make(chan item, maxBatch)}
	for _, s := range o.Sinks {
		d.sinks = append(d.sinks, &sinkState{
			Sink: s, free: ahead * s.Concurrency, senders: make(chan struct{}, s.Concurrency),
			backoff: backoff.Config{Base: s.Base, Cap: max(s.Base, s.Cap), Factor: 2, Jitter: 1},
		})
		d.names = append(d.names, s.Name)
	}
	return d
}

var errDrained = errors.New("the notifier shuts down")

// Run delivers until ctx ends, drains, and returns nil.
func (d *Deliverer) Run(ctx context.Context) error {
	if len(d.sinks) == 0 {
		<-ctx.Done()
		return nil
	}
	sending := run.NewGroup(context.WithoutCancel(ctx), d.o.Log)
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	written := make(chan struct{}) // closed when the last outcome is written or given up
	return run.All(ctx,
		run.Task{Name: "claim", Run: func(ctx context.Context) error {
			d.claimLoop(ctx, sending)
			return nil
		}},
		run.Task{Name: "keep leases", Run: func(context.Context) error {
			d.keepLoop(writing, written)
			return nil
		}},
		run.Task{Name: "settle", Run: func(context.Context) error {
			defer close(written)
			d.settleLoop(writing)
			return nil
		}},
		run.Task{Name: "drain", Run: func(ctx context.Context) error {
			<-ctx.Done()
			stop := time.AfterFunc(d.o.Drain, func() {
				d.o.Log.WarnContext(ctx, "attempts still run at the end of the drain time and are cancelled", "attempts", d.held.len())
				sending.Stop(errDrained)
			})
			defer stop.Stop()
			_ = sending.Wait() // a panic was logged, and cost one attempt
			close(d.items)
			flush := time.AfterFunc(flushTimeout, stopWriting)
			defer flush.Stop()
			<-written
			return nil
		}},
	)
}

// nudge makes the claimer look at once.
func (d *Deliverer) nudge() {
	select {
	case d.freed <- struct{}{}:
	default:
	}
}
