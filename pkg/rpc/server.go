package rpc

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/toolherd/toolherd/pkg/authn"
)

// Defaults of servers and connections.
const (
	DefaultMaxMessageBytes  = 20 << 20
	DefaultDrainTimeout     = 20 * time.Second
	DefaultMaxConnectionAge = 30 * time.Minute
)

// Sizes that no user needs to turn. Windows are static because grpc's estimator answers every call with a ping of its
// own, and workers spare a call the growth of a fresh stack: both were measured.
const (
	streamWindow  = 4 << 20
	connWindow    = 8 << 20
	streamWorkers = 16
	maxStreams    = 10_000 // concurrent calls of one connection
)

// ServerOptions describes a server. Zero values take the defaults.
type ServerOptions struct {
	// Name of the server in logs and metrics, such as "public" or "taskworker".
	Name string
	// Log is required.
	Log *slog.Logger
	// Tokens recognises callers. Nil means that everyone who reaches the listener is agent and operator, so the
	// listener must be one that [Listen] allows.
	Tokens *authn.Tokens
	// Peer says that the listener is in-process (see [NewLoopback]): callers hold every role and need no token.
	Peer bool
	// Public leaves out the methods that only service roles may call.
	Public bool
	// TLS secures the listener; see [ServerTLS].
	TLS *tls.Config
	// MaxMessageBytes bounds messages in both directions; default 20 MiB.
	MaxMessageBytes int
	// DrainTimeout bounds how long Serve waits for running calls once its context ended; default 20 s.
	DrainTimeout time.Duration
	// MaxConnectionAge is how old a connection gets before its client is asked to reconnect, so that replicas share
	// the load; default 30 min, negative for no bound. Calls in flight are not touched: they may last longer than
	// any age.
	MaxConnectionAge time.Duration
	// MaxConnectionAgeGrace cuts the calls of a connection that long after its age; default never.
	MaxConnectionAgeGrace time.Duration
	// Ready says, per service, whether it can do its work; nil means yes. The functions are polled while Serve runs,
	// with a context that ends after 2 s, and answer grpc.health.v1 and [Server.Ready]. A service depends on its own
	// store here and never on a peer. The message of an error may reach anyone who may ask for the health.
	Ready map[string]func(context.Context) error
	// Redact removes secrets from error messages; nil leaves them.
	Redact func(string) string
	// Tracing starts the spans of calls; nil for none.
	Tracing trace.TracerProvider
	// Metrics is where the calls are counted; nil for nowhere. Several servers may share one.
	Metrics prometheus.Registerer
}

// Server is a gRPC server. Register services with it, then call Serve once. It is a [grpc.ServiceRegistrar].
type Server struct {
	options  ServerOptions
	log      *slog.Logger
	tracer   trace.Tracer
	everyone *authn.Principal // the caller of a listener that does not ask who calls, else nil
	refusals *rate.Limiter    // of log lines

	descs   map[string]*grpc.ServiceDesc
	impls   map[string]any
	methods map[string]*method
	unknown *method
	metrics *metrics

	health  *health
	started chan struct{}   // closed when Serve is called
	drain   context.Context //nolint:containedctx // set by Serve: it ends when the shutdown begins
}

// NewServer checks the options. It starts nothing.
func NewServer(o ServerOptions) (*Server, error) {
	switch {
	case o.Log == nil:
		return nil, errors.New("server: Log is missing")
	case o.Peer && (o.Tokens != nil || o.TLS != nil):
		return nil, errors.New("server: an in-process listener takes neither tokens nor TLS")
	case o.Peer && o.Public:
		return nil, errors.New("server: an in-process listener is not public")
	case o.MaxMessageBytes < 0 || o.DrainTimeout < 0 || o.MaxConnectionAgeGrace < 0:
		return nil, errors.New("server: a limit is negative")
	}
	o.Name = cmp.Or(o.Name, "server")
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, DefaultMaxMessageBytes)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, DefaultDrainTimeout)
	o.MaxConnectionAge = cmp.Or(o.MaxConnectionAge, DefaultMaxConnectionAge)
	if o.Redact == nil {
		o.Redact = func(s string) string { return s }
	}
	if o.Tracing == nil {
		o.Tracing = noop.NewTracerProvider()
	}

	s := &Server{
		options:  o,
		log:      o.Log.With("server", o.Name),
		tracer:   o.Tracing.Tracer(tracerName),
		refusals: rate.NewLimiter(1, 10),
		descs:    map[string]*grpc.ServiceDesc{},
		impls:    map[string]any{},
		methods:  map[string]*method{},
		started:  make(chan struct{}),
	}
	if o.Metrics != nil {
		m, err := newMetrics(o.Metrics)
		if err != nil {
			return nil, err
		}
		s.metrics = m
	}
	switch {
	case o.Peer:
		s.everyone = new(authn.Internal())
	case o.Tokens == nil:
		s.everyone = new(authn.Anonymous())
	}
	s.unknown = s.newMethod("unknown", rights{})
	s.health = newHealth(s.log, o.Ready)
	s.registerOpenServices()
	return s, nil
}

// RegisterService registers a service, as the generated functions do. It must not be called after Serve.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	select {
	case <-s.started:
		panic(fmt.Sprintf("rpc: %s is registered after Serve", desc.ServiceName))
	default:
	}
	if s.descs[desc.ServiceName] != nil {
		panic(fmt.Sprintf("rpc: %s is registered twice", desc.ServiceName))
	}
	wrapped := *desc
	wrapped.Methods = nil
	for _, m := range desc.Methods {
		if w := s.addMethod(desc.ServiceName + "/" + m.MethodName); w != nil {
			m.Handler = s.wrapUnary(w, m.Handler)
			wrapped.Methods = append(wrapped.Methods, m)
		}
	}
	wrapped.Streams = nil
	for _, m := range desc.Streams {
		if w := s.addMethod(desc.ServiceName + "/" + m.StreamName); w != nil {
			m.Handler = s.wrapStream(w, m.Handler)
			wrapped.Streams = append(wrapped.Streams, m)
		}
	}
	s.descs[desc.ServiceName] = &wrapped
	s.impls[desc.ServiceName] = impl
	if !openService(desc.ServiceName) {
		s.health.add(desc.ServiceName)
	}
}

// addMethod returns nil for a method that this server leaves out.
func (s *Server) addMethod(name string) *method {
	r := rightsOf(name)
	if s.options.Public && r.internal() {
		return nil
	}
	if !r.open && len(r.roles) == 0 {
		s.log.Warn("method declares no roles and is closed to everyone", "method", name)
	}
	m := s.newMethod(name, r)
	s.methods[name] = m
	return m
}

// build makes the gRPC server. It is not made by NewServer because its workers start with it.
func (s *Server) build() *grpc.Server {
	o := s.options
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(o.MaxMessageBytes),
		grpc.MaxSendMsgSize(o.MaxMessageBytes),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(s.serveUnknown),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	if !o.Peer {
		params := keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}
		if o.MaxConnectionAge > 0 {
			params.MaxConnectionAge = o.MaxConnectionAge
			params.MaxConnectionAgeGrace = o.MaxConnectionAgeGrace
		}
		options = append(options,
			grpc.KeepaliveParams(params),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
	}
	g := grpc.NewServer(options...)
	for name, desc := range s.descs {
		g.RegisterService(desc, s.impls[name])
	}
	return g
}
