package rpc

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// DefaultTimeout is the deadline of a unary call that has none.
const DefaultTimeout = 30 * time.Second

// ClientOptions describes a connection. Zero values take the defaults.
type ClientOptions struct {
	// TLS secures the connection; nil is plaintext. See [ClientTLS].
	TLS *tls.Config
	// Token returns the bearer token of each call; nil sends none. See [TokenFile].
	Token func() (string, error)
	// InsecurePlaintext allows a token on a plaintext connection that leaves the machine.
	InsecurePlaintext bool
	// Log gets each failed call at DEBUG; nil discards them.
	Log *slog.Logger
	// MaxMessageBytes bounds messages in both directions; default 20 MiB.
	MaxMessageBytes int
	// DefaultTimeout is the deadline of unary calls whose context has none; default 30 s, negative for none.
	// Streams get none.
	DefaultTimeout time.Duration
	// Tracing starts the spans of calls; nil for none, which still passes on a span in the context.
	Tracing trace.TracerProvider
}

// Dial returns a connection to a gRPC target, such as "taskworker:7403" or "unix:///run/toolherd.sock". It connects when
// first used, so the server need not be there yet, and reconnects within seconds. The caller closes it.
//
// Errors of its calls are faults, as the package doc says. Methods declared idempotent are retried on UNAVAILABLE, up to
// four attempts in all and as the server's pushback asks.
func Dial(target string, o ClientOptions) (*grpc.ClientConn, error) {
	if o.Token != nil && o.TLS == nil && !o.InsecurePlaintext && !LocalTarget(target) {
		return nil, fmt.Errorf("dial %s: a token would leave the machine in plaintext: set peers.ca_file for TLS, or --insecure-plaintext", target)
	}
	return dial(target, o, grpc.WithKeepaliveParams(keepalive.ClientParameters{
		Time:                30 * time.Second,
		Timeout:             10 * time.Second,
		PermitWithoutStream: true,
	}))
}

// LocalTarget reports whether a target is on this machine by its form alone.
func LocalTarget(target string) bool {
	if strings.HasPrefix(target, "unix:") || strings.HasPrefix(target, "unix-abstract:") {
		return true
	}
	address := target[strings.LastIndex(target, "/")+1:]
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func dial(target string, o ClientOptions, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	if o.MaxMessageBytes < 0 {
		return nil, errors.New("dial: MaxMessageBytes is negative")
	}
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, DefaultMaxMessageBytes)
	o.DefaultTimeout = cmp.Or(o.DefaultTimeout, DefaultTimeout)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Tracing == nil {
		o.Tracing = noop.NewTracerProvider()
	}
	config, err := serviceConfig()
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	c := &client{
		target:  target[strings.LastIndex(target, "/")+1:],
		options: o,
		tracer:  o.Tracing.Tracer(tracerName),
	}
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultServiceConfig(config),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessageBytes), grpc.MaxCallSendMsgSize(o.MaxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithUnaryInterceptor(c.unary),
		grpc.WithStreamInterceptor(c.stream),
	}
	conn, err := grpc.NewClient(target, append(options, more...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	return conn, nil
}

// client is what the interceptors of a connection share.
type client struct {
	target  string
	options ClientOptions
	tracer  trace.Tracer
	methods sync.Map // full method name to *clientMethod
}

type clientMethod struct {
	name       string
	idempotent bool
	quiet      bool // health and reflection: not traced
	span       spanShape
}

func (c *client) method(full string) *clientMethod {
	if m, ok := c.methods.Load(full); ok {
		return m.(*clientMethod)
	}
	name := strings.TrimPrefix(full, "/")
	r := rightsOf(name)
	m, _ := c.methods.LoadOrStore(full, &clientMethod{
		name:       name,
		idempotent: r.idempotent,
		quiet:      r.open,
		span:       newSpanShape(name, trace.SpanKindClient),
	})
	return m.(*clientMethod)
}

func (c *client) outcome(m *clientMethod, sent bool) outcome {
	return outcome{target: c.target, method: m.name, limit: c.options.MaxMessageBytes, sent: sent, idempotent: m.idempotent}
}

// begin starts the call's span and adds trace context and token to what is sent. The token is in the returned context
// alone, so a handler that passes its own context on sends no token by accident.
func (c *client) begin(ctx context.Context, m *clientMethod) (context.Context, trace.Span, error) {
	var span trace.Span
	if !m.quiet {
		ctx, span = m.span.start(ctx, c.tracer)
	}
	var out outgoing
	propagation.TraceContext{}.Inject(ctx, &out)
	if c.options.Token != nil {
		token, err := c.options.Token()
		if err != nil {
			endSpan(span, status.New(codes.Unauthenticated, err.Error()))
			return nil, nil, fmt.Errorf("call %s: token: %w", m.name, err)
		}
		out.Set("authorization", "Bearer "+token)
	}
	if len(out.pairs) > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, out.pairs...)
	}
	return ctx, span, nil
}

