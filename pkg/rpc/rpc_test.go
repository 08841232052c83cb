package rpc_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/rpc"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newServer makes a server that logs to the test unless the options say otherwise.
func newServer(tb testing.TB, o rpc.ServerOptions) *rpc.Server {
	tb.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s, err := rpc.NewServer(o)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// serve serves until the test ends or the returned function is called, which waits and returns what Serve returned.
func serve(tb testing.TB, s *rpc.Server, l net.Listener) (stop func() error) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	stopped := false
	stop = func() error {
		cancel()
		if stopped {
			return nil
		}
		stopped = true
		return <-served
	}
	tb.Cleanup(func() {
		if err := stop(); err != nil {
			tb.Errorf("Serve: %v", err)
		}
	})
	return stop
}

// dial connects until the test ends; connections close before servers stop.
func dial(tb testing.TB, target string, o rpc.ClientOptions) *grpc.ClientConn {
	tb.Helper()
	conn, err := rpc.Dial(target, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return conn
}

// tokens opens a tokens.yaml with this content.
func tokens(tb testing.TB, content string) *authn.Tokens {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
	t, err := authn.OpenTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// tool is a ToolProxyService whose methods are functions. A missing one answers UNIMPLEMENTED.
type tool struct {
	toolproxyv1.UnimplementedToolProxyServiceServer
	call   func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error)
	list   func(context.Context) error
	stream func(grpc.ServerStreamingServer[toolproxyv1.StreamCallToolResponse]) error
	watch  func(grpc.ServerStreamingServer[toolproxyv1.WatchServersResponse]) error
}

func (s tool) CallTool(ctx context.Context, r *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
	if s.call == nil {
		return &toolproxyv1.CallToolResponse{}, nil
	}
	return s.call(ctx, r)
}

// ListServers is declared free of side effects.
func (s tool) ListServers(ctx context.Context, _ *toolproxyv1.ListServersRequest) (*toolproxyv1.ListServersResponse, error) {
	if s.list == nil {
		return &toolproxyv1.ListServersResponse{}, nil
	}
	return &toolproxyv1.ListServersResponse{}, s.list(ctx)
}

func (s tool) StreamCallTool(_ *toolproxyv1.StreamCallToolRequest, st grpc.ServerStreamingServer[toolproxyv1.StreamCallToolResponse]) error {
	return s.stream(st)
}

func (s tool) WatchServers(_ *toolproxyv1.WatchServersRequest, st grpc.ServerStreamingServer[toolproxyv1.WatchServersResponse]) error {
	return s.watch(st)
}

// inProcess serves impl on a loopback until the test ends and returns the connection and what serve returns.
func inProcess(tb testing.TB, impl toolproxyv1.ToolProxyServiceServer, so rpc.ServerOptions, co rpc.ClientOptions) (*grpc.ClientConn, func() error) {
	tb.Helper()
	so.Peer = so.Tokens == nil
	s := newServer(tb, so)
	toolproxyv1.RegisterToolProxyServiceServer(s, impl)
	l := rpc.NewLoopback()
	stop := serve(tb, s, l.Listener())
	conn, err := l.Dial(co)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return conn, stop
}

// logged is a log that tests read.
type logged struct {
	mu  sync.Mutex
	out strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}

func (l *logged) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// eventually polls until f returns nil, and fails with what it waited for.
func eventually(tb testing.TB, what string, f func() error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return
		}
		if backoff.Sleep(ctx, 10*time.Millisecond) != nil {
			tb.Fatalf("waited 10s for %s: %v", what, err)
		}
	}
}
