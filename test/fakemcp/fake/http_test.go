package fake_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/rawrpc"
)

// listen serves a fake over HTTP until the test ends.
func listen(t *testing.T, o fake.Options) *fake.HTTP {
	t.Helper()
	h, err := fake.Listen(t.Context(), "127.0.0.1:0", fake.New(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return h
}

// dialHTTP opens a session of the version over streamable HTTP.
func dialHTTP(t *testing.T, h *fake.HTTP, version string, o rawrpc.ClientOptions) *rawrpc.HTTP {
	t.Helper()
	o.Modern = version == rawrpc.V20260728
	c := rawrpc.NewHTTP(h.URL, nil, o)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
	})
	if !o.Modern {
		if _, err := rawrpc.Initialize(t.Context(), c, version, o.Capabilities); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// everyShape runs f for each version and way to answer.
func everyShape(t *testing.T, f func(t *testing.T, version string, o fake.Options)) {
	everyVersion(t, func(t *testing.T, version string) {
		for name, o := range map[string]fake.Options{
			"stateful": {}, "stateless": {Stateless: true}, "json": {JSON: true}, "stateless json": {Stateless: true, JSON: true},
			"primed": {Prime: true},
		} {
			o.Versions = allVersions
			t.Run(name, func(t *testing.T) { f(t, version, o) })
		}
	})
}

func status(err error) int {
	if e, ok := errors.AsType[*rawrpc.StatusError](err); ok {
		return e.Code
	}
	return 0
}

func TestHTTPEchoReturnsArgumentsByteForByte(t *testing.T) {
	everyShape(t, func(t *testing.T, version string, o fake.Options) {
		h := listen(t, o)
		c := dialHTTP(t, h, version, rawrpc.ClientOptions{})
		if got := string(rawrpc.Member(call(t, c, "echo", awkward), "structuredContent")); got != awkward {
			t.Errorf("structured content %s, want %s", got, awkward)
		}
		if got := string(call(t, c, "raw", `{"result":{"z":1.10,"a":1e400}}`)); got != `{"z":1.10,"a":1e400}` {
			t.Errorf("raw returned %s", got)
		}
		if v := h.Stats().Violations; len(v) > 0 {
			t.Errorf("violations: %v", v)
		}
	})
}

func TestHTTPSessionsKeepTheirState(t *testing.T) {
	everyShape(t, func(t *testing.T, version string, o fake.Options) {
		h := listen(t, o)
		stateful := !o.Stateless && version != rawrpc.V20260728
		a, b := dialHTTP(t, h, version, rawrpc.ClientOptions{}), dialHTTP(t, h, version, rawrpc.ClientOptions{})
		if got := a.SessionID() != ""; got != stateful {
			t.Fatalf("session id %q", a.SessionID())
		}
		for _, want := range []int{1, 2, 3} {
			if !stateful {
				want = 1
			}
			var got struct{ Count int }
			content(t, call(t, a, "counter", ""), &got)
			if got.Count != want {
				t.Errorf("count %d, want %d", got.Count, want)
			}
		}
		var other struct{ Count int }
		if content(t, call(t, b, "counter", ""), &other); other.Count != 1 {
			t.Errorf("the other session's count is %d", other.Count)
		}
	})
}

func TestHTTPForgottenSessionIsAnsweredAsConfigured(t *testing.T) {
	for _, o := range []fake.Options{{}, {LostStatus: 400, LostBody: "No valid session ID provided"}, {LostStatus: 503}} {
		h := listen(t, o)
		c := dialHTTP(t, h, rawrpc.V20251125, rawrpc.ClientOptions{})
		call(t, c, "forget_sessions", "")
		_, err := c.Call(t.Context(), "tools/list", nil)
		want := o.LostStatus
		if want == 0 {
			want = http.StatusNotFound
		}
		if status(err) != want || !strings.Contains(err.Error(), o.LostBody) {
			t.Errorf("lost session: %v, want status %d", err, want)
		}
		if s := h.Stats(); s.SessionsLost != 1 || s.SessionsOpened != 1 {
			t.Errorf("stats %+v", s)
		}
		c.SetSessionID("")
		if _, err := rawrpc.Initialize(t.Context(), rawrpc.NewHTTP(h.URL, nil, rawrpc.ClientOptions{}), rawrpc.V20251125, nil); err != nil {
			t.Errorf("a new session: %v", err)
		}
	}
}

func TestHTTPStatusIsSteeredPerCall(t *testing.T) {
	h := listen(t, fake.Options{Versions: allVersions})
	c := dialHTTP(t, h, rawrpc.V20251125, rawrpc.ClientOptions{})
	for _, want := range []int{400, 401, 403, 404, 413, 429, 500, 502, 503} {
		ctx := rawrpc.WithHeader(t.Context(), http.Header{
			"X-Fake-Status": {itoa(want)}, "X-Fake-Body": {"go away"}, "X-Fake-Authenticate": {`Bearer realm="x"`},
		})
		_, err := c.Call(ctx, "tools/call", rawrpc.CallParams("echo", nil))
		e, ok := errors.AsType[*rawrpc.StatusError](err)
		if !ok || e.Code != want || e.Body != "go away" || e.Header.Get("WWW-Authenticate") != `Bearer realm="x"` {
			t.Errorf("header asks for %d: %v", want, err)
		}
		if _, err := c.Call(t.Context(), "tools/call", rawrpc.CallParams("http_status", json.RawMessage(`{"status":`+itoa(want)+`,"body":"no"}`))); status(err) != want {
			t.Errorf("argument asks for %d: %v", want, err)
		}
		h.FailNext(want)
		if _, err := c.Call(t.Context(), "tools/list", nil); status(err) != want {
			t.Errorf("next is %d: %v", want, err)
		}
		call(t, c, "echo", "{}")
	}
}

func itoa(n int) string { return string(rawrpc.ID(int64(n))) }

func TestHTTPHeadersAreReturned(t *testing.T) {
	everyVersion(t, func(t *testing.T, version string) {
		c := dialHTTP(t, listen(t, fake.Options{Versions: allVersions}), version, rawrpc.ClientOptions{})
		ctx := rawrpc.WithHeader(t.Context(), http.Header{"Authorization": {"Bearer abc"}})
		result, err := c.Call(ctx, "tools/call", rawrpc.CallParams("headers", nil))
		if err != nil {
			t.Fatal(err)
		}
		var got http.Header
		content(t, result, &got)
		if got.Get("Authorization") != "Bearer abc" || got.Get("Mcp-Protocol-Version") != version {
			t.Errorf("headers %v", got)
		}
	})
}

func TestHTTPModernRequestsMustMirrorTheBody(t *testing.T) {
	h := listen(t, fake.Options{Versions: []string{rawrpc.V20260728}})
	c := dialHTTP(t, h, rawrpc.V20260728, rawrpc.ClientOptions{})
	call(t, c, "echo", "{}")
	for _, name := range []string{"Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version"} {
		body := rawrpc.Request(rawrpc.ID(1), "tools/call", json.RawMessage(`{"name":"echo","_meta":{"`+rawrpc.MetaVersion+`":"2026-07-28","`+rawrpc.MetaCapabilities+`":{}}}`))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.URL, strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{
			"Content-Type": {"application/json; charset=utf-8"}, "Accept": {"application/json, text/event-stream"},
			"Mcp-Method": {"tools/call"}, "Mcp-Name": {"echo"}, "Mcp-Protocol-Version": {rawrpc.V20260728},
		}
		req.Header.Set(name, "other")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(got), "-32020") {
			t.Errorf("wrong %s: %d %s", name, resp.StatusCode, got)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	_, err := rawrpc.Initialize(t.Context(), rawrpc.NewHTTP(h.URL, nil, rawrpc.ClientOptions{}), rawrpc.V20251125, nil)
	if e, ok := errors.AsType[*rawrpc.Error](err); !ok || e.Code != rawrpc.CodeUnsupportedVersion {
		t.Errorf("initialize of a modern server: %v", err)
	}
}

func TestHTTPHangingUpCancelsOnlyModernCalls(t *testing.T) {
	everyVersion(t, func(t *testing.T, version string) {
		h := listen(t, fake.Options{Versions: allVersions})
		c := dialHTTP(t, h, version, rawrpc.ClientOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := c.Call(ctx, "tools/call", rawrpc.CallParams("sleep", json.RawMessage(`{"ms":3600000}`)))
			done <- err
		}()
		poll(t, "the call to run", func() bool { return h.Stats().Calls["sleep"] == 1 })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if version == rawrpc.V20260728 {
			poll(t, "the hang-up", func() bool { s := h.Stats(); return s.InFlight == 0 && len(s.Cancelled) == 1 })
			if got := h.Stats().Cancelled[0]; got.By != "disconnect" || got.Tool != "sleep" {
				t.Errorf("cancelled %+v", got)
			}
			return
		}
		call(t, c, "echo", "{}")
		if s := h.Stats(); s.InFlight != 1 || len(s.Cancelled) != 0 {
			t.Errorf("after hanging up: %+v", s)
		}
	})
}

func TestHTTPStandingStreamCarriesListChanged(t *testing.T) {
	h := listen(t, fake.Options{})
	c := dialHTTP(t, h, rawrpc.V20251125, rawrpc.ClientOptions{})
	seen := make(chan string, 1)
	done := make(chan error, 1)
	go func() {
		done <- c.Listen(t.Context(), func(m rawrpc.Message) bool { seen <- m.Method; return true })
	}()
	poll(t, "the stream", func() bool { return h.Stats().Streams == 1 })
	if err := c.Listen(t.Context(), nil); status(err) != http.StatusConflict {
		t.Errorf("a second stream: %v", err)
	}
	call(t, c, "list_changed", `{"add":["extra"]}`)
	if got := <-seen; got != "notifications/tools/list_changed" {
		t.Errorf("got %s", got)
	}
	if n := h.ForgetSessions(); n != 1 {
		t.Errorf("forgot %d sessions", n)
	}
	if err := <-done; err != nil {
		t.Errorf("the stream ended with %v", err)
	}
	if s := h.Stats(); s.Connections < 1 || s.HTTPRequests["GET"] != 2 {
		t.Errorf("stats %+v", s)
	}
}

func TestHTTPServerRequestsAreAnsweredByPost(t *testing.T) {
	c := dialHTTP(t, listen(t, fake.Options{}), rawrpc.V20251125, rawrpc.ClientOptions{
		Answer: func(m rawrpc.Message) (json.RawMessage, *rawrpc.Error) {
			return json.RawMessage(`{"roots":[]}`), nil
		},
	})
	result := call(t, c, "ask", `{"method":"roots/list"}`)
	if got := string(rawrpc.Member(result, "structuredContent")); got != `{"result":{"roots":[]}}` {
		t.Errorf("got %s", got)
	}
}

func TestHTTPTheSDKClientAgrees(t *testing.T) {
	everyShape(t, func(t *testing.T, version string, o fake.Options) {
		h := listen(t, o)
		changed := make(chan struct{}, 1)
		client := mcp.NewClient(&mcp.Implementation{Name: "sdk", Version: "1"}, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
		})
		session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: h.URL}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: json.RawMessage(`{"a":"b"}`)})
		if err != nil {
			t.Fatal(err)
		}
		if got := result.Content[0].(*mcp.TextContent).Text; got != `{"a":"b"}` {
			t.Errorf("echo returned %s", got)
		}
		if !o.Stateless || version == rawrpc.V20260728 {
			if version != rawrpc.V20260728 {
				poll(t, "the stream", func() bool { return h.Stats().Streams == 1 })
			}
			if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_changed"}); err != nil {
				t.Fatal(err)
			}
			<-changed
		}
		if err := session.Close(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{}, h.Stats().Violations); diff != "" {
			t.Errorf("violations of the SDK: %s", diff)
		}
	})
}

func TestSSETheSDKClientAgrees(t *testing.T) {
	h := listen(t, fake.Options{})
	client := mcp.NewClient(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.SSEClientTransport{Endpoint: h.SSEURL}, &mcp.ClientSessionOptions{ProtocolVersion: rawrpc.V20250618})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"count":1,`, `{"count":2,`} {
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "counter"})
		if err != nil {
			t.Fatal(err)
		}
		if got := result.Content[0].(*mcp.TextContent).Text; !strings.HasPrefix(got, want) {
			t.Errorf("counter returned %s, want %s…", got, want)
		}
	}
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	poll(t, "the session to end", func() bool { s := h.Stats(); return s.SessionsClosed == 1 && s.Streams == 0 })
}
