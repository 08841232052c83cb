package rpc

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const tracerName = "github.com/toolherd/toolherd/pkg/rpc"

// spanShape is what all spans of one method have in common.
type spanShape struct {
	name       string
	kind       []trace.SpanStartOption
	attributes []attribute.KeyValue
}

func newSpanShape(method string, kind trace.SpanKind) spanShape {
	service, name, _ := strings.Cut(method, "/")
	return spanShape{
		name: method,
		kind: []trace.SpanStartOption{trace.WithSpanKind(kind)},
		attributes: []attribute.KeyValue{
			attribute.String("rpc.system.name", "grpc"),
			attribute.String("rpc.service", service),
			attribute.String("rpc.method", name),
		},
	}
}

// start starts a span. The attributes are set afterwards, so that a span that is not recorded does not copy them.
func (s *spanShape) start(ctx context.Context, t trace.Tracer) (context.Context, trace.Span) {
	ctx, span := t.Start(ctx, s.name, s.kind...)
	if span.IsRecording() {
		span.SetAttributes(s.attributes...)
	}
	return ctx, span
}

// incoming reads trace context from the metadata of a received call.
type incoming struct{ ctx context.Context } //nolint:containedctx // lives for one look-up

func (c incoming) Get(key string) string {
	if values := metadata.ValueFromIncomingContext(c.ctx, key); len(values) > 0 {
		return values[0]
	}
	return ""
}

func (incoming) Set(string, string) {}

func (incoming) Keys() []string { return nil }

// remoteParent returns ctx with the span that the caller sent, if any.
func remoteParent(ctx context.Context) context.Context {
	return propagation.TraceContext{}.Extract(ctx, incoming{ctx})
}

// outgoing collects trace context as the pairs that metadata takes.
type outgoing struct{ pairs []string }

func (*outgoing) Get(string) string { return "" }

func (c *outgoing) Set(key, value string) { c.pairs = append(c.pairs, key, value) }

func (*outgoing) Keys() []string { return nil }

// endSpan ends the span of a call, if it has one, with this status; nil is OK.
func endSpan(span trace.Span, st *status.Status) {
	if span == nil || !span.IsRecording() {
		return
	}
	code := st.Code()
	span.SetAttributes(attribute.String("rpc.response.status_code", codeName(code)))
	if code != codes.OK {
		span.SetStatus(otelcodes.Error, st.Message())
	}
	span.End()
}

// codeName returns the canonical name of a status code, such as NOT_FOUND.
func codeName(c codes.Code) string {
	switch c {
	case codes.OK:
		return "OK"
	case codes.Canceled:
		return "CANCELLED"
	case codes.Unknown:
		return "UNKNOWN"
	case codes.InvalidArgument:
		return "INVALID_ARGUMENT"
	case codes.DeadlineExceeded:
		return "DEADLINE_EXCEEDED"
	case codes.NotFound:
		return "NOT_FOUND"
	case codes.AlreadyExists:
		return "ALREADY_EXISTS"
	case codes.PermissionDenied:
		return "PERMISSION_DENIED"
	case codes.ResourceExhausted:
		return "RESOURCE_EXHAUSTED"
	case codes.FailedPrecondition:
		return "FAILED_PRECONDITION"
	case codes.Aborted:
		return "ABORTED"
	case codes.OutOfRange:
		return "OUT_OF_RANGE"
	case codes.Unimplemented:
		return "UNIMPLEMENTED"
	case codes.Internal:
		return "INTERNAL"
	case codes.Unavailable:
		return "UNAVAILABLE"
	case codes.DataLoss:
		return "DATA_LOSS"
	case codes.Unauthenticated:
		return "UNAUTHENTICATED"
	}
	return "UNKNOWN"
}
