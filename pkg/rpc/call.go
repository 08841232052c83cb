package rpc

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/run"
)

// method is what a server knows about one of its methods.
type method struct {
	name     string // "package.Service/Method"
	rights   rights
	quiet    bool // health and reflection: neither traced nor logged
	span     spanShape
	observer *observer
}

func (s *Server) newMethod(name string, r rights) *method {
	return &method{
		name:     name,
		rights:   r,
		quiet:    r.open,
		span:     newSpanShape(name, trace.SpanKindServer),
		observer: s.metrics.method(s.options.Name, name),
	}
}

// call is one call on its way through the server.
type call struct {
	s      *Server
	m      *method
	ctx    context.Context //nolint:containedctx // a call is the scope of its context
	caller *authn.Principal
	acting *authn.Principal // whom caller forwards it for; nil: caller is its own
	start  time.Time
	span   trace.Span
}

// begin recognises the caller, and the principal it forwards the call for, and checks the role of whom the call is for. The call must be ended whatever begin returns.
func (s *Server) begin(ctx context.Context, m *method) (call, error) {
	c := call{s: s, m: m, ctx: ctx, start: time.Now()}
	if !m.quiet {
		c.ctx, c.span = m.span.start(remoteParent(ctx), s.tracer)
	}
	caller, err := s.recognise(ctx)
	if err != nil {
		return c, err
	}
	c.caller = caller
	principal := caller
	if m.rights.forwarded {
		if c.acting, err = acting(ctx, caller); err != nil {
			return c, err
		}
		principal = cmp.Or(c.acting, caller)
	}
	if !m.rights.admits(principal) && m != s.unknown {
		return c, forbidden(m, principal)
	}
	c.ctx = authn.NewContext(c.ctx, caller)
	if c.acting != nil {
		c.ctx = authn.NewActing(c.ctx, c.acting)
	}
	return c, nil
}