func (c *client) unary(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	m := c.method(method)
	if _, ok := ctx.Deadline(); !ok && c.options.DefaultTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.options.DefaultTimeout)
		defer cancel()
	}
	ctx, span, err := c.begin(ctx, m)
	if err != nil {
		return err
	}
	var p peer.Peer // set by grpc once the call had a connection
	err = invoke(ctx, method, req, reply, conn, append(slices.Clip(opts), grpc.Peer(&p))...)
	endSpan(span, status.Convert(err))
	if err == nil {
		return nil
	}
	err = c.outcome(m, p.Addr != nil).fault(ctx, err)
	c.options.Log.DebugContext(ctx, "call failed", "method", m.name, "target", c.target, "err", err)
	return err
}

func (c *client) stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	m := c.method(method)
	ctx, span, err := c.begin(ctx, m)
	if err != nil {
		return nil, err
	}
	opts = append(slices.Clip(opts), grpc.OnFinish(func(err error) { endSpan(span, status.Convert(err)) }))
	stream, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		endSpan(span, status.Convert(err))
		return nil, c.outcome(m, false).fault(ctx, err)
	}
	return &clientStream{ClientStream: stream, outcome: c.outcome(m, true)}, nil
}

// clientStream turns the errors of a stream into faults.
type clientStream struct {
	grpc.ClientStream
	outcome outcome
}

func (s *clientStream) SendMsg(m any) error {
	return s.outcome.fault(s.Context(), s.ClientStream.SendMsg(m))
}

func (s *clientStream) RecvMsg(m any) error {
	return s.outcome.fault(s.Context(), s.ClientStream.RecvMsg(m))
}

func (s *clientStream) CloseSend() error {
	return s.outcome.fault(s.Context(), s.ClientStream.CloseSend())
}

// serviceConfig spreads calls over all addresses and retries idempotent methods.
func serviceConfig() (string, error) {
	type name struct {
		Service string `json:"service"`
		Method  string `json:"method"`
	}
	var names []name
	services(func(sd protoreflect.ServiceDescriptor) {
		for i := range sd.Methods().Len() {
			md := sd.Methods().Get(i)
			if o, ok := md.Options().(*descriptorpb.MethodOptions); ok && idempotent(o) {
				names = append(names, name{string(sd.FullName()), string(md.Name())})
			}
		}
	})
	config := map[string]any{
		"loadBalancingConfig": []any{map[string]any{"round_robin": struct{}{}}},
		// A server in trouble is not asked four times as much: retries stop while more than half of them fail.
		"retryThrottling": map[string]any{"maxTokens": 10, "tokenRatio": 0.1},
	}
	if len(names) > 0 {
		config["methodConfig"] = []any{map[string]any{
			"name": names,
			"retryPolicy": map[string]any{
				"maxAttempts":          4,
				"initialBackoff":       "0.1s",
				"maxBackoff":           "2s",
				"backoffMultiplier":    2,
				"retryableStatusCodes": []string{"UNAVAILABLE"},
			},
		}}
	}
	b, err := json.Marshal(config)
	return string(b), err
}
