package demoserver_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/demoserver"
)

// connectTo runs a demo server that keeps its jobs in dir.
func connectTo(t *testing.T, dir string) (session *mcp.ClientSession, end func()) {
	t.Helper()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- demoserver.Run(t.Context(), in, out, demoserver.Options{ReportsDir: dir}) }()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return session, func() {
		if err := session.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
}

func structured(t *testing.T, s *mcp.ClientSession, tool string, arguments map[string]any) map[string]any {
	t.Helper()
	encoded, err := json.Marshal(arguments)
	if err != nil {
		t.Fatal(err)
	}
	r := call(t, s, tool, string(encoded))
	if r.IsError {
		t.Fatalf("%s: %s", tool, textOf(t, r))
	}
	return r.StructuredContent.(map[string]any)
}

func TestAReportGoesOnWhileItsServerIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "reports")
		s, end := connectTo(t, dir)
		begun := structured(t, s, "start_report", map[string]any{"topic": "herds", "seconds": 10})
		id := begun["task_id"]
		if diff := cmp.Diff(map[string]any{"task_id": id, "status": "running"}, begun); diff != "" {
			t.Errorf("answer of the submit (-want +got):\n%s", diff)
		}
		time.Sleep(4 * time.Second)
		want := map[string]any{
			"task_id": id, "status": "running", "status_message": "writing chapter 9 of 20",
			"progress": map[string]any{"current": 8.0, "total": 20.0}, "poll_after_seconds": 0.5,
		}
		if diff := cmp.Diff(want, structured(t, s, "report_status", map[string]any{"task_id": id})); diff != "" {
			t.Errorf("after 4 of 10 seconds (-want +got):\n%s", diff)
		}
		end()

		time.Sleep(6 * time.Second)
		s, end = connectTo(t, dir)
		defer end()
		want = map[string]any{
			"task_id": id, "status": "completed", "progress": map[string]any{"current": 20.0, "total": 20.0},
			"result": map[string]any{"title": "herds", "chapters": 20.0, "summary": "20 chapters on herds, written in 10 seconds."},
		}
		if diff := cmp.Diff(want, structured(t, s, "report_status", map[string]any{"task_id": id})); diff != "" {
			t.Errorf("another server, at the end (-want +got):\n%s", diff)
		}
		if got := structured(t, s, "stop_report", map[string]any{"task_id": id}); got["status"] != "completed" {
			t.Errorf("stopped after its end: %v", got)
		}
	})
}

func TestAReportCanBeStoppedAndCanFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, end := connectTo(t, t.TempDir())
		defer end()
		stopped := structured(t, s, "start_report", map[string]any{"topic": "a", "seconds": 10})["task_id"]
		failing := structured(t, s, "start_report", map[string]any{"topic": "b", "seconds": 1, "fail": true})["task_id"]
		time.Sleep(5 * time.Second)
		first := structured(t, s, "stop_report", map[string]any{"task_id": stopped})
		time.Sleep(time.Second)
		if diff := cmp.Diff(first, structured(t, s, "stop_report", map[string]any{"task_id": stopped})); diff != "" {
			t.Errorf("a second stop changes the answer:\n%s", diff)
		}
		if first["status"] != "cancelled" || first["status_message"] != "stopped after 10 of 20 chapters" {
			t.Errorf("stopped: %v", first)
		}
		time.Sleep(time.Minute)
		if got := structured(t, s, "report_status", map[string]any{"task_id": stopped}); got["status"] != "cancelled" {
			t.Errorf("a stopped report came to an end all the same: %v", got)
		}
		if got := structured(t, s, "report_status", map[string]any{"task_id": failing}); got["status"] != "failed" || got["error"] == "" || got["result"] != nil {
			t.Errorf("failing: %v", got)
		}
	})
}

func TestUnknownReportsAreNotFoundAndReachNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret.json"), []byte(`{"topic":"secret"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, end := connectTo(t, filepath.Join(dir, "reports"))
	defer end()
	for _, id := range []string{"report-0123456789abcdef", "../secret", "", strings.Repeat("x", 300)} {
		for _, tool := range []string{"report_status", "stop_report"} {
			if got := structured(t, s, tool, map[string]any{"task_id": id}); got["error_code"] != "task_not_found" || got["status"] != "failed" {
				t.Errorf("%s %q: %v", tool, id, got)
			}
		}
	}
	for _, args := range []string{`{}`, `{"topic":""}`, `{"topic":"x","seconds":-1}`, `{"topic":"x","seconds":86401}`} {
		if r := call(t, s, "start_report", args); !r.IsError {
			t.Errorf("start_report %s is accepted", args)
		}
	}
}

func TestTheToolsAreServedOverHTTPToo(t *testing.T) {
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- demoserver.Serve(ctx, l, demoserver.Options{ReportsDir: t.TempDir()}) }()
	web := &http.Client{Transport: &http.Transport{}}
	defer web.CloseIdleConnections()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: "http://" + l.Addr().String() + "/mcp", HTTPClient: web}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := textOf(t, call(t, s, "echo", `{"text":"over HTTP"}`)); got != "over HTTP" {
		t.Errorf("echo returned %q", got)
	}
	if got := structured(t, s, "start_report", map[string]any{"topic": "x", "seconds": 0}); got["status"] != "running" {
		t.Errorf("start_report: %v", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("at the end of the context: %v", err)
	}
}
