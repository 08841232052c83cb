package call

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/background"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
)

const (
	// undoWithin bounds the one attempt to stop a remote whose task could not be stored.
	undoWithin = 5 * time.Second
	// cancelWithin is how long the cancel of a task that nobody was told of is tried.
	cancelWithin = 10 * time.Minute
)

// run carries the submission to its end. ctx is that of the Caller's Run.
func (s *submission) run(ctx context.Context) {
	defer s.answer(nil, fault.Of(fault.Internal, "the submit ended by a mistake of Toolherd; see its log")) // of no effect unless it panicked
	ctx, cancel := detached(ctx, s.caller)
	defer cancel()
	reservation, committed, err := s.c.o.Intake.Reserve(ctx, s.reserve)
	switch {
	case err != nil:
		s.answer(nil, err)
		return
	case committed != nil:
		s.answer(s.k.handle(committed, "this request was submitted before; the task goes on, or has ended, under this id"), nil)
		return
	}
	if s.caller.Err() != nil {
		s.abandon(ctx, reservation, ending{outcome: notExecuted, err: fault.Of(fault.Canceled, "the call was cancelled before the task was submitted")})
		return
	}
	remote := &remote{s: s}
	defer remote.release()
	submitted, err := s.submit(ctx, reservation, remote)
	s.c.record(ctx, s.k, err)
	switch {
	case err != nil && remote.notRun:
		s.abandon(ctx, reservation, ending{outcome: notExecuted, err: err})
	case err != nil:
		s.abandon(ctx, reservation, s.lost(err, reservation.TaskID()))
	case submitted.Started == nil:
		response, err := s.k.respond(submitted.Result)
		s.abandon(ctx, reservation, ending{outcome: notExecuted, response: response, err: err})
	default:
		s.commit(ctx, reservation, remote, submitted.Started)
	}
}

// detached returns a context with the values of the caller's that lasts as long as ctx.
func detached(ctx, caller context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancelCause(context.WithoutCancel(caller))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return out, func() {
		stop()
		cancel(nil)
	}
}

// submit makes the remote submit. It ends with the limits of the call, the caller's deadline included, and before the
// reservation does, but not because the caller went away.
func (s *submission) submit(ctx context.Context, r *intake.Reservation, remote *remote) (driver.Submission, error) {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	running := s.c.running()
	defer context.AfterFunc(running, func() { cut(context.Cause(running)) })()
	ctx, stop := r.Keep(ctx)
	defer stop()
	if end, ok := s.caller.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	s.k.deadline = newDeadline(ctx, s.k.start, s.k.request.GetTimeout().AsDuration(), s.k.upstream)
	ctx = s.k.deadline.start(ctx)
	defer s.k.deadline.stop()
	ctx, span := s.c.startSpan(ctx, s.k)
	if span != nil {
		defer span.End()
	}
	submitted, err := s.c.o.Driver.Submit(ctx, remote, s.tools, s.k.args)
	if fault.Is(err, fault.UpstreamProtocol) {
		err = s.k.fault(fault.UpstreamProtocol, "server %q: %s", s.k.upstream.Name, s.c.o.Redact(err.Error())).Because(err)
	}
	return submitted, err
}

// remote carries a submission's calls to its server, in the session that the submit used as long as that lives. One
// goroutine uses it.
type remote struct {
	s      *submission
	lease  pool.Lease
	leased bool
	notRun bool // the submit failed, and provably did nothing
}

func (r *remote) release() {
	if r.leased {
		r.lease.Release()
		r.leased = false
	}
}

// CallTool implements [driver.Conn] for the submit: it is sent again only where the server refused it before executing.
func (r *remote) CallTool(ctx context.Context, name string, arguments json.RawMessage) (json.RawMessage, error) {
	c, k := r.s.c, r.s.k
	out := session.Call{Name: name, Arguments: arguments, Meta: session.TraceMembers(ctx)}
	out.Listen.OnActivity = k.deadline.extend
	r.s.listen.listener().attach(&out.Listen)
	for {
		lease, err := c.o.Pool.Get(ctx, pool.Request{Server: k.upstream, Scope: k.scope})
		if err != nil {
			r.notRun = true
			return nil, c.startFailed(ctx, k, err)
		}
		r.lease, r.leased = lease, true
		k.session = lease.Session()
		k.attempt++
		raw, err := k.session.CallTool(ctx, out)
		if err == nil {
			return raw, nil
		}
		if errors.Is(err, exchange.ErrSessionLost) {
			lease.Discard()
			c.o.Suspect(k.upstream.Name)
		}
		r.release()
		if !session.Repeatable(err) || k.attempt == maxAttempts || ctx.Err() != nil {
			r.notRun = refused(err)
			return nil, c.callFailed(ctx, k, err)
		}
	}
}

// refused reports whether the error of a submit proves that it did nothing: it was not sent, or the server did not accept
// it as a call.
func refused(err error) bool {
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
		switch e.Code {
		case jsonrpc.CodeInvalidRequest, jsonrpc.CodeMethodNotFound, jsonrpc.CodeInvalidParams:
			return true
		}
	}
	return exchange.NotRun(err)
}

