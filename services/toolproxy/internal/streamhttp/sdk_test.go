package streamhttp_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange/exchangetest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/streamhttp"
)

var _ link.SinkWire = (*streamhttp.Wire)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`

// newWire returns a wire to url; change may alter its options.
func newWire(tb testing.TB, url string, change ...func(*streamhttp.Options)) *streamhttp.Wire {
	tb.Helper()
	o := streamhttp.Options{Options: exchange.Options{Server: "srv", URL: url, Transport: exchangetest.Transport(tb)}}
	for _, c := range change {
		c(&o)
	}
	w, err := streamhttp.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// sdk serves a Go SDK server.
func sdk(tb testing.TB, s *mcp.Server, o mcp.StreamableHTTPOptions) *exchangetest.Server {
	tb.Helper()
	return exchangetest.Serve(tb, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &o))
}

func TestBothErasAndBothAnswerFormsOfTheSDKServer(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options mcp.StreamableHTTPOptions
		session bool
	}{
		{"stateful, events", mcp.StreamableHTTPOptions{}, true},
		{"stateful, JSON", mcp.StreamableHTTPOptions{JSONResponse: true}, true},
		{"stateful, resumable", mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}, true},
		{"stateless, events", mcp.StreamableHTTPOptions{Stateless: true}, false},
		{"stateless, JSON", mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := sdk(t, exchangetest.NewMCPServer(nil), tt.options)
			w := newWire(t, srv.URL)
			p := exchangetest.Start(t, w)
			p.MustInitialize()
			if got := w.SessionID() != ""; got != tt.session {
				t.Errorf("session id %q", w.SessionID())
			}
			m, err := p.Call(t.Context(), "tools/call", `{"name":"echo","arguments":{"n":9007199254740993,"x":1.10}}`)
			if err != nil || exchangetest.Text(m) != `{"n":9007199254740993,"x":1.10}` {
				t.Errorf("%s, %v", m.Result, err)
			}
			m, err = p.Call(t.Context(), "tools/call", `{"name":"nope"}`)
			if err != nil || m.Kind != jsonrpc.Failure {
				t.Errorf("unknown tool: %s, %v", m.Result, err)
			}
			posts := srv.Requests(http.MethodPost)
			if h := posts[0].Header; h.Get("Mcp-Session-Id") != "" || h.Get("Mcp-Protocol-Version") != "" {
				t.Errorf("initialize carries %v", h)
			}
			if h := posts[2].Header; h.Get("Mcp-Session-Id") != w.SessionID() || h.Get("Mcp-Protocol-Version") != "2025-11-25" || h.Get("Mcp-Method") != "" {
				t.Errorf("a call in a legacy session carries %v", h)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if got := len(srv.Requests(http.MethodDelete)); got != map[bool]int{true: 1, false: 0}[tt.session] {
				t.Errorf("%d DELETEs", got)
			}
		})
	}
	t.Run("modern", func(t *testing.T) {
		srv := sdk(t, exchangetest.NewMCPServer(nil), mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true})
		p := exchangetest.Start(t, newWire(t, srv.URL))
		m, err := p.Call(t.Context(), "server/discover", `{`+modernMeta+`}`)
		if err != nil || m.Kind != jsonrpc.Response {
			t.Fatalf("%s, %v", m.Error, err)
		}
		m, err = p.Call(t.Context(), "tools/call", `{"name":"echo","arguments":{"a":1},`+modernMeta+`}`)
		if err != nil || exchangetest.Text(m) != `{"a":1}` {
			t.Errorf("%s %s, %v", m.Result, m.Error, err)
		}
		h := srv.Requests(http.MethodPost)[1].Header
		for name, want := range map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "echo"} {
			if h.Get(name) != want {
				t.Errorf("%s: %q", name, h.Get(name))
			}
		}
		// A refusal with HTTP 404 and a JSON-RPC body is the server's answer.
		m, err = p.Call(t.Context(), "no/such", `{`+modernMeta+`}`)
		if err != nil || m.Kind != jsonrpc.Failure || !strings.Contains(string(m.Error), "-32601") {
			t.Errorf("unknown method: %s, %v", m.Error, err)
		}
		if err := p.Close(); err != nil || len(srv.Requests(http.MethodDelete)) != 0 {
			t.Errorf("%v, %d DELETEs", err, len(srv.Requests(http.MethodDelete)))
		}
	})
}

func TestTwentyConcurrentCallsKeepTheirTwentyTokens(t *testing.T) {
	for name, o := range map[string]mcp.StreamableHTTPOptions{"stateful": {}, "stateless": {Stateless: true, JSONResponse: true}} {
		t.Run(name, func(t *testing.T) {
			srv := sdk(t, exchangetest.NewMCPServer(nil), o)
			w := newWire(t, srv.URL, func(o *streamhttp.Options) {
				o.Header = http.Header{"authorization": {"Bearer static"}}
			})
			p := exchangetest.Start(t, w)
			p.MustInitialize()
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					want := fmt.Sprintf("Bearer token-%d", i)
					ctx := streamhttp.WithHeader(t.Context(), http.Header{"Authorization": {want}})
					for range 10 {
						m, err := p.Call(ctx, "tools/call", `{"name":"token"}`)
						if err != nil || exchangetest.Text(m) != want {
							t.Errorf("%q, %v, want %q", exchangetest.Text(m), err, want)
						}
					}
				})
			}
			wg.Wait()
			m, err := p.Call(t.Context(), "tools/call", `{"name":"token"}`)
			if err != nil || exchangetest.Text(m) != "Bearer static" {
				t.Errorf("without a header of the call: %q, %v", exchangetest.Text(m), err)
			}
		})
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	for name, o := range map[string]mcp.StreamableHTTPOptions{"events": {}, "JSON": {JSONResponse: true}} {
		t.Run(name, func(t *testing.T) {
			srv := sdk(t, exchangetest.NewMCPServer(nil), o)
			p := exchangetest.Start(t, newWire(t, srv.URL))
			p.MustInitialize()
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					for range 25 {
						if _, err := p.Call(t.Context(), "tools/call", `{"name":"echo"}`); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			// A stream that ends behind its answer holds its connection a moment longer than the call.
			if n := srv.Conns(); n > 64 {
				t.Errorf("400 calls, 16 at a time, made %d connections", n)
			}
		})
	}
}

func TestAStreamThatEndsAfterItsCallKeepsItsConnection(t *testing.T) {
	end := make(chan struct{})
	var cut atomic.Int64
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
		if tool(m) == "quick" {
			answer(w, m, `{}`)
			return
		}
		events(w)
		send(w, "data: %s\n\n", jsonrpc.AppendResult(nil, m.ID, []byte(`{}`)))
		select {
		case <-end:
		case <-r.Context().Done():
			cut.Add(1)
			<-end
		}
	})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := p.Call(ctx, "tools/call", call("x")); err != nil {
			t.Fatal(err)
		}
		cancel() // as callers do with defer
		for range 5 {
			if _, err := p.Call(t.Context(), "tools/call", call("quick")); err != nil {
				t.Fatal(err)
			}
		}
		idle := srv.Idle()
		end <- struct{}{}
		exchangetest.Eventually(t, "the stream has ended", func() bool { return srv.Idle() > idle })
	}
	if n := cut.Load(); n > 0 {
		t.Errorf("%d of 10 streams were cut when their caller's context ended after the call", n)
	}
	// The server may see the end of a stream a moment before the client does, so the next call may meet it unfinished.
	if n := srv.Conns(); n > 4 {
		t.Errorf("10 such calls, one after the other, made %d connections", n)
	}
}

func TestTheStandingStreamBringsWhatBelongsToNoCall(t *testing.T) {
	s := exchangetest.NewMCPServer(nil)
	srv := sdk(t, s, mcp.StreamableHTTPOptions{})
	p := exchangetest.Start(t, newWire(t, srv.URL, func(o *streamhttp.Options) {
		o.StandingGET = true
		o.OwnHeader = func(context.Context) (http.Header, error) {
			return http.Header{"Authorization": {"Bearer own"}}, nil
		}
	}))
	p.MustInitialize()
	exchangetest.Eventually(t, "the standing stream is open", func() bool { return len(srv.Requests(http.MethodGet)) == 1 })
	if got := srv.Requests(http.MethodGet)[0].Header.Get("Authorization"); got != "Bearer own" {
		t.Errorf("Authorization of the standing stream: %q", got)
	}
	s.AddTool(&mcp.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}}, nil)
	select {
	case m := <-p.Others:
		if m.Method != "notifications/tools/list_changed" {
			t.Errorf("got %s", m.Method)
		}
	case <-time.After(exchangetest.Patience):
		t.Fatal("no list_changed came")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestAServerWithoutAStandingStreamIsAskedOnce(t *testing.T) {
	srv := sdk(t, exchangetest.NewMCPServer(nil), mcp.StreamableHTTPOptions{Stateless: true})
	var log lockedBuffer
	p := exchangetest.Start(t, newWire(t, srv.URL, func(o *streamhttp.Options) {
		o.StandingGET = true
		o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}))
	p.MustInitialize()
	exchangetest.Eventually(t, "the wire gives up the standing stream", func() bool {
		return strings.Contains(log.String(), "server offers no standing stream")
	})
	if n := len(srv.Requests(http.MethodGet)); n != 1 {
		t.Errorf("%d GETs", n)
	}
	if _, err := p.Call(t.Context(), "tools/call", `{"name":"echo"}`); err != nil {
		t.Errorf("calls go on: %v", err)
	}
}

// lockedBuffer is a log that a test reads while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestProgressComesOnTheStreamOfItsCall(t *testing.T) {
	release := make(chan struct{})
	srv := sdk(t, exchangetest.NewMCPServer(release), mcp.StreamableHTTPOptions{})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	p.MustInitialize()
	answered := make(chan string, 1)
	go func() {
		m, err := p.Call(t.Context(), "tools/call", `{"name":"slow","_meta":{"progressToken":7}}`)
		answered <- fmt.Sprint(exchangetest.Text(m), err)
	}()
	select {
	case m := <-p.Others:
		if m.Method != "notifications/progress" {
			t.Errorf("got %s", m.Method)
		}
	case <-time.After(exchangetest.Patience):
		t.Fatal("no progress came")
	}
	close(release)
	if got := <-answered; got != "released<nil>" {
		t.Error(got)
	}
}

func TestTheLinkCallsOverThisWire(t *testing.T) {
	srv := sdk(t, exchangetest.NewMCPServer(nil), mcp.StreamableHTTPOptions{})
	l := link.New(newWire(t, srv.URL), link.Options{Server: "srv"})
	ended := make(chan error, 1)
	go func() { ended <- l.Run(t.Context()) }()
	if _, err := l.Call(t.Context(), "initialize", []byte(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)); err != nil {
		t.Fatal(err)
	}
	if err := l.Notify(t.Context(), "notifications/initialized", nil); err != nil {
		t.Fatal(err)
	}
	got, err := l.Call(t.Context(), "tools/call", []byte(`{"name":"echo","arguments":{"a":1}}`))
	if err != nil || !strings.Contains(string(got), `{\"a\":1}`) {
		t.Errorf("%s, %v", got, err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
	<-ended
}
