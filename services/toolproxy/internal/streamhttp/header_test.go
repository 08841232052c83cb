package streamhttp_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange/exchangetest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/streamhttp"
)

func TestLayersOfHeadersGiveExactlyOneValue(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) { answer(w, m, `{}`) })
	withUser := strings.Replace(srv.URL, "http://", "http://user:pass%20word@", 1)
	p := exchangetest.Start(t, newWire(t, withUser, func(o *streamhttp.Options) {
		o.Header = http.Header{
			"x-api-key": {"static"}, "X-Team": {"a"}, "Mcp-Session-Id": {"gw-123"}, "last-event-id": {"9"},
			"MCP-Protocol-Version": {"1"}, "Accept": {"text/html"}, "Content-Length": {"1"}, "Host": {"evil.example"},
			"Connection": {"close"}, "Transfer-Encoding": {"chunked"}, "Accept-Encoding": {"br"},
		}
		o.Inject = func(_ context.Context, h http.Header) { h.Set("traceparent", "00-1-1-01") }
	}))
	ctx := streamhttp.WithHeader(t.Context(), http.Header{
		"X-API-KEY": {"mine"}, "mcp-session-id": {"stolen"}, "Mcp-Name": {"x"}, "Proxy-Authorization": {"Basic x"},
	})
	if err := p.Initialize(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Call(ctx, "tools/call", call("x")); err != nil {
		t.Fatal(err)
	}
	posts := srv.Requests(http.MethodPost)
	if posts[0].Header["Mcp-Session-Id"] != nil || posts[0].Header["Mcp-Protocol-Version"] != nil {
		t.Errorf("initialize: %v", posts[0].Header) // a session id belongs to its hop
	}
	got := posts[2].Header
	got.Del("Content-Length")
	want := http.Header{
		"Accept": {"application/json, text/event-stream"}, "Accept-Encoding": {"identity"}, "Content-Type": {"application/json"},
		"Mcp-Session-Id": {"sess-1"}, "Mcp-Protocol-Version": {"2025-06-18"}, "User-Agent": {"Go-http-client/1.1"},
		"Traceparent": {"00-1-1-01"}, "X-Api-Key": {"mine"}, "X-Team": {"a"}, "Authorization": {"Basic dXNlcjpwYXNzIHdvcmQ="},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if u, _ := url.Parse(srv.URL); posts[2].Host != u.Host {
		t.Errorf("Host %q", posts[2].Host)
	}
}

func TestIllegalHeadersStopBeforeTheWire(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) { answer(w, m, `{}`) })
	p := exchangetest.Start(t, newWire(t, srv.URL))
	for _, h := range []http.Header{
		{"Authorization": {"Bearer secret-1\r\nX-Evil: 1"}}, {"X-A": {"secret-1\x00"}}, {"X-A": {"secret-1\x7f"}}, {"X A": {"secret-1"}}, {"": {"secret-1"}}, {"X-Ü": {"secret-1"}},
	} {
		_, err := p.Call(streamhttp.WithHeader(t.Context(), h), "tools/call", call("x"))
		if !fault.Is(err, fault.CredentialIllegal) || !errors.Is(err, link.ErrNotSent) || strings.Contains(err.Error(), "secret-1") {
			t.Errorf("%q: %v", h, err)
		}
	}
	if n := len(srv.Requests("")); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
	if _, err := streamhttp.New(streamhttp.Options{Options: exchange.Options{URL: srv.URL, Header: http.Header{"X": {"a\nb"}}}}); !fault.Is(err, fault.CredentialIllegal) {
		t.Errorf("a static one: %v", err)
	}
	for _, u := range []string{"", "ftp://x/", "http://", "http://a b/", "http://127.1/", "http://169.254.169.254/mcp", "http://metadata.google.internal/", "http://x:99999/"} {
		if _, err := streamhttp.New(streamhttp.Options{Options: exchange.Options{Server: "srv", URL: u}}); !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), `"srv"`) {
			t.Errorf("url %q: %v", u, err)
		}
	}
}

func TestTheModernHeadersMirrorTheBody(t *testing.T) {
	srv := exchangetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, _ := jsonrpc.Parse(exchangetest.ReadBody(r))
		if m.Kind == jsonrpc.Request {
			answer(w, m, `{}`)
		}
	}))
	p := exchangetest.Start(t, newWire(t, srv.URL))
	for _, tt := range []struct{ method, params, name string }{
		{"tools/call", `"name":"echo"`, "echo"},
		{"tools/call", `"name":"tööl"`, "=?base64?dMO2w7Zs?="},
		{"tools/call", `"name":" a"`, "=?base64?IGE=?="},
		{"tools/call", `"name":"a\nb"`, "=?base64?YQpi?="},
		{"tools/call", `"name":"=?base64?x?="`, "=?base64?PT9iYXNlNjQ/eD89?="},
		{"prompts/get", `"name":"p"`, "p"},
		{"resources/read", `"uri":"ui://x/y?z"`, "ui://x/y?z"},
		{"tasks/get", `"taskId":"t-1"`, "t-1"},
		{"tasks/update", `"taskId":"t-1"`, "t-1"},
		{"tasks/cancel", `"taskId":"t-1"`, "t-1"},
		{"tools/list", `"cursor":"c"`, ""},
		{"server/discover", `"x":1`, ""},
	} {
		if _, err := p.Call(t.Context(), tt.method, `{`+tt.params+`,`+modernMeta+`}`); err != nil {
			t.Fatal(err)
		}
		all := srv.Requests(http.MethodPost)
		h := all[len(all)-1].Header
		if h.Get("Mcp-Protocol-Version") != "2026-07-28" || h.Get("Mcp-Method") != tt.method || h.Get("Mcp-Name") != tt.name || h.Get("Mcp-Session-Id") != "" {
			t.Errorf("%s %s: %v", tt.method, tt.params, h)
		}
	}
	if err := p.Notify(t.Context(), "notifications/cancelled", `{"requestId":1}`); err != nil {
		t.Fatal(err)
	}
	all := srv.Requests(http.MethodPost)
	if h := all[len(all)-1].Header; h.Get("Mcp-Protocol-Version") != "2026-07-28" || h.Get("Mcp-Method") != "notifications/cancelled" {
		t.Errorf("a notification: %v", h)
	}
}

