// Package upkeep does what time alone asks for: it ends reservations that ran out and tasks past their time, and deletes
// what is past its retention. Any number of replicas may do so at once: each row is taken by one of them.
package upkeep

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/services/taskworker/internal/hint"
	"github.com/toolherd/toolherd/services/taskworker/internal/loop"
	"github.com/toolherd/toolherd/services/taskworker/internal/metric"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

const (
	sweepInterval = time.Second
	pruneInterval = time.Minute
	lagInterval   = 5 * time.Second
	limit         = 100 // rows of one statement
	timeout       = 15 * time.Second
)

// Options are what an upkeep works with. All are required.
type Options struct {
	Store        task.Store
	Reservations task.Reservations
	Hints        *hint.Sender
	Metrics      *metric.Metrics
	Log          *slog.Logger
	// Retention is how long final tasks are kept; the store knows it too.
	Retention time.Duration
}

// Upkeep keeps the tables up. Make one with [New] and run it once.
type Upkeep struct{ o Options }

// New returns an upkeep. It starts nothing.
func New(o Options) *Upkeep { return &Upkeep{o: o} }

// Run works until ctx ends.
func (u *Upkeep) Run(ctx context.Context) error {
	loops := []loop.Loop{
		{Name: "end expired reservations", Every: sweepInterval, Step: u.reap},
		{Name: "end expired tasks", Every: sweepInterval, Step: u.expire},
		{Name: "delete old tasks", Every: min(pruneInterval, max(u.o.Retention/10, sweepInterval)), Step: u.prune},
		{Name: "measure due tasks", Every: lagInterval, Step: u.lag},
	}
	tasks := make([]run.Task, len(loops))
	for i, l := range loops {
		l.Timeout, l.Log = timeout, u.o.Log
		tasks[i] = run.Task{Name: l.Name, Run: l.Run}
	}
	return run.All(ctx, tasks...)
}

// reap turns reservations that ran out into failed tasks.
func (u *Upkeep) reap(ctx context.Context) (more bool, err error) {
	ids, err := u.o.Reservations.Reap(ctx, limit)
	for _, id := range ids {
		u.o.Log.WarnContext(ctx, "task failed: its submit was begun and never reported", "task_id", id, "reason", task.OutcomeUnknown)
	}
	return u.ended("reap", len(ids), err)
}

// expire ends tasks that are past their time.
func (u *Upkeep) expire(ctx context.Context) (more bool, err error) {
	ids, err := u.o.Store.Expire(ctx, limit)
	for _, id := range ids {
		u.o.Log.InfoContext(ctx, "task failed: it is past its time to live", "task_id", id, "reason", task.Expired)
	}
	return u.ended("expire", len(ids), err)
}

// ended tells those who care that tasks have ended.
func (u *Upkeep) ended(sweep string, n int, err error) (more bool, _ error) {
	if n > 0 {
		u.o.Metrics.Swept.WithLabelValues(sweep).Add(float64(n))
		u.o.Hints.Send(task.TopicChanged, outbox.Topic)
	}
	return n >= limit && err == nil, err
}

// prune deletes tasks that ended long ago.
func (u *Upkeep) prune(ctx context.Context) (more bool, err error) {
	n, err := u.o.Store.Prune(ctx, limit)
	if n > 0 {
		u.o.Metrics.Swept.WithLabelValues("prune").Add(float64(n))
	}
	return n >= limit && err == nil, err
}

// lag measures how late the workers are.
func (u *Upkeep) lag(ctx context.Context) (more bool, err error) {
	wait, some, err := u.o.Store.NextDue(ctx)
	if err != nil {
		return false, err
	}
	late := time.Duration(0)
	if some {
		late = max(0, -wait)
	}
	u.o.Metrics.Lag.Set(late.Seconds())
	return false, nil
}
