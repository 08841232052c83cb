package rpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

func TestUnaryCallsGetADeadlineAndStreamsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left time.Duration
		var has bool
		impl := tool{
			call: func(ctx context.Context, _ *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
				var deadline time.Time
				deadline, has = ctx.Deadline()
				left = time.Until(deadline)
				return &toolproxyv1.CallToolResponse{}, nil
			},
			stream: func(st grpc.ServerStreamingServer[toolproxyv1.StreamCallToolResponse]) error {
				_, has = st.Context().Deadline()
				return nil
			},
		}
		call := func(ctx context.Context, o rpc.ClientOptions) {
			t.Helper()
			conn, _ := inProcess(t, impl, rpc.ServerOptions{Log: new(logged).log()}, o)
			if _, err := toolproxyv1.NewToolProxyServiceClient(conn).CallTool(ctx, &toolproxyv1.CallToolRequest{}); err != nil {
				t.Error(err)
			}
		}
		call(t.Context(), rpc.ClientOptions{})
		if !has || left != rpc.DefaultTimeout {
			t.Errorf("default: %v left", left)
		}
		call(t.Context(), rpc.ClientOptions{DefaultTimeout: time.Hour})
		if !has || left != time.Hour {
			t.Errorf("configured: %v left", left)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		call(ctx, rpc.ClientOptions{})
		if !has || left != time.Minute {
			t.Errorf("of the caller: %v left", left)
		}
		call(t.Context(), rpc.ClientOptions{DefaultTimeout: -1})
		if has {
			t.Errorf("none wanted: %v left", left)
		}
		conn, _ := inProcess(t, impl, rpc.ServerOptions{Log: new(logged).log()}, rpc.ClientOptions{})
		stream, err := toolproxyv1.NewToolProxyServiceClient(conn).StreamCallTool(t.Context(), &toolproxyv1.StreamCallToolRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) || has {
			t.Errorf("a stream ended with %v and had a deadline: %v", err, has)
		}
	})
}

func TestOwnDeadlineAndCancelAreThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		impl := tool{call: func(ctx context.Context, _ *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		var out logged
		conn, _ := inProcess(t, impl, rpc.ServerOptions{Log: out.log()}, rpc.ClientOptions{DefaultTimeout: time.Minute})
		client := toolproxyv1.NewToolProxyServiceClient(conn)
		_, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
		if !fault.Is(err, fault.Timeout) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "CallTool") {
			t.Errorf("deadline: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = client.CallTool(ctx, &toolproxyv1.CallToolRequest{})
		if fault.KindOf(err) != fault.Canceled || !errors.Is(err, context.Canceled) {
			t.Errorf("cancel: %v", err)
		}
		synctest.Wait()
		if strings.Contains(out.String(), "level=ERROR") {
			t.Errorf("the server blames itself:\n%s", out.String())
		}
	})
}

func TestOnlyIdempotentMethodsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, lists atomic.Int32
		unavailable := fault.New(fault.NotReady, "no snapshot yet")
		impl := tool{
			call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
				calls.Add(1)
				return nil, unavailable
			},
			list: func(context.Context) error {
				if lists.Add(1) < 3 {
					return unavailable
				}
				return nil
			},
		}
		conn, _ := inProcess(t, impl, rpc.ServerOptions{Log: new(logged).log()}, rpc.ClientOptions{})
		client := toolproxyv1.NewToolProxyServiceClient(conn)
		if _, err := client.ListServers(t.Context(), &toolproxyv1.ListServersRequest{}); err != nil || lists.Load() != 3 {
			t.Errorf("ListServers: %v after %d attempts, want success at the third", err, lists.Load())
		}
		if _, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{}); !fault.Is(err, fault.NotReady) || calls.Load() != 1 {
			t.Errorf("CallTool: %v after %d attempts, want one", err, calls.Load())
		}
		lists.Store(-100)
		if _, err := client.ListServers(t.Context(), &toolproxyv1.ListServersRequest{}); !fault.Is(err, fault.NotReady) || lists.Load() != -96 {
			t.Errorf("ListServers: %v after %d attempts, want four", err, lists.Load()+100)
		}
	})
}