func TestAfterAFailedDiscoveryTheHandshakeIsLegacy(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
		if m.Method == "server/discover" {
			fail(w, 400, "application/json", string(jsonrpc.AppendError(nil, nil, &jsonrpc.Error{Code: -32000, Message: "Bad Request: Server not initialized"})))
			return
		}
		answer(w, m, `{}`)
	})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	if m, err := p.Call(t.Context(), "server/discover", `{`+modernMeta+`}`); err != nil || m.Kind != jsonrpc.Failure {
		t.Fatalf("%v, %v", m.Kind, err)
	}
	p.MustInitialize()
	if _, err := p.Call(t.Context(), "tools/call", call("x")); err != nil {
		t.Fatal(err)
	}
	posts := srv.Requests(http.MethodPost)
	if h := posts[1].Header; h.Get("Mcp-Protocol-Version") != "" || h.Get("Mcp-Method") != "" {
		t.Errorf("initialize: %v", h)
	}
	if h := posts[3].Header; h.Get("Mcp-Protocol-Version") != "2025-06-18" || h.Get("Mcp-Method") != "" || h.Get("Mcp-Session-Id") != "sess-1" {
		t.Errorf("a call: %v", h)
	}
}

func TestASessionIDThatCannotBeAHeaderIsRefused(t *testing.T) {
	for _, id := range []string{"a b", "ümlaut", strings.Repeat("x", 2000)} {
		srv := exchangetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			m, _ := jsonrpc.Parse(exchangetest.ReadBody(r))
			w.Header().Set("Mcp-Session-Id", id)
			answer(w, m, `{"protocolVersion":"2025-06-18"}`)
		}))
		if err := exchangetest.Start(t, newWire(t, srv.URL)).Initialize(t.Context()); !fault.Is(err, fault.UpstreamProtocol) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestCredentialsNeverFollowARedirectToAnotherOrigin(t *testing.T) {
	var other *exchangetest.Server
	handler := func(w http.ResponseWriter, r *http.Request) {
		body := exchangetest.ReadBody(r)
		m, _ := jsonrpc.Parse(body)
		switch {
		case r.URL.Path == "/moved":
			answer(w, m, `{"auth":"`+r.Header.Get("Authorization")+`"}`)
		case tool(m) == "same 307":
			w.Header().Set("Location", "/moved")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case tool(m) == "same 308":
			w.Header().Set("Location", "http://"+r.Host+"/moved")
			w.WriteHeader(http.StatusPermanentRedirect)
		case tool(m) == "same 302":
			w.Header().Set("Location", "/moved")
			w.WriteHeader(http.StatusFound)
		case tool(m) == "same 303":
			w.Header().Set("Location", "/moved")
			w.WriteHeader(http.StatusSeeOther)
		case tool(m) == "other 307":
			w.Header().Set("Location", other.URL+"/moved?token=secret-1")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case tool(m) == "https":
			w.Header().Set("Location", "https://"+r.Host+"/moved")
			w.WriteHeader(http.StatusPermanentRedirect)
		case tool(m) == "loop":
			w.Header().Set("Location", "/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case tool(m) == "nowhere":
			w.WriteHeader(http.StatusNotModified)
		}
	}
	other = exchangetest.Serve(t, http.HandlerFunc(handler))
	srv := exchangetest.Serve(t, http.HandlerFunc(handler))
	p := exchangetest.Start(t, newWire(t, srv.URL))
	ctx := streamhttp.WithHeader(t.Context(), http.Header{"Authorization": {"Bearer secret-1"}})
	for _, name := range []string{"same 307", "same 308"} {
		m, err := p.Call(ctx, "tools/call", call(name))
		if err != nil || string(m.Result) != `{"auth":"Bearer secret-1"}` {
			t.Errorf("%s: %s, %v", name, m.Result, err)
		}
	}
	for name, notRun := range map[string]bool{"same 302": true, "same 303": false, "other 307": true, "https": true, "loop": true, "nowhere": false} {
		_, err := p.Call(ctx, "tools/call", call(name))
		if err == nil || exchange.NotRun(err) != notRun || strings.Contains(err.Error(), "secret-1") {
			t.Errorf("%s: not run %t, %v", name, exchange.NotRun(err), err)
		}
	}
	if n := len(other.Requests("")); n != 0 {
		t.Errorf("%d requests reached the other origin", n)
	}
}

func TestConnectionsThatTheServerIsAboutToCloseAreNotUsed(t *testing.T) {
	for hint, want := range map[string]int{"": 1, "timeout=1, max=100": 5, "timeout=600": 1, "timeout=nonsense": 1} {
		srv := exchangetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			m, _ := jsonrpc.Parse(exchangetest.ReadBody(r))
			if hint != "" {
				w.Header().Set("Keep-Alive", hint)
			}
			answer(w, m, `{}`)
		}))
		p := exchangetest.Start(t, newWire(t, srv.URL))
		for range 5 {
			if _, err := p.Call(t.Context(), "tools/call", call("x")); err != nil {
				t.Fatal(err)
			}
		}
		if n := srv.Conns(); n != want {
			t.Errorf("Keep-Alive %q: %d connections, want %d", hint, n, want)
		}
	}
}
