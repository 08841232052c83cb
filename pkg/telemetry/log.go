package telemetry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolherd/toolherd/pkg/fault"
)

func newLog(c Config) (*slog.Logger, error) {
	var level slog.Level
	switch strings.ToLower(cmp.Or(c.LogLevel, "info")) {
	case "debug":
		level = slog.LevelDebug
	case "info":
		level = slog.LevelInfo
	case "warn":
		level = slog.LevelWarn
	case "error":
		level = slog.LevelError
	default:
		return nil, fmt.Errorf("log_level %q: want debug, info, warn or error", c.LogLevel)
	}
	var handler slog.Handler
	switch cmp.Or(c.LogFormat, "text") {
	case "text":
		handler = slog.NewTextHandler(c.LogOutput, &slog.HandlerOptions{Level: level, ReplaceAttr: redactor(c.Redact, asText)})
	case "json":
		handler = slog.NewJSONHandler(c.LogOutput, &slog.HandlerOptions{Level: level, ReplaceAttr: redactor(c.Redact, asJSON)})
	default:
		return nil, fmt.Errorf("log_format %q: want text or json", c.LogFormat)
	}
	return slog.New(tracing{handler}), nil
}

// tracing adds trace_id and span_id to the lines written in a span.
type tracing struct{ slog.Handler }

func (h tracing) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h tracing) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tracing{h.Handler.WithAttrs(attrs)}
}

func (h tracing) WithGroup(name string) slog.Handler { return tracing{h.Handler.WithGroup(name)} }

// redactor returns a function for slog that redacts every value of a line, its message included. Values that are not
// text are redacted as format would print them.
func redactor(redact func(string) string, format func(any) string) func([]string, slog.Attr) slog.Attr {
	return func(_ []string, a slog.Attr) slog.Attr {
		switch a.Value.Kind() {
		case slog.KindString:
			a.Value = slog.StringValue(redact(a.Value.String()))
		case slog.KindAny:
			a.Value = redactAny(a.Value, redact, format)
		default: // numbers, times and durations hold no secrets; groups come member by member
		}
		return a
	}
}

func redactAny(v slog.Value, redact func(string) string, format func(any) string) (out slog.Value) {
	defer func() {
		if r := recover(); r != nil {
			// A broken Error or String method must not take the process down: slog would not let it either.
			out = slog.StringValue(redact(fmt.Sprintf("!PANIC: %v", r)))
		}
	}()
	switch x := v.Any().(type) {
	case nil, slog.Level:
		return v
	case error:
		return slog.StringValue(redact(errorText(x)))
	default:
		text := format(x)
		if clean := redact(text); clean != text {
			return slog.StringValue(clean)
		}
		return v
	}
}

// errorText returns an error's message and the cause that a fault keeps from its callers.
func errorText(err error) string {
	text := err.Error()
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Unwrap() != nil {
		text += " (cause: " + errorText(f.Unwrap()) + ")"
	}
	return text
}

func asText(v any) string { return fmt.Sprintf("%+v", v) }

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return asText(v)
	}
	return string(b)
}
