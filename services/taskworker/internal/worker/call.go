package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/telemetry"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/message"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// errSlow ends a call at its deadline.
var errSlow = errors.New("the remote call took too long")

// serve makes the call of a claim and hands on what came of it. Calls end with calling; ctx says whether the worker drains.
func (w *Worker) serve(ctx, calling context.Context, c *claimed) {
	if ctx.Err() != nil {
		w.settler.release(calling, c)
		return
	}
	callCtx, cancel := context.WithCancelCause(calling)
	defer cancel(nil)
	k := w.calls.begin(c, cancel)
	if k == nil {
		w.counts.leaseLost.Inc()
		w.settler.release(calling, c)
		return
	}
	w.o.Metrics.Running.Inc()
	outcome := w.call(callCtx, c)
	w.o.Metrics.Running.Dec()
	until := w.calls.end(k)
	cause := context.Cause(callCtx)
	switch {
	case errors.Is(cause, errLeaseLost):
		w.counts.leaseLost.Inc()
		w.o.Log.DebugContext(ctx, "call cancelled: its lease was lost", "task_id", c.TaskID, "kind", c.Kind)
		w.settler.release(calling, c) // a cancel that fenced it off waits for its end
	case outcome.Failure != nil && cause != nil:
		// Cancelled by the end of the drain time: the lease runs out.
	case outcome.Failure != nil && ctx.Err() != nil:
		w.settler.release(calling, c)
	default:
		w.settler.add(calling, outcome, until)
	}
}

// call asks the remote. It never panics.
func (w *Worker) call(ctx context.Context, c *claimed) (o task.Outcome) {
	o = task.Outcome{Claim: c.Claim, Worker: w.name}
	ctx, span := w.startSpan(ctx, &c.Claim)
	defer span.End()
	ctx, cancel := context.WithTimeoutCause(ctx, callTime(w.o.Lease), errSlow)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			o.Snapshot, o.Failure = nil, &task.Failure{Reason: "panic", Message: "the call of the remote panicked: see the worker's log"}
			w.o.Log.ErrorContext(ctx, "remote call panicked", "task_id", c.TaskID, "kind", c.Kind, "err", &run.PanicError{Value: v, Stack: debug.Stack()})
		}
		if o.Failure != nil {
			span.SetStatus(codes.Error, o.Failure.Reason)
		}
	}()
	snapshot, err := w.ask(ctx, &c.Claim)
	if err != nil {
		o.Failure = w.failure(ctx, err)
		w.o.Log.DebugContext(ctx, "remote call failed", "task_id", c.TaskID, "kind", c.Kind, "err", err)
		return o
	}
	if snapshot == nil && c.Kind != task.Poll {
		return o // acknowledged
	}
	if o.Snapshot, err = message.Snapshot(snapshot); err != nil {
		o.Failure = &task.Failure{
			Reason: task.ProtocolError, Permanent: task.ProtocolError,
			Message: clip(fmt.Sprintf("the remote's answer is not valid: %v", err)),
		}
	}
	return o
}

// ask makes the call. A nil snapshot without an error is an acknowledgement.
func (w *Worker) ask(ctx context.Context, c *task.Claim) (*toolproxyv1.RemoteTaskSnapshot, error) {
	ref := &toolproxyv1.RemoteTaskRef{
		Handle: c.Handle, Binding: c.Binding, Scope: message.Scope(c.Scope), TaskId: c.TaskID, Traceparent: c.Traceparent,
	}
	switch c.Kind {
	case task.Cancel:
		resp, err := w.o.Remote.CancelRemoteTask(ctx, &toolproxyv1.CancelRemoteTaskRequest{Ref: ref})
		return resp.GetSnapshot(), err
	case task.Answer:
		resp, err := w.o.Remote.UpdateRemoteTask(ctx, &toolproxyv1.UpdateRemoteTaskRequest{Ref: ref, InputResponsesJson: string(c.Answers)})
		return resp.GetSnapshot(), err
	default:
		resp, err := w.o.Remote.GetRemoteTask(ctx, &toolproxyv1.GetRemoteTaskRequest{Ref: ref, HoldFor: durationpb.New(c.HoldFor)})
		return resp.GetSnapshot(), err
	}
}

// failure says what an error of a call means for its task.
func (w *Worker) failure(ctx context.Context, err error) *task.Failure {
	if errors.Is(context.Cause(ctx), errSlow) {
		return &task.Failure{
			Reason:  strings.ToLower(string(fault.Timeout)),
			Message: fmt.Sprintf("no answer within %v, which is what tasks.lease leaves a call", callTime(w.o.Lease)),
		}
	}
	f := &task.Failure{Reason: "unknown", Message: clip(err.Error())}
	reason := fault.ReasonOf(err)
	if reason != "" {
		f.Reason = strings.ToLower(string(reason))
	}
	switch reason {
	case fault.UpstreamProtocol:
		f.Permanent = task.ProtocolError
	case fault.ServerUntrusted:
		f.Permanent = task.Untrusted
	case fault.SessionLimit:
		f.Uncounted = true
	default: // tried again, and counted
	}
	return f
}

// maxErrorChars is how much of an error is stored.
const maxErrorChars = 4000

func clip(s string) string { return message.Clip(s, maxErrorChars) }

// startSpan starts the span of a call, linked to the one that submitted the task.
func (w *Worker) startSpan(ctx context.Context, c *task.Claim) (context.Context, trace.Span) {
	ctx, span := w.o.Tracer.Start(ctx, spanName(c.Kind))
	if !span.IsRecording() {
		return ctx, span
	}
	span.SetAttributes(attribute.String("task_id", c.TaskID))
	if c.Traceparent != "" {
		submit := trace.SpanContextFromContext(telemetry.WithTraceparent(context.WithoutCancel(ctx), c.Traceparent, ""))
		if submit.IsRemote() {
			span.AddLink(trace.Link{SpanContext: submit})
		}
	}
	return ctx, span
}

func spanName(k task.Kind) string {
	switch k {
	case task.Cancel:
		return "task cancel"
	case task.Answer:
		return "task answer"
	default:
		return "task poll"
	}
}
