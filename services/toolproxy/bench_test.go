package toolproxy_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/pkg/telemetry"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy"
)

// runSDKPeer is the plainest MCP server that the SDK makes: what the benchmark calls directly and through toolproxy.
func runSDKPeer() int {
	server := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "echo", InputSchema: map[string]any{"type": "object"}},
		func(_ context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(q.Params.Arguments)}}}, nil
		})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		return 1
	}
	return 0
}

// noop answers calls without doing anything.
type noop struct {
	toolproxyv1.UnimplementedToolProxyServiceServer
}

func (noop) CallTool(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
	return &toolproxyv1.CallToolResponse{Outcome: &toolproxyv1.CallToolResponse_Result{Result: &toolproxyv1.ToolResult{ResultJson: "{}"}}}, nil
}

// runProxyPeer is the process that the benchmark calls: a toolproxy with the SDK's server behind it, and a gRPC server that
// does nothing. It prints their addresses and ends with its stdin.
func runProxyPeer() int {
	if err := serveProxyPeer(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveProxyPeer() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	raw := fmt.Appendf(nil, `{"command":%q,"env":{"PEER":"sdk"},"era":"legacy"}`, exe)
	r := newRegistry()
	r.publishSnapshot(&registryv1.Snapshot{Servers: []*registryv1.ServerEntry{{
		Name: "bench", State: registryv1.EntryState_ENTRY_STATE_ACTIVE, EntryJson: string(raw),
		Fingerprint: serverconfig.Fingerprint(raw), SourceClass: "explicit",
	}}})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tel, err := telemetry.New(ctx, telemetry.Config{Service: "toolproxy", LogOutput: os.Stderr})
	if err != nil {
		return err
	}
	internal, err := rpc.NewServer(rpc.ServerOptions{Log: quiet(), Peer: true, DrainTimeout: time.Second})
	if err != nil {
		return err
	}
	registryv1.RegisterRegistryServiceServer(internal, r)
	credentialv1.RegisterCredentialServiceServer(internal, r)
	loopback := rpc.NewLoopback()
	conn, err := loopback.Dial(rpc.ClientOptions{})
	if err != nil {
		return err
	}
	defer conn.Close()
	root, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	service, err := toolproxy.New(toolproxy.Config{WorkspaceRoot: root}, toolproxy.Deps{
		Registry: registryv1.NewRegistryServiceClient(conn), Credentials: credentialv1.NewCredentialServiceClient(conn),
		Log: quiet(), Telemetry: tel, Redactor: secret.NewRedactor(),
	})
	if err != nil {
		return err
	}
	public, err := rpc.NewServer(rpc.ServerOptions{Log: quiet(), DrainTimeout: time.Second, Tracing: tel.Tracing(), Metrics: tel.Metrics})
	if err != nil {
		return err
	}
	service.Register(public)
	plain := grpc.NewServer()
	toolproxyv1.RegisterToolProxyServiceServer(plain, noop{})
	var listeners [2]net.Listener
	for i := range listeners {
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	fmt.Println(listeners[0].Addr(), listeners[1].Addr())
	return run.All(ctx,
		run.Task{Name: "registry", Run: func(ctx context.Context) error { return internal.Serve(ctx, loopback.Listener()) }},
		run.Task{Name: "toolproxy", Run: service.Run},
		run.Task{Name: "public", Run: func(ctx context.Context) error { return public.Serve(ctx, listeners[0]) }},
		run.Task{Name: "plain", Run: func(context.Context) error { return plain.Serve(listeners[1]) }},
		run.Task{Name: "stdin", Run: func(context.Context) error {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
			plain.Stop()
			return nil
		}},
	)
}

// BenchmarkCall measures an ordinary call, gRPC over TCP to another process and its pooled stdio server, beside what it is
// made of: the same call by the SDK's own client, and a gRPC call of nothing to that process. The three are interleaved, so
// that the ratios mean something on a machine that others use too.
//
//	ratio-p50    p50 at 1 concurrent, over the sum of both baselines' (DESIGN §9: at most 1.1)
//	ratio-thr16  calls per second at 16 concurrent, over the SDK's (at least 0.85)
func BenchmarkCall(b *testing.B) {
	for _, size := range []int{64, 10 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) { benchmarkCall(b, size) })
	}
}

