package toolproxy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy"
	"github.com/toolherd/toolherd/services/toolproxy/internal/binding"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// jobTools is the list of a peer that runs jobs in its memory: start gives an id, status and stop take it.
const jobTools = `[{"name":"start","inputSchema":{"type":"object"}},{"name":"status","inputSchema":{"type":"object"}},{"name":"stop","inputSchema":{"type":"object"}}]`

// job is the part of the peer that runs jobs; it returns "" for other tools.
func (p *peer) job(tool string, args json.RawMessage) string {
	id, _ := jsonrpc.String(jsonrpc.Member(args, "task_id"))
	switch tool {
	case "start":
		id = fmt.Sprintf("job-%d-of-%d", len(p.jobs)+1, os.Getpid())
		p.jobs[id] = "running"
	case "stop":
		if p.jobs[id] == "running" {
			p.jobs[id] = "cancelled"
		}
	case "status":
	default:
		return ""
	}
	if p.jobs[id] == "" {
		return fmt.Sprintf(`{"content":[],"structuredContent":{"task_id":%q,"status":"failed","error_code":"task_not_found"}}`, id)
	}
	return fmt.Sprintf(`{"content":[],"structuredContent":{"task_id":%q,"status":%q}}`, id, p.jobs[id])
}

// remoteTask is a task that a peer runs, as a worker has it.
type remoteTask struct {
	toolproxyv1.BackgroundToolServiceClient

	ref *toolproxyv1.RemoteTaskRef
}

// begin starts a job of the server in a thread of ann's and returns the task.
func (p *proxy) begin(t *testing.T, server, thread string) *remoteTask {
	t.Helper()
	r, err := p.call(t, server+"_start", "{}", scoped("ann", thread))
	if err != nil {
		t.Fatal(err)
	}
	var started struct {
		TaskID string `json:"task_id"`
	}
	if err := json.Unmarshal([]byte(r.GetResult().GetStructuredContentJson()), &started); err != nil || started.TaskID == "" {
		t.Fatalf("start: %v, %v", r, err)
	}
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	b := binding.Origin{
		Driver: driver.OrdinaryName, Server: server, SnapshotID: p.registry.snapshot.GetSnapshotId(),
		Toolset: binding.Toolset{Name: "jobs", SubmitTool: "start", StatusTool: "status", CancelTool: "stop", BackgroundScope: serverconfig.ScopeThread},
	}
	for _, e := range p.registry.snapshot.GetServers() {
		if e.GetName() == server {
			b.Public, b.SourceClass = json.RawMessage(e.GetEntryJson()), e.GetSourceClass()
		}
	}
	encoded, err := binding.New(b).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return &remoteTask{
		BackgroundToolServiceClient: toolproxyv1.NewBackgroundToolServiceClient(p.conn),
		ref: &toolproxyv1.RemoteTaskRef{
			Handle: fmt.Appendf(nil, `{"v":1,"task_id":%q}`, started.TaskID), Binding: encoded, TaskId: "mcp-task-" + started.TaskID,
			Scope: &corev1.Scope{UserId: "ann", ThreadId: thread},
		},
	}
}

func (r *remoteTask) poll(t *testing.T, hold time.Duration) (*toolproxyv1.RemoteTaskSnapshot, error) {
	t.Helper()
	out, err := r.GetRemoteTask(t.Context(), &toolproxyv1.GetRemoteTaskRequest{Ref: r.ref, HoldFor: durationpb.New(hold)})
	return out.GetSnapshot(), err
}

func (r *remoteTask) mustWork(t *testing.T, when string) {
	t.Helper()
	s, err := r.poll(t, time.Hour)
	if err != nil || s.GetStatus() != corev1.TaskStatus_TASK_STATUS_WORKING {
		t.Fatalf("%s: %v, %v", when, s, err)
	}
}

// SESS-012, TASK-045, TASK-052: a task in the memory of a stdio server outlives idle time, a full pool, a changed, a
// switched off and a removed entry; with its end its process ends.
func TestATaskInAProcessGoesToItsEnd(t *testing.T) {
	p := start(t, toolproxy.Config{MaxSessions: 2, SessionIdleTimeout: 200 * time.Millisecond})
	p.registry.publish(t, map[string]string{"jobs": peerEntry(t, "", "PEER_TOOLS", jobTools)})
	p.awaitOK(t, "jobs")
	task := p.begin(t, "jobs", "t1")
	task.mustWork(t, "at first")
	await(t, "the idle session of the discovery ends", func() bool { return len(p.sessions(t)) == 1 })
	held := p.sessions(t)[0]
	if !held.GetHeld() || held.GetScope().GetThreadId() != "t1" {
		t.Errorf("the session that is left is %v", held)
	}
	task.mustWork(t, "after the idle time")
	for i := range 4 { // each takes the place of the one before
		p.begin(t, "jobs", fmt.Sprint("other-", i))
	}
	task.mustWork(t, "with a full pool")
	second := p.begin(t, "jobs", "t2")
	second.mustWork(t, "the second task")
	if _, err := p.call(t, "jobs_start", "{}", scoped("ann", "t3")); !fault.Is(err, fault.SessionLimit) {
		t.Errorf("where every session is held: %v", err)
	}
	if s, err := second.CancelRemoteTask(t.Context(), &toolproxyv1.CancelRemoteTaskRequest{Ref: second.ref}); err != nil ||
		s.GetSnapshot().GetStatus() != corev1.TaskStatus_TASK_STATUS_CANCELLED {
		t.Errorf("cancel: %v, %v", s, err)
	}
	changed := peerEntry(t, "", "PEER_TOOLS", jobTools, "NEW", "1")
	off := entry(t, "jobs", changed)
	off.State = registryv1.EntryState_ENTRY_STATE_DISABLED
	for _, change := range []struct {
		when    string
		publish func()
		status  corev1.ServerStatus
	}{
		{"after a change", func() { p.registry.publish(t, map[string]string{"jobs": changed}) }, corev1.ServerStatus_SERVER_STATUS_OK},
		{"switched off", func() { p.registry.publishSnapshot(&registryv1.Snapshot{Servers: []*registryv1.ServerEntry{off}}) }, corev1.ServerStatus_SERVER_STATUS_DISABLED},
		{"removed", func() { p.registry.publish(t, nil) }, corev1.ServerStatus_SERVER_STATUS_UNSPECIFIED},
	} {
		change.publish()
		p.awaitStatus(t, "jobs", change.status)
		task.mustWork(t, change.when)
	}
	if sessions := p.sessions(t); len(sessions) != 1 || sessions[0].GetSessionId() != held.GetSessionId() {
		t.Errorf("sessions are %v", sessions)
	}
	if s, err := task.CancelRemoteTask(t.Context(), &toolproxyv1.CancelRemoteTaskRequest{Ref: task.ref}); err != nil ||
		s.GetSnapshot().GetStatus() != corev1.TaskStatus_TASK_STATUS_CANCELLED {
		t.Fatalf("cancel: %v, %v", s, err)
	}
	await(t, "the process of the removed server ends", func() bool { return len(p.sessions(t)) == 0 })
	// A late poll of a removed server starts it once more, as the task was submitted to it.
	if s, err := task.poll(t, 0); err != nil || s.GetFailureReason() != "remote_lost" {
		t.Errorf("a poll of what is gone: %v, %v", s, err)
	}
}

