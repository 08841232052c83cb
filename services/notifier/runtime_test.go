package notifier_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/pkg/rpc"
	agentv1 "github.com/toolherd/toolherd/proto/gen/toolherd/agent/v1"
	"github.com/toolherd/toolherd/services/notifier"
)

const runtimeToken = "runtime-token-1"

// agentRuntime answers starts by a function of how many came before; a start with a known key gets its run again.
type agentRuntime struct {
	agentv1.UnsafeAgentRuntimeServiceServer
	addr   string
	answer func(n int, req *agentv1.StartRunRequest) (agentv1.RunStatus, error)

	mu     sync.Mutex
	got    []*agentv1.StartRunRequest
	looked map[string]int               // by run
	runs   map[string]string            // by key
	status map[string]agentv1.RunStatus // by run
	lookUp func(n int) error
}

func broken(int, *agentv1.StartRunRequest) (agentv1.RunStatus, error) { return 0, errors.New("broken") }

// ends answers every start with a run that ends like this.
func ends(s agentv1.RunStatus) func(int, *agentv1.StartRunRequest) (agentv1.RunStatus, error) {
	return func(int, *agentv1.StartRunRequest) (agentv1.RunStatus, error) { return s, nil }
}

func newRuntime(t *testing.T, answer func(int, *agentv1.StartRunRequest) (agentv1.RunStatus, error)) *agentRuntime {
	t.Helper()
	r := &agentRuntime{answer: answer, runs: map[string]string{}, looked: map[string]int{}, status: map[string]agentv1.RunStatus{}}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	line := fmt.Sprintf("- { name: notifier, sha256: %x, roles: [notifier] }\n", sha(runtimeToken))
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	table, err := authn.OpenTokens(path, log)
	if err != nil {
		t.Fatal(err)
	}
	server, err := rpc.NewServer(rpc.ServerOptions{Name: "runtime", Log: log, Tokens: table, DrainTimeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	agentv1.RegisterAgentRuntimeServiceServer(server, r)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *agentRuntime) StartRun(_ context.Context, req *agentv1.StartRunRequest) (*agentv1.StartRunResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.got)
	r.got = append(r.got, req)
	if run := r.runs[req.GetIdempotencyKey()]; run != "" {
		return &agentv1.StartRunResponse{RunId: run}, nil
	}
	status, err := r.answer(n, req)
	if status != agentv1.RunStatus_RUN_STATUS_UNSPECIFIED {
		run := fmt.Sprintf("run-%d", len(r.runs)+1)
		r.runs[req.GetIdempotencyKey()], r.status[run] = run, status
	}
	return &agentv1.StartRunResponse{RunId: r.runs[req.GetIdempotencyKey()]}, err
}

func (r *agentRuntime) GetRun(_ context.Context, req *agentv1.GetRunRequest) (*agentv1.GetRunResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked[req.GetRunId()]++
	if r.lookUp != nil {
		if err := r.lookUp(r.looked[req.GetRunId()] - 1); err != nil {
			return nil, err
		}
	}
	return &agentv1.GetRunResponse{Status: r.status[req.GetRunId()], Error: "why"}, nil
}

// starts returns the keys of all starts, in order.
func (r *agentRuntime) starts() (keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, req := range r.got {
		keys = append(keys, req.GetIdempotencyKey())
	}
	return keys
}

func (r *agentRuntime) finish(run string, s agentv1.RunStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status[run] = s
}

func (r *agentRuntime) lookUps(run string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.looked[run]
}

func (r *agentRuntime) sink(name string) config.Sink {
	return config.Sink{Name: name, Type: config.SinkAgentRuntime, Address: r.addr, Token: runtimeToken}
}

func runtimeNode(t *testing.T, d *db.DB, r *agentRuntime) *node {
	t.Helper()
	s := r.sink("s")
	s.Token = "${RUNTIME_TOKEN}"
	return start(t, d, options{
		cfg: notifier.Config{DefaultSink: "s", Sinks: []config.Sink{s}}, env: map[string]string{"RUNTIME_TOKEN": runtimeToken},
	})
}

// NOTE-011, NOTE-003
func TestAnAgentIsWokenAgainUntilARunSucceeds(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		outcomes := []agentv1.RunStatus{
			agentv1.RunStatus_RUN_STATUS_FAILED, agentv1.RunStatus_RUN_STATUS_INTERRUPTED,
			agentv1.RunStatus_RUN_STATUS_NOT_FOUND, agentv1.RunStatus_RUN_STATUS_SUCCEEDED,
		}
		r := newRuntime(t, func(n int, _ *agentv1.StartRunRequest) (agentv1.RunStatus, error) { return outcomes[n], nil })
		n := runtimeNode(t, d, r)
		record(t, d, outbox.Event{TaskID: "a", Version: 2, RunID: "origin"})
		got := n.becomes("a", delivered)
		if keys := fmt.Sprint(r.starts()); keys != "[a:2:0 a:2:1 a:2:2 a:2:3]" {
			t.Errorf("starts %s", keys)
		}
		if req := r.got[0]; req.GetUserId() != "alice" || req.GetThreadId() != "t1" || req.GetOriginRunId() != "origin" || !req.GetRequireExistingThread() {
			t.Errorf("start %v", req)
		}
		var outcomesSeen []string
		for _, a := range got.GetAttempts() {
			outcomesSeen = append(outcomesSeen, a.GetOutcome()+" "+a.GetStatus())
		}
		if want := "[delivered SUCCEEDED retry NOT_FOUND retry INTERRUPTED retry FAILED]"; fmt.Sprint(outcomesSeen) != want {
			t.Errorf("attempts %v, want %s", outcomesSeen, want)
		}
	})
}

