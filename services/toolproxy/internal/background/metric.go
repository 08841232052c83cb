package background

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// CountBadHints returns what a driver tells of each poll hint that it dropped: it is counted in
// toolherd_task_bad_poll_hints_total, registered with r or found there, and logged at level debug.
func CountBadHints(r prometheus.Registerer, log *slog.Logger) (func(ctx context.Context, tool string), error) {
	counter := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "toolherd_task_bad_poll_hints_total",
		Help: "Poll hints of remote tasks that were dropped, because they are no number above zero.",
	})
	err := r.Register(counter)
	if taken, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := taken.ExistingCollector.(prometheus.Counter); ok {
			counter, err = existing, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register background metrics: %w", err)
	}
	return func(ctx context.Context, tool string) {
		counter.Inc()
		log.DebugContext(ctx, "poll hint dropped", "tool", tool)
	}, nil
}