// recognise returns the caller.
func (s *Server) recognise(ctx context.Context) (*authn.Principal, error) {
	if s.everyone != nil {
		return s.everyone, nil
	}
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 0 {
		return nil, fault.Of(fault.Unauthenticated, "no token: send the metadata `authorization: Bearer <token>`; `toolherd token new` makes one")
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || len(values) > 1 {
		return nil, fault.Of(fault.Unauthenticated, "the metadata authorization must be one value of the form `Bearer <token>`")
	}
	caller, ok := s.options.Tokens.Lookup(token)
	if !ok {
		return nil, fault.Of(fault.Unauthenticated, "unknown token: tokens.yaml of this server has no entry for it")
	}
	return caller, nil
}

func forbidden(m *method, caller *authn.Principal) error {
	if len(m.rights.roles) == 0 {
		return fault.New(fault.Forbidden, "%s declares no roles and is closed to everyone", m.name).With("method", m.name)
	}
	return fault.New(fault.Forbidden, "%s needs role %s, but caller %q is %s",
		m.name, roleNames(m.rights.roles, " or "), caller.Name, roleNames(caller.Roles, ", ")).
		With("method", m.name)
}

// end turns the handler's error, or the value of its panic, into what goes on the wire, and accounts for the call.
func (c *call) end(err error, panicked any) error {
	if panicked != nil {
		err = &run.PanicError{Value: panicked, Stack: debug.Stack()}
	}
	var st *status.Status // nil is OK
	if err != nil {
		st = c.conclude(err)
	}
	elapsed := time.Since(c.start)
	c.m.observer.observe(st.Code(), elapsed)
	endSpan(c.span, st)
	if !c.m.quiet && c.s.log.Enabled(c.ctx, slog.LevelDebug) {
		c.s.log.LogAttrs(c.ctx, slog.LevelDebug, "call", slog.String("method", c.m.name), slog.String("caller", c.callerName()),
			slog.String("code", st.Code().String()), slog.Duration("duration", elapsed), slog.Any("err", err))
	}
	if st == nil {
		return nil
	}
	return st.Err()
}

// conclude returns the status for err and logs what a person should see.
func (c *call) conclude(err error) *status.Status {
	if st, ok := ownStatus(err); ok {
		return st
	}
	f, ok := classify(c.ctx, err)
	switch {
	case ok && c.caller == nil, ok && f.Reason() == fault.Forbidden:
		if c.s.refusals.Allow() {
			c.s.log.WarnContext(c.ctx, "call refused", "method", c.m.name, "caller", c.callerName(), "peer", peerOf(c.ctx), "err", f)
		}
	case ok && f.Kind() == fault.Unauthenticated:
		// Callers are recognised here and nowhere else: this is a peer that did not recognise us.
		ok = false
	}
	if ok && f.Kind() != fault.Internal {
		return statusOf(f, c.s.options.Redact)
	}
	c.s.log.ErrorContext(c.ctx, "call failed inside", "method", c.m.name, "caller", c.callerName(), "err", err)
	if ok {
		return statusOf(f, c.s.options.Redact)
	}
	return status.New(codes.Internal, c.internalMessage())
}

// ownStatus returns the status of an error that a generated stub, grpc's health or reflection service or grpc itself
// made. A wrapped status is not one: it came from somewhere else and is not meant for our caller.
func ownStatus(err error) (*status.Status, bool) {
	s, ok := err.(interface{ GRPCStatus() *status.Status })
	if !ok {
		return nil, false
	}
	st := s.GRPCStatus()
	if tooLarge(st) {
		return statusOf(fault.New(fault.PayloadTooLarge,
			"the request is above the limit of this server, which toolproxy.max_message_bytes raises (%s)", st.Message()),
			func(s string) string { return s }), true
	}
	return st, true
}

func (c *call) internalMessage() string {
	if sc := trace.SpanContextFromContext(c.ctx); sc.HasTraceID() {
		return fmt.Sprintf("internal error of %s: its log has it under trace_id %s", c.s.options.Name, sc.TraceID())
	}
	return fmt.Sprintf("internal error of %s: see its log", c.s.options.Name)
}

// callerName returns the caller's name, with that of the principal it acts for in brackets.
func (c *call) callerName() string {
	switch {
	case c.caller == nil:
		return ""
	case c.acting != nil:
		return c.caller.Name + " (" + c.acting.Name + ")"
	}
	return c.caller.Name
}

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// wrapUnary puts the checks before the request is decoded: the handler of the generated code calls decode itself.
func (s *Server) wrapUnary(m *method, handler grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (resp any, err error) {
		c, err := s.begin(ctx, m)
		defer func() { err = c.end(err, recover()) }()
		if err != nil {
			return nil, err
		}
		return handler(srv, c.ctx, decode, nil)
	}
}

func (s *Server) wrapStream(m *method, handler grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) (err error) {
		c, err := s.begin(stream.Context(), m)
		defer func() { err = c.end(err, recover()) }()
		if err != nil {
			return err
		}
		ctx := context.WithValue(c.ctx, drainKey{}, s.drain.Done())
		if m.quiet {
			// A health watch lasts as long as its client: it must not hold up the shutdown.
			var cancel context.CancelCauseFunc
			ctx, cancel = context.WithCancelCause(ctx)
			defer cancel(nil)
			defer context.AfterFunc(s.drain, func() { cancel(errClosing) })()
		}
		return handler(srv, &serverStream{ServerStream: stream, ctx: ctx})
	}
}

// serveUnknown answers calls of methods that this server does not have. A method that other servers have is refused to
// callers without its role, as there.
func (s *Server) serveUnknown(_ any, stream grpc.ServerStream) (err error) {
	full, _ := grpc.MethodFromServerStream(stream)
	name := strings.TrimPrefix(full, "/")
	r := rightsOf(name)
	c, err := s.begin(stream.Context(), s.unknown)
	defer func() { err = c.end(err, recover()) }()
	switch {
	case err != nil:
		return err
	case !r.known:
		return Unimplemented(fmt.Sprintf("unknown method %q: `grpcurl … list` shows what there is", name))
	case !r.admits(c.caller):
		return forbidden(&method{name: name, rights: r}, c.caller)
	case r.internal():
		return Unimplemented(name + " is not served on this listener: it is internal to Toolherd's services")
	default:
		return Unimplemented(name + " is not served by this process: another service of Toolherd has it")
	}
}

// serverStream carries the call's context and turns grpc's errors into ours.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // grpc's interface wants it
}

func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) SendMsg(m any) error { return s.fault(s.ServerStream.SendMsg(m)) }

func (s *serverStream) RecvMsg(m any) error { return s.fault(s.ServerStream.RecvMsg(m)) }

// fault returns the end of the call where grpc reports its symptom.
func (s *serverStream) fault(err error) error {
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	}
	st, ok := status.FromError(err)
	switch {
	case ok && tooLarge(st):
		return fault.New(fault.PayloadTooLarge,
			"a message is above the limit of this server, which toolproxy.max_message_bytes raises (%s)", st.Message())
	case ok && st.Code() == codes.Unavailable:
		return fault.Of(fault.Canceled, "the caller's connection is gone").Because(err)
	}
	return err
}
