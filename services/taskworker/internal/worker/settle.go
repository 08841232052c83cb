package worker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/taskworker/internal/hint"
	"github.com/toolherd/toolherd/services/taskworker/internal/loop"
	"github.com/toolherd/toolherd/services/taskworker/internal/metric"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// maxBatchBytes is how many bytes of results make a batch full. A transaction that carries more may outlast its timeout,
// and on SQLite delays every other writer, the keeper of the leases included.
const maxBatchBytes = 16 << 20

// settlers is how many batches are written at once: while one waits for the disk, the next is prepared.
const settlers = 2

// counts are the counters of a worker, looked up once.
type counts struct {
	polls, cancels, answers, ok, failed, stale, leaseLost, unwritten prometheus.Counter
}

func newCounts(m *metric.Metrics) *counts {
	return &counts{
		polls:     m.Claims.WithLabelValues(string(task.Poll)),
		cancels:   m.Claims.WithLabelValues(string(task.Cancel)),
		answers:   m.Claims.WithLabelValues(string(task.Answer)),
		ok:        m.Settled.WithLabelValues("ok"),
		failed:    m.Settled.WithLabelValues("failed"),
		stale:     m.Dropped.WithLabelValues(metric.Stale),
		leaseLost: m.Dropped.WithLabelValues(metric.LeaseLost),
		unwritten: m.Dropped.WithLabelValues(metric.Unwritten),
	}
}

func (c *counts) claimed(k task.Kind) {
	switch k {
	case task.Cancel:
		c.cancels.Inc()
	case task.Answer:
		c.answers.Inc()
	default:
		c.polls.Inc()
	}
}

// item is what the settler has to write.
type item struct {
	outcome task.Outcome
	until   time.Time // when the lease ends
	release bool      // nothing was done: only the hold counts
}

// size is what counts towards a full batch.
func (i *item) size() int {
	if i.outcome.Snapshot == nil {
		return 0
	}
	return len(i.outcome.Snapshot.Result)
}

// settler writes outcomes in batches. A task has one outcome at a time, so their order does not matter.
type settler struct {
	store  task.Store
	hints  *hint.Sender
	counts *counts
	log    *slog.Logger
	items  chan item // closed when no more come

	pollInterval time.Duration
	soon         chan struct{} // something that was written is due before the claimer would look again
}

func newSettler(o Options, c *counts) *settler {
	return &settler{
		store: o.Store, hints: o.Hints, counts: c, log: o.Log, items: make(chan item, 2*maxBatch),
		pollInterval: o.PollInterval, soon: make(chan struct{}, 1),
	}
}

// add has an outcome written while its lease lives. It waits while the settler is behind, and so slows the claims, but
// not after the end of ctx.
func (s *settler) add(ctx context.Context, o task.Outcome, until time.Time) {
	s.put(ctx, item{outcome: o, until: until})
}

// release has a claim given back that nothing was done for, as [settler.add] does.
func (s *settler) release(ctx context.Context, c *claimed) {
	s.put(ctx, item{outcome: task.Outcome{Claim: c.Claim}, until: c.taken.Add(time.Minute), release: true})
}

func (s *settler) put(ctx context.Context, i item) {
	select {
	case s.items <- i: // if there is room, whether ctx has ended or not
		return
	default:
	}
	select {
	case s.items <- i:
	case <-ctx.Done():
		s.counts.unwritten.Inc()
	}
}

// run writes what comes until there is no more, or until ctx ends: what is left then is lost, and its leases run out.
//
// A few of them run at once. Each statement takes what has come while the one before ran. What the database does not take is tried again while its
// lease lives.
func (s *settler) run(ctx context.Context, number int) {
	var (
		pending = make([]item, 0, maxBatch)
		open    = true
		outage  = loop.NewOutage(fmt.Sprint("write outcomes ", number), s.log)
		delays  = loop.Delays(time.Second)
	)
	for {
		if pending, open = s.take(pending, open); len(pending) == 0 {
			return
		}
		left, err := s.write(ctx, pending)
		if ctx.Err() == nil {
			outage.Note(ctx, err)
		}
		left = slices.Clone(s.alive(left))
		clear(pending) // results may be large
		pending = append(pending[:0], left...)
		if err == nil {
			delays.Reset()
			continue
		}
		if backoff.Sleep(ctx, delays.Next()) != nil {
			s.counts.unwritten.Add(float64(len(pending)))
			return
		}
	}
}

