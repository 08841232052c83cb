package delivery

import (
	"context"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/services/notifier/internal/loop"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

// maxBatch is the most claims of one statement.
const maxBatch = 200

// claimLoop claims until ctx ends.
func (d *Deliverer) claimLoop(ctx context.Context, sending *run.Group) {
	hints, stop := d.o.Bus.Subscribe(notification.TopicDue)
	defer stop()
	outage := loop.NewOutage("claim deliveries", d.o.Log)
	failing := backoff.New(backoff.Config{Base: 100 * time.Millisecond, Cap: 5 * time.Second, Jitter: 0.2})
	for ctx.Err() == nil {
		wait, err := d.claimOnce(ctx, sending)
		if ctx.Err() != nil {
			return
		}
		outage.Note(ctx, err)
		if err != nil {
			_ = backoff.Sleep(ctx, failing.Next()) // hints do not hasten what fails
			continue
		}
		failing.Reset()
		if wait == 0 {
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-hints:
		case <-d.freed:
		}
		timer.Stop()
	}
}

// claimOnce claims what is due and has room, and says when to look again; 0 is at once.
func (d *Deliverer) claimOnce(ctx context.Context, sending *run.Group) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var open []*sinkState
	var names []string
	for _, s := range d.sinks {
		if s.capacity() > 0 {
			open = append(open, s)
			names = append(names, s.Name)
		}
	}
	if len(open) == 0 {
		return d.o.Poll, nil // room comes earlier
	}
	due, some, err := d.o.Store.NextDue(ctx, names)
	switch {
	case err != nil:
		return 0, err
	case !some:
		return d.o.Poll, nil
	case due > 0:
		return min(due, d.o.Poll), nil
	}
	claimed := 0
	for _, s := range open {
		n, err := d.claimFor(ctx, s, sending)
		if err != nil {
			return 0, err
		}
		claimed += n
	}
	if claimed == 0 {
		return d.o.Poll, nil // somebody else has it
	}
	return 0, nil
}

func (d *Deliverer) claimFor(ctx context.Context, s *sinkState, sending *run.Group) (int, error) {
	name := []string{s.Name}
	asked := time.Now()
	claims, err := d.o.Store.Claim(ctx, notification.ClaimRequest{
		Notifier: d.o.Notifier, Sinks: name, Known: name, Limit: min(s.capacity(), maxBatch), Lease: d.o.Lease,
	})
	if err != nil {
		return 0, err
	}
	for _, c := range claims {
		s.take(1)
		started := sending.Go("deliver to "+s.Name, func(ctx context.Context) {
			d.serve(ctx, s, c, asked)
		})
		if !started {
			s.give(1) // shutting down: the lease runs out
		}
	}
	return len(claims), nil
}
