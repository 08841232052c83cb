package delivery_test

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/notifier/internal/delivery"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/litestore"
	"github.com/toolherd/toolherd/services/notifier/internal/sink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sender answers as its function says.
type sender func(ctx context.Context, c notification.Claim) sink.Result

func (f sender) Send(ctx context.Context, c notification.Claim) sink.Result { return f(ctx, c) }

func (sender) Close() error { return nil }

// faulty is a store whose statements fail or change as its functions say.
type faulty struct {
	notification.Store
	settle func(notification.Outcome) error // before a settle
	ask    func() error                     // before NextDue and Claim
}

func (f *faulty) SettleAll(ctx context.Context, outcomes []notification.Outcome) ([]bool, error) {
	for _, o := range outcomes {
		if f.settle != nil {
			if err := f.settle(o); err != nil {
				return nil, err
			}
		}
	}
	return f.Store.SettleAll(ctx, outcomes)
}

func (f *faulty) NextDue(ctx context.Context, sinks []string) (time.Duration, bool, error) {
	if f.ask != nil {
		if err := f.ask(); err != nil {
			return 0, false, err
		}
	}
	return f.Store.NextDue(ctx, sinks)
}

// fixture is a deliverer to one sink, `s`, over a SQLite database.
type fixture struct {
	t        *testing.T
	d        *db.DB
	store    *faulty
	options  delivery.Options
	registry *prometheus.Registry
	log      *strings.Builder
	look     time.Duration // how often all looks; 20 ms
}

func newFixture(t *testing.T, s sender) *fixture {
	t.Helper()
	f := &fixture{t: t, d: dbtest.SQLite(t), registry: prometheus.NewRegistry(), log: &strings.Builder{}}
	f.store = &faulty{Store: litestore.New(f.d)}
	metrics, err := delivery.NewMetrics(f.registry)
	if err != nil {
		t.Fatal(err)
	}
	f.options = delivery.Options{
		Store: f.store, Bus: wake.NewLocal(), Notifier: "one", Redact: func(s string) string { return s }, Metrics: metrics,
		Tracer: noop.NewTracerProvider().Tracer(""), Log: slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), f.log), nil)),
		Sinks: []delivery.Sink{{Name: "s", Type: "webhook", Sender: s, MaxAttempts: 5, Base: time.Millisecond, Cap: 5 * time.Millisecond, Concurrency: 32}},
		Poll:  10 * time.Millisecond,
	}
	return f
}

// record takes the first event of each task in.
func (f *fixture) record(tasks ...string) {
	f.t.Helper()
	err := f.d.WriteTx(f.t.Context(), func(tx *sql.Tx) error {
		for _, task := range tasks {
			err := outbox.AppendSQLite(f.t.Context(), tx, outbox.Event{
				TaskID: task, Version: 1, Sink: "s", Scope: authn.Scope{UserID: "u", ThreadID: "t"}, Body: json.RawMessage(`{"status":"completed"}`),
				Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.store.Intake(f.t.Context(), "s", len(tasks)); err != nil {
		f.t.Fatal(err)
	}
}

// run runs a deliverer until stop, which waits for its end.
func (f *fixture) run() (stop func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	ended := make(chan error, 1)
	d := delivery.New(f.options)
	go func() { ended <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("deliverer ended with %v", err)
		}
	})
	f.t.Cleanup(stop)
	return stop
}

func (f *fixture) list() []*notification.Notification {
	f.t.Helper()
	page, err := f.store.List(f.t.Context(), notification.Filter{Limit: 1000})
	if err != nil {
		f.t.Fatal(err)
	}
	return page.Notifications
}

// all waits until every delivery is in a state.
func (f *fixture) all(want notification.Status) []*notification.Notification {
	f.t.Helper()
	deadline := time.After(1000 * cmp.Or(f.look, 20*time.Millisecond)) // in a bubble waiting costs nothing, looking does
	for {
		all := f.list()
		if !slices.ContainsFunc(all, func(n *notification.Notification) bool { return n.Status != want }) {
			return all
		}
		select {
		case <-deadline:
			f.t.Fatalf("the deliveries are not all %s: %+v", want, all)
		case <-time.After(cmp.Or(f.look, 20*time.Millisecond)):
		}
	}
}

// count returns the value of a counter.
func (f *fixture) count(outcome string) float64 {
	f.t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "toolherd_notification_attempts_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" && l.GetValue() == outcome {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}
