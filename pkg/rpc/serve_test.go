package rpc_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

const toolProxyService = "toolherd.toolproxy.v1.ToolProxyService"

// health asks for the state of a service.
func health(t *testing.T, conn *grpc.ClientConn, service string) healthv1.HealthCheckResponse_ServingStatus {
	t.Helper()
	r, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		t.Fatalf("health of %q: %v", service, err)
	}
	return r.GetStatus()
}

// OPS-005: a service serves while its own readiness says so, whatever the others do, and "" while all do.
func TestHealthFollowsReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var database, snapshot atomic.Bool
		snapshot.Store(true)
		ready := func(have *atomic.Bool) func(context.Context) error {
			return func(context.Context) error {
				if !have.Load() {
					return errors.New("not there")
				}
				return nil
			}
		}
		conn, _ := inProcess(t, tool{}, rpc.ServerOptions{Log: new(logged).log(), Ready: map[string]func(context.Context) error{
			toolProxyService: ready(&snapshot),
			"other":          ready(&database),
		}}, rpc.ClientOptions{})
		expect := func(when string, whole, tools, other healthv1.HealthCheckResponse_ServingStatus) {
			t.Helper()
			synctest.Wait()
			for service, want := range map[string]healthv1.HealthCheckResponse_ServingStatus{"": whole, toolProxyService: tools, "other": other} {
				if got := health(t, conn, service); got != want {
					t.Errorf("%s: %q is %v, want %v", when, service, got, want)
				}
			}
		}
		const up, down = healthv1.HealthCheckResponse_SERVING, healthv1.HealthCheckResponse_NOT_SERVING
		expect("at first", down, up, down)
		database.Store(true)
		time.Sleep(100 * time.Millisecond)
		expect("with a database", up, up, up)
		snapshot.Store(false)
		time.Sleep(time.Second)
		expect("later", down, down, up)
	})
}

func TestReadinessThatHangsIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, rpc.ServerOptions{Peer: true, Log: new(logged).log(), Ready: map[string]func(context.Context) error{
			toolProxyService: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		}})
		if err := s.Ready(t.Context()); err == nil {
			t.Error("a server is ready before Serve")
		}
		serve(t, s, rpc.NewLoopback().Listener())
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := s.AwaitReady(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), toolProxyService) {
			t.Errorf("AwaitReady returned %v, want the end of ctx and the service", err)
		}
	})
}

func TestAwaitReadyWaitsForAllServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := time.Now().Add(3 * time.Second)
		s := newServer(t, rpc.ServerOptions{Peer: true, Log: new(logged).log(), Ready: map[string]func(context.Context) error{
			"slow": func(context.Context) error {
				if time.Now().Before(ready) {
					return errors.New("no snapshot yet")
				}
				return nil
			},
		}})
		serve(t, s, rpc.NewLoopback().Listener())
		if err := s.AwaitReady(t.Context()); err != nil || time.Now().Before(ready) || time.Since(ready) > time.Second {
			t.Errorf("AwaitReady returned %v %v after the service was ready", err, time.Since(ready))
		}
		if err := s.Ready(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// OPS-005, the part about order: a connection made before its server exists works once the server is there.
func TestServicesStartInAnyOrder(t *testing.T) {
	l := listen(t)
	address := l.Addr().String()
	l.Close()
	conn := dial(t, address, rpc.ClientOptions{})
	client := toolproxyv1.NewToolProxyServiceClient(conn)
	if _, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{}); !fault.Is(err, fault.NotReady) || !strings.Contains(err.Error(), address) {
		t.Errorf("without a server: %v, want NOT_READY that names the address", err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, rpc.ServerOptions{})
	toolproxyv1.RegisterToolProxyServiceServer(s, tool{})
	serve(t, s, l)
	eventually(t, "the connection to find its server", func() error {
		_, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
		return err
	})
}

func TestShutdownLetsRunningCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entered, release := make(chan struct{}), make(chan struct{})
		impl := tool{call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
			close(entered)
			<-release
			return &toolproxyv1.CallToolResponse{}, nil
		}}
		conn, stop := inProcess(t, impl, rpc.ServerOptions{Log: new(logged).log(), DrainTimeout: time.Minute}, rpc.ClientOptions{})
		synctest.Wait() // until the server is up
		watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		nextHealth(t, watch, healthv1.HealthCheckResponse_SERVING)

		called := make(chan error, 1)
		client := toolproxyv1.NewToolProxyServiceClient(conn)
		go func() {
			_, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
			called <- err
		}()
		<-entered
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }()
		nextHealth(t, watch, healthv1.HealthCheckResponse_NOT_SERVING)
		time.Sleep(10 * time.Second)
		select {
		case err := <-stopped:
			t.Fatalf("Serve returned %v while a call was running", err)
		default:
		}
		if _, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{}); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("a call during the shutdown: %v, want UNAVAILABLE", err)
		}
		close(release)
		if err := <-called; err != nil {
			t.Errorf("the running call failed: %v", err)
		}
		if err := <-stopped; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
}

