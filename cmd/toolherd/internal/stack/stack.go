// Package stack composes the four services in one process: the all-in-one.
//
// The composition differs from a split deployment in three things only: services meet over an in-process connection,
// the database is SQLite unless a DSN is given, and wake-ups go through channels. Two gRPC servers: the public one on
// the network, and an internal one that only this process can reach and that alone has the RPCs for peers.
//
// A lock in the state directory makes a second composition on the same store impossible; an address file beside it lets
// client commands find the running one.
package stack

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/host"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/wake"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/notifier"
	"github.com/toolherd/toolherd/services/registry"
	"github.com/toolherd/toolherd/services/taskworker"
	"github.com/toolherd/toolherd/services/toolproxy"
)

// How long a composition waits for the lock of its state directory: `up` hardly, a client command as long as another
// client's own composition may take.
const (
	upPatience     = 500 * time.Millisecond
	clientPatience = 90 * time.Second
)

// Up runs the all-in-one until ctx ends. Ready is called once calls are served, with a connection to the composition;
// it may run as long as its ctx. Stderr receives the ready line and, unless cfg names a file, the log.
func Up(ctx context.Context, cfg config.Config, stderr io.Writer, ready func(ctx context.Context, conn *grpc.ClientConn) error) error {
	return compose(ctx, cfg, composition{stderr: stderr, patience: upPatience, ready: ready})
}

// Compose runs the services without a network listener, calls f with a connection to them, and takes them down again. Calls
// with the context of f are those of an agent and operator.
// Where an all-in-one begins to run on the state directory meanwhile, it returns a *[RunningError] and has not called f.
func Compose(ctx context.Context, cfg config.Config, stderr io.Writer, f func(ctx context.Context, conn *grpc.ClientConn) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The error of f is kept apart: to the services its end is an ordinary one, whatever it came to.
	var result error
	err := compose(ctx, cfg, composition{stderr: stderr, patience: clientPatience, private: true,
		ready: func(ctx context.Context, conn *grpc.ClientConn) error {
			defer cancel()
			// The person at the terminal is who a listener without authentication takes everyone for.
			person := authn.Anonymous()
			if ctx, result = rpc.ActFor(authn.NewActing(ctx, &person)); result == nil {
				result = f(ctx, conn)
			}
			return nil
		}})
	return errors.Join(result, err)
}

// databaseName is the SQLite file in the state directory.
const databaseName = "toolherd.db"

type composition struct {
	stderr   io.Writer
	patience time.Duration
	private  bool // no network listener, no address file
	ready    func(ctx context.Context, conn *grpc.ClientConn) error
}

func compose(ctx context.Context, cfg config.Config, c composition) (err error) {
	release, err := acquire(ctx, cfg.StateDir, c.patience, c.private)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	env, err := host.Open(ctx, "toolherd", cfg, c.stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close(ctx)) }()

	serving, conn, err := build(ctx, env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if c.private {
		serving.NoListen = true
		serving.Ready = func(ctx context.Context) error { return c.ready(ctx, conn) }
		return env.Serve(ctx, serving)
	}
	withdraw := func() error { return nil }
	serving.Announce = func(grpcAddr, httpAddr string) (err error) {
		withdraw, err = publish(cfg.StateDir, Address{GRPC: grpcAddr, HTTP: httpAddr, PID: os.Getpid()})
		return err
	}
	serving.Ready = func(ctx context.Context) error {
		return errors.Join(waitFor(ctx, func() error { return c.ready(ctx, conn) }), withdraw())
	}
	return env.Serve(ctx, serving)
}