func benchmarkCall(b *testing.B, size int) {
	arguments := fmt.Sprintf(`{"text":%q}`, string(slices.Repeat([]byte("x"), size)))
	request := &toolproxyv1.CallToolRequest{
		Name: "bench_echo", Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: arguments},
		View: toolproxyv1.ResultView_RESULT_VIEW_JSON,
	}
	proxied, empty := proxyClients(b)
	direct := directSession(b)

	// As a real client's, each call has a deadline.
	within := func(f func(ctx context.Context) error) func() error {
		return func() error {
			ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
			defer cancel()
			return f(ctx)
		}
	}
	callDirect := within(func(ctx context.Context) error {
		_, err := direct.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: []byte(arguments)})
		return err
	})
	callNothing := within(func(ctx context.Context) error { _, err := empty.CallTool(ctx, request); return err })
	callProxied := within(func(ctx context.Context) error { _, err := proxied.CallTool(ctx, request); return err })
	for _, f := range []func() error{callDirect, callNothing, callProxied} {
		measure(b, f, 1, 200) // warm up
	}

	var one, sixteen [3][]float64 // latency p50 in µs; calls per second
	for b.Loop() {
		for i, f := range []func() error{callDirect, callNothing, callProxied} {
			p50, _ := measure(b, f, 1, 400)
			_, rate := measure(b, f, 16, 2000)
			one[i] = append(one[i], float64(p50.Nanoseconds())/1e3)
			sixteen[i] = append(sixteen[i], rate)
		}
	}
	b.ReportMetric(median(one[0]), "direct-p50-µs")
	b.ReportMetric(median(one[1]), "noop-p50-µs")
	b.ReportMetric(median(one[2]), "proxy-p50-µs")
	b.ReportMetric(medianRatio(one[2], func(i int) float64 { return one[0][i] + one[1][i] }), "ratio-p50")
	b.ReportMetric(median(sixteen[0]), "direct-16/s")
	b.ReportMetric(median(sixteen[2]), "proxy-16/s")
	b.ReportMetric(medianRatio(sixteen[2], func(i int) float64 { return sixteen[0][i] }), "ratio-thr16")
	b.ReportMetric(0, "ns/op")
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

func medianRatio(v []float64, over func(i int) float64) float64 {
	ratios := make([]float64, len(v))
	for i := range v {
		ratios[i] = v[i] / over(i)
	}
	return median(ratios)
}

// measure makes n calls, so many at once, and returns the median latency and the calls per second.
func measure(b *testing.B, f func() error, concurrency, n int) (time.Duration, float64) {
	b.Helper()
	latencies := make([][]time.Duration, concurrency)
	errs := make([]error, concurrency)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range concurrency {
		wg.Go(func() {
			for range n / concurrency {
				began := time.Now()
				if err := f(); err != nil {
					errs[i] = err
					return
				}
				latencies[i] = append(latencies[i], time.Since(began))
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	if err := cmp.Or(errs...); err != nil {
		b.Fatal(err)
	}
	all := slices.Sorted(slices.Values(slices.Concat(latencies...)))
	return all[len(all)/2], float64(len(all)) / elapsed.Seconds()
}

// proxyClients starts the process with both gRPC servers and returns clients of the toolproxy and of the other one.
func proxyClients(b *testing.B) (proxied, empty toolproxyv1.ToolProxyServiceClient) {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "PEER=proxy")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	var addresses [2]string
	if _, err := fmt.Fscanln(out, &addresses[0], &addresses[1]); err != nil {
		b.Fatal(err)
	}
	var clients [2]toolproxyv1.ToolProxyServiceClient
	for i, address := range addresses {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		clients[i] = toolproxyv1.NewToolProxyServiceClient(conn)
	}
	// The tool is waited for by the first call.
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
	defer cancel()
	for {
		_, err := clients[0].CallTool(ctx, &toolproxyv1.CallToolRequest{Name: "bench_echo"}, grpc.WaitForReady(true))
		if err == nil {
			return clients[0], clients[1]
		}
		if ctx.Err() != nil {
			b.Fatal(err)
		}
	}
}

func directSession(b *testing.B) *mcp.ClientSession {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "PEER=sdk")
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	s, err := client.Connect(b.Context(), &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}
