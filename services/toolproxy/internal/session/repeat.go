package session

import (
	"context"
	"encoding/hex"
	"errors"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// Repeatable reports whether a call that failed may be sent again in another session: the server provably did not execute
// it, and another session may fare better.
func Repeatable(err error) bool {
	if errors.Is(err, exchange.ErrSessionLost) {
		return exchange.NotRun(err)
	}
	return errors.Is(err, link.ErrNotSent) && fault.Is(err, fault.SessionClosed)
}

// TraceMembers returns the W3C trace context of ctx as members of [Call.Meta], or "" if there is none.
func TraceMembers(ctx context.Context) string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return ""
	}
	id, span := sc.TraceID(), sc.SpanID()
	b := append(make([]byte, 0, 96), `"traceparent":"00-`...)
	b = hex.AppendEncode(b, id[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, span[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, []byte{byte(sc.TraceFlags())})
	b = append(b, '"')
	if state := sc.TraceState().String(); state != "" {
		b = append(b, `,"tracestate":`...)
		b = jsonrpc.AppendString(b, state)
	}
	return string(b)
}
