// Package fake is the far side of a notifier, for tests: an agent runtime and a receiver of webhooks. Both follow a
// [Plan] and keep a [Journal] of everything that reached them.
//
// [Runtime] is also a reference for those who write an agent runtime: a start is idempotent by its key, a thread that is
// busy or gone is said so, and a run can be looked up. [Receiver] verifies Standard Webhooks as its specification says,
// with code that shares nothing with the sender's.
package fake

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/fault"
	agentv1 "github.com/toolherd/toolherd/proto/gen/toolherd/agent/v1"
)

// DefaultToken is what callers of a runtime show where its options name no other token.
const DefaultToken = "fake-runtime-token"

// RuntimeOptions describe a runtime.
type RuntimeOptions struct {
	// Token is the bearer token that every call must carry; empty means [DefaultToken].
	Token string
	// TLS secures the listener; nil is plaintext.
	TLS *tls.Config
	// Plan says how the starts go; empty means that every run succeeds at once:
	//
	//	succeed          the run succeeds at once
	//	slow;for=2s      it runs for so long and then succeeds
	//	hang             it runs until Finish ends it
	//	fail             it ends with an error, interrupt: somebody stopped it
	//	forget           it is started, and a look-up knows nothing of it
	//	blind;for=2s     it succeeds at once, and look-ups fail for so long
	//	lost             it succeeds at once, and the answer to the start is lost: an error arrives in its place
	//	busy             no run: the thread is busy          gone   no run: there is no such thread
	//	error            no run: an error of no reason       stall  no run, no answer until the caller gives up
	//
	// A start whose idempotency key is known returns the run of that key and meets no step.
	Plan Plan
	// Threads are plans for single threads.
	Threads map[string]Plan
	// Journal keeps the calls; nil makes one.
	Journal *Journal
}

// Runtime is an agent runtime whose agents do nothing.
type Runtime struct {
	agentv1.UnsafeAgentRuntimeServiceServer
	options RuntimeOptions
	journal *Journal
	script  *script

	mu    sync.Mutex
	runs  map[string]*fakeRun // by run id
	byKey map[string]*fakeRun
}

type fakeRun struct {
	id, thread string
	status     agentv1.RunStatus
	ends       time.Time // RUNNING until then; zero for ever
	blind      time.Time // look-ups fail until then
}

// NewRuntime returns a runtime that knows no run.
func NewRuntime(o RuntimeOptions) (*Runtime, error) {
	forTime := []string{"for:"}
	s, err := newScript(o.Plan, o.Threads, "succeed", map[string][]string{
		"succeed": nil, "slow": forTime, "hang": nil, "fail": nil, "interrupt": nil, "forget": nil, "blind": forTime, "lost": nil,
		"busy": nil, "gone": nil, "error": nil, "stall": nil,
	})
	if err != nil {
		return nil, fmt.Errorf("runtime: %w", err)
	}
	if o.Journal == nil {
		o.Journal = NewJournal(nil)
	}
	o.Token = cmp.Or(o.Token, DefaultToken)
	return &Runtime{options: o, journal: o.Journal, script: s, runs: map[string]*fakeRun{}, byKey: map[string]*fakeRun{}}, nil
}

// Register adds the runtime to a server, which recognises its callers.
func (r *Runtime) Register(s grpc.ServiceRegistrar) { agentv1.RegisterAgentRuntimeServiceServer(s, r) }

// Starts returns every start that arrived, in order.
func (r *Runtime) Starts() []Record { return r.journal.Records(KindStart) }

// LookUps returns every look-up that arrived, in order.
func (r *Runtime) LookUps() []Record { return r.journal.Records(KindLookUp) }

// SetPlan replaces the plan of a thread, or the common one where thread is empty.
func (r *Runtime) SetPlan(thread string, p Plan) error { return r.script.set(thread, p) }

// Finish ends a run, whatever its plan was.
func (r *Runtime) Finish(runID string, status agentv1.RunStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if run := r.runs[runID]; run != nil {
		run.status, run.ends = status, time.Time{}
	}
}