func TestAResetEndsHeldSessionsToo(t *testing.T) {
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{"jobs": peerEntry(t, "", "PEER_TOOLS", jobTools)})
	p.awaitOK(t, "jobs")
	task := p.begin(t, "jobs", "t1")
	task.mustWork(t, "at first")
	if r, err := p.ResetSessions(t.Context(), &toolproxyv1.ResetSessionsRequest{Scope: task.ref.GetScope()}); err != nil || r.GetEnded() != 1 {
		t.Errorf("reset: %v, %v", r, err)
	}
	if s, err := task.poll(t, 0); err != nil || s.GetFailureReason() != "remote_lost" {
		t.Errorf("after the reset: %v, %v", s, err)
	}
}

func TestBackgroundCallsWaitForAConfiguration(t *testing.T) {
	p := start(t, toolproxy.Config{})
	service := toolproxyv1.NewBackgroundToolServiceClient(p.conn)
	if _, err := service.GetRemoteTask(t.Context(), &toolproxyv1.GetRemoteTaskRequest{}); !fault.Is(err, fault.NotReady) {
		t.Errorf("GetRemoteTask: %v", err)
	}
	if _, err := service.CancelRemoteTask(t.Context(), &toolproxyv1.CancelRemoteTaskRequest{}); !fault.Is(err, fault.NotReady) {
		t.Errorf("CancelRemoteTask: %v", err)
	}
	if _, err := service.UpdateRemoteTask(t.Context(), &toolproxyv1.UpdateRemoteTaskRequest{}); fault.KindOf(err) != fault.Unimplemented {
		t.Errorf("UpdateRemoteTask: %v", err)
	}
}

// Over HTTP a session that the server forgot is opened again, and a server that is gone is named without its address.
func TestBackgroundCallsOverHTTP(t *testing.T) {
	r := newRemote(t, false)
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{"r": fmt.Sprintf(`{"url":%q}`, r.URL)})
	p.awaitOK(t, "r")
	task := p.remoteEcho(t)
	// echo answers in words, which is final; that it answers at all is what is looked at here.
	if _, err := task.poll(t, 0); !fault.Is(err, fault.UpstreamProtocol) {
		t.Errorf("echo: %v", err)
	}
	r.forget.Store(*r.called.Load(), true)
	opened := r.initialized.Load()
	if _, err := task.poll(t, 0); !fault.Is(err, fault.UpstreamProtocol) || r.initialized.Load() != opened+1 {
		t.Errorf("after the session was forgotten: %v", err)
	}
	address := strings.TrimPrefix(r.URL, "http://")
	r.CloseClientConnections()
	r.Close()
	for range 2 { // the first may find the session, the second finds nobody
		if _, err := task.poll(t, 0); err == nil || fault.Is(err, fault.UpstreamProtocol) || strings.Contains(err.Error(), address) {
			t.Errorf("without the server: %v", err)
		}
	}
}

// remoteEcho is a task whose status tool is echo.
func (p *proxy) remoteEcho(t *testing.T) *remoteTask {
	t.Helper()
	p.registry.mu.Lock()
	e := p.registry.snapshot.GetServers()[0]
	p.registry.mu.Unlock()
	encoded, err := binding.New(binding.Origin{
		Driver: driver.OrdinaryName, Server: e.GetName(), SourceClass: e.GetSourceClass(), Public: json.RawMessage(e.GetEntryJson()),
		Toolset: binding.Toolset{Name: "echo", SubmitTool: "echo", StatusTool: "echo", CancelTool: "echo", BackgroundScope: serverconfig.ScopeThread},
	}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return &remoteTask{
		BackgroundToolServiceClient: toolproxyv1.NewBackgroundToolServiceClient(p.conn),
		ref: &toolproxyv1.RemoteTaskRef{
			Handle: []byte(`{"v":1,"task_id":"remote-1"}`), Binding: encoded, TaskId: "mcp-task-1", Scope: &corev1.Scope{UserId: "ann", ThreadId: "t1"},
		},
	}
}
