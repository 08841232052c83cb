package stack

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/host"
	"github.com/toolherd/toolherd/pkg/rpc"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// jobs is a tool server with one job, whose status is told when the test says so.
type jobs struct {
	url     string
	polled  chan struct{} // receives for every status call
	release chan struct{} // closed: status calls answer
	polls   atomic.Int32
}

type jobArgs struct {
	TaskID string `json:"task_id,omitempty"`
}

type jobState struct {
	TaskID string         `json:"task_id"`
	Status string         `json:"status"`
	Result map[string]int `json:"result,omitempty"`
}

func serveJobs(t *testing.T) *jobs {
	t.Helper()
	j := &jobs{polled: make(chan struct{}, 16), release: make(chan struct{})}
	s := mcp.NewServer(&mcp.Implementation{Name: "jobs", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "start"}, func(context.Context, *mcp.CallToolRequest, jobArgs) (*mcp.CallToolResult, jobState, error) {
		return nil, jobState{TaskID: "job-1", Status: "running"}, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "status"}, func(ctx context.Context, _ *mcp.CallToolRequest, in jobArgs) (*mcp.CallToolResult, jobState, error) {
		j.polls.Add(1)
		j.polled <- struct{}{}
		select {
		case <-j.release:
			return nil, jobState{TaskID: in.TaskID, Status: "completed", Result: map[string]int{"n": 42}}, nil
		case <-ctx.Done():
			return nil, jobState{}, ctx.Err()
		}
	})
	mcp.AddTool(s, &mcp.Tool{Name: "cancel"}, func(_ context.Context, _ *mcp.CallToolRequest, in jobArgs) (*mcp.CallToolResult, jobState, error) {
		return nil, jobState{TaskID: in.TaskID, Status: "cancelled"}, nil
	})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(web.Close)
	t.Cleanup(web.CloseClientConnections)
	j.url = web.URL
	return j
}

// configured returns the configuration of an all-in-one with the tool server.
func (j *jobs) configured(t *testing.T) config.Config {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	content, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"jobs": map[string]any{
		"url":           j.url,
		"task_toolsets": []any{map[string]any{"name": "job", "submit_tool": "start", "status_tool": "status", "cancel_tool": "cancel"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	servers := filepath.Join(dir, "mcp.json")
	if err := os.WriteFile(servers, content, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := config.Defaults()
	cfg.Listen, cfg.HTTPListen, cfg.LogLevel = "127.0.0.1:0", "", "error"
	cfg.StateDir, cfg.Project, cfg.MCPConfig = filepath.Join(dir, "state"), dir, []string{servers}
	cfg.Tasks.PollInterval = time.Second
	return cfg
}

// eventually polls ok until it holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// OPS-007: told to stop in the middle of a poll, the all-in-one takes no further call from outside, and the worker still gets
// the answer through toolproxy and writes it.
func TestAPollInFlightIsFinishedBeforeTheProcessEnds(t *testing.T) {
	j := serveJobs(t)
	cfg := j.configured(t)
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Up(ctx, cfg, io.Discard, func(context.Context, *grpc.ClientConn) error {
			close(ready)
			return nil
		})
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("it ended before it was ready: %v", err)
	}
	address, ok, err := Find(cfg.StateDir)
	if err != nil || !ok {
		t.Fatalf("found %v, %v", ok, err)
	}
	id := submit(t, address.GRPC)
	<-j.polled

	stop()
	eventually(t, "the public listener is closed", func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address.GRPC)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	select {
	case err := <-ended:
		t.Fatalf("it ended with a poll in flight: %v", err)
	default:
	}
	close(j.release)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	err = Compose(t.Context(), cfg, io.Discard, func(ctx context.Context, conn *grpc.ClientConn) error {
		got, err := taskv1.NewTaskServiceClient(conn).GetTask(ctx, &taskv1.GetTaskRequest{TaskId: id})
		if err != nil {
			return err
		}
		task := got.GetTask()
		if task.GetStatus() != corev1.TaskStatus_TASK_STATUS_COMPLETED || task.GetResultJson() != `{"n":42}` {
			t.Errorf("after the restart the task is %v", task)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := j.polls.Load(); n != 1 {
		t.Errorf("the remote was polled %d times, want once", n)
	}
}

// OPS-007: who calls a service of the same process is told to end before it.
func TestCallersStopBeforeWhatTheyCall(t *testing.T) {
	cfg := config.Defaults()
	cfg.NoMCP, cfg.LogLevel, cfg.StateDir = true, "error", t.TempDir()
	t.Setenv("HOME", cfg.StateDir)
	env, err := host.Open(t.Context(), "test", cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	serving, conn, err := build(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(conn.Close(), env.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	stops := map[string]int{}
	for _, s := range serving.Services {
		stops[s.Name] = s.Stop
	}
	if len(stops) != 4 || stops["taskworker"] >= stops["toolproxy"] || stops["toolproxy"] >= stops["registry"] {
		t.Errorf("they stop in the order %v", stops)
	}
}

// submit starts the job through the public listener and returns its task.
func submit(t *testing.T, address string) string {
	t.Helper()
	conn, err := rpc.Dial(address, rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	proxy := toolproxyv1.NewToolProxyServiceClient(conn)
	eventually(t, "tasks are taken in", func() bool {
		list, err := proxy.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{})
		return err == nil && list.GetTasksAvailable() && len(list.GetTools()) == 1
	})
	out, err := proxy.CallTool(t.Context(), &toolproxyv1.CallToolRequest{
		Name: "jobs_start", Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: "{}"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.GetTask().GetTaskId()
}
