package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/partners"
)

// herd is a running `toolherd up`.
type herd struct {
	process *partners.Process
	config  string
	proxy   toolproxyv1.ToolProxyServiceClient
}

// startHerd runs Toolherd in front of the echo server, on stdio as server `stdio` and on HTTP as `http`.
func startHerd(t *testing.T, b bed) *herd {
	t.Helper()
	return upWith(t, map[string]any{"stdio": b.echo.Entry(), "http": map[string]any{"url": b.echoURL}}, 4)
}

// upWith runs Toolherd with these servers until it lists that many tools.
func upWith(t *testing.T, servers map[string]any, tools int, args ...string) *herd {
	t.Helper()
	dir := t.TempDir()
	h := &herd{config: filepath.Join(dir, "mcp.json")}
	h.write(t, servers)
	h.process = partners.StartUp(t, dir, append([]string{"--mcp-config", h.config}, args...)...)
	conn, err := grpc.NewClient(h.process.URL, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	h.proxy = toolproxyv1.NewToolProxyServiceClient(conn)
	for {
		list, err := h.proxy.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.GetTools()) >= tools {
			return h
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("only %d of %d tools: %v", len(list.GetTools()), tools, list.GetServers())
		}
	}
}

func (h *herd) write(t *testing.T, servers map[string]any) {
	t.Helper()
	content, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err != nil {
		t.Fatal(err)
	}
	tmp := h.config + ".tmp"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, h.config); err != nil {
		t.Fatal(err)
	}
}

func (h *herd) subject(name, tool, arguments string, check func(result string) bool) subject {
	return subject{name, func(ctx context.Context) error {
		res, err := h.proxy.CallTool(ctx, &toolproxyv1.CallToolRequest{
			Name: tool, Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: arguments}, View: toolproxyv1.ResultView_RESULT_VIEW_JSON,
		})
		if err != nil {
			return err
		}
		if !check(res.GetResult().GetResultJson()) {
			return fmt.Errorf("wrong answer %.200s", res.GetResult().GetResultJson())
		}
		return nil
	}}
}

func (h *herd) echo(name, tool string) subject {
	arguments, _ := json.Marshal(map[string]string{"text": payload}) // strings always encode
	return h.subject(name, tool, string(arguments), func(r string) bool { return strings.Contains(r, payload) })
}

func (h *herd) big(name, tool string, size int) subject {
	return h.subject(name, tool, fmt.Sprintf(`{"bytes":%d}`, size), func(r string) bool { return len(r) > size })
}

// noopServer answers every call with the same small result.
type noopServer struct {
	toolproxyv1.UnimplementedToolProxyServiceServer
}

// CallTool implements the contract without doing anything.
func (noopServer) CallTool(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
	return &toolproxyv1.CallToolResponse{Outcome: &toolproxyv1.CallToolResponse_Result{Result: &toolproxyv1.ToolResult{
		ResultJson: `{"content":[{"type":"text","text":"` + payload + `"}]}`,
	}}}, nil
}

const noopVariable = "TOOLHERD_BENCH_NOOP"

func TestMain(m *testing.M) {
	if os.Getenv(noopVariable) != "" {
		os.Exit(serveNoop())
	}
	if dsn := os.Getenv(riverVariable); dsn != "" {
		if err := workRiver(dsn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serveNoop is the process of the gRPC no-op, until somebody ends it.
func serveNoop() int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	server := grpc.NewServer()
	toolproxyv1.RegisterToolProxyServiceServer(server, noopServer{})
	fmt.Printf("listening %s\n", listener.Addr())
	if err := server.Serve(listener); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// startNoop starts bare grpc-go with a handler that does nothing, in a process of its own.
func startNoop(t *testing.T) subject {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := partners.StartListening(t, partners.Command{Path: self, Env: []string{noopVariable + "=1"}})
	conn, err := grpc.NewClient(p.URL, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	h := &herd{proxy: toolproxyv1.NewToolProxyServiceClient(conn)}
	return h.echo("noop", "echo")
}
