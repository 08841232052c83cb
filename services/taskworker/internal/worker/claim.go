package worker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/services/taskworker/internal/loop"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// claimTimeout bounds a claim.
const claimTimeout = 5 * time.Second

// claimed is a claim on its way to a caller.
type claimed struct {
	task.Claim

	taken time.Time // before the lease was asked for, so that it lives for at least a lease from here
}

// claimLoop claims what is due until ctx ends: at once, then when the store says that something will be due, on a hint,
// when a task was written that is due sooner, and after PollInterval in any case.
func (w *Worker) claimLoop(ctx context.Context) {
	hints, stop := w.o.Bus.Subscribe(task.TopicDue)
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	c := claimer{w: w, empty: backoff.New(backoff.Config{Base: 5 * time.Millisecond, Cap: time.Second})}
	outage := loop.NewOutage("claim due tasks", w.o.Log)
	delays := loop.Delays(w.o.PollInterval)
	due := true // something may be due, as far as this worker knows
	for {
		wait, err := c.step(ctx, due)
		if ctx.Err() != nil {
			return
		}
		outage.Note(ctx, err)
		due = true
		woken := hints
		if err != nil {
			wait, woken = delays.Next(), nil
		} else {
			delays.Reset()
		}
		if wait <= 0 {
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-woken:
			due = false // or it is: the store is asked
		case <-w.settler.soon:
			due = false
		}
	}
}

// claimer is the state of the claim loop.
type claimer struct {
	w *Worker
	// empty spaces the claims that brought nothing although the store said that something was due: others have it locked.
	empty *backoff.Backoff
}

// step claims for the callers that are free and returns how long to wait before the next step. If due is false it asks
// first whether anything is.
func (c *claimer) step(ctx context.Context, due bool) (time.Duration, error) {
	if !due {
		if wait, err := c.next(ctx); err != nil || wait > 0 {
			return wait, err
		}
	}
	limit := c.w.slots.wait(ctx)
	if limit == 0 {
		return 0, nil // ctx has ended
	}
	limit = min(limit, maxBatch)
	n, err := c.claim(ctx, limit)
	if err != nil || n == limit {
		return 0, err
	}
	wait, err := c.next(ctx)
	switch {
	case err != nil:
		return 0, err
	case wait > 0 || n > 0:
		c.empty.Reset()
		return wait, nil
	default:
		return c.empty.Next(), nil
	}
}

// next returns how long it is until something is due, at most PollInterval.
func (c *claimer) next(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	wait, some, err := c.w.o.Store.NextDue(ctx)
	switch {
	case err != nil:
		return 0, err
	case !some:
		return c.w.o.PollInterval, nil
	}
	return min(wait, c.w.o.PollInterval), nil
}

// claim claims up to limit tasks, hands them to the callers and returns how many there were.
func (c *claimer) claim(ctx context.Context, limit int) (int, error) {
	taken := time.Now()
	got, err := c.ask(ctx, limit)
	if err != nil {
		return 0, err
	}
	c.w.slots.take(len(got))
	batch := make([]claimed, len(got))
	for i := range got {
		batch[i] = claimed{Claim: got[i], taken: taken}
		c.w.counts.claimed(got[i].Kind)
		c.w.jobs <- &batch[i] // has room for as many as there are slots
	}
	return len(got), nil
}

// ask claims. The end of ctx does not interrupt it: claims that nobody heard of would be leased for nothing.
func (c *claimer) ask(ctx context.Context, limit int) ([]task.Claim, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(claimTimeout, c.w.o.Lease/2))
	defer cancel()
	return c.w.o.Store.Claim(ctx, c.w.name, limit)
}

// slots counts the callers that are free.
type slots struct {
	n     atomic.Int64
	freed chan struct{} // a slot was released
	// enough free slots are worth a claim at once; for fewer it waits a moment.
	enough int64
}

// moment is how long a claim waits for more slots, so that a busy worker does not claim tasks one by one.
const moment = 2 * time.Millisecond

func newSlots(n int) *slots {
	s := &slots{freed: make(chan struct{}, 1), enough: int64(min(16, max(1, n/4)))}
	s.n.Store(int64(n))
	return s
}

// release gives a slot back.
func (s *slots) release() {
	s.n.Add(1)
	select {
	case s.freed <- struct{}{}:
	default: // said already
	}
}

// take uses slots up; only who has waited for them may.
func (s *slots) take(n int) { s.n.Add(-int64(n)) }

// wait returns how many slots are free as soon as some are, and 0 if ctx has ended.
func (s *slots) wait(ctx context.Context) int {
	for s.n.Load() == 0 {
		select {
		case <-ctx.Done():
			return 0
		case <-s.freed:
		}
	}
	if s.n.Load() < s.enough {
		timer := time.NewTimer(moment)
		defer timer.Stop()
		for s.n.Load() < s.enough {
			select {
			case <-ctx.Done():
				return 0
			case <-timer.C:
				return int(s.n.Load())
			case <-s.freed:
			}
		}
	}
	return int(s.n.Load())
}
