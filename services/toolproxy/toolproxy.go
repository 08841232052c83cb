package toolproxy

import (
	"context"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/run"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/activation"
	"github.com/toolherd/toolherd/services/toolproxy/internal/background"
	"github.com/toolherd/toolherd/services/toolproxy/internal/call"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/dial"
	"github.com/toolherd/toolherd/services/toolproxy/internal/discovery"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
	"github.com/toolherd/toolherd/services/toolproxy/internal/environ"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/stdio"
	"github.com/toolherd/toolherd/services/toolproxy/internal/watchdog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/workspace"
)

const (
	// clientName is how Toolherd introduces itself to MCP servers.
	clientName = "toolherd"
	// maxRemoteSessions bounds sessions that have no process. They cost memory only.
	maxRemoteSessions = 4096
	// closeTimeout is above what the polite end of a process takes: stdin, 2 s, SIGTERM, 2 s, SIGKILL.
	closeTimeout = 10 * time.Second
)

// defaultScope is that of callers who name none, and of discovery.
func defaultScope() authn.Scope {
	return authn.Scope{UserID: authn.DefaultID, ThreadID: authn.DefaultID}
}

// Service is a toolproxy.
type Service struct {
	store      *catalog.Store
	pool       *pool.Pool
	discovery  *discovery.Discovery
	intake     *intake.Client
	caller     *call.Caller
	bound      *background.Resolver
	background *background.Service
	guard      *watchdog.Guard
	forward    *forwarder // nil where the services themselves are registered beside this one
}

// New returns a toolproxy, or CONFIG_INVALID. It starts nothing.
func New(c Config, d Deps) (*Service, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	log := d.Log.With("service", "toolproxy")
	s := &Service{store: &catalog.Store{}, guard: watchdog.New(log)}
	dialer := dial.New(dial.Options{
		Launcher:        stdio.NewLauncher(s.guard),
		Layout:          workspace.Layout{Root: c.WorkspaceRoot, Project: c.ProjectRoot},
		Client:          session.Client{Name: clientName, Version: c.Version},
		MaxMessageBytes: c.MaxMessageBytes,
		Scope:           defaultScope(),
		Redactor:        d.Redactor,
		ListChanged:     func(server string) { s.discovery.ListChanged(server) },
		Log:             log,
	})
	s.pool = pool.New(pool.Options{
		Open: dialer.Open, MaxSessions: c.MaxSessions, MaxRemote: maxRemoteSessions,
		IdleTimeout: c.SessionIdleTimeout, CloseTimeout: closeTimeout, Log: log,
	})
	noTasks := c.noTasks(d)
	if noTasks != "" {
		d.Intake = nil
	}
	s.intake = intake.New(intake.Options{Intake: d.Intake, Off: noTasks, Changed: func() { s.discovery.TasksChanged() }, Log: log})
	activator := activation.New(activation.Options{
		Credentials:      d.Credentials,
		Environment:      func() func(string) (string, bool) { return environ.Read(c.Environment, c.EnvFiles, log) },
		Redactor:         d.Redactor,
		MaxNameLength:    c.MaxToolNameLength,
		ManyReplicas:     c.Replicas == "many",
		NoTasks:          noTasks,
		SkipInterceptors: c.SkipInterceptors,
		Log:              log,
	})
	drivers, err := drivers(d)
	if err != nil {
		return nil, err
	}
	s.discovery = discovery.New(discovery.Options{
		Registry: d.Registry, Judge: s.judge(activator), Activate: activator.Activate, Release: activator.Release,
		Pool: s.pool, Store: s.store, Scope: defaultScope(), Concurrency: c.StartConcurrency,
		Tasks: s.intake.Off, Redact: d.Redactor.Redact, Log: log,
	})
	s.caller = call.New(call.Options{
		Store: s.store, Pool: s.pool, Suspect: s.discovery.Suspect, Redact: d.Redactor.Redact,
		Intake: s.intake, Tasks: d.Tasks, Driver: drivers[driver.OrdinaryName],
		Tracer: d.Telemetry.Tracer("github.com/toolherd/toolherd/services/toolproxy"), Log: log,
	})
	s.newBackground(d, activator, drivers)
	if d.Forward {
		s.forward = &forwarder{tasks: d.Tasks, events: d.Events}
	}
	return s, nil
}

// Register adds the RPCs for agents and operators.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	toolproxyv1.RegisterToolProxyServiceServer(r, &tools{s: s})
	if s.forward != nil {
		s.forward.register(r)
	}
}

// RegisterInternal adds all RPCs, those for workers included.
func (s *Service) RegisterInternal(r grpc.ServiceRegistrar) {
	s.Register(r)
	toolproxyv1.RegisterBackgroundToolServiceServer(r, s.background)
}

// Ready returns nil once there is a snapshot. It depends on no MCP server and, after that, on no peer.
func (s *Service) Ready(context.Context) error {
	if s.store.Load() == nil {
		return errNoSnapshot()
	}
	return nil
}

func errNoSnapshot() error {
	return fault.New(fault.NotReady, "toolproxy has no configuration yet: the registry has not answered; try again")
}

// Run works until ctx ends. Then it lets submits of tasks come to an end, within seconds, ends all sessions, politely
// first, and returns when no process is left.
func (s *Service) Run(ctx context.Context) error {
	// The guard outlives the sessions, whose processes it watches.
	guarding, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	return run.All(ctx,
		run.Task{Name: "watchdog", Run: func(context.Context) error { return s.guard.Run(guarding) }},
		run.Task{Name: "sessions", Run: func(ctx context.Context) error {
			defer stop()
			defer s.discovery.Close()
			defer s.bound.Close()
			// Submits that are under way end in their sessions, before these end.
			working, done := context.WithCancel(context.WithoutCancel(ctx))
			defer done()
			return run.All(ctx,
				run.Task{Name: "submits", Run: func(ctx context.Context) error {
					defer done()
					return run.All(ctx, run.Task{Name: "intake", Run: s.intake.Run}, run.Task{Name: "caller", Run: s.caller.Run})
				}},
				run.Task{Name: "pool", Run: func(context.Context) error { return s.pool.Run(working) }},
				run.Task{Name: "discovery", Run: func(context.Context) error {
					select {
					case <-s.pool.Running():
						return s.discovery.Run(working)
					case <-working.Done():
						return nil
					}
				}},
			)
		}},
	)
}

// IsWatchdog reports whether this process was started to be a watchdog. A program that runs a toolproxy asks first thing
// in its main function.
func IsWatchdog() bool { return watchdog.IsWatchdog(os.Args) }

// Watchdog is such a process; it returns the exit code.
func Watchdog() int { return watchdog.Main() }
