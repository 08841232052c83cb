package delivery

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

// What became of an attempt: the label outcome.
const (
	delivered = "delivered"
	failed    = "failed"
	deferred  = "deferred"
	dead      = "dead_letter"
	stale     = "stale"     // the lease was lost, so the outcome was not written
	abandoned = "abandoned" // given up by a shutdown, or no database to write to
)

// Metrics are the numbers of deliveries. Their labels are the configured sinks and the outcomes above.
type Metrics struct {
	attempts *prometheus.CounterVec
	lag      *prometheus.HistogramVec
	pending  *prometheus.GaugeVec
	deadNow  *prometheus.GaugeVec
	paused   *prometheus.GaugeVec
}

// NewMetrics registers the metrics with r, or finds those that another notifier of the process registered.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{}
	bySink := []string{"sink"}
	err := errors.Join(
		register(r, &m.attempts, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolherd_notification_attempts_total",
			Help: "Attempts to deliver, by sink and outcome (delivered, failed, deferred, dead_letter, stale, abandoned).",
		}, []string{"sink", "outcome"})),
		register(r, &m.lag, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "toolherd_notification_lag_seconds",
			Help:    "How long after an event was recorded it was delivered, by sink.",
			Buckets: []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 7200, 43200},
		}, bySink)),
		register(r, &m.pending, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "toolherd_notification_pending",
			Help: "Deliveries that wait, by sink.",
		}, bySink)),
		register(r, &m.deadNow, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "toolherd_notification_dead_letters",
			Help: "Deliveries that were given up, by sink.",
		}, bySink)),
		register(r, &m.paused, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "toolherd_notification_sink_paused",
			Help: "1 while a sink is paused, else 0.",
		}, bySink)),
	)
	if err != nil {
		return nil, fmt.Errorf("register notification metrics: %w", err)
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

func (m *Metrics) count(sink, outcome string) { m.attempts.WithLabelValues(sink, outcome).Inc() }

// delivered counts a delivery. The age of its event is by two clocks and may be a little off.
func (m *Metrics) delivered(sink string, age time.Duration) {
	m.count(sink, delivered)
	m.lag.WithLabelValues(sink).Observe(max(age, 0).Seconds())
}

// Acknowledged counts the delivery of an event of a stream sink.
func (m *Metrics) Acknowledged(sink string) { m.count(sink, delivered) }

// Observe shows how sinks fare.
func (m *Metrics) Observe(states map[string]notification.SinkState) {
	for name, s := range states {
		m.pending.WithLabelValues(name).Set(float64(s.Pending))
		m.deadNow.WithLabelValues(name).Set(float64(s.DeadLetters))
		on := 0.0
		if s.Paused {
			on = 1
		}
		m.paused.WithLabelValues(name).Set(on)
	}
}
