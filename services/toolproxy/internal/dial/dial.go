// Package dial opens sessions: it knows which wire a server needs, where a stdio server works, and which protocol version
// a server of some fingerprint spoke last.
package dial

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/sse"
	"github.com/toolherd/toolherd/services/toolproxy/internal/stdio"
	"github.com/toolherd/toolherd/services/toolproxy/internal/streamhttp"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/workspace"
)

// Options configure a Dialer. Every field must be set.
type Options struct {
	Launcher *stdio.Launcher
	Layout   workspace.Layout
	Client   session.Client
	// MaxMessageBytes bounds a message to or from a server.
	MaxMessageBytes int
	// Scope is that of the sessions which hear of changed lists.
	Scope    authn.Scope
	Redactor *secret.Redactor
	// ListChanged hears that a session's server has other tools. It must not block.
	ListChanged func(server string)
	Log         *slog.Logger
}

// Dialer opens sessions. It may be used concurrently.
type Dialer struct {
	o Options

	mu       sync.Mutex
	versions map[string]string // by fingerprint
}

// New returns a Dialer.
func New(o Options) *Dialer { return &Dialer{o: o, versions: map[string]string{}} }

// probeTimeout bounds the wait for an answer to the first message of a server whose era is not known, but leaves most of a
// short session_init_timeout for what comes after.
func probeTimeout(s *upstream.Server) time.Duration {
	const most = 3 * time.Second
	if s.InitTimeout > 0 {
		return min(most, s.InitTimeout/3)
	}
	return most
}

// Open opens the session that r asks for within ctx.
func (d *Dialer) Open(ctx context.Context, r pool.Request) (*session.Session, error) {
	s := r.Server
	log := d.o.Log.With("server", s.Name)
	known := d.version(s.Fingerprint)
	discovery := s.Key(r.Scope) == s.Key(d.o.Scope)
	o := session.Options{
		Dial:          func(ctx context.Context) (link.Wire, error) { return d.wire(ctx, r, log) },
		Era:           session.Era(s.Era),
		Known:         known,
		ProbeTimeout:  probeTimeout(s),
		Client:        d.o.Client,
		Subscribe:     discovery,
		OnListChanged: func() { d.o.ListChanged(s.Name) },
		Link: link.Options{
			Log: log, Server: s.Name, Shared: s.Shared(), MaxMessageBytes: d.o.MaxMessageBytes,
		},
		Log: log,
	}
	if s.Transport == serverconfig.SSE {
		o.Era = session.Legacy // the transport is older than the other era
	}
	opened, err := session.Open(ctx, o)
	if err == nil && opened.Version() != known {
		d.remember(s.Fingerprint, opened.Version())
	}
	return opened, err
}

// maxVersions bounds what is remembered; then it is found out anew.
const maxVersions = 10_000

func (d *Dialer) version(fingerprint string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.versions[fingerprint]
}

func (d *Dialer) remember(fingerprint, version string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.versions) >= maxVersions {
		clear(d.versions)
	}
	d.versions[fingerprint] = version
}

// wire makes a connection to the server.
func (d *Dialer) wire(ctx context.Context, r pool.Request, log *slog.Logger) (link.Wire, error) {
	s := r.Server
	if s.Transport == serverconfig.Stdio {
		return d.start(ctx, r, log)
	}
	o := exchange.Options{
		Server: s.Name, URL: s.URL, Transport: s.HTTP, Header: s.Header, MaxMessageBytes: d.o.MaxMessageBytes,
		Redactor: d.o.Redactor, Inject: inject, Log: log,
	}
	if s.Transport == serverconfig.SSE {
		return wireOf(sse.New(o))
	}
	return wireOf(streamhttp.New(streamhttp.Options{Options: o, StandingGET: s.Key(r.Scope) == s.Key(d.o.Scope)}))
}

// wireOf keeps a nil pointer from becoming a wire.
func wireOf[W link.Wire](w W, err error) (link.Wire, error) {
	if err != nil {
		return nil, err
	}
	return w, nil
}

func inject(ctx context.Context, h http.Header) {
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
}

// start executes a stdio server where its scope works.
func (d *Dialer) start(ctx context.Context, r pool.Request, log *slog.Logger) (link.Wire, error) {
	s := r.Server
	place, err := d.o.Layout.Place(workspace.Request{Scope: workplace(s, r.Scope), Cwd: s.Cwd, Env: s.Env})
	if err != nil {
		return nil, fmt.Errorf("server %q has no place to work in: %w", s.Name, err)
	}
	if place.Warning != "" {
		log.WarnContext(ctx, "temporary directory is not pinned", "cause", place.Warning)
	}
	maps.Copy(place.Env, s.Env)
	return wireOf(d.o.Launcher.Start(ctx, stdio.Spec{
		Server: s.Name, Command: s.Command, Args: s.Args, Env: place.Env, Dir: place.Dir,
		MaxMessageBytes: d.o.MaxMessageBytes, Redact: d.o.Redactor.Redact, Log: log,
	}))
}

// workplace is the scope whose files a session works on: one that several threads share belongs to none of them.
func workplace(s *upstream.Server, scope authn.Scope) authn.Scope {
	switch s.Scope {
	case serverconfig.ScopeShared:
		return authn.Scope{UserID: authn.DefaultID, ThreadID: authn.DefaultID}
	case serverconfig.ScopeUser:
		return authn.Scope{UserID: scope.UserID, ThreadID: authn.DefaultID}
	default:
		return scope
	}
}
