package toolproxy_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake/intaketest"
)

// jobSet makes the peer's job tools a toolset, and allows no more than its submit tool and echo to be seen.
const jobSet = `,"allowedTools":["start","echo"],"task_toolsets":[{"name":"job","submit_tool":"start","status_tool":"status","cancel_tool":"stop"}]`

var jobsAndEcho = strings.Replace(jobTools, "[", `[{"name":"echo","inputSchema":{"type":"object"}},`, 1)

// startTasks runs a toolproxy whose taskworker is s, reached over gRPC.
func startTasks(t *testing.T, s *intaketest.Server) *proxy {
	t.Helper()
	conn, stop := serve(t, func(r grpc.ServiceRegistrar) {
		taskv1.RegisterTaskIntakeServiceServer(r, s)
		taskv1.RegisterTaskServiceServer(r, s)
	})
	p := startWith(t, toolproxy.Config{}, newRegistry(), func(d *toolproxy.Deps) {
		d.Intake, d.Tasks = taskv1.NewTaskIntakeServiceClient(conn), taskv1.NewTaskServiceClient(conn)
	})
	t.Cleanup(func() {
		p.stop()
		stop()
	})
	return p
}

func (p *proxy) available(t *testing.T) bool {
	t.Helper()
	r, err := p.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetTasksAvailable()
}

// TASK-011: the handle that an agent gets is of a task that is stored.
// TASK-052, the part of toolproxy: handle and binding are all that it takes to follow the task, in the session of the submit.
func TestASubmittedTaskIsFollowedByItsHandleAndBinding(t *testing.T) {
	s := &intaketest.Server{}
	p := startTasks(t, s)
	p.registry.publish(t, map[string]string{"jobs": peerEntry(t, jobSet, "PEER_TOOLS", jobsAndEcho)})
	p.awaitOK(t, "jobs")
	await(t, "tasks are available", func() bool { return p.available(t) })
	r, err := p.call(t, "jobs_start", `{"n":1}`, scoped("ann", "t1"))
	if err != nil {
		t.Fatal(err)
	}
	all := s.All()
	if len(all) != 1 || all[0].Commit == nil || r.GetTask().GetTaskId() != all[0].ID() || r.GetTask().GetStatus() != corev1.TaskStatus_TASK_STATUS_SUBMITTED {
		t.Fatalf("the agent has %v, stored is %+v", r, all)
	}
	if remote := all[0].Commit.GetRemoteTaskId(); remote == "" || strings.Contains(r.String(), remote) {
		t.Errorf("the agent sees the id %q in %v", remote, r)
	}
	ref := &toolproxyv1.RemoteTaskRef{
		Handle: all[0].Commit.GetHandle(), Binding: all[0].Intent.GetBinding(), Scope: all[0].Intent.GetScope(), TaskId: all[0].ID(),
	}
	worker := toolproxyv1.NewBackgroundToolServiceClient(p.conn)
	for _, when := range []string{"as submitted", "with its server gone from the configuration"} {
		got, err := worker.GetRemoteTask(t.Context(), &toolproxyv1.GetRemoteTaskRequest{Ref: ref})
		if err != nil || got.GetSnapshot().GetStatus() != corev1.TaskStatus_TASK_STATUS_WORKING {
			t.Errorf("%s: %v, %v", when, got, err)
		}
		if i := slices.IndexFunc(p.sessions(t), func(s *toolproxyv1.Session) bool {
			return s.GetSessionId() == r.GetInfo().GetSessionId() && s.GetHeld() && s.GetScope().GetThreadId() == "t1"
		}); i < 0 {
			t.Errorf("%s: the submit was in session %s, there are %v", when, r.GetInfo().GetSessionId(), p.sessions(t))
		}
		p.registry.publish(t, nil)
		await(t, "the server is gone", func() bool { return p.server(t, "jobs").GetName() == "" })
	}
	if got, err := worker.CancelRemoteTask(t.Context(), &toolproxyv1.CancelRemoteTaskRequest{Ref: ref}); err != nil ||
		got.GetSnapshot().GetStatus() != corev1.TaskStatus_TASK_STATUS_CANCELLED {
		t.Errorf("cancel: %v, %v", got, err)
	}
}