// StartRun starts a run as the plan says.
func (r *Runtime) StartRun(ctx context.Context, req *agentv1.StartRunRequest) (*agentv1.StartRunResponse, error) {
	if req.GetIdempotencyKey() == "" || req.GetThreadId() == "" || req.GetUserId() == "" {
		return nil, fault.New(fault.InvalidArguments, "idempotency_key, user_id and thread_id are needed")
	}
	record := Record{
		Kind: KindStart, ThreadID: req.GetThreadId(), UserID: req.GetUserId(), IdempotencyKey: req.GetIdempotencyKey(),
		OriginRunID: req.GetOriginRunId(), Instruction: req.GetInstruction(), EventJSON: req.GetEventJson(),
		RequireExistingThread: req.GetRequireExistingThread(),
	}
	run, err := r.start(&record)
	r.journal.add(record)
	if record.Step == "stall" {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &agentv1.StartRunResponse{RunId: run.id}, nil
}

func (r *Runtime) start(record *Record) (*fakeRun, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if run := r.byKey[record.IdempotencyKey]; run != nil {
		record.Step, record.RunID = "repeated", run.id
		return run, nil
	}
	step := r.script.next(record.ThreadID)
	record.Step = step.Word
	run := &fakeRun{id: fmt.Sprintf("run-%d", len(r.runs)+1), thread: record.ThreadID, status: agentv1.RunStatus_RUN_STATUS_SUCCEEDED}
	var err error
	switch step.Word {
	case "busy":
		return nil, fault.New(fault.ThreadBusy, "thread %s already runs: try again later", record.ThreadID)
	case "gone":
		return nil, fault.New(fault.ThreadGone, "thread %s does not exist", record.ThreadID)
	case "error":
		return nil, errors.New("the plan wants an error")
	case "stall":
		return nil, nil
	case "slow":
		run.ends = time.Now().Add(step.duration("for"))
	case "blind":
		run.blind = time.Now().Add(step.duration("for"))
	case "hang":
		run.status = agentv1.RunStatus_RUN_STATUS_RUNNING
	case "fail":
		run.status = agentv1.RunStatus_RUN_STATUS_FAILED
	case "interrupt":
		run.status = agentv1.RunStatus_RUN_STATUS_INTERRUPTED
	case "forget":
		run.status = agentv1.RunStatus_RUN_STATUS_NOT_FOUND
	case "lost":
		err = errors.New("the plan wants the answer lost")
	}
	record.RunID = run.id
	r.runs[run.id], r.byKey[record.IdempotencyKey] = run, run
	return run, err
}

// GetRun says how a run stands.
func (r *Runtime) GetRun(_ context.Context, req *agentv1.GetRunRequest) (*agentv1.GetRunResponse, error) {
	record := Record{Kind: KindLookUp, RunID: req.GetRunId(), ThreadID: req.GetThreadId()}
	answer, err := r.lookUp(req)
	record.RunStatus = answer.GetStatus().String()
	if err != nil {
		record.RunStatus = "error"
	}
	r.journal.add(record)
	return answer, err
}

func (r *Runtime) lookUp(req *agentv1.GetRunRequest) (*agentv1.GetRunResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := r.runs[req.GetRunId()]
	switch {
	case run == nil || run.thread != req.GetThreadId():
		return &agentv1.GetRunResponse{Status: agentv1.RunStatus_RUN_STATUS_NOT_FOUND}, nil
	case time.Now().Before(run.blind):
		return nil, errors.New("the plan wants look-ups to fail")
	case time.Now().Before(run.ends):
		return &agentv1.GetRunResponse{Status: agentv1.RunStatus_RUN_STATUS_RUNNING}, nil
	}
	answer := &agentv1.GetRunResponse{Status: run.status}
	switch run.status {
	case agentv1.RunStatus_RUN_STATUS_FAILED:
		answer.Error = "the plan wants a failed run"
	case agentv1.RunStatus_RUN_STATUS_INTERRUPTED:
		answer.Error = "the plan wants an interrupted run"
	default:
	}
	return answer, nil
}