// NOTE-012
func TestALookUpIsRepeatedAndNeverTheStart(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRuntime(t, ends(agentv1.RunStatus_RUN_STATUS_SUCCEEDED))
		r.lookUp = func(n int) error {
			if n < 3 {
				return errors.New("no answer")
			}
			return nil
		}
		n := runtimeNode(t, d, r)
		record(t, d, outbox.Event{TaskID: "a", Version: 1})
		got := n.becomes("a", delivered)
		if len(r.starts()) != 1 || r.lookUps("run-1") != 4 {
			t.Errorf("%d starts, %d look-ups", len(r.starts()), r.lookUps("run-1"))
		}
		if failed := len(got.GetAttempts()) - 1; failed != 3 {
			t.Errorf("%d failures were counted, want 3", failed)
		}
	})
}

// NOTE-012: a start of unknown outcome repeats its key, so that one run is started.
func TestAStartWhoseAnswerWasLostRepeatsItsKey(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRuntime(t, func(int, *agentv1.StartRunRequest) (agentv1.RunStatus, error) {
			return agentv1.RunStatus_RUN_STATUS_SUCCEEDED, errors.New("the answer is lost")
		})
		n := runtimeNode(t, d, r)
		record(t, d, outbox.Event{TaskID: "a", Version: 1})
		n.becomes("a", delivered)
		if keys := fmt.Sprint(r.starts()); keys != "[a:1:0 a:1:0]" || len(r.runs) != 1 {
			t.Errorf("starts %s made %d runs", keys, len(r.runs))
		}
	})
}