// A connection that breaks under a call tells nothing about the call, so only harmless ones look retryable.
func TestALostConnectionIsNotUnavailable(t *testing.T) {
	entered := make(chan struct{}, 10)
	wait := func(ctx context.Context) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	impl := tool{
		call: func(ctx context.Context, _ *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
			return nil, wait(ctx)
		},
		list: wait,
		stream: func(st grpc.ServerStreamingServer[toolproxyv1.StreamCallToolResponse]) error {
			return wait(st.Context())
		},
	}
	s := newServer(t, rpc.ServerOptions{Log: new(logged).log()})
	toolproxyv1.RegisterToolProxyServiceServer(s, impl)
	l := &breaking{Listener: listen(t)}
	serve(t, s, l)
	conn := dial(t, l.Addr().String(), rpc.ClientOptions{})
	client := toolproxyv1.NewToolProxyServiceClient(conn)

	for name, tt := range map[string]struct {
		call func() error
		kind fault.Kind
		text string
	}{
		"with an effect": {kind: fault.Unknown, text: "whether it took effect is unknown", call: func() error {
			_, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
			return err
		}},
		"a stream with an effect": {kind: fault.Unknown, text: "whether it took effect is unknown", call: func() error {
			stream, err := client.StreamCallTool(t.Context(), &toolproxyv1.StreamCallToolRequest{})
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		}},
	} {
		failed := make(chan error, 1)
		go func() { failed <- tt.call() }()
		<-entered
		l.breakAll()
		if err := <-failed; fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v of kind %v, want kind %v", name, err, fault.KindOf(err), tt.kind)
		}
	}

	failed := make(chan error, 1)
	go func() {
		_, err := client.ListServers(t.Context(), &toolproxyv1.ListServersRequest{})
		failed <- err
	}()
	for range 4 { // the attempts of an idempotent method
		<-entered
		l.breakAll()
	}
	if err := <-failed; !fault.Is(err, fault.NotReady) {
		t.Errorf("without an effect: %v, want NOT_READY", err)
	}
}

// breaking is a listener whose connections can be cut.
type breaking struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *breaking) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *breaking) breakAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
	l.conns = nil
}

func TestATokenDoesNotLeaveTheMachineInPlaintext(t *testing.T) {
	token := func() (string, error) { return "x", nil }
	for target, ok := range map[string]bool{
		"127.0.0.1:7401":          true,
		"[::1]:7401":              true,
		"localhost:7401":          true,
		"dns:///localhost:7401":   true,
		"unix:/run/x.sock":        true,
		"taskworker:7403":         false,
		"10.0.0.7:7403":           false,
		"dns:///taskworker:7403":  false,
		"127.0.0.1.example:7403":  false,
		"[2001:db8::1]:7403":      false,
		"dns://10.0.0.1/host:123": false,
	} {
		conn, err := rpc.Dial(target, rpc.ClientOptions{Token: token})
		if (err == nil) != ok {
			t.Errorf("%s: %v", target, err)
		}
		if conn != nil {
			conn.Close()
		}
		conn, err = rpc.Dial(target, rpc.ClientOptions{Token: token, InsecurePlaintext: true})
		if err != nil {
			t.Errorf("%s, allowed: %v", target, err)
			continue
		}
		conn.Close()
	}
}

func TestATokenThatCannotBeReadFailsTheCall(t *testing.T) {
	_, address := tcp(t, tool{}, rpc.ServerOptions{Log: new(logged).log()})
	conn := dial(t, address, rpc.ClientOptions{Token: func() (string, error) { return "", errors.New("file is gone") }})
	client := toolproxyv1.NewToolProxyServiceClient(conn)
	if _, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{}); err == nil || !strings.Contains(err.Error(), "file is gone") {
		t.Errorf("unary: %v", err)
	}
	if _, err := client.StreamCallTool(t.Context(), &toolproxyv1.StreamCallToolRequest{}); err == nil || !strings.Contains(err.Error(), "file is gone") {
		t.Errorf("stream: %v", err)
	}
}
