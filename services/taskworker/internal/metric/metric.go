// Package metric holds the numbers that a taskworker shows at /metrics.
package metric

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Why an outcome was dropped: the label of [Metrics.Dropped].
const (
	Stale     = "stale"      // the store refused it: the lease was lost, the fence raised or the task final
	LeaseLost = "lease_lost" // the lease was lost while the call ran
	Unwritten = "unwritten"  // the database did not take it while the lease lived
)

// Metrics are the numbers. All labels are closed sets.
type Metrics struct {
	Claims  *prometheus.CounterVec // claims, by kind
	Settled *prometheus.CounterVec // outcomes that were written, by result: ok, failed
	Dropped *prometheus.CounterVec // outcomes that were not, by reason
	Running prometheus.Gauge       // remote calls under way
	Lag     prometheus.Gauge       // seconds that the longest waiting task has been due
	Swept   *prometheus.CounterVec // what became of reservations and tasks by time alone, by sweep
}

// New registers the metrics with r, or finds those that another taskworker of the process registered.
func New(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{}
	var errs []error
	errs = append(errs,
		register(r, &m.Claims, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolherd_task_claims_total",
			Help: "Claims of due tasks, by what is to be done.",
		}, []string{"kind"})),
		register(r, &m.Settled, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolherd_task_settled_total",
			Help: "Outcomes of remote calls that were written, by result (ok, failed).",
		}, []string{"result"})),
		register(r, &m.Dropped, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolherd_task_dropped_total",
			Help: "Outcomes of remote calls that were dropped, by reason (stale, lease_lost, unwritten).",
		}, []string{"reason"})),
		register(r, &m.Running, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "toolherd_task_calls_running",
			Help: "Remote calls of this worker that are under way.",
		})),
		register(r, &m.Lag, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "toolherd_task_due_lag_seconds",
			Help: "How long the longest waiting task has been due.",
		})),
		register(r, &m.Swept, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolherd_task_swept_total",
			Help: "Reservations and tasks that time ended, by sweep (reap, expire, prune).",
		}, []string{"sweep"})),
	)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register task metrics: %w", err)
	}
	for _, k := range []task.Kind{task.Poll, task.Cancel, task.Answer} {
		m.Claims.WithLabelValues(string(k))
	}
	for _, reason := range []string{Stale, LeaseLost, Unwritten} {
		m.Dropped.WithLabelValues(reason)
	}
	return m, nil
}

// register registers c and stores it in target, or what was registered in its place before.
func register[C prometheus.Collector](r prometheus.Registerer, target *C, c C) error {
	*target = c
	err := r.Register(c)
	if taken, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := taken.ExistingCollector.(C); ok {
			*target = existing
			return nil
		}
	}
	return err
}