// commit stores the task that the server started.
func (s *submission) commit(ctx context.Context, r *intake.Reservation, remote *remote, started *driver.Started) {
	id, first := r.TaskID(), started.Snapshot()
	// The session stays from here on: it may be where the task lives.
	remote.lease.Hold(id, background.HoldFor(first.PollAfter()))
	q := &taskv1.CommitTaskRequest{Handle: started.Handle(), RemoteTaskId: started.RemoteID(), Status: first.Status().Proto()}
	q.PollAfter, q.RemoteTtl = first.Proto().GetPollAfter(), first.Proto().GetTtl()
	stored, err := r.Commit(ctx, q, func(err error) { s.answer(nil, s.k.unstored(err, id)) })
	if err == nil {
		if !s.answer(s.k.handle(stored, "the work goes on in the background under this id; its result follows when it has ended"), nil) {
			s.cancel(ctx, id)
		}
		return
	}
	s.c.o.Pool.Unhold(id)
	switch {
	case fault.Is(err, fault.ReservationExpired):
		s.undo(ctx, id, remote, started)
		s.answer(nil, s.k.fault(fault.ReservationExpired,
			"the server took the task, but too late to be stored: task %s records that as failed, and the server was asked to stop; submit again", id).
			With("task_id", id).Because(err))
	case fault.Is(err, fault.DuplicateRemoteTask):
		s.abandon(ctx, r, ending{outcome: notExecuted, err: s.k.fault(fault.DuplicateRemoteTask,
			"server %q gave out the id of a task that it gave out before, which goes on and is not touched; ListTasks shows it", s.k.upstream.Name).Because(err)})
	case fault.KindOf(err) == fault.InvalidArgument:
		s.undo(ctx, id, remote, started)
		s.abandon(ctx, r, s.lost(s.k.fault(fault.UpstreamProtocol,
			"server %q took the task and gave it a handle that cannot be stored: %v", s.k.upstream.Name, err).Because(err), id))
	default:
		s.c.o.Log.ErrorContext(ctx, "a task was submitted and could not be stored; its server goes on",
			"task_id", id, "server", s.k.upstream.Name, "err", err)
	}
}

// undo asks the server, once, to stop a task that was not stored.
func (s *submission) undo(ctx context.Context, id string, remote *remote, started *driver.Started) {
	ctx, cancel := context.WithTimeout(ctx, undoWithin)
	defer cancel()
	conn := driver.ConnFunc(func(ctx context.Context, name string, arguments json.RawMessage) (json.RawMessage, error) {
		lease := remote.lease
		if lease.Session().Err() != nil {
			var err error
			if lease, err = s.c.o.Pool.Get(ctx, pool.Request{Server: s.k.upstream, Scope: s.k.scope, Task: id, HoldFor: undoWithin}); err != nil {
				return nil, err
			}
			defer lease.Release()
		}
		return lease.Session().CallTool(ctx, session.Call{Name: name, Arguments: arguments, Meta: session.TraceMembers(ctx)})
	})
	if _, err := s.c.o.Driver.Cancel(ctx, conn, driver.Task{Tools: s.tools, Handle: started.Handle()}); err != nil {
		s.c.o.Log.WarnContext(ctx, "a task that could not be stored was not stopped at its server",
			"task_id", id, "server", s.k.upstream.Name, "err", err)
	}
}

// What is known of a submit that is given up.
const (
	notExecuted = taskv1.AbandonOutcome_ABANDON_OUTCOME_NOT_EXECUTED
	unknown     = taskv1.AbandonOutcome_ABANDON_OUTCOME_UNKNOWN
)

// ending is how a submission ends that makes no task.
type ending struct {
	outcome  taskv1.AbandonOutcome
	why      error // on record of a failed task; nil if there is none
	response *toolproxyv1.CallToolResponse
	err      error // the caller's
}

// lost is the ending of a submit whose outcome nobody knows.
func (s *submission) lost(err error, id string) ending {
	return ending{outcome: unknown, why: err, err: s.k.lost(err, id)}
}

// abandon gives the reservation up, and then answers the caller.
func (s *submission) abandon(ctx context.Context, r *intake.Reservation, e ending) {
	why := ""
	if e.why != nil {
		why = e.why.Error()
	}
	if err := r.Abandon(ctx, e.outcome, why, func() { s.answer(e.response, e.err) }); err != nil {
		s.c.o.Log.WarnContext(ctx, "a reservation could not be given up; it becomes a failed task",
			"task_id", r.TaskID(), "outcome", e.outcome.String(), "err", err)
	}
}

// cancel has a task cancelled that nobody was told of.
func (s *submission) cancel(ctx context.Context, id string) {
	log := s.c.o.Log.With("task_id", id, "server", s.k.upstream.Name)
	ctx, err := rpc.ActFor(ctx)
	if err != nil {
		log.ErrorContext(s.caller, "a task whose caller went away is not cancelled", "err", err)
		return
	}
	ctx, stop := context.WithTimeout(ctx, cancelWithin)
	defer stop()
	q := &taskv1.CancelTaskRequest{TaskId: id, Scope: &corev1.Scope{UserId: s.k.scope.UserID, ThreadId: s.k.scope.ThreadID}}
	pause := backoff.New(backoff.Config{Base: 100 * time.Millisecond, Cap: 5 * time.Second, Factor: 2, Jitter: 0.2})
	for {
		_, err := s.c.o.Tasks.CancelTask(ctx, q)
		if err == nil || fault.Is(err, fault.TaskNotFound) || fault.Is(err, fault.TaskTerminal) {
			log.InfoContext(ctx, "a task whose caller went away is cancelled", "err", err)
			return
		}
		if backoff.Sleep(ctx, pause.Next()) != nil {
			log.ErrorContext(ctx, "a task whose caller went away could not be cancelled, and goes on", "err", err)
			return
		}
	}
}

// handle is the answer that names a task.
func (k *call) handle(t *taskv1.Task, message string) *toolproxyv1.CallToolResponse {
	return &toolproxyv1.CallToolResponse{
		Outcome: &toolproxyv1.CallToolResponse_Task{Task: &toolproxyv1.TaskHandle{
			TaskId: t.GetTaskId(), TaskName: t.GetTaskName(), Status: t.GetStatus(), Message: message,
		}},
		Info: k.info(),
	}
}
