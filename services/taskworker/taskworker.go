package taskworker

import (
	"context"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/run"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/hint"
	"github.com/toolherd/toolherd/services/taskworker/internal/metric"
	"github.com/toolherd/toolherd/services/taskworker/internal/server"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/litestore"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/pgstore"
	"github.com/toolherd/toolherd/services/taskworker/internal/upkeep"
	"github.com/toolherd/toolherd/services/taskworker/internal/watch"
	"github.com/toolherd/toolherd/services/taskworker/internal/worker"
)

// Service is a taskworker. Its RPCs may be called before, while and after it runs.
type Service struct {
	db     *db.DB
	hints  *hint.Sender
	hub    *watch.Hub
	upkeep *upkeep.Upkeep
	worker *worker.Worker // nil if tasks are switched off
	tasks  *server.Tasks
	intake *server.Intake
}

// store is what the engines' stores are.
type store interface {
	task.Store
	task.Reservations
	task.Workers
}

// New checks the configuration, or fails with CONFIG_INVALID, and returns a taskworker that is not running.
func New(c Config, d Deps) (*Service, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	log := d.Log.With("service", "taskworker")
	metrics, err := metric.New(d.Telemetry.Metrics)
	if err != nil {
		return nil, err
	}
	st := newStore(d.DB, c.policy())
	hints := hint.New(d.Wake, log)
	hub := watch.New(st, d.Wake, log)
	s := &Service{
		db: d.DB, hints: hints, hub: hub,
		upkeep: upkeep.New(upkeep.Options{
			Store: st, Reservations: st, Hints: hints, Metrics: metrics, Log: log, Retention: c.Retention,
		}),
		tasks:  server.NewTasks(server.TasksOptions{Store: st, Workers: st, Hub: hub, Hints: hints, Log: log}),
		intake: server.NewIntake(server.IntakeOptions{Reservations: st, Hints: hints, Disabled: c.Disabled, Sinks: c.sinks()}),
	}
	if !c.Disabled {
		s.worker = worker.New(worker.Options{
			Store: st, Workers: st, Remote: d.Remote, Bus: d.Wake, Hints: hints, Metrics: metrics,
			Tracer: d.Telemetry.Tracer("github.com/toolherd/toolherd/services/taskworker"), Log: log,
			Lease: c.Lease, PollInterval: c.PollInterval, Concurrency: c.Concurrency,
		})
	}
	return s, nil
}

func newStore(d *db.DB, p task.Policy) store {
	if d.Engine() == db.Postgres {
		return pgstore.New(d.Pool(), p)
	}
	return litestore.New(d, p)
}

// Register adds the RPCs that agents and operators may call.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	taskv1.RegisterTaskServiceServer(r, s.tasks)
}

// RegisterInternal adds all RPCs, those that only toolproxy may call included.
func (s *Service) RegisterInternal(r grpc.ServiceRegistrar) {
	s.Register(r)
	taskv1.RegisterTaskIntakeServiceServer(r, s.intake)
}

// Ready returns nil while the database answers. It depends on no peer.
func (s *Service) Ready(ctx context.Context) error { return s.db.Ping(ctx) }

// Run works until ctx ends, then stops claiming, drains for at most 10 s and returns. It may be called once.
func (s *Service) Run(ctx context.Context) error {
	// Wake-ups go on while the worker drains.
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	return run.All(ctx,
		run.Task{Name: "wake-ups", Run: func(context.Context) error { return s.hints.Run(sending) }},
		run.Task{Name: "tasks", Run: func(ctx context.Context) error {
			defer stop()
			tasks := []run.Task{{Name: "watches", Run: s.hub.Run}, {Name: "upkeep", Run: s.upkeep.Run}}
			if s.worker != nil {
				tasks = append(tasks, run.Task{Name: "worker", Run: s.worker.Run})
			}
			return run.All(ctx, tasks...)
		}},
	)
}
