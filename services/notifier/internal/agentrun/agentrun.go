// Package agentrun delivers events by waking an agent: it starts a run in the thread that submitted the task, as the
// task's owner, and the event is delivered when that run has succeeded.
//
//	claimed ── StartRun ─┬─▶ dispatched ── GetRun ─┬─▶ succeeded: delivered
//	   ▲                 │       ▲ running: 5 s ───┤
//	   │                 │       └ error: counted ─┤
//	   │                 │                         └─▶ failed, interrupted, not found: counted, next dispatch attempt
//	   ├─ busy: 5 s, not counted, the newest event next time
//	   ├─ other error: counted; the same idempotency key again, since the run may have started
//	   └─ gone: dead letter; a thread is never created anew
//
// The instruction is Toolherd's own text and depends on nothing that a server wrote. What happened is in the event, which
// is data: what looks like a tag or a marker of a prompt is made harmless in it.
package agentrun

import (
	"context"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	agentv1 "github.com/toolherd/toolherd/proto/gen/toolherd/agent/v1"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/sink"
)

const (
	// again is when a busy thread is tried and a run that is still going is looked up again.
	again = 5 * time.Second
	// callTimeout bounds one call of the runtime.
	callTimeout = 30 * time.Second
)

// Sender wakes agents of one runtime.
type Sender struct {
	runtime agentv1.AgentRuntimeServiceClient
	close   func() error
}

// New returns a sender that calls runtime. Its Close calls the function given here.
func New(runtime agentv1.AgentRuntimeServiceClient, closeConn func() error) *Sender {
	return &Sender{runtime: runtime, close: closeConn}
}

// Close ends the connection to the runtime.
func (s *Sender) Close() error { return s.close() }

// Send starts the run of a claim, or looks it up.
func (s *Sender) Send(ctx context.Context, c notification.Claim) sink.Result {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if c.Phase == notification.Dispatched {
		return s.lookUp(ctx, c)
	}
	return s.start(ctx, c)
}

func (s *Sender) start(ctx context.Context, c notification.Claim) sink.Result {
	event, err := untrusted(c.Event)
	if err != nil {
		return sink.Result{Verdict: notification.Dead, Error: err.Error()}
	}
	resp, err := s.runtime.StartRun(ctx, &agentv1.StartRunRequest{
		IdempotencyKey:        fmt.Sprintf("%s:%d", c.Event.ID, c.DispatchAttempt),
		UserId:                c.Event.Scope.UserID,
		ThreadId:              c.Event.Scope.ThreadID,
		OriginRunId:           c.Event.RunID,
		Instruction:           instruction(c.Event),
		EventJson:             event,
		RequireExistingThread: true,
	})
	switch {
	case fault.Is(err, fault.ThreadBusy):
		return sink.Result{Verdict: notification.Deferred, After: again, Status: string(fault.ThreadBusy), Error: "the thread is busy: " + err.Error()}
	case fault.Is(err, fault.ThreadGone):
		return sink.Result{Verdict: notification.Dead, Status: string(fault.ThreadGone), Error: "the thread of the task is gone: " + err.Error()}
	case err != nil:
		return failed("start the run", err)
	case resp.GetRunId() == "":
		return sink.Result{Verdict: notification.Failed, Error: "start the run: the agent runtime answered without a run_id"}
	}
	return sink.Result{Verdict: notification.Handed, RunID: resp.GetRunId()}
}

func (s *Sender) lookUp(ctx context.Context, c notification.Claim) sink.Result {
	resp, err := s.runtime.GetRun(ctx, &agentv1.GetRunRequest{RunId: c.RunID, ThreadId: c.Event.Scope.ThreadID})
	if err != nil {
		return failed("look the run up", err)
	}
	r := sink.Result{Verdict: notification.Redispatch, Excerpt: resp.GetError()}
	switch resp.GetStatus() {
	case agentv1.RunStatus_RUN_STATUS_RUNNING:
		return sink.Result{Verdict: notification.Waiting, After: again}
	case agentv1.RunStatus_RUN_STATUS_SUCCEEDED:
		return sink.Result{Verdict: notification.Done, Status: "SUCCEEDED"}
	case agentv1.RunStatus_RUN_STATUS_FAILED:
		r.Status, r.Error = "FAILED", "the run failed: "+resp.GetError()
	case agentv1.RunStatus_RUN_STATUS_INTERRUPTED:
		r.Status, r.Error = "INTERRUPTED", "the run was interrupted: "+resp.GetError()
	case agentv1.RunStatus_RUN_STATUS_NOT_FOUND:
		r.Status, r.Error = "NOT_FOUND", "the agent runtime no longer knows the run"
	default:
		return sink.Result{Verdict: notification.Failed, Error: fmt.Sprintf("look the run up: the agent runtime answered with the unknown status %d", resp.GetStatus())}
	}
	return r
}

// failed returns the result of a call that says nothing about the run.
func failed(what string, err error) sink.Result {
	r := sink.Result{Verdict: notification.Failed, Error: what + ": " + err.Error()}
	if reason := fault.ReasonOf(err); reason != "" {
		r.Status = string(reason)
	}
	return r
}
