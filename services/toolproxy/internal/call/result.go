package call

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolherd/toolherd/pkg/fault"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// maxQuoted keeps what a server sent from flooding a message, in characters.
const maxQuoted = 200

// checkResult checks that a result is one that can be handed over whole. Interim answers have members of their own and no
// content: taken for a result they would look empty.
func checkResult(raw json.RawMessage, modern bool) error {
	if !jsonrpc.IsObject(raw) {
		return fault.New(fault.UpstreamProtocol, "the result is not an object")
	}
	var kind, task, content json.RawMessage
	for key, value := range jsonrpc.Members(raw) {
		switch string(key) {
		case "resultType":
			kind = value
		case "task":
			task = value
		case "content":
			content = value
		}
	}
	if content == nil && jsonrpc.IsObject(task) {
		return errTask()
	}
	if jsonrpc.IsNull(kind) {
		return nil
	}
	switch name, ok := jsonrpc.String(kind); {
	case ok && name == "complete":
		return nil
	case ok && name == "task":
		return errTask()
	case ok && name == "input_required":
		return fault.New(fault.UpstreamProtocol,
			"the server asks for input before it goes on, which is not supported yet; give all it needs in the arguments")
	case modern || !ok:
		return fault.New(fault.UpstreamProtocol, "the result has the unknown type %s", catalog.Shorten(string(kind), maxQuoted))
	default: // a member of that name means nothing in the versions before
		return nil
	}
}

func errTask() error {
	return fault.New(fault.UpstreamProtocol,
		"the server made a task of the call, which is not supported yet; it may be running, and its result is lost")
}

// attach makes the options' functions pass what the server says to the listener.
func (l Listener) attach(o *link.CallOptions) {
	o.OnDrop = l.Dropped
	if l.Progress != nil {
		o.OnProgress = func(params json.RawMessage) { l.Progress(progress(params)) }
	}
	if l.Log != nil {
		o.OnLog = func(params json.RawMessage) { l.Log(logMessage(params)) }
	}
}

func progress(params json.RawMessage) *toolproxyv1.Progress {
	p := &toolproxyv1.Progress{}
	for key, value := range jsonrpc.Members(params) {
		switch string(key) {
		case "progress":
			p.Progress, _ = number(value)
		case "total":
			if n, ok := number(value); ok {
				p.Total = &n
			}
		case "message":
			p.Message = validString(value)
		}
	}
	return p
}

func logMessage(params json.RawMessage) *toolproxyv1.LogMessage {
	m := &toolproxyv1.LogMessage{}
	for key, value := range jsonrpc.Members(params) {
		switch string(key) {
		case "level":
			m.Level = validString(value)
		case "logger":
			m.Logger = validString(value)
		case "data":
			m.DataJson = text(value)
		}
	}
	return m
}

func number(raw json.RawMessage) (float64, bool) {
	var f float64
	err := json.Unmarshal(raw, &f)
	return f, err == nil && !jsonrpc.IsNull(raw)
}

func validString(raw json.RawMessage) string {
	s, _ := jsonrpc.String(raw)
	return strings.ToValidUTF8(s, "\uFFFD")
}

// startSpan starts the span of the upstream call where the caller's is recorded.
func (c *Caller) startSpan(ctx context.Context, k *call) (context.Context, trace.Span) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, nil
	}
	return c.o.Tracer.Start(ctx, "tools/call "+k.tool.Name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("mcp.method.name", "tools/call"),
		attribute.String("gen_ai.tool.name", k.tool.Original),
		attribute.String("toolherd.server", k.upstream.Name),
	))
}

// record logs a call that was to be sent.
func (c *Caller) record(ctx context.Context, k *call, err error) {
	if !c.o.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	c.o.Log.LogAttrs(ctx, slog.LevelDebug, "tool called",
		slog.String("server", k.upstream.Name), slog.String("tool", k.tool.Name),
		slog.String("request_id", k.request.GetRequestId()), slog.String("run_id", k.request.GetRunId()),
		slog.String("tool_call_id", k.request.GetToolCallId()),
		slog.Int("attempt", int(k.attempt)), slog.Duration("duration", time.Since(k.start)), slog.Any("err", err))
}
