package telemetry

import (
	"context"
	"encoding/json"
	"maps"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// The members of an MCP `_meta` object that carry W3C trace context (SEP-414).
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

// InjectMeta returns a copy of an MCP `_meta` object in which ctx's span takes the place of the caller's: the server's
// spans are to hang off ours. All other members stay as they are. Without a span it returns meta itself.
func InjectMeta(ctx context.Context, meta map[string]json.RawMessage) map[string]json.RawMessage {
	traceparent, tracestate := Traceparent(ctx)
	if traceparent == "" {
		return meta
	}
	out := maps.Clone(meta)
	if out == nil {
		out = make(map[string]json.RawMessage, 2)
	}
	out[metaTraceparent] = quote(traceparent)
	delete(out, metaTracestate)
	if tracestate != "" {
		out[metaTracestate] = quote(tracestate)
	}
	return out
}

// ExtractMeta returns ctx with the span named in an MCP `_meta` object as parent, unless ctx has a span already or the
// object names none.
func ExtractMeta(ctx context.Context, meta map[string]json.RawMessage) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return WithTraceparent(ctx, unquote(meta[metaTraceparent]), unquote(meta[metaTracestate]))
}

func quote(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		return json.RawMessage(`""`) // a string always encodes
	}
	return b
}

func unquote(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}
