package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// The names of W3C trace context, also as members of an MCP `_meta` object (SEP-414).
const (
	metaTraceparent = "traceparent"
	metaTracestate  = "tracestate"
)

// Traceparent returns the W3C trace context of ctx's span. Both are empty where there is no span; most spans have no
// tracestate.
func Traceparent(ctx context.Context) (traceparent, tracestate string) {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[metaTraceparent], carrier[metaTracestate]
}

// WithTraceparent returns ctx with the span of a remote caller as parent. Text that is not trace context is ignored.
func WithTraceparent(ctx context.Context, traceparent, tracestate string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{metaTraceparent: traceparent, metaTracestate: tracestate})
}
