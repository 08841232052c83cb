// Package host turns services into a process: logs and metrics, listeners, readiness, signals and an orderly end.
//
// The all-in-one and every split service are hosted alike; only their connections, database and wake-up channel differ.
//
//	start:  listeners open ─▶ services run ─▶ all ready ─▶ line "ready grpc=ADDR http=ADDR" on stderr
//	stop:   not ready ─▶ public calls drain ─▶ services end, callers before callees ─▶ internal calls drain ─▶ database, telemetry
package host

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/telemetry"
	"github.com/toolherd/toolherd/pkg/version"
	"github.com/toolherd/toolherd/pkg/wake"
)

// Service is a service as its host sees it.
type Service interface {
	// Register adds the RPCs that agents and operators may call.
	Register(r grpc.ServiceRegistrar)
	// Run works until ctx ends, then cleans up and returns.
	Run(ctx context.Context) error
	// Ready returns nil once calls are served, else what is missing.
	Ready(ctx context.Context) error
}

// Internal is a [Service] that also has RPCs for peers.
type Internal interface {
	// RegisterInternal adds all RPCs, those that only other services may call included.
	RegisterInternal(r grpc.ServiceRegistrar)
}

// flushTimeout bounds what happens after the last call: telemetry is flushed, the log file closed.
const flushTimeout = 5 * time.Second

// Env is what a process gives its services.
type Env struct {
	// Config is the process's configuration.
	Config config.Config
	// Log writes redacted records.
	Log *slog.Logger
	// Telemetry makes tracers and holds the metrics.
	Telemetry *telemetry.Telemetry
	// Redactor knows the secrets of this process; what it knows appears in no log.
	Redactor *secret.Redactor

	name    string
	stderr  io.Writer
	closers []func(context.Context) error
}

// Open sets logs, metrics and traces up for a process called name. Stderr receives the ready line, and the log
// unless Config.LogFile names a file.
func Open(ctx context.Context, name string, cfg config.Config, stderr io.Writer) (*Env, error) {
	e := &Env{Config: cfg, Redactor: secret.NewRedactor(), name: name, stderr: stderr}
	out := stderr
	if cfg.LogFile != "" {
		f, err := os.OpenFile(cfg.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open log file (--log-file): %w", err)
		}
		out = f
		e.onClose(func(context.Context) error { return f.Close() })
	}
	tel, err := telemetry.New(ctx, telemetry.Config{
		Service: name, Version: version.Number, LogLevel: cfg.LogLevel, LogFormat: cfg.LogFormat, LogOutput: out,
		OTLPEndpoint: cfg.OTLPEndpoint, Redact: e.Redactor.Redact,
	})
	if err != nil {
		return nil, errors.Join(err, e.Close(ctx))
	}
	e.Telemetry, e.Log = tel, tel.Log
	e.onClose(tel.Shutdown)
	return e, nil
}

func (e *Env) onClose(f func(context.Context) error) { e.closers = append(e.closers, f) }

// Close releases what the Env opened, the newest first. It still works after ctx has ended.
func (e *Env) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	var errs []error
	for i := len(e.closers) - 1; i >= 0; i-- {
		errs = append(errs, e.closers[i](ctx))
	}
	e.closers = nil
	return errors.Join(errs...)
}

// DB opens a database that Close closes. The caller decides whether to migrate it or to check its version.
func (e *Env) DB(ctx context.Context, c db.Config) (*db.DB, error) {
	c.Log = e.Log
	d, err := db.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	e.onClose(func(context.Context) error { return d.Close() })
	return d, nil
}

// Postgres opens the database of a split service, waiting for a server that is not there yet, and checks that it has the
// schema this version needs.
func (e *Env) Postgres(ctx context.Context) (*db.DB, error) {
	if e.Config.Postgres == "" {
		return nil, fault.New(fault.ConfigInvalid, "%s needs Postgres: give its DSN with --postgres or TOOLHERD_POSTGRES", e.name)
	}
	d, err := e.DB(ctx, db.Config{PostgresDSN: e.Config.Postgres})
	if err != nil {
		return nil, err
	}
	wait := backoff.New(backoff.Config{Base: 100 * time.Millisecond, Cap: 5 * time.Second})
	for {
		err := d.Ping(ctx)
		if err == nil {
			return d, d.CheckVersion(ctx)
		}
		e.Log.WarnContext(ctx, "waiting for the database", "database", d.String(), "err", err)
		if backoff.Sleep(ctx, wait.Next()) != nil {
			return nil, err
		}
	}
}

// Wake returns the bus by which processes on the same database wake each other, as Config.PostgresListen says.
func (e *Env) Wake(d *db.DB) wake.Bus {
	switch {
	case d.Engine() != db.Postgres:
		return wake.NewLocal()
	case e.Config.PostgresListen:
		return wake.NewPostgres(d.Pool(), e.Log)
	default:
		return wake.None()
	}
}

// Peer connects to another service, with TLS and token as Config.Peers says. It returns at once: the peer may start later.
func (e *Env) Peer(addr string) (*grpc.ClientConn, error) {
	opts := rpc.ClientOptions{
		Log: e.Log, MaxMessageBytes: e.messageLimit(), Tracing: e.Telemetry.Tracing(), InsecurePlaintext: e.Config.InsecurePlaintext,
	}
	var err error
	if ca := e.Config.Peers.CAFile; ca != "" {
		if opts.TLS, err = rpc.ClientTLS(rpc.ClientTLSFiles{CAFile: ca, CertFile: e.Config.TLS.CertFile, KeyFile: e.Config.TLS.KeyFile}, e.Log); err != nil {
			return nil, err
		}
	}
	if path := e.Config.Peers.TokenFile; path != "" {
		if opts.Token, err = rpc.TokenFile(path, e.Log); err != nil {
			return nil, err
		}
	}
	conn, err := rpc.Dial(addr, opts)
	if err != nil {
		return nil, err
	}
	e.onClose(func(context.Context) error { return conn.Close() })
	return conn, nil
}

// tokens returns who may call the public listener; nil means everyone who reaches it, on loopback only.
func (e *Env) tokens() (*authn.Tokens, error) {
	if e.Config.Auth.TokensFile == "" {
		return nil, nil
	}
	return authn.OpenTokens(e.Config.Auth.TokensFile, e.Log)
}

func (e *Env) serverTLS() (*tls.Config, error) {
	if e.Config.TLS.CertFile == "" {
		return nil, nil
	}
	return rpc.ServerTLS(rpc.ServerTLSFiles{
		CertFile: e.Config.TLS.CertFile, KeyFile: e.Config.TLS.KeyFile, ClientCAFile: e.Config.TLS.ClientCAFile,
	}, e.Log)
}

// messageLimit is the largest gRPC message between our own processes: 20 MiB, more where MCP messages may be larger.
func (e *Env) messageLimit() int {
	return max(20<<20, int(e.Config.Toolproxy.MaxMessageBytes)+4<<20)
}