// TASK-039: agents see the submit tool, and of those that follow tasks neither name nor effect.
// TASK-047: filters do not keep a toolset from being bound.
func TestAgentsSeeTheSubmitToolOnly(t *testing.T) {
	p := startTasks(t, &intaketest.Server{})
	p.registry.publish(t, map[string]string{"jobs": peerEntry(t, jobSet, "PEER_TOOLS", jobsAndEcho)})
	p.awaitOK(t, "jobs")
	r, err := p.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range r.GetTools() {
		names = append(names, tool.GetName())
		if background := strings.Contains(tool.GetDescription(), "background"); background != (tool.GetOriginalName() == "start") {
			t.Errorf("%s is described as %q", tool.GetName(), tool.GetDescription())
		}
	}
	if diff := cmp.Diff([]string{"jobs_echo", "jobs_start"}, names); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	for _, name := range []string{"jobs_status", "jobs_stop", "status", "stop"} {
		if _, err := p.call(t, name, `{"task_id":"x"}`); !fault.Is(err, fault.ToolNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TASK-047: a task tool that is missing, or a task server that is down, is an error of that server alone, which names the
// tools; it is tried again.
func TestOneTaskServerInErrorLeavesTheOthers(t *testing.T) {
	p := startTasks(t, &intaketest.Server{})
	p.registry.publish(t, map[string]string{
		"half":  peerEntry(t, jobSet, "PEER_TOOLS", `[{"name":"start"},{"name":"stop"}]`),
		"down":  peerEntry(t, jobSet, "PEER_START", "exit"),
		"jobs":  peerEntry(t, jobSet, "PEER_TOOLS", jobsAndEcho),
		"plain": peerEntry(t, ""),
	})
	p.awaitOK(t, "jobs", "plain")
	half, down := p.awaitStatus(t, "half", statusError), p.awaitStatus(t, "down", statusError)
	if !strings.Contains(half.GetReason(), `"status"`) || strings.Contains(half.GetReason(), `"stop"`) || half.GetNextRetryTime() == nil {
		t.Errorf("half is %v", half)
	}
	if down.GetNextRetryTime() == nil {
		t.Errorf("down is %v", down)
	}
	if _, err := p.call(t, "half_start", "{}"); !fault.Is(err, fault.ServerError) {
		t.Errorf("a call of half: %v", err)
	}
	if _, err := p.call(t, "jobs_start", "{}"); err != nil {
		t.Errorf("a call of jobs: %v", err)
	}
	p.text(t, "plain_echo", "{}")
}

// TASK-046, the part of a proxy: a taskworker whose tasks are switched off puts servers with toolsets in ERROR, and only
// them, until it takes tasks in again. TASK-051, its first part: tasks_available tells the truth meanwhile.
func TestATaskworkerWithoutTasksIsAnErrorOfTaskServers(t *testing.T) {
	var off atomic.Bool
	off.Store(true)
	s := &intaketest.Server{Before: func(context.Context, string, int) error {
		if off.Load() {
			return fault.New(fault.TasksUnavailable, "durable tasks are switched off; set tasks.enabled")
		}
		return nil
	}}
	p := startTasks(t, s)
	p.registry.publish(t, map[string]string{"jobs": peerEntry(t, jobSet, "PEER_TOOLS", jobsAndEcho), "plain": peerEntry(t, "")})
	p.awaitOK(t, "plain")
	var jobs *toolproxyv1.Server
	await(t, "jobs is in error for want of tasks", func() bool {
		jobs = p.server(t, "jobs")
		return jobs.GetStatus() == statusError && strings.HasPrefix(jobs.GetReason(), "TASKS_UNAVAILABLE: ")
	})
	if !strings.Contains(jobs.GetReason(), "tasks.enabled") || p.available(t) {
		t.Errorf("jobs is %v, tasks available: %v", jobs, p.available(t))
	}
	p.text(t, "plain_echo", "{}")
	if _, err := p.call(t, "jobs_start", "{}"); err == nil || len(s.Steps()) != 0 {
		t.Errorf("a submit: %v, steps %v", err, s.Steps())
	}
	off.Store(false)
	p.awaitOK(t, "jobs")
	if !p.available(t) {
		t.Error("tasks are not available")
	}
}

// TASK-046: without a taskworker at all, or with tasks switched off here, the same.
func TestWithoutTaskworkerServersWithToolsetsAreInError(t *testing.T) {
	for name, p := range map[string]*proxy{
		"peers.taskworker": start(t, toolproxy.Config{}),
		"tasks.enabled":    start(t, toolproxy.Config{NoTasks: true}),
	} {
		p.registry.publish(t, map[string]string{"jobs": peerEntry(t, jobSet, "PEER_TOOLS", jobsAndEcho), "plain": peerEntry(t, "")})
		p.awaitOK(t, "plain")
		jobs := p.server(t, "jobs")
		if jobs.GetStatus() != statusError || !strings.HasPrefix(jobs.GetReason(), "TASKS_UNAVAILABLE: ") || !strings.Contains(jobs.GetReason(), name) ||
			jobs.GetNextRetryTime() != nil || p.available(t) {
			t.Errorf("%s: jobs is %v", name, jobs)
		}
	}
}

// While taskworker cannot be reached its servers are fine, and a submit is refused before anything happens.
func TestAnUnreachableTaskworkerIsNotReady(t *testing.T) {
	conn, err := rpc.Dial("127.0.0.1:1", rpc.ClientOptions{}) // nobody listens there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p := startWith(t, toolproxy.Config{}, newRegistry(), func(d *toolproxy.Deps) {
		d.Intake, d.Tasks = taskv1.NewTaskIntakeServiceClient(conn), taskv1.NewTaskServiceClient(conn)
	})
	t.Cleanup(p.stop)
	p.registry.publish(t, map[string]string{"jobs": peerEntry(t, jobSet, "PEER_TOOLS", jobsAndEcho)})
	p.awaitOK(t, "jobs")
	if p.available(t) {
		t.Error("tasks are available")
	}
	if _, err := p.call(t, "jobs_start", "{}"); !fault.Is(err, fault.NotReady) || !strings.Contains(err.Error(), "nothing was submitted") {
		t.Errorf("a submit: %v", err)
	}
	p.text(t, "jobs_echo", "{}")
}

// An ordinary call asks no other service anything, even one that carries what submits are known by.
func TestOrdinaryCallsMakeNoOtherCall(t *testing.T) {
	s := &intaketest.Server{}
	p := startTasks(t, s)
	p.registry.publish(t, map[string]string{"jobs": peerEntry(t, jobSet, "PEER_TOOLS", jobsAndEcho)})
	p.awaitOK(t, "jobs")
	await(t, "the first answer of intake", func() bool { return p.available(t) })
	asked, begin := s.Tries("ask"), time.Now()
	for i := range 300 {
		p.text(t, "jobs_echo", "{}", func(r *toolproxyv1.CallToolRequest) {
			r.RequestId, r.NotifySink, r.RunId = fmt.Sprint("r", i%3), "nowhere", "run"
		})
	}
	if n := s.Tries("ask") - asked; n > 1+int(time.Since(begin)/(10*time.Second)) {
		t.Errorf("intake was asked %d times during 300 calls of %v", n, time.Since(begin))
	}
	for _, step := range []string{"reserve", "renew", "commit", "abandon", "cancel"} {
		if n := s.Tries(step); n != 0 {
			t.Errorf("%d × %s", n, step)
		}
	}
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	if p.registry.calls != 0 {
		t.Errorf("the registry was asked for secrets %d times", p.registry.calls)
	}
}

// TASK-015: a caller that disconnects in mid-submit, over gRPC.
func TestACallerThatDisconnectsHasItsTaskCancelled(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	s := &intaketest.Server{Before: func(ctx context.Context, step string, n int) error {
		if step == "commit" && n == 0 {
			close(reached)
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return nil
	}}
	p := startTasks(t, s)
	p.registry.publish(t, map[string]string{"jobs": peerEntry(t, jobSet, "PEER_TOOLS", jobsAndEcho)})
	p.awaitOK(t, "jobs")
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := p.CallTool(ctx, &toolproxyv1.CallToolRequest{Name: "jobs_start", Scope: &corev1.Scope{UserId: "ann", ThreadId: "t1"}})
		failed <- err
	}()
	<-reached
	cancel()
	if err := <-failed; fault.KindOf(err) != fault.Canceled {
		t.Errorf("the caller has %v", err)
	}
	close(release)
	await(t, "the task is committed, then cancelled", func() bool {
		return cmp.Equal([]string{"reserve", "commit", "cancel"}, s.Steps())
	})
	if who := s.All()[0].CancelledBy(); who[0].Name != "internal" {
		t.Errorf("it was cancelled by %+v", who)
	}
}
