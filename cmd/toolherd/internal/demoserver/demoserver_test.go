package demoserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/demoserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect runs a demo server over pipes and returns a session with it; end closes both.
func connect(t *testing.T, o *mcp.ClientOptions) (session *mcp.ClientSession, end func()) {
	t.Helper()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- demoserver.Run(t.Context(), in, out, demoserver.Options{Version: "1.2.3"}) }()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o)
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

func call(t *testing.T, s *mcp.ClientSession, tool, arguments string) *mcp.CallToolResult {
	t.Helper()
	result, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(arguments)})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return result
}

func textOf(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	if len(r.Content) != 1 {
		t.Fatalf("%d content blocks, want 1", len(r.Content))
	}
	return r.Content[0].(*mcp.TextContent).Text
}

func TestToolsReturnTextAndStructuredContent(t *testing.T) {
	t.Setenv("DEMO_TOKEN", "hunter2-hunter2")
	s, end := connect(t, nil)
	defer end()
	if got := s.InitializeResult().ServerInfo; got.Name != "toolherd-demo" || got.Version != "1.2.3" {
		t.Errorf("server info %+v", got)
	}
	for _, c := range []struct {
		tool, args, text string
		structured       map[string]any
	}{
		{"echo", `{"text":"hi <b>"}`, "hi <b>", map[string]any{"text": "hi <b>"}},
		{"add", `{"a":2,"b":0.5}`, "2.5", map[string]any{"sum": 2.5}},
		{"slow_count", `{"steps":3,"interval_ms":0}`, "counted to 3", map[string]any{"counted": 3.0}},
	} {
		r := call(t, s, c.tool, c.args)
		if got := textOf(t, r); got != c.text || r.IsError {
			t.Errorf("%s returned %q, want %q", c.tool, got, c.text)
		}
		if diff := cmp.Diff(any(c.structured), r.StructuredContent); diff != "" {
			t.Errorf("%s: %s", c.tool, diff)
		}
	}
	names := textOf(t, call(t, s, "env_names", `{}`))
	if !strings.Contains(names, "DEMO_TOKEN") || strings.Contains(names, "hunter2") {
		t.Errorf("env_names returned %q", names)
	}
}

func TestEveryToolIsDescribedAndHasAnObjectSchema(t *testing.T) {
	s, end := connect(t, nil)
	defer end()
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		if tool.Description == "" || tool.InputSchema.(map[string]any)["type"] != "object" {
			t.Errorf("%s: description %q, schema %v", tool.Name, tool.Description, tool.InputSchema)
		}
		if tool.OutputSchema == nil && tool.Name != "fail" {
			t.Errorf("%s has no output schema", tool.Name)
		}
	}
	if diff := cmp.Diff([]string{"add", "counter", "echo", "env_names", "fail", "now", "report_status", "slow_count", "start_report", "stop_report"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestBadCallsAreToolErrorsThatSayWhy(t *testing.T) {
	s, end := connect(t, nil)
	defer end()
	for _, c := range []struct{ tool, args, want string }{
		{"fail", `{"message":"out of cheese"}`, "out of cheese"},
		{"fail", `{}`, "always fails"},
		{"now", `{"timezone":"Mars/Base"}`, "Mars/Base"},
		{"echo", `{}`, "text"},
		{"slow_count", `{"steps":101}`, "steps"},
		{"slow_count", `{"interval_ms":-1}`, "interval_ms"},
		{"add", `{"a":1e308,"b":1e308}`, "too large"},
	} {
		r := call(t, s, c.tool, c.args)
		if got := textOf(t, r); !r.IsError || !strings.Contains(got, c.want) {
			t.Errorf("%s %s returned %q, error %t; want an error with %q", c.tool, c.args, got, r.IsError, c.want)
		}
	}
}

func TestCounterCountsPerServer(t *testing.T) {
	a, endA := connect(t, nil)
	defer endA()
	b, endB := connect(t, nil)
	defer endB()
	counts := func(s *mcp.ClientSession) float64 {
		got := call(t, s, "counter", `{}`).StructuredContent.(map[string]any)
		if got["pid"] != float64(os.Getpid()) {
			t.Errorf("pid %v, want %d", got["pid"], os.Getpid())
		}
		return got["count"].(float64)
	}
	if got := []float64{counts(a), counts(a), counts(b), counts(a)}; !cmp.Equal(got, []float64{1, 2, 1, 3}) {
		t.Errorf("counts %v", got)
	}
}

func TestNowAndSlowCountFollowTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var progress []string
		s, end := connect(t, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				progress = append(progress, r.Params.Message)
			},
		})
		defer end()
		if got, want := textOf(t, call(t, s, "now", `{}`)), time.Now().UTC().Format(time.RFC3339); got != want {
			t.Errorf("now is %s, want %s", got, want)
		}
		started := time.Now()
		params := &mcp.CallToolParams{Name: "slow_count", Arguments: map[string]any{}}
		params.SetProgressToken("p")
		if _, err := s.CallTool(t.Context(), params); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(started); took != time.Second {
			t.Errorf("5 steps of 200 ms took %s", took)
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{"step 1 of 5", "step 2 of 5", "step 3 of 5", "step 4 of 5", "step 5 of 5"}, progress); diff != "" {
			t.Error(diff)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "slow_count", Arguments: map[string]any{"steps": 100, "interval_ms": 10000}}); ctx.Err() == nil {
			t.Errorf("the count went on past the caller's deadline: %v", err)
		}
	})
}

func TestRunEndsWithItsInputAndItsContext(t *testing.T) {
	if err := demoserver.Run(t.Context(), strings.NewReader(""), io.Discard, demoserver.Options{}); err != nil {
		t.Errorf("at the end of the input: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- demoserver.Run(ctx, in, out, demoserver.Options{}) }()
	if _, err := io.WriteString(toServer, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(fromServer).ReadString('\n')
	if err != nil || !strings.Contains(line, `"protocolVersion":"2025-06-18"`) {
		t.Errorf("initialize: %q, %v", line, err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("at the end of the context: %v", err)
	}
}
