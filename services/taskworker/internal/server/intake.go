package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/outbox"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/hint"
	"github.com/toolherd/toolherd/services/taskworker/internal/message"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Sink is where events may go.
type Sink struct {
	Name         string
	AllowedRoles []authn.Role // who may name it; empty means everyone
}

// IntakeOptions are what [Intake] works with.
type IntakeOptions struct {
	Reservations task.Reservations
	Hints        *hint.Sender
	// Disabled refuses new tasks.
	Disabled bool
	// Sinks are those that a submit may name.
	Sinks []Sink
}

// Intake serves TaskIntakeService.
type Intake struct {
	taskv1.UnsafeTaskIntakeServiceServer

	o IntakeOptions
}

// NewIntake returns the server.
func NewIntake(o IntakeOptions) *Intake { return &Intake{o: o} }

// ReserveTask implements the contract.
func (s *Intake) ReserveTask(ctx context.Context, req *taskv1.ReserveTaskRequest) (*taskv1.ReserveTaskResponse, error) {
	i, err := s.intent(ctx, req)
	if err != nil {
		return nil, err
	}
	r, err := s.o.Reservations.Reserve(ctx, i)
	if err != nil {
		return nil, writeFault(err)
	}
	if r.Committed != nil {
		return &taskv1.ReserveTaskResponse{TaskId: r.TaskID, Committed: message.Task(r.Committed, message.View{})}, nil
	}
	return &taskv1.ReserveTaskResponse{TaskId: r.TaskID, Fence: r.Fence, ExpireTime: timestamppb.New(r.Expires)}, nil
}

// RenewReservation implements the contract.
func (s *Intake) RenewReservation(ctx context.Context, req *taskv1.RenewReservationRequest) (*taskv1.RenewReservationResponse, error) {
	if err := checkHold(req); err != nil {
		return nil, err
	}
	expires, err := s.o.Reservations.Extend(ctx, task.Hold{TaskID: req.GetTaskId(), Fence: req.GetFence()})
	if err != nil {
		return nil, writeFault(err)
	}
	return &taskv1.RenewReservationResponse{ExpireTime: timestamppb.New(expires)}, nil
}

// CommitTask implements the contract.
func (s *Intake) CommitTask(ctx context.Context, req *taskv1.CommitTaskRequest) (*taskv1.CommitTaskResponse, error) {
	c, err := s.commitment(ctx, req)
	if err != nil {
		return nil, err
	}
	t, err := s.o.Reservations.Commit(ctx, c)
	if err != nil {
		return nil, writeFault(err)
	}
	if t.Status.Terminal() {
		s.o.Hints.Send(outbox.Topic)
	} else {
		s.o.Hints.Send(task.TopicDue)
	}
	return &taskv1.CommitTaskResponse{Task: message.Task(t, message.View{})}, nil
}

// AbandonTask implements the contract.
func (s *Intake) AbandonTask(ctx context.Context, req *taskv1.AbandonTaskRequest) (*taskv1.AbandonTaskResponse, error) {
	if err := checkHold(req); err != nil {
		return nil, err
	}
	unknown := req.GetOutcome() == taskv1.AbandonOutcome_ABANDON_OUTCOME_UNKNOWN
	if !unknown && req.GetOutcome() != taskv1.AbandonOutcome_ABANDON_OUTCOME_NOT_EXECUTED {
		return nil, invalid("outcome", "must say NOT_EXECUTED or UNKNOWN")
	}
	hold := task.Hold{TaskID: req.GetTaskId(), Fence: req.GetFence()}
	if err := s.o.Reservations.Abandon(ctx, hold, unknown, message.Clip(req.GetError(), task.MaxErrorChars)); err != nil {
		return nil, writeFault(err)
	}
	if unknown {
		s.o.Hints.Send(outbox.Topic)
	}
	return &taskv1.AbandonTaskResponse{}, nil
}

func checkHold(req interface {
	GetTaskId() string
	GetFence() int64
}) error {
	switch {
	case req.GetTaskId() == "":
		return invalid("task_id", "is empty")
	case req.GetFence() < 1:
		return invalid("fence", "is not one that ReserveTask gave")
	}
	return nil
}

