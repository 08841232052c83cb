// Package exchangetest helps to test the HTTP wires: a plain peer in place of the multiplexer, a server that records
// what reaches it, and MCP servers of the Go SDK.
package exchangetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolherd/toolherd/pkg/safehttp"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// Patience is how long a test waits for what must happen.
const Patience = 20 * time.Second

// Peer speaks JSON-RPC over a wire that it runs.
type Peer struct {
	t    testing.TB
	wire link.SinkWire
	stop context.CancelFunc
	end  chan error // Run's result

	lastID atomic.Int64
	mu     sync.Mutex
	calls  map[string]chan jsonrpc.Message
	// Others are the messages that answer no call: notifications and requests of the server.
	Others chan jsonrpc.Message
	// Dropped are the errors of messages that the wire discarded for no known call.
	Dropped chan error
}

// Start runs w until the test ends.
func Start(tb testing.TB, w link.SinkWire) *Peer {
	tb.Helper()
	ctx, stop := context.WithCancel(tb.Context())
	p := &Peer{
		t: tb, wire: w, stop: stop, end: make(chan error, 1), calls: map[string]chan jsonrpc.Message{},
		Others: make(chan jsonrpc.Message, 1000), Dropped: make(chan error, 1000),
	}
	go func() { p.end <- w.RunSink(ctx, p) }()
	tb.Cleanup(func() {
		stop()
		if p.end != nil {
			p.Wait()
		}
	})
	return p
}

// Wait waits for the end of the wire and returns why it ended.
func (p *Peer) Wait() error {
	p.t.Helper()
	select {
	case err := <-p.end:
		p.end = nil
		return err
	case <-time.After(Patience):
		p.t.Fatal("the wire has not ended")
		return nil
	}
}

// Close closes the wire and returns Close's error after the wire has ended.
func (p *Peer) Close() error {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), Patience)
	defer cancel()
	err := p.wire.Close(ctx)
	_ = p.Wait()
	return err
}

// Deliver implements link.Sink.
func (p *Peer) Deliver(msg []byte) { p.DeliverFor(nil, msg) }

// DeliverFor implements link.Sink.
func (p *Peer) DeliverFor(request jsonrpc.ID, msg []byte) {
	m, err := jsonrpc.Parse(msg)
	id := m.ID
	if m.Kind == jsonrpc.Failure && id == nil {
		id = request
	}
	if err != nil && !m.Answers() {
		p.t.Errorf("delivered %q: %v", msg, err)
		return
	}
	if m.Method == "" {
		p.mu.Lock()
		c := p.calls[string(id)]
		delete(p.calls, string(id))
		p.mu.Unlock()
		if c != nil {
			c <- m
			return
		}
	}
	p.Others <- m
}

// Drop implements link.Sink.
func (p *Peer) Drop(head *jsonrpc.Head, err error) {
	p.mu.Lock()
	c := p.calls[string(head.ID())]
	delete(p.calls, string(head.ID()))
	p.mu.Unlock()
	if c == nil {
		p.Dropped <- err
		return
	}
	c <- jsonrpc.Message{Kind: jsonrpc.Invalid, Method: err.Error()}
}

// ErrDropped is returned by Call when the wire discarded the answer.
var ErrDropped = errors.New("answer discarded")

// Call sends a request and waits for its answer, which ctx bounds.
func (p *Peer) Call(ctx context.Context, method, params string) (jsonrpc.Message, error) {
	id := p.lastID.Add(1)
	key := fmt.Sprint(id)
	c := make(chan jsonrpc.Message, 1)
	p.mu.Lock()
	p.calls[key] = c
	p.mu.Unlock()
	if err := p.wire.Send(ctx, jsonrpc.AppendRequest(nil, id, method, []byte(params))); err != nil {
		p.mu.Lock()
		delete(p.calls, key)
		p.mu.Unlock()
		return jsonrpc.Message{}, err
	}
	select {
	case m := <-c:
		if m.Kind == jsonrpc.Invalid && m.ID == nil {
			return m, fmt.Errorf("%w: %s", ErrDropped, m.Method)
		}
		return m, nil
	case <-ctx.Done():
		return jsonrpc.Message{}, ctx.Err()
	case <-time.After(Patience):
		return jsonrpc.Message{}, errors.New("no answer was delivered")
	}
}

