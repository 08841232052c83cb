package background

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/telemetry"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
)

const (
	// HoldMargin is how much longer than asked for a session is held: polls come late, and workers are replaced.
	HoldMargin = 10 * time.Minute
	// MaxHold is the longest hold.
	MaxHold = driver.MaxPoll + HoldMargin
)

// HoldFor returns how long the session of a task is to be held whose next poll is due after d; 0 where that is not known.
func HoldFor(d time.Duration) time.Duration {
	return min(max(d, 0), driver.MaxPoll) + HoldMargin
}

// Options configure a Service. Every field must be set.
type Options struct {
	Resolver *Resolver
	Pool     *pool.Pool
	// Drivers are those that bindings may name.
	Drivers map[string]driver.Driver
	// Suspect hears of a server, as it is configured today, whose session could not be started or was lost. It must not block.
	Suspect func(server string)
	// Redact removes secrets from what servers say.
	Redact func(string) string
	Tracer trace.Tracer
	Log    *slog.Logger
}

// Service serves BackgroundToolService.
type Service struct {
	toolproxyv1.UnimplementedBackgroundToolServiceServer

	o Options
}

// New returns a Service.
func New(o Options) *Service { return &Service{o: o} }

// GetRemoteTask asks the remote how a task stands.
func (s *Service) GetRemoteTask(ctx context.Context, r *toolproxyv1.GetRemoteTaskRequest) (*toolproxyv1.GetRemoteTaskResponse, error) {
	k, err := s.begin(ctx, r.GetRef(), r.GetHoldFor().AsDuration())
	if err != nil {
		return nil, s.ended(r.GetRef(), err)
	}
	ctx, end := s.startSpan(ctx, k, "status")
	snapshot, err := k.driver.Status(ctx, k, k.task)
	end(err)
	if err != nil {
		return nil, s.ended(r.GetRef(), err)
	}
	s.settle(k, snapshot)
	return &toolproxyv1.GetRemoteTaskResponse{Snapshot: snapshot.Proto()}, nil
}

// CancelRemoteTask asks the remote to stop a task. An answer that makes no sense may be given to a cancel that was heard: it
// is no reason to give the task up, and so no UPSTREAM_PROTOCOL.
func (s *Service) CancelRemoteTask(ctx context.Context, r *toolproxyv1.CancelRemoteTaskRequest) (*toolproxyv1.CancelRemoteTaskResponse, error) {
	k, err := s.begin(ctx, r.GetRef(), 0)
	if err != nil {
		return nil, s.ended(r.GetRef(), err)
	}
	ctx, end := s.startSpan(ctx, k, "cancel")
	snapshot, err := k.driver.Cancel(ctx, k, k.task)
	end(err)
	switch {
	case fault.Is(err, fault.UpstreamProtocol):
		return nil, fault.New(fault.UpstreamError, "%s", err.Error())
	case err != nil:
		return nil, err
	case snapshot == nil:
		return &toolproxyv1.CancelRemoteTaskResponse{}, nil
	}
	s.settle(k, *snapshot)
	return &toolproxyv1.CancelRemoteTaskResponse{Snapshot: snapshot.Proto()}, nil
}

// UpdateRemoteTask is not built.
func (s *Service) UpdateRemoteTask(context.Context, *toolproxyv1.UpdateRemoteTaskRequest) (*toolproxyv1.UpdateRemoteTaskResponse, error) {
	return nil, rpc.Unimplemented("UpdateRemoteTask: answers to remote tasks are not built yet")
}

// begin finds out where a call goes, and how.
func (s *Service) begin(ctx context.Context, ref *toolproxyv1.RemoteTaskRef, hold time.Duration) (*call, error) {
	t, err := s.o.Resolver.resolve(ctx, ref.GetBinding())
	if err != nil {
		return nil, err
	}
	d := s.o.Drivers[t.binding.Driver]
	if d == nil {
		return nil, fault.New(fault.ServerError, "this toolproxy does not have the driver %q of the task; upgrade it, or restore the one that has", t.binding.Driver)
	}
	scope := ref.GetScope()
	return &call{
		service: s, target: t, driver: d,
		task:        driver.Task{Tools: t.binding.Tools(), Handle: ref.GetHandle()},
		id:          holder(ref),
		hold:        HoldFor(hold),
		traceparent: ref.GetTraceparent(),
		scope: authn.Scope{
			UserID: cmp.Or(scope.GetUserId(), authn.DefaultID), ThreadID: cmp.Or(scope.GetThreadId(), authn.DefaultID),
		},
	}, nil
}

// holder is what the session of a task is held by.
func holder(ref *toolproxyv1.RemoteTaskRef) string {
	return cmp.Or(ref.GetTaskId(), string(ref.GetHandle()), "a task")
}

// settle holds the session until the task is asked about again, or lets it go.
func (s *Service) settle(k *call, snapshot driver.Snapshot) {
	if snapshot.Status().Terminal() {
		s.o.Pool.Unhold(k.id)
		return
	}
	s.o.Pool.Extend(k.id, max(k.hold, HoldFor(snapshot.PollAfter())))
}

// ended passes an error on. After one that is final nobody asks again, and the session is let go.
func (s *Service) ended(ref *toolproxyv1.RemoteTaskRef, err error) error {
	if fault.Is(err, fault.UpstreamProtocol) || fault.Is(err, fault.ServerUntrusted) {
		s.o.Pool.Unhold(holder(ref))
	}
	return err
}

// startSpan starts the span of a remote call where the caller's is recorded, linked to the span that submitted the task. The
// returned function ends it.
func (s *Service) startSpan(ctx context.Context, k *call, phase string) (context.Context, func(error)) {
	own := trace.SpanFromContext(ctx)
	if !own.IsRecording() {
		return ctx, func(error) {}
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("toolherd.server", k.target.binding.Server),
		attribute.String("toolherd.task_id", k.id),
	)}
	submit := trace.SpanContextFromContext(telemetry.WithTraceparent(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), k.traceparent, ""))
	if submit.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: submit}))
	}
	ctx, span := s.o.Tracer.Start(ctx, "task "+phase, options...)
	return ctx, func(err error) {
		if err != nil {
			span.RecordError(err)
		}
		span.End()
	}
}
