package sse_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange/exchangetest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/sse"
)

var _ link.SinkWire = (*sse.Wire)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newWire(t *testing.T, url string, change ...func(*sse.Options)) *sse.Wire {
	t.Helper()
	o := sse.Options{Server: "srv", URL: url, Transport: exchangetest.Transport(t)}
	for _, c := range change {
		c(&o)
	}
	w, err := sse.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func sdk(t *testing.T, release <-chan struct{}) *exchangetest.Server {
	t.Helper()
	s := exchangetest.NewMCPServer(release)
	return exchangetest.Serve(t, mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return s }, nil))
}

// fake is a server whose stream and messages are in a test's hands: what is sent to push goes onto the stream. HOST in
// its endpoint stands for its own address.
type fake struct {
	*exchangetest.Server
	push chan string
}

func newFake(t *testing.T, endpoint string, post func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, push func(string))) *fake {
	t.Helper()
	f := &fake{push: make(chan string, 100)}
	f.Server = exchangetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			m, _ := jsonrpc.Parse(exchangetest.ReadBody(r))
			post(w, r, m, func(s string) { f.push <- s })
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = fmt.Fprintf(w, ": hi\r\n\r\nevent: endpoint\r\ndata: %s\r\n\r\n", strings.ReplaceAll(endpoint, "HOST", r.Host))
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case s, ok := <-f.push:
				if !ok {
					return
				}
				_, _ = fmt.Fprint(w, s)
			case <-r.Context().Done():
				return
			}
		}
	}))
	return f
}

func event(msg []byte) string { return "event: message\ndata: " + string(msg) + "\n\n" }

// echo answers every request on the stream.
func echo(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, push func(string)) {
	w.WriteHeader(http.StatusAccepted)
	if m.Kind == jsonrpc.Request {
		push(event(jsonrpc.AppendResult(nil, m.ID, []byte(`{"protocolVersion":"2024-11-05"}`))))
	}
}