// waitFor runs f and returns only after ctx has ended too, so that what is published stays as long as it is true.
func waitFor(ctx context.Context, f func() error) error {
	if err := f(); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// build makes the services and connects them. It starts nothing.
func build(ctx context.Context, env *host.Env) (_ host.Serving, _ *grpc.ClientConn, err error) {
	parts, err := configure(env.Config)
	if err != nil {
		return host.Serving{}, nil, err
	}
	store, bus, err := openStore(ctx, env)
	if err != nil {
		return host.Serving{}, nil, err
	}
	key, err := openKey(env.Config)
	if err != nil {
		return host.Serving{}, nil, err
	}
	loopback := rpc.NewLoopback()
	conn, err := loopback.Dial(rpc.ClientOptions{Log: env.Log, MaxMessageBytes: 1 << 30, Tracing: env.Telemetry.Tracing()})
	if err != nil {
		return host.Serving{}, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
	}()
	reg, err := registry.New(parts.registry, registry.Deps{DB: store, Wake: bus, Key: key, Log: env.Log})
	if err != nil {
		return host.Serving{}, nil, err
	}
	proxy, err := toolproxy.New(toolproxy.FromConfig(env.Config), toolproxy.Deps{
		Registry:    registryv1.NewRegistryServiceClient(conn),
		Credentials: credentialv1.NewCredentialServiceClient(conn),
		Intake:      taskv1.NewTaskIntakeServiceClient(conn),
		Tasks:       taskv1.NewTaskServiceClient(conn),
		Log:         env.Log, Telemetry: env.Telemetry, Redactor: env.Redactor,
	})
	if err != nil {
		return host.Serving{}, nil, err
	}
	worker, err := taskworker.New(parts.taskworker, taskworker.Deps{
		DB: store, Wake: bus, Remote: toolproxyv1.NewBackgroundToolServiceClient(conn), Log: env.Log, Telemetry: env.Telemetry,
	})
	if err != nil {
		return host.Serving{}, nil, err
	}
	events, err := notifier.New(parts.notifier, notifier.Deps{
		DB: store, Wake: bus, Log: env.Log, Telemetry: env.Telemetry, Redactor: env.Redactor,
	})
	if err != nil {
		return host.Serving{}, nil, err
	}
	return host.Serving{
		// A worker drains through toolproxy, which needs the registry: callers stop first.
		Services: []host.Named{
			{Name: "registry", Service: reg, Stop: 2},
			{Name: "toolproxy", Service: proxy, Stop: 1},
			{Name: "taskworker", Service: worker},
			{Name: "notifier", Service: events},
		},
		Tasks:    []run.Task{{Name: "wake-up bus", Run: bus.Run}},
		Loopback: loopback,
	}, conn, nil
}

// parts are what the services are told.
type parts struct {
	registry   registry.Config
	taskworker taskworker.Config
	notifier   notifier.Config
}

// configure checks the configuration of every service before anything is opened.
func configure(cfg config.Config) (p parts, err error) {
	if p.registry, err = registry.FromConfig(cfg); err != nil {
		return p, err
	}
	if p.taskworker, err = taskworker.FromConfig(cfg); err != nil {
		return p, err
	}
	p.notifier, err = notifier.FromConfig(cfg)
	return p, err
}

// openStore opens and migrates the database.
func openStore(ctx context.Context, env *host.Env) (*db.DB, wake.Bus, error) {
	c := db.Config{PostgresDSN: env.Config.Postgres}
	if c.PostgresDSN == "" {
		c.SQLitePath = filepath.Join(env.Config.StateDir, databaseName)
	}
	store, err := env.DB(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	if err := store.Migrate(ctx); err != nil {
		return nil, nil, err
	}
	return store, env.Wake(store), nil
}

// Migrate brings the database of a configuration to the schema of this version.
func Migrate(ctx context.Context, cfg config.Config, stderr io.Writer) (err error) {
	if cfg.Postgres == "" {
		release, err := acquire(ctx, cfg.StateDir, upPatience, false)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	env, err := host.Open(ctx, "migrate", cfg, stderr)
	if err != nil {
		return err
	}
	_, _, err = openStore(ctx, env)
	return errors.Join(err, env.Close(ctx))
}

// CheckDatabase reports whether the database of a configuration can be reached and has the schema of this version, and
// names it. It changes nothing; an SQLite file that does not exist yet is fine.
func CheckDatabase(ctx context.Context, cfg config.Config) (name string, err error) {
	c := db.Config{PostgresDSN: cfg.Postgres}
	if c.PostgresDSN == "" {
		c.SQLitePath = filepath.Join(cfg.StateDir, databaseName)
		if _, err := os.Stat(c.SQLitePath); errors.Is(err, fs.ErrNotExist) {
			return "sqlite " + c.SQLitePath + ", which is made at the first start", nil
		}
	}
	d, err := db.Open(ctx, c)
	if err != nil {
		return "", err
	}
	if err = d.Ping(ctx); err == nil {
		err = d.CheckVersion(ctx)
	}
	return d.String(), errors.Join(err, d.Close())
}

// openKey reads the key that encrypts literal secrets, making one in the state directory if none is configured.
func openKey(cfg config.Config) (*secret.Key, error) {
	if cfg.Registry.SecretKeyFile != "" {
		return registry.LoadKey(cfg)
	}
	return secret.LoadOrCreateKey(filepath.Join(cfg.StateDir, "secret.key"))
}