// intent returns what a submit is about to do.
func (s *Intake) intent(ctx context.Context, req *taskv1.ReserveTaskRequest) (task.Intent, error) {
	if s.o.Disabled {
		return task.Intent{}, fault.New(fault.TasksUnavailable,
			"durable tasks are switched off here: set tasks.enabled to true in the taskworker's toolherd.yaml and restart it")
	}
	caller, ok := authn.FromContext(ctx)
	if !ok {
		return task.Intent{}, fmt.Errorf("reserve: the caller is not known")
	}
	if req.GetScope() == nil {
		return task.Intent{}, invalid("scope", "is missing")
	}
	scope, err := caller.Resolve(authn.Scope{UserID: req.GetScope().GetUserId(), ThreadID: req.GetScope().GetThreadId()})
	if err != nil {
		return task.Intent{}, err
	}
	switch {
	case req.GetPrincipal() == "":
		return task.Intent{}, invalid("principal", "is empty")
	case req.GetRequestId() != "" && req.GetRequestHash() == "":
		return task.Intent{}, invalid("request_hash", "is empty, and tells one request from another with the same request_id")
	}
	if _, err := duration("submit_timeout", req.GetSubmitTimeout()); err != nil {
		return task.Intent{}, err
	}
	ttl, err := duration("task_ttl", req.GetTaskTtl())
	if err != nil {
		return task.Intent{}, err
	}
	if err := s.checkSink(req.GetNotifySink(), req.GetCallerRoles()); err != nil {
		return task.Intent{}, err
	}
	return task.Intent{
		Principal: req.GetPrincipal(), Scope: scope, RequestID: req.GetRequestId(), RequestHash: req.GetRequestHash(),
		Binding: req.GetBinding(), Fingerprint: req.GetBindingFingerprint(), TaskName: req.GetTaskName(), Server: req.GetServer(),
		RunID: req.GetRunId(), ToolCallID: req.GetToolCallId(), NotifySink: req.GetNotifySink(), TTL: ttl,
		Traceparent: req.GetTraceparent(),
	}.Check()
}

// checkSink refuses a sink that does not exist or that the caller's roles may not name. The default sink, which no name
// means, is the operator's choice for everyone.
func (s *Intake) checkSink(name string, roles []corev1.Role) error {
	if name == "" {
		return nil
	}
	at := slices.IndexFunc(s.o.Sinks, func(k Sink) bool { return k.Name == name })
	if at < 0 {
		return fault.New(fault.SinkUnknown,
			"sink %.64q does not exist: name one of notifier.sinks, or leave notify_sink empty for the default", name)
	}
	allowed := s.o.Sinks[at].AllowedRoles
	if len(allowed) == 0 || slices.ContainsFunc(roles, func(r corev1.Role) bool { return slices.Contains(allowed, roleOf(r)) }) {
		return nil
	}
	return fault.New(fault.Forbidden, "sink %q is not for the roles of this caller: notifier.sinks says whose it is in allowed_roles", name)
}

func roleOf(r corev1.Role) authn.Role {
	switch r {
	case corev1.Role_ROLE_AGENT:
		return authn.Agent
	case corev1.Role_ROLE_OPERATOR:
		return authn.Operator
	case corev1.Role_ROLE_WORKER:
		return authn.Worker
	case corev1.Role_ROLE_TOOLPROXY:
		return authn.Toolproxy
	case corev1.Role_ROLE_NOTIFIER:
		return authn.Notifier
	case corev1.Role_ROLE_UNSPECIFIED:
	}
	return ""
}

// commitment returns what a submit has brought.
func (s *Intake) commitment(ctx context.Context, req *taskv1.CommitTaskRequest) (task.Commitment, error) {
	c := task.Commitment{Handle: req.GetHandle(), RemoteID: req.GetRemoteTaskId()}
	var err error
	if req.GetReserve() != nil {
		if req.GetTaskId() != "" || req.GetFence() != 0 {
			return c, invalid("reserve", "stands beside task_id or fence: a handle was reserved for, or came unasked")
		}
		i, err := s.intent(ctx, req.GetReserve())
		if err != nil {
			return c, err
		}
		c.Unasked = &i
	} else {
		if err := checkHold(req); err != nil {
			return c, err
		}
		c.Hold = task.Hold{TaskID: req.GetTaskId(), Fence: req.GetFence()}
	}
	var ok bool
	if c.Status, ok = message.StatusOf(req.GetStatus()); !ok {
		return c, invalid("status", "is no state: give the one that the submit answer said")
	}
	if c.PollAfter, err = duration("poll_after", req.GetPollAfter()); err != nil {
		return c, err
	}
	if c.RemoteTTL, err = duration("remote_ttl", req.GetRemoteTtl()); err != nil {
		return c, err
	}
	return c, c.Check()
}

// duration returns 0 for a field that is absent, and refuses one that is not above zero.
func duration(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if !d.IsValid() || d.AsDuration() <= 0 {
		return 0, invalid(field, "must be above zero")
	}
	return d.AsDuration(), nil
}