func TestCallsOfTheSDKServer(t *testing.T) {
	srv := sdk(t, nil)
	p := exchangetest.Start(t, newWire(t, srv.URL, func(o *sse.Options) {
		o.OwnHeader = func(context.Context) (http.Header, error) {
			return http.Header{"Authorization": {"Bearer own"}}, nil
		}
	}))
	p.MustInitialize()
	m, err := p.Call(t.Context(), "tools/call", `{"name":"echo","arguments":{"n":9007199254740993}}`)
	if err != nil || exchangetest.Text(m) != `{"n":9007199254740993}` {
		t.Errorf("%s, %v", m.Result, err)
	}
	if got := srv.Requests(http.MethodGet)[0].Header.Get("Authorization"); got != "Bearer own" {
		t.Errorf("Authorization of the stream: %q", got)
	}
	posts := srv.Requests(http.MethodPost)
	if posts[0].Header.Get("Mcp-Protocol-Version") != "" || posts[2].Header.Get("Mcp-Protocol-Version") == "" {
		t.Errorf("protocol version before the handshake: %v, after it: %v", posts[0].Header, posts[2].Header)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.Call(t.Context(), "tools/call", `{"name":"echo"}`); !errors.Is(err, link.ErrEnded) {
		t.Errorf("a call after Close: %v", err)
	}
}

func TestTheLinkCallsOverThisWire(t *testing.T) {
	srv := sdk(t, nil)
	l := link.New(newWire(t, srv.URL), link.Options{Server: "srv"})
	ended := make(chan error, 1)
	go func() { ended <- l.Run(t.Context()) }()
	if _, err := l.Call(t.Context(), "initialize", []byte(`{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)); err != nil {
		t.Fatal(err)
	}
	if err := l.Notify(t.Context(), "notifications/initialized", nil); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Call(t.Context(), "tools/call", []byte(`{"name":"echo","arguments":{"a":1}}`)); err != nil || !strings.Contains(string(got), `{\"a\":1}`) {
		t.Errorf("%s, %v", got, err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
	<-ended
}

func TestTwentyConcurrentCallsKeepTheirTwentyTokens(t *testing.T) {
	f := newFake(t, "/messages?session=1", func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, push func(string)) {
		w.WriteHeader(http.StatusAccepted)
		push(event(jsonrpc.AppendResult(nil, m.ID, []byte(`{"content":[{"type":"text","text":"`+r.Header.Get("Authorization")+`"}]}`))))
	})
	p := exchangetest.Start(t, newWire(t, f.URL))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			want := fmt.Sprintf("Bearer token-%d", i)
			ctx := exchange.WithHeader(t.Context(), http.Header{"authorization": {want}})
			for range 10 {
				if m, err := p.Call(ctx, "tools/call", `{"name":"x"}`); err != nil || exchangetest.Text(m) != want {
					t.Errorf("%q, %v, want %q", exchangetest.Text(m), err, want)
				}
			}
		})
	}
	wg.Wait()
}

// CALL-024
func TestAStatusForOneCallerFailsThatCallAlone(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 413, 429, 500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			release := make(chan struct{})
			f := newFake(t, "/m", func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, push func(string)) {
				if r.Header.Get("Authorization") != "" {
					http.Error(w, "go away", status)
					return
				}
				if m.Method == "slow" {
					go func() {
						<-release
						push(event(jsonrpc.AppendResult(nil, m.ID, []byte(`{}`))))
					}()
					w.WriteHeader(http.StatusAccepted)
					return
				}
				echo(w, r, m, push)
			})
			p := exchangetest.Start(t, newWire(t, f.URL))
			running := make(chan error, 1)
			go func() {
				_, err := p.Call(t.Context(), "slow", "")
				running <- err
			}()
			exchangetest.Eventually(t, "the other call is under way", func() bool { return len(f.Requests(http.MethodPost)) == 1 })
			_, err := p.Call(exchange.WithHeader(t.Context(), http.Header{"Authorization": {"Bearer bad"}}), "x", "")
			if status == 404 {
				if !errors.Is(err, exchange.ErrSessionLost) || !exchange.NotRun(err) {
					t.Errorf("%v", err)
				}
			} else if e, ok := errors.AsType[*exchange.StatusError](err); !ok || e.Code != status || e.Body != "go away" {
				t.Errorf("%v", err)
			}
			if _, err := p.Call(t.Context(), "x", ""); err != nil {
				t.Errorf("the next call: %v", err)
			}
			close(release)
			if err := <-running; err != nil {
				t.Errorf("the running call: %v", err)
			}
		})
	}
}

func TestAJSONRPCErrorBodyIsAnAnswer(t *testing.T) {
	f := newFake(t, "/m", func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message, _ func(string)) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprint(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no"}}`)
	})
	p := exchangetest.Start(t, newWire(t, f.URL))
	if m, err := p.Call(t.Context(), "x", ""); err != nil || m.Kind != jsonrpc.Failure {
		t.Errorf("%v, %v", m.Kind, err)
	}
}