func nextHealth(t *testing.T, watch grpc.ServerStreamingClient[healthv1.HealthCheckResponse], want healthv1.HealthCheckResponse_ServingStatus) {
	t.Helper()
	r, err := watch.Recv()
	if err != nil || r.GetStatus() != want {
		t.Fatalf("health watch got %v, %v, want %v", r.GetStatus(), err, want)
	}
}

func TestShutdownCancelsWhatOutlivesTheDrainTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entered := make(chan struct{})
		ended := false
		impl := tool{call: func(ctx context.Context, _ *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
			close(entered)
			<-ctx.Done()
			ended = true
			return nil, ctx.Err()
		}}
		conn, stop := inProcess(t, impl, rpc.ServerOptions{Log: new(logged).log(), DrainTimeout: 10 * time.Second}, rpc.ClientOptions{})
		called := make(chan error, 1)
		go func() {
			_, err := toolproxyv1.NewToolProxyServiceClient(conn).CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
			called <- err
		}()
		<-entered
		start := time.Now()
		if err := stop(); err != nil {
			t.Errorf("Serve returned %v", err)
		}
		if took := time.Since(start); took != 10*time.Second || !ended {
			t.Errorf("Serve took %v and the handler ended is %v", took, ended)
		}
		// It ran, perhaps to its effect, so it must not look like a call that may be made again.
		if err := <-called; fault.KindOf(err) != fault.Unknown {
			t.Errorf("the caller got %v of kind %v, want UNKNOWN", err, fault.KindOf(err))
		}
	})
}

func TestServeReportsHandlersThatIgnoreTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entered, release := make(chan struct{}), make(chan struct{})
		impl := tool{call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
			close(entered)
			<-release
			return nil, nil
		}}
		conn, stop := inProcess(t, impl, rpc.ServerOptions{Log: new(logged).log(), DrainTimeout: time.Second}, rpc.ClientOptions{})
		go toolproxyv1.NewToolProxyServiceClient(conn).CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
		<-entered
		start := time.Now()
		if err := stop(); err == nil || !strings.Contains(err.Error(), "ignore") || time.Since(start) > 10*time.Second {
			t.Errorf("Serve returned %v after %v", err, time.Since(start))
		}
		close(release)
	})
}

func TestWatchesEndWhenTheServerDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		impl := tool{watch: func(st grpc.ServerStreamingServer[toolproxyv1.WatchServersResponse]) error {
			if err := st.Send(&toolproxyv1.WatchServersResponse{}); err != nil {
				return err
			}
			select {
			case <-rpc.Draining(st.Context()):
				return fault.New(fault.NotReady, "the server is shutting down: watch again")
			case <-st.Context().Done():
				return st.Context().Err()
			}
		}}
		conn, stop := inProcess(t, impl, rpc.ServerOptions{Log: new(logged).log()}, rpc.ClientOptions{})
		stream, err := toolproxyv1.NewToolProxyServiceClient(conn).WatchServers(t.Context(), &toolproxyv1.WatchServersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := stop(); err != nil || time.Since(start) > time.Second {
			t.Errorf("Serve returned %v after %v", err, time.Since(start))
		}
		if _, err := stream.Recv(); !fault.Is(err, fault.NotReady) {
			t.Errorf("the watcher got %v", err)
		}
		if rpc.Draining(t.Context()) != nil {
			t.Error("Draining outside a call is not nil")
		}
	})
}

func TestServeReturnsWhenItsListenerBreaks(t *testing.T) {
	s := newServer(t, rpc.ServerOptions{Peer: true, Log: new(logged).log()})
	l := listen(t)
	l.Close()
	if err := s.Serve(t.Context(), l); err == nil {
		t.Error("Serve on a closed listener returned nil")
	}
	if err := s.Serve(t.Context(), listen(t)); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("second Serve: %v", err)
	}
}

func TestServeAfterItsContextEndedDoesNotHang(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := newServer(t, rpc.ServerOptions{Peer: true, Log: new(logged).log()})
	if err := s.Serve(ctx, listen(t)); err != nil {
		t.Error(err)
	}
}

func TestNewServerRefusesContradictions(t *testing.T) {
	log := new(logged).log()
	for name, o := range map[string]rpc.ServerOptions{
		"no log":           {},
		"peer with tokens": {Log: log, Peer: true, Tokens: tokens(t, "[]")},
		"peer and public":  {Log: log, Peer: true, Public: true},
		"negative limit":   {Log: log, MaxMessageBytes: -1},
	} {
		if _, err := rpc.NewServer(o); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