// Notify sends a notification.
func (p *Peer) Notify(ctx context.Context, method, params string) error {
	return p.wire.Send(ctx, jsonrpc.AppendNotification(nil, method, []byte(params)))
}

// Initialize is the legacy handshake.
func (p *Peer) Initialize(ctx context.Context) error {
	m, err := p.Call(ctx, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
	if err != nil {
		return err
	}
	if m.Kind != jsonrpc.Response {
		return fmt.Errorf("initialize: %s", m.Error)
	}
	return p.Notify(ctx, "notifications/initialized", "")
}

// MustInitialize is Initialize that fails the test.
func (p *Peer) MustInitialize() {
	p.t.Helper()
	if err := p.Initialize(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

// Server is an HTTP server that records what reaches it.
type Server struct {
	*httptest.Server
	conns atomic.Int64
	idle  atomic.Int64

	mu       sync.Mutex
	requests []*http.Request
}

// Serve starts a server on loopback that lives as long as the test.
func Serve(tb testing.TB, h http.Handler) *Server {
	tb.Helper()
	s := &Server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Clone(context.WithoutCancel(r.Context())))
		s.mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		switch st {
		case http.StateNew:
			s.conns.Add(1)
		case http.StateIdle:
			s.idle.Add(1)
		case http.StateActive, http.StateHijacked, http.StateClosed:
		}
	}
	s.Start()
	tb.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// Requests returns what has been asked so far with this method, or with any if it is empty.
func (s *Server) Requests(method string) []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*http.Request
	for _, r := range s.requests {
		if method == "" || r.Method == method {
			out = append(out, r)
		}
	}
	return out
}

// Conns returns the number of connections made so far.
func (s *Server) Conns() int { return int(s.conns.Load()) }

// Idle returns how often a connection has become idle, each time after one exchange.
func (s *Server) Idle() int { return int(s.idle.Load()) }

// Transport returns a transport that may reach loopback and ends with the test.
func Transport(tb testing.TB) *safehttp.Transport {
	tb.Helper()
	tr := safehttp.NewTransport(safehttp.Options{AllowPrivate: safehttp.AnyHost, MaxBodyBytes: -1})
	tb.Cleanup(tr.CloseIdleConnections)
	return tr
}

// NewMCPServer returns a server of the Go SDK with the tools echo, which returns its arguments, token, which
// returns the Authorization header of its call, and slow, which sends progress and ends when release is closed.
func NewMCPServer(release <-chan struct{}) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	object := map[string]any{"type": "object"}
	text := func(s string) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}, nil
	}
	s.AddTool(&mcp.Tool{Name: "echo", InputSchema: object}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(string(r.Params.Arguments))
	})
	s.AddTool(&mcp.Tool{Name: "token", InputSchema: object}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(r.Extra.Header.Get("Authorization"))
	})
	s.AddTool(&mcp.Tool{Name: "slow", InputSchema: object}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if token := r.Params.GetProgressToken(); token != nil {
			if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1}); err != nil {
				return nil, err
			}
		}
		select {
		case <-release:
			return text("released")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	return s
}

// Text returns the text of the first content block of a result.
func Text(m jsonrpc.Message) string {
	for block := range jsonrpc.Elements(jsonrpc.Member(m.Result, "content")) {
		s, _ := jsonrpc.String(jsonrpc.Member(block, "text"))
		return s
	}
	return ""
}

// ReadBody returns the body of a request to a fake server.
func ReadBody(r *http.Request) []byte {
	b, _ := io.ReadAll(r.Body)
	return b
}

// Eventually waits until ok is true.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(Patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatalf("still waiting: %s", what)
		}
		<-tick.C
	}
}
