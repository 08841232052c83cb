package rpc_test

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/rpc"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// answers is a ToolProxyService that does nothing.
type answers struct {
	toolproxyv1.UnimplementedToolProxyServiceServer
	result string
}

func (a answers) CallTool(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
	return &toolproxyv1.CallToolResponse{Outcome: &toolproxyv1.CallToolResponse_Result{
		Result: &toolproxyv1.ToolResult{ResultJson: a.result},
	}}, nil
}

// BenchmarkNoOp compares a unary call through this package with one through bare grpc-go, over TCP, interleaved. It
// reports percentiles of each in microseconds; ns/op is of all together.
//
// "ours" has a token, metrics and a tracer that samples nothing; "sampled" records every span.
func BenchmarkNoOp(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"small", 16}, {"1MB", 1 << 20}} {
		for _, concurrency := range []int{1, 16} {
			b.Run(size.name+"/"+map[int]string{1: "c=1", 16: "c=16"}[concurrency], func(b *testing.B) {
				benchNoOp(b, answers{result: string(make([]byte, size.bytes))}, concurrency)
			})
		}
	}
}

func benchNoOp(b *testing.B, impl answers, concurrency int) {
	type variant struct {
		name   string
		client toolproxyv1.ToolProxyServiceClient
		took   []time.Duration
	}
	variants := []*variant{
		{name: "bare", client: bareClient(b, impl)},
		{name: "ours", client: ourClient(b, impl, sdktrace.ParentBased(sdktrace.NeverSample()))},
		{name: "sampled", client: ourClient(b, impl, sdktrace.AlwaysSample())},
	}
	const batch = 20
	request := &toolproxyv1.CallToolRequest{Name: "echo_echo"}
	for b.Loop() {
		for _, v := range variants {
			// Several calls in a row: what one leaves behind, such as grpc's pings, must not be charged to the next variant.
			took := make([]time.Duration, concurrency*batch)
			var wg sync.WaitGroup
			for i := range concurrency {
				wg.Go(func() {
					for j := range batch {
						ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
						start := time.Now()
						if _, err := v.client.CallTool(ctx, request); err != nil {
							b.Error(err)
						}
						took[i*batch+j] = time.Since(start)
						cancel()
					}
				})
			}
			wg.Wait()
			v.took = append(v.took, took...)
		}
	}
	for _, v := range variants {
		slices.Sort(v.took)
		b.ReportMetric(float64(v.took[len(v.took)/10].Nanoseconds())/1e3, v.name+"-p10-µs")
		b.ReportMetric(float64(v.took[len(v.took)/2].Nanoseconds())/1e3, v.name+"-p50-µs")
	}
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func bareClient(tb testing.TB, impl answers) toolproxyv1.ToolProxyServiceClient {
	tb.Helper()
	server := grpc.NewServer()
	toolproxyv1.RegisterToolProxyServiceServer(server, impl)
	l := listen(tb)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		conn.Close()
		server.Stop()
		<-served
	})
	return toolproxyv1.NewToolProxyServiceClient(conn)
}

func ourClient(tb testing.TB, impl answers, sampler sdktrace.Sampler) toolproxyv1.ToolProxyServiceClient {
	tb.Helper()
	token, sum := authn.NewToken()
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler))
	server := newServer(tb, rpc.ServerOptions{
		Log: slog.New(slog.DiscardHandler), Tracing: tracing, Metrics: prometheus.NewRegistry(),
		Tokens: tokens(tb, "- {name: bench, sha256: "+sum+", roles: [agent]}"),
	})
	toolproxyv1.RegisterToolProxyServiceServer(server, impl)
	l := listen(tb)
	serve(tb, server, l)
	conn := dial(tb, l.Addr().String(), rpc.ClientOptions{Tracing: tracing, Token: func() (string, error) { return token, nil }})
	return toolproxyv1.NewToolProxyServiceClient(conn)
}
