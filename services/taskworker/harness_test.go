package taskworker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/telemetry"
	"github.com/toolherd/toolherd/pkg/wake"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/taskworker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	submitted     = corev1.TaskStatus_TASK_STATUS_SUBMITTED
	working       = corev1.TaskStatus_TASK_STATUS_WORKING
	inputRequired = corev1.TaskStatus_TASK_STATUS_INPUT_REQUIRED
	completed     = corev1.TaskStatus_TASK_STATUS_COMPLETED
	failed        = corev1.TaskStatus_TASK_STATUS_FAILED
	cancelled     = corev1.TaskStatus_TASK_STATUS_CANCELLED
)

var (
	alice = authn.Scope{UserID: "alice", ThreadID: "t1"}
	bob   = authn.Scope{UserID: "bob", ThreadID: "t1"}
)

func scopeOf(s authn.Scope) *corev1.Scope {
	return &corev1.Scope{UserId: s.UserID, ThreadId: s.ThreadID}
}

// node is a taskworker, and connections to it: one as an agent and operator of a loopback listener has it, one as a peer.
type node struct {
	taskv1.TaskServiceClient
	intake  taskv1.TaskIntakeServiceClient
	peer    taskv1.TaskServiceClient // a toolproxy that names nobody
	service *taskworker.Service
	metrics *telemetry.Telemetry
	stop    func() // ends it and waits; may be called twice
}

type options struct {
	cfg    taskworker.Config
	wake   wake.Bus
	remote toolproxyv1.BackgroundToolServiceClient
	log    *slog.Logger
	idle   bool // serves and does not run
}

// quick is a configuration in which nothing takes long.
func quick() taskworker.Config {
	return taskworker.Config{
		PollInterval: 30 * time.Millisecond, Lease: 3 * time.Second, MaxPollBackoff: 200 * time.Millisecond,
		InputRequiredPollInterval: 60 * time.Millisecond, Concurrency: 16,
	}
}

func start(t testing.TB, d *db.DB, o options) *node {
	t.Helper()
	if o.wake == nil {
		o.wake = wake.NewLocal()
	}
	if o.log == nil {
		o.log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	if o.remote == nil {
		o.remote = newRemote()
	}
	tel, err := telemetry.New(t.Context(), telemetry.Config{Service: "taskworker", LogOutput: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	s, err := taskworker.New(o.cfg, taskworker.Deps{DB: d, Wake: o.wake, Remote: o.remote, Log: o.log, Telemetry: tel})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{service: s, metrics: tel}
	public, stopPublic := serve(t, false, s.Register)
	internal, stopInternal := serve(t, true, s.RegisterInternal)
	n.TaskServiceClient = taskv1.NewTaskServiceClient(public)
	n.intake = taskv1.NewTaskIntakeServiceClient(internal)
	n.peer = taskv1.NewTaskServiceClient(internal)
	stopRun := func() {}
	if !o.idle {
		stopRun = background(t, s.Run)
	}
	n.stop = sync.OnceFunc(func() {
		stopPublic()
		stopRun()
		stopInternal()
	})
	t.Cleanup(n.stop)
	return n
}

// background runs f until the returned function is called, which waits for it, or the test ends.
func background(t testing.TB, f func(ctx context.Context) error) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// serve runs a server with these services, for peers or as a loopback listener without tokens has it.
func serve(t testing.TB, peer bool, register func(grpc.ServiceRegistrar)) (*grpc.ClientConn, func()) {
	t.Helper()
	server, err := rpc.NewServer(rpc.ServerOptions{Log: slog.New(slog.DiscardHandler), Peer: peer, DrainTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	register(server)
	loopback := rpc.NewLoopback()
	conn, err := loopback.Dial(rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop := background(t, func(ctx context.Context) error { return server.Serve(ctx, loopback.Listener()) })
	return conn, func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
}

// as returns a context whose calls on the peer connection are forwarded for p.
func as(t testing.TB, p authn.Principal) context.Context {
	t.Helper()
	ctx, err := rpc.ActFor(authn.NewActing(t.Context(), &p))
	if err != nil {
		t.Fatal(err)
	}
	return ctx
}

func agent(user string) authn.Principal {
	return authn.Principal{Name: user + "-token", Roles: []authn.Role{authn.Agent}, UserID: user, Authenticated: true}
}

func operator() authn.Principal {
	return authn.Principal{Name: "ops", Roles: []authn.Role{authn.Operator}, ActAsAny: true, Authenticated: true}
}

func intent(s authn.Scope) *taskv1.ReserveTaskRequest {
	return &taskv1.ReserveTaskRequest{
		Principal: "tester", Scope: scopeOf(s), Binding: []byte{0, 0xff, '{'}, BindingFingerprint: "print",
		SubmitTimeout: durationpb.New(time.Second), TaskName: "report", Server: "reports", CallerRoles: []corev1.Role{corev1.Role_ROLE_AGENT},
	}
}

// submit takes a task in whose remote id, and handle, is remote.
func (n *node) submit(t testing.TB, s authn.Scope, remote string) *taskv1.Task {
	t.Helper()
	r, err := n.intake.ReserveTask(t.Context(), intent(s))
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.intake.CommitTask(t.Context(), &taskv1.CommitTaskRequest{
		TaskId: r.GetTaskId(), Fence: r.GetFence(), Handle: []byte(remote), RemoteTaskId: remote, Status: submitted,
		PollAfter: durationpb.New(time.Millisecond),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c.GetTask()
}

func (n *node) get(t testing.TB, id string) *taskv1.Task {
	t.Helper()
	resp, err := n.GetTask(t.Context(), &taskv1.GetTaskRequest{TaskId: id})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetTask()
}

// until waits until the task is what ok wants, which what says in words.
func (n *node) until(t testing.TB, id, what string, ok func(*taskv1.Task) bool) *taskv1.Task {
	t.Helper()
	var last *taskv1.Task
	eventually(t, func() error {
		if last = n.get(t, id); ok(last) {
			return nil
		}
		return fmt.Errorf("task %s is not %s: %v", id, what, last)
	})
	return last
}

func (n *node) ended(t testing.TB, id string) *taskv1.Task {
	t.Helper()
	return n.until(t, id, "final", func(x *taskv1.Task) bool { return x.GetEndTime() != nil })
}

// eventually repeats f until it returns nil, for at most 20 s; its last error says what was waited for.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-tick.C
	}
}

func wantReason(t testing.TB, err error, want fault.Reason) *fault.Error {
	t.Helper()
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Reason() != want {
		t.Fatalf("got %v (%s), want %s", err, fault.ReasonOf(err), want)
	}
	return f
}

func wantKind(t testing.TB, err error, want fault.Kind) *fault.Error {
	t.Helper()
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind() != want {
		t.Fatalf("got %v, want a fault of kind %d", err, want)
	}
	return f
}
