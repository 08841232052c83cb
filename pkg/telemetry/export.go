package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// complainEvery is how often an unreachable collector is logged.
const complainEvery = time.Minute

// export redacts spans on their way out and logs what the exporter fails at. It swallows the errors, which the SDK
// would write to the global error handler.
type export struct {
	next   sdktrace.SpanExporter
	redact func(string) string
	log    *slog.Logger

	mu         sync.Mutex
	complained time.Time
}

func (e *export) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	clean := make([]sdktrace.ReadOnlySpan, len(spans))
	for i, s := range spans {
		clean[i] = redactedSpan{ReadOnlySpan: s, redact: e.redact}
	}
	if err := e.next.ExportSpans(ctx, clean); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if time.Since(e.complained) >= complainEvery {
			e.complained = time.Now()
			e.log.Warn("spans are lost: the collector does not take them (otlp_endpoint)", "spans", len(spans), "err", err)
		}
	}
	return nil
}

func (e *export) Shutdown(ctx context.Context) error { return e.next.Shutdown(ctx) }

// redactedSpan is a span whose texts are redacted when they are read.
type redactedSpan struct {
	sdktrace.ReadOnlySpan
	redact func(string) string
}

func (s redactedSpan) Name() string { return s.redact(s.ReadOnlySpan.Name()) }

func (s redactedSpan) Attributes() []attribute.KeyValue {
	return redactAttributes(s.ReadOnlySpan.Attributes(), s.redact)
}

func (s redactedSpan) Status() sdktrace.Status {
	status := s.ReadOnlySpan.Status()
	status.Description = s.redact(status.Description)
	return status
}

func (s redactedSpan) Events() []sdktrace.Event {
	events := s.ReadOnlySpan.Events()
	clean := make([]sdktrace.Event, len(events))
	for i, e := range events {
		e.Name = s.redact(e.Name)
		e.Attributes = redactAttributes(e.Attributes, s.redact)
		clean[i] = e
	}
	return clean
}

func (s redactedSpan) Links() []sdktrace.Link {
	links := s.ReadOnlySpan.Links()
	clean := make([]sdktrace.Link, len(links))
	for i, l := range links {
		l.Attributes = redactAttributes(l.Attributes, s.redact)
		clean[i] = l
	}
	return clean
}

func redactAttributes(attributes []attribute.KeyValue, redact func(string) string) []attribute.KeyValue {
	clean := make([]attribute.KeyValue, len(attributes))
	for i, a := range attributes {
		switch a.Value.Type() {
		case attribute.STRING:
			a.Value = attribute.StringValue(redact(a.Value.AsString()))
		case attribute.STRINGSLICE:
			values := a.Value.AsStringSlice() // a copy
			for j := range values {
				values[j] = redact(values[j])
			}
			a.Value = attribute.StringSliceValue(values)
		default: // numbers and booleans
		}
		clean[i] = a
	}
	return clean
}