func TestTheEndpointMustHaveTheOriginOfTheStream(t *testing.T) {
	other := exchangetest.Serve(t, http.NotFoundHandler())
	for _, endpoint := range []string{
		other.URL + "/m?token=secret-1", "//evil.example/m", "http://user:pw@HOST/m", "https://HOST/m", "ftp://HOST/m", "\x01", strings.Repeat("x", 10_000),
	} {
		f := newFake(t, endpoint, echo)
		p := exchangetest.Start(t, newWire(t, f.URL))
		_, err := p.Call(t.Context(), "initialize", `{"secret":"x"}`)
		if !errors.Is(err, link.ErrEnded) {
			t.Errorf("%q: %v", endpoint, err)
		}
		if err := p.Wait(); !fault.Is(err, fault.UpstreamProtocol) || strings.Contains(err.Error(), "secret-1") || strings.Contains(err.Error(), "pw") {
			t.Errorf("%q: Run: %v", endpoint, err)
		}
		if n := len(f.Requests(http.MethodPost)); n != 0 {
			t.Errorf("%q: %d messages were posted", endpoint, n)
		}
	}
	if n := len(other.Requests("")); n != 0 {
		t.Errorf("%d requests reached the other origin", n)
	}
	for _, endpoint := range []string{"messages", "/messages?sessionId=1#x", "?a=b", "  /m  "} {
		p := exchangetest.Start(t, newWire(t, newFake(t, endpoint, echo).URL+"/sse"))
		if _, err := p.Call(t.Context(), "x", ""); err != nil {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}

func TestAnAnswerAboveTheLimitFailsItsCallAlone(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	f := newFake(t, "/m", func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, push func(string)) {
		switch m.Method {
		case "id first":
			push(event(jsonrpc.AppendResult(nil, m.ID, []byte(`{"a":"`+big+`"}`))))
		case "id last":
			push("data: {\"result\":{\"a\":\"" + big + "\",\"id\":99},\n")
			push("data: \"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + "}\n\n")
		default:
			echo(w, r, m, push)
		}
	})
	p := exchangetest.Start(t, newWire(t, f.URL, func(o *sse.Options) { o.MaxMessageBytes = 10_000 }))
	for _, method := range []string{"id first", "id last"} {
		if _, err := p.Call(t.Context(), method, ""); !errors.Is(err, exchangetest.ErrDropped) || !strings.Contains(err.Error(), "10000 bytes") {
			t.Errorf("%s: %v", method, err)
		}
		if _, err := p.Call(t.Context(), "x", ""); err != nil {
			t.Errorf("the call after %s: %v", method, err)
		}
	}
}

func TestTheWireEndsWithItsStream(t *testing.T) {
	f := newFake(t, "/m", func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message, _ func(string)) {
		w.WriteHeader(http.StatusAccepted)
	})
	p := exchangetest.Start(t, newWire(t, f.URL))
	if err := p.Notify(t.Context(), "x", ""); err != nil {
		t.Fatal(err)
	}
	close(f.push)
	if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "ended the event stream") {
		t.Errorf("Run: %v", err)
	}
	if err := p.Notify(t.Context(), "x", ""); !errors.Is(err, link.ErrEnded) || !exchange.NotRun(err) {
		t.Errorf("Send: %v", err)
	}
}

func TestAServerThatIsNoneSaysWhatItIs(t *testing.T) {
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		reason  fault.Reason
	}{
		"login":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, fault.UpstreamUnauthenticated},
		"method": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(405) }, fault.UpstreamProtocol},
		"html":   {func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "<html>") }, fault.UpstreamProtocol},
		"empty":  {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/event-stream") }, fault.UpstreamProtocol},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://other.example/", http.StatusFound)
		}, fault.ServerError},
		"no endpoint": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, "data: {}\n\n")
		}, fault.UpstreamProtocol},
	} {
		p := exchangetest.Start(t, newWire(t, exchangetest.Serve(t, tt.handler).URL))
		if err := p.Wait(); !fault.Is(err, tt.reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCloseCutsWhatIsUnderWay(t *testing.T) {
	f := newFake(t, "/m", func(_ http.ResponseWriter, r *http.Request, _ jsonrpc.Message, _ func(string)) { <-r.Context().Done() })
	w := newWire(t, f.URL)
	p := exchangetest.Start(t, w)
	result := make(chan error, 1)
	go func() { result <- p.Notify(t.Context(), "x", "") }()
	exchangetest.Eventually(t, "the message is under way", func() bool { return len(f.Requests(http.MethodPost)) == 1 })
	begin := time.Now()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := <-result; !fault.Is(err, fault.SessionClosed) || exchange.NotRun(err) {
		t.Errorf("Send: %v", err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestTheEndOfACallersContextEndsThePost(t *testing.T) {
	f := newFake(t, "/m", func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, push func(string)) {
		if m.Method == "hang" {
			<-r.Context().Done()
			return
		}
		echo(w, r, m, push)
	})
	p := exchangetest.Start(t, newWire(t, f.URL))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Notify(ctx, "hang", ""); !errors.Is(err, context.DeadlineExceeded) || fault.ReasonOf(err) != "" {
		t.Errorf("%v", err)
	}
	if _, err := p.Call(t.Context(), "x", ""); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

func TestCloseBeforeRun(t *testing.T) {
	w := newWire(t, "http://127.0.0.1:1/")
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.Send(t.Context(), []byte(`{"jsonrpc":"2.0","method":"x"}`)); !errors.Is(err, link.ErrEnded) {
		t.Errorf("%v", err)
	}
	if err := w.Run(t.Context(), func([]byte) {}); err == nil {
		t.Error("Run must not work after Close")
	}
}