// take adds what has come to pending, and waits for something if there is nothing. Open is false when no more will come.
func (s *settler) take(pending []item, open bool) ([]item, bool) {
	if !open {
		return pending, false
	}
	if len(pending) == 0 {
		i, ok := <-s.items
		if !ok {
			return pending, false
		}
		pending = append(pending, i)
	}
	bytes := 0
	for i := range pending {
		bytes += pending[i].size()
	}
	for len(pending) < maxBatch && bytes < maxBatchBytes {
		select {
		case i, ok := <-s.items:
			if !ok {
				return pending, false
			}
			pending = append(pending, i)
			bytes += i.size()
		default:
			return pending, true
		}
	}
	return pending, true
}

// alive returns the items whose lease has not run out, and counts the others.
func (s *settler) alive(items []item) []item {
	now := time.Now()
	return slices.DeleteFunc(items, func(i item) bool {
		if now.Before(i.until) {
			return false
		}
		s.counts.unwritten.Inc()
		return true
	})
}

// write writes a batch and returns what the database did not take, with its reason.
func (s *settler) write(ctx context.Context, batch []item) (left []item, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	outcomes := batch
	if slices.ContainsFunc(batch, func(i item) bool { return i.release }) {
		var released []item
		outcomes = nil
		for _, i := range batch {
			if i.release {
				released = append(released, i)
			} else {
				outcomes = append(outcomes, i)
			}
		}
		if err := s.giveBack(ctx, released); err != nil {
			return batch, err
		}
	}
	if len(outcomes) == 0 {
		return nil, nil
	}
	return s.settle(ctx, outcomes)
}

func (s *settler) giveBack(ctx context.Context, items []item) error {
	holds := make([]task.Hold, len(items))
	for i := range items {
		holds[i] = items[i].outcome.Claim.Hold
	}
	if err := s.store.Release(ctx, holds); err != nil {
		return err
	}
	s.hints.Send(task.TopicDue)
	return nil
}

// settle writes outcomes, counts what the store did with them and wakes who cares.
func (s *settler) settle(ctx context.Context, items []item) (left []item, err error) {
	outcomes := make([]task.Outcome, len(items))
	for i := range items {
		outcomes[i] = items[i].outcome
	}
	settled, err := s.store.Settle(ctx, outcomes)
	if err != nil && len(settled) != len(items) {
		return items, err
	}
	var topics news
	for i, d := range settled {
		switch {
		case d.Dropped && err != nil:
			left = append(left, items[i]) // or it is stale, which the next try tells
			continue
		case d.Dropped:
			s.counts.stale.Inc()
			s.log.DebugContext(ctx, "outcome dropped: the lease was lost or the task has ended", "task_id", d.TaskID)
			topics.due = true // if it was a fenced poll, its end lets the cancel begin
			continue
		case outcomes[i].Failure != nil:
			s.counts.failed.Inc()
			if why := outcomes[i].Failure.Permanent; why != "" {
				s.log.WarnContext(ctx, "task failed for good", "task_id", d.TaskID, "reason", why, "message", outcomes[i].Failure.Message)
			}
		default:
			s.counts.ok.Inc()
		}
		if s.isSoon(outcomes[i], d) {
			select {
			case s.soon <- struct{}{}:
			default: // said already
			}
		}
		topics.changed = topics.changed || d.Changed
		topics.events = topics.events || d.Event
	}
	topics.send(s.hints)
	return left, err
}

// isSoon reports whether the task of an outcome may be due again within a poll interval: the remote asked for that, or
// another kind of call comes next. A failure and a poll without a hint wait for longer.
func (s *settler) isSoon(o task.Outcome, d task.Settled) bool {
	if d.Status.Terminal() || o.Snapshot == nil {
		return false
	}
	return o.Claim.Kind != task.Poll || o.Snapshot.PollAfter > 0 && o.Snapshot.PollAfter < s.pollInterval
}

// news is what a batch did that somebody may wait for.
type news struct{ due, changed, events bool }

func (n news) send(hints *hint.Sender) {
	for topic, some := range map[string]bool{task.TopicDue: n.due, task.TopicChanged: n.changed, outbox.Topic: n.events} {
		if some {
			hints.Send(topic)
		}
	}
}
