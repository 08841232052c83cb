package host

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/run"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// callee serves a call that ends when told.
type callee struct {
	toolproxyv1.UnimplementedToolProxyServiceServer
	journal *journal
	entered chan struct{}
	release chan struct{}
}

func (c *callee) Register(r grpc.ServiceRegistrar) { toolproxyv1.RegisterToolProxyServiceServer(r, c) }

func (c *callee) Ready(context.Context) error { return nil }

func (c *callee) Run(ctx context.Context) error {
	<-ctx.Done()
	c.journal.add("callee ends")
	return nil
}

func (c *callee) ListServers(context.Context, *toolproxyv1.ListServersRequest) (*toolproxyv1.ListServersResponse, error) {
	c.entered <- struct{}{}
	<-c.release
	c.journal.add("call is answered")
	return &toolproxyv1.ListServersResponse{}, nil
}

func (c *callee) ListSessions(context.Context, *toolproxyv1.ListSessionsRequest) (*toolproxyv1.ListSessionsResponse, error) {
	c.journal.add("callee serves the caller's last call")
	return &toolproxyv1.ListSessionsResponse{}, nil
}

// caller needs the callee to end in order, as a worker does that drains.
type caller struct {
	journal *journal
	conn    *grpc.ClientConn
}

func (*caller) Register(grpc.ServiceRegistrar) {}

func (*caller) Ready(context.Context) error { return nil }

func (c *caller) Run(ctx context.Context) error {
	<-ctx.Done()
	c.journal.add("caller ends")
	_, err := toolproxyv1.NewToolProxyServiceClient(c.conn).ListSessions(context.WithoutCancel(ctx), &toolproxyv1.ListSessionsRequest{})
	return err
}

// OPS-007
func TestTheProcessStopsFromThePublicListenerInwards(t *testing.T) {
	cfg := config.Defaults()
	cfg.Listen, cfg.HTTPListen = "127.0.0.1:0", ""
	env, err := Open(t.Context(), "test", cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var j journal
	env.onClose(func(context.Context) error { j.add("database closes"); return nil })
	loopback := rpc.NewLoopback()
	inner, err := loopback.Dial(rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	proxy := &callee{journal: &j, entered: make(chan struct{}), release: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	addresses, done := make(chan string, 1), make(chan error)
	go func() {
		done <- env.Serve(ctx, Serving{
			Services: []Named{
				{Name: "callee", Service: proxy, Stop: 1},
				{Name: "caller", Service: &caller{journal: &j, conn: inner}},
			},
			Tasks: []run.Task{{Name: "bus", Run: func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			}}},
			Loopback: loopback,
			Announce: func(grpcAddr, _ string) error { addresses <- grpcAddr; return nil },
		})
	}()
	conn, err := rpc.Dial(<-addresses, rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	health, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{Service: "toolherd.toolproxy.v1.ToolProxyService"})
	if err != nil {
		t.Fatal(err)
	}
	until(t, health, healthv1.HealthCheckResponse_SERVING)

	answered := make(chan error)
	go func() {
		_, err := toolproxyv1.NewToolProxyServiceClient(conn).ListServers(t.Context(), &toolproxyv1.ListServersRequest{})
		answered <- err
	}()
	<-proxy.entered
	cancel()
	until(t, health, healthv1.HealthCheckResponse_NOT_SERVING)
	j.add("not ready")
	close(proxy.release)
	if err := <-answered; err != nil {
		t.Errorf("the call that ran when the process was told to stop: %v", err)
	}
	if err := errors.Join(<-done, env.Close(t.Context()), inner.Close(), conn.Close()); err != nil {
		t.Fatal(err)
	}
	want := []string{"not ready", "call is answered", "caller ends", "callee serves the caller's last call", "callee ends", "database closes"}
	if got := j.list(); !slices.Equal(got, want) {
		t.Fatalf("got  %q\nwant %q", got, want)
	}
}

func until(t *testing.T, health healthv1.Health_WatchClient, want healthv1.HealthCheckResponse_ServingStatus) {
	t.Helper()
	for {
		msg, err := health.Recv()
		if err != nil {
			t.Fatalf("health before %v: %v", want, err)
		}
		if msg.GetStatus() == want {
			return
		}
	}
}