// NOTE-012, NOTE-013: these wait 5 s, so one test has both.
func TestARunStillGoingAndABusyThreadAreTriedAgainWithoutACount(t *testing.T) {
	d := dbtest.SQLite(t)
	r := newRuntime(t, func(n int, req *agentv1.StartRunRequest) (agentv1.RunStatus, error) {
		if req.GetThreadId() == "busy" && n < 2 {
			return 0, fault.New(fault.ThreadBusy, "busy")
		}
		if req.GetThreadId() == "slow" {
			return agentv1.RunStatus_RUN_STATUS_RUNNING, nil
		}
		return agentv1.RunStatus_RUN_STATUS_SUCCEEDED, nil
	})
	n := runtimeNode(t, d, r)
	begun := time.Now()
	record(t, d,
		outbox.Event{TaskID: "slow", Version: 1, Scope: authn.Scope{UserID: "u", ThreadID: "slow"}},
		outbox.Event{TaskID: "busy", Version: 1, Scope: authn.Scope{UserID: "u", ThreadID: "busy"}})
	eventually(t, "both were tried", func() bool { return len(r.starts()) == 2 && r.lookUps("run-1") == 1 })
	// Another event of the busy one: it is the one that is sent next time.
	eventually(t, "the busy one waits", func() bool { return n.of("busy").GetStatus() == pending })
	record(t, d, outbox.Event{TaskID: "busy", Version: 2, Scope: authn.Scope{UserID: "u", ThreadID: "busy"}})
	r.finish("run-1", agentv1.RunStatus_RUN_STATUS_SUCCEEDED)
	if got := n.becomes("busy", delivered); got.GetAttemptCount() != 0 || got.GetEventId() != "busy:2" {
		t.Errorf("delivered %v", got)
	}
	if got := n.becomes("slow", delivered); len(got.GetAttempts()) != 1 || r.lookUps("run-1") != 2 {
		t.Errorf("%d look-ups, attempts %v", r.lookUps("run-1"), got.GetAttempts())
	}
	if took := time.Since(begun); took < 4900*time.Millisecond {
		t.Errorf("looked up again after %v, want 5 s", took)
	}
}

// NOTE-013, NOTE-010: a thread that is gone is a dead letter at once, and a newer event tries again.
func TestAThreadThatIsGoneIsADeadLetterAtOnce(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRuntime(t, func(n int, _ *agentv1.StartRunRequest) (agentv1.RunStatus, error) {
			if n == 0 {
				return 0, fault.New(fault.ThreadGone, "no such thread")
			}
			return agentv1.RunStatus_RUN_STATUS_SUCCEEDED, nil
		})
		n := runtimeNode(t, d, r)
		record(t, d, outbox.Event{TaskID: "a", Version: 1})
		if got := n.becomes("a", deadLetter); got.GetAttempts()[0].GetStatus() != "THREAD_GONE" || got.GetAttemptCount() != 0 {
			t.Errorf("dead letter %v", got)
		}
		record(t, d, outbox.Event{TaskID: "a", Version: 2})
		n.becomes("a", delivered)
		if keys := fmt.Sprint(r.starts()); keys != "[a:1:0 a:2:0]" {
			t.Errorf("starts %s", keys)
		}
	})
}

// A redrive of what was delivered starts another run: the key of the first would give the old one.
func TestARedriveStartsAnotherRun(t *testing.T) {
	d := dbtest.SQLite(t)
	r := newRuntime(t, ends(agentv1.RunStatus_RUN_STATUS_SUCCEEDED))
	n := runtimeNode(t, d, r)
	record(t, d, outbox.Event{TaskID: "a", Version: 1})
	got := n.becomes("a", delivered)
	redriveOne(t, n, got.GetNotificationId())
	eventually(t, "another run was started", func() bool { return len(r.starts()) == 2 })
	n.becomes("a", delivered)
	if keys := fmt.Sprint(r.starts()); keys != "[a:1:0 a:1:1]" {
		t.Errorf("starts %s", keys)
	}
}

func TestARuntimeThatRefusesTheTokenIsAFailure(t *testing.T) {
	d := dbtest.SQLite(t)
	r := newRuntime(t, ends(agentv1.RunStatus_RUN_STATUS_SUCCEEDED))
	s := r.sink("s")
	s.Token = "wrong-token-2"
	n := start(t, d, options{cfg: notifier.Config{DefaultSink: "s", MaxAttempts: 1, Sinks: []config.Sink{s}}})
	record(t, d, outbox.Event{TaskID: "a", Version: 1})
	got := n.becomes("a", deadLetter)
	if len(r.starts()) != 0 || got.GetLastError() == "" {
		t.Errorf("%d starts, last error %q", len(r.starts()), got.GetLastError())
	}
}
