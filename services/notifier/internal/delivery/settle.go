package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/services/notifier/internal/loop"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

// item is an outcome on its way to the store. It keeps the hold on its delivery until it is written or given up.
type item struct {
	sink    *sinkState
	outcome notification.Outcome
	held    *attempt
}

// settleLoop writes outcomes until items is closed: in each round what came while the round before was written. What the
// database does not take is tried again for as long as its lease lives; then, or when ctx ends, it is given up.
func (d *Deliverer) settleLoop(ctx context.Context) {
	outage := loop.NewOutage("write outcomes", d.o.Log)
	failing := backoff.New(backoff.Config{Base: 50 * time.Millisecond, Cap: 2 * time.Second, Jitter: 0.2})
	var left []item
	for open := true; open || len(left) > 0; {
		if len(left) == 0 {
			var first item
			if first, open = <-d.items; !open {
				return
			}
			left = append(left, first)
		}
		left, open = d.collect(left, open)
		var err error
		if left, err = d.write(ctx, left); err == nil {
			failing.Reset()
		}
		outage.Note(ctx, err)
		if err != nil && backoff.Sleep(ctx, failing.Next()) != nil {
			d.abandon(ctx, left)
			left = nil
		}
	}
}

// collect adds to batch what waits.
func (d *Deliverer) collect(batch []item, open bool) ([]item, bool) {
	for open && len(batch) < maxBatch {
		select {
		case it, ok := <-d.items:
			if !ok {
				return batch, false
			}
			batch = append(batch, it)
		default:
			return batch, true
		}
	}
	return batch, open
}

// write writes a batch and returns what is still to be written. A batch that fails is written one by one, so that an
// outcome that the database does not like harms no other.
func (d *Deliverer) write(ctx context.Context, batch []item) (left []item, err error) {
	alive := batch[:0:0]
	for _, it := range batch {
		if it.held.isLost() {
			d.abandon(ctx, []item{it})
			continue
		}
		alive = append(alive, it)
	}
	if len(alive) == 0 {
		return nil, nil
	}
	if err = d.writeAll(ctx, alive); err == nil {
		return nil, nil
	}
	if len(alive) == 1 || ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return alive, err
	}
	for i, it := range alive {
		if one := d.writeAll(ctx, []item{it}); one != nil {
			left = append(left, it)
		}
		if len(left) > 3 && i+1 == len(left) { // it is not about one of them
			return append(left, alive[i+1:]...), err
		}
	}
	if len(left) == 0 {
		return nil, nil
	}
	return left, err
}

func (d *Deliverer) writeAll(ctx context.Context, batch []item) error {
	ctx, cancel := context.WithTimeout(ctx, min(storeTimeout, d.o.Lease))
	defer cancel()
	outcomes := make([]notification.Outcome, len(batch))
	for i, it := range batch {
		outcomes[i] = it.outcome
	}
	written, err := d.o.Store.SettleAll(ctx, outcomes)
	if err != nil {
		return err
	}
	again := false
	for i, it := range batch {
		d.release(it)
		if written[i] {
			d.settled(ctx, it.sink, it.outcome)
			again = again || it.outcome.Delay <= 0
			continue
		}
		d.o.Metrics.count(it.sink.Name, stale)
		d.o.Log.InfoContext(ctx, "outcome is stale and dropped", "sink", it.sink.Name, "event_id", it.outcome.Claim.Event.ID, "verdict", string(it.outcome.Verdict))
	}
	if again {
		d.nudge() // a run to look up, a newer event, or one that has failed often enough
	}
	return nil
}

func (d *Deliverer) abandon(ctx context.Context, batch []item) {
	for _, it := range batch {
		d.release(it)
		d.o.Metrics.count(it.sink.Name, abandoned)
		d.o.Log.WarnContext(ctx, "outcome could not be written: the delivery is made again", "sink", it.sink.Name, "event_id", it.outcome.Claim.Event.ID)
	}
}

// release lets go of an item's delivery, which makes room for another claim.
func (d *Deliverer) release(it item) {
	d.held.end(it.held)
	it.sink.give(1)
	d.nudge()
}

// settled accounts for an outcome that was written.
func (d *Deliverer) settled(ctx context.Context, s *sinkState, o notification.Outcome) {
	event := []any{"sink", s.Name, "event_id", o.Claim.Event.ID}
	switch o.Verdict {
	case notification.Done:
		d.o.Metrics.delivered(s.Name, time.Since(o.Claim.Event.Created))
		d.o.Log.DebugContext(ctx, "delivered", event...)
	case notification.Failed, notification.Redispatch:
		d.o.Metrics.count(s.Name, failed)
		d.o.Log.InfoContext(ctx, "delivery failed", append(event, "failures", o.Claim.AttemptCount+1, "next_in", o.Delay, "err", o.Error)...)
	case notification.Deferred:
		d.o.Metrics.count(s.Name, deferred)
	case notification.Dead:
		d.o.Metrics.count(s.Name, dead)
		d.o.Log.ErrorContext(ctx, "delivery is a dead letter", append(event, "err", o.Error)...)
	default:
	}
}
