package notifier

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/wake"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	"github.com/toolherd/toolherd/services/notifier/internal/delivery"
	"github.com/toolherd/toolherd/services/notifier/internal/loop"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/litestore"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/pgstore"
)

const (
	intakeBatch     = 256
	pruneBatch      = 1000
	pruneInterval   = 10 * time.Minute
	observeInterval = 15 * time.Second
	stepTimeout     = 15 * time.Second
)

// store is both sides of what an engine keeps.
type store interface {
	notification.Store
	notification.Streams
}

// Service is a notifier. Its RPCs may be called before, while and after it runs.
type Service struct {
	config    Config
	db        *db.DB
	store     store
	bus       wake.Bus
	log       *slog.Logger
	sinks     *sinks
	metrics   *delivery.Metrics
	deliverer *delivery.Deliverer
}

// New checks the configuration, resolves the references in it and returns a notifier that is not running; Run releases
// what it holds. Faults: CONFIG_INVALID, which names the sink and the variable, and SINK_UNKNOWN.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := deps.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	metrics, err := delivery.NewMetrics(deps.Telemetry.Metrics)
	if err != nil {
		return nil, err
	}
	places, err := newSinks(cfg, deps)
	if err != nil {
		return nil, err
	}
	s := &Service{
		config: cfg, db: deps.DB, store: newStore(deps.DB), bus: deps.Wake, log: deps.Log.With("service", "notifier"),
		sinks: places, metrics: metrics,
	}
	s.deliverer = delivery.New(delivery.Options{
		Store: s.store, Bus: s.bus, Sinks: places.pushed, Notifier: newName(), Redact: deps.Redactor.Redact, Metrics: metrics,
		Tracer: deps.Telemetry.Tracer("github.com/toolherd/toolherd/services/notifier"), Log: s.log,
		Lease: cfg.Lease, Poll: cfg.PollInterval,
	})
	return s, nil
}

func newStore(d *db.DB) store {
	if d.Engine() == db.Postgres {
		return pgstore.New(d.Pool())
	}
	return litestore.New(d)
}

// newName returns `<hostname>:<32 hex>`.
func newName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var b [16]byte
	rand.Read(b[:]) // never fails
	return strings.ToValidUTF8(host[:min(len(host), 64)], "") + ":" + hex.EncodeToString(b[:])
}

// Register adds the RPCs. All of them are public: their roles guard them.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	notifierv1.RegisterNotifierServiceServer(r, &server{s: s})
}

// RegisterInternal adds all RPCs.
func (s *Service) RegisterInternal(r grpc.ServiceRegistrar) { s.Register(r) }

// Ready returns nil while the database answers. It depends on no sink.
func (s *Service) Ready(ctx context.Context) error { return s.db.Ping(ctx) }

// Run takes events in and delivers them until ctx ends, lets attempts under way end, and releases the connections to the
// sinks. It may be called once.
func (s *Service) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.sinks.Close()) }()
	events, stop := s.bus.Subscribe(outbox.Topic)
	defer stop()
	return run.All(ctx,
		run.Task{Name: "intake", Run: loop.Loop{
			Name: "take events in", Every: s.config.PollInterval, Timeout: stepTimeout, Hints: events, Step: s.intake, Log: s.log,
		}.Run},
		run.Task{Name: "deliver", Run: s.deliverer.Run},
		run.Task{Name: "observe", Run: loop.Loop{
			Name: "observe sinks", Every: observeInterval, Timeout: stepTimeout, Step: s.observe, Log: s.log,
		}.Run},
		run.Task{Name: "prune", Run: loop.Loop{
			Name: "delete old deliveries", Every: pruneInterval, Timeout: stepTimeout, Step: s.prune, Log: s.log,
		}.Run},
	)
}

// intake turns events of the outbox into deliveries.
func (s *Service) intake(ctx context.Context) (more bool, err error) {
	n, err := s.store.Intake(ctx, s.config.DefaultSink, intakeBatch)
	if n > 0 {
		s.due(ctx)
	}
	return n == intakeBatch, err
}

// due wakes whoever delivers or reads.
func (s *Service) due(ctx context.Context) {
	if err := s.bus.Notify(ctx, notification.TopicDue); err != nil {
		s.log.DebugContext(ctx, "wake-up was lost", "err", err) // polling finds what it was about
	}
}

func (s *Service) observe(ctx context.Context) (more bool, err error) {
	states, err := s.store.SinkStates(ctx, s.sinks.names())
	if err == nil {
		s.metrics.Observe(states)
	}
	return false, err
}

// prune deletes deliveries that are done and old, and those of streams that nobody has read for as long.
func (s *Service) prune(ctx context.Context) (more bool, err error) {
	done, err := s.store.Prune(ctx, s.config.Retention, pruneBatch)
	if err != nil {
		return false, err
	}
	unread, err := s.store.Forget(ctx, s.sinks.pushedNames(), s.config.Retention, pruneBatch)
	return done == pruneBatch || unread == pruneBatch, err
}
