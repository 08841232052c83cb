package toolproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	"github.com/toolherd/toolherd/services/toolproxy"
)

// remote is an MCP server over streamable HTTP, made with the SDK, behind a handler that can refuse requests: a call
// whose arguments hold "status" is answered with that HTTP status.
type remote struct {
	*httptest.Server

	refused     atomic.Int64
	initialized atomic.Int64
	release     chan struct{} // ends the tool `hold`
	holding     chan struct{} // gets one when it begins
	authorized  atomic.Pointer[string]
	challenge   atomic.Pointer[string] // 401 with this for every request
	called      atomic.Pointer[string] // the session id of the last tools/call
	forget      sync.Map               // session ids that are gone
}

func newRemote(t *testing.T, stateless bool) *remote {
	t.Helper()
	r := &remote{release: make(chan struct{}), holding: make(chan struct{}, 8)}
	server := mcp.NewServer(&mcp.Implementation{Name: "remote", Version: "1"}, nil)
	schema := map[string]any{"type": "object"}
	server.AddTool(&mcp.Tool{Name: "echo", InputSchema: schema}, func(_ context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(q.Params.Arguments)}}}, nil
	})
	server.AddTool(&mcp.Tool{Name: "hold", InputSchema: schema}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		r.holding <- struct{}{}
		select {
		case <-r.release:
		case <-ctx.Done():
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "held"}}}, nil
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: stateless})
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if challenge := r.challenge.Load(); challenge != nil {
			w.Header().Set("WWW-Authenticate", *challenge)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		q.Body = io.NopCloser(bytes.NewReader(body))
		if strings.Contains(string(body), `"initialize"`) {
			r.initialized.Add(1)
			r.authorized.Store(new(q.Header.Get("Authorization")))
		}
		if strings.Contains(string(body), `"tools/call"`) {
			r.called.Store(new(q.Header.Get("Mcp-Session-Id")))
		}
		if _, gone := r.forget.Load(q.Header.Get("Mcp-Session-Id")); gone && q.Method == http.MethodPost {
			http.Error(w, "session not found", http.StatusNotFound)
			return
		}
		if _, rest, ok := strings.Cut(string(body), `"status":`); ok {
			status, err := strconv.Atoi(rest[:3])
			if err == nil {
				r.refused.Add(1)
				http.Error(w, "refused", status)
				return
			}
		}
		handler.ServeHTTP(w, q)
	}))
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
		for s := range server.Sessions() { // those that nobody could end
			_ = s.Close()
		}
	})
	return r
}

// CALL-024: a status for one caller on a shared HTTP session fails that caller's call alone.
func TestOneCallersStatusIsNobodyElsesProblem(t *testing.T) {
	for _, stateless := range []bool{false, true} {
		t.Run(fmt.Sprintf("stateless %v", stateless), func(t *testing.T) {
			r := newRemote(t, stateless)
			p := startWith(t, toolproxy.Config{}, newRegistry())
			defer p.stop()
			p.registry.publish(t, map[string]string{"r": fmt.Sprintf(`{"url":%q,"session_scope":"shared"}`, r.URL)})
			p.awaitOK(t, "r")
			for _, status := range []int{400, 401, 403, 404, 413, 500} {
				held := make(chan error, 1)
				go func() {
					out, err := p.call(t, "r_hold", "{}", scoped("ann", "1"))
					if err == nil && out.GetResult().GetContent()[0].GetText().GetText() != "held" {
						err = fmt.Errorf("result %v", out)
					}
					held <- err
				}()
				<-r.holding
				if _, err := p.call(t, "r_echo", fmt.Sprintf(`{"status":%d}`, status), scoped("bob", "2")); err == nil {
					t.Errorf("%d: the refused call succeeded", status)
				}
				if text, _ := p.text(t, "r_echo", `{"next":1}`, scoped("cyd", "3")); text != `{"next":1}` {
					t.Errorf("%d: the next call gives %s", status, text)
				}
				r.release <- struct{}{}
				if err := <-held; err != nil {
					t.Errorf("%d: the call in flight: %v", status, err)
				}
			}
		})
	}
}

// SESS-026: a session that the server forgot is opened again once and the call, which it provably did not run, is repeated.
func TestForgottenSessionIsOpenedAgain(t *testing.T) {
	r := newRemote(t, false)
	p := startWith(t, toolproxy.Config{}, newRegistry())
	defer p.stop()
	p.registry.publish(t, map[string]string{"r": fmt.Sprintf(`{"url":%q}`, r.URL)})
	p.awaitOK(t, "r")
	_, before := p.text(t, "r_echo", "{}")
	opened := r.initialized.Load()
	r.forget.Store(*r.called.Load(), true)
	text, after := p.text(t, "r_echo", `{"a":1}`)
	if text != `{"a":1}` || after.GetAttempt() != 2 || after.GetSessionId() == before.GetSessionId() {
		t.Errorf("%s, attempt %d", text, after.GetAttempt())
	}
	if n := r.initialized.Load() - opened; n != 1 {
		t.Errorf("%d sessions were opened", n)
	}
}

// STAT-011: 401 with a Bearer challenge is UNAUTHENTICATED with the login command, other 401s are ERROR.
// STAT-008: and picked up again by RefreshServers.
func TestUnauthenticatedServers(t *testing.T) {
	r := newRemote(t, false)
	p := startWith(t, toolproxy.Config{}, newRegistry())
	defer p.stop()
	r.challenge.Store(new(`Basic realm="x", bearer error="invalid_token"`))
	p.registry.publish(t, map[string]string{"r": fmt.Sprintf(`{"url":%q}`, r.URL)})
	s := p.awaitStatus(t, "r", corev1.ServerStatus_SERVER_STATUS_UNAUTHENTICATED)
	if s.GetFixCommand() != "toolherd login r" || s.GetReason() == "" {
		t.Errorf("server is %v", s)
	}
	if _, err := p.call(t, "r_echo", "{}"); !fault.Is(err, fault.UpstreamUnauthenticated) || !strings.Contains(err.Error(), "toolherd login r") {
		t.Errorf("a call gives %v", err)
	}
	r.challenge.Store(new("Basic"))
	p.awaitStatus(t, "r", statusError)
	r.challenge.Store(nil)
	refresh(t, p, "r")
	if s := p.server(t, "r"); s.GetStatus() != statusOK || s.GetFixCommand() != "" {
		t.Errorf("after a refresh: %v", s)
	}
}

// Static headers with references go to the server, and their values nowhere else.
func TestStaticHeaders(t *testing.T) {
	r := newRemote(t, false)
	p := startWith(t, toolproxy.Config{Environment: func(name string) (string, bool) {
		return "s3cr3t-t0k3n", name == "REMOTE_TOKEN"
	}}, newRegistry())
	defer p.stop()
	p.registry.publish(t, map[string]string{
		"r":     fmt.Sprintf(`{"url":%q,"headers":{"Authorization":"Bearer ${REMOTE_TOKEN}"}}`, r.URL),
		"unset": fmt.Sprintf(`{"url":%q,"headers":{"Authorization":"Bearer ${REMOTE_TOKEN_2}"}}`, r.URL),
	})
	p.awaitOK(t, "r")
	if got := r.authorized.Load(); *got != "Bearer s3cr3t-t0k3n" {
		t.Errorf("the server got %q", *got)
	}
	if _, info := p.text(t, "r_echo", "{}"); fmt.Sprint(info.GetCredentialLayers()) != "[static]" {
		t.Errorf("layers are %v", info.GetCredentialLayers())
	}
	if got := p.redactor.Redact("it is s3cr3t-t0k3n"); got != "it is ***" {
		t.Errorf("the redactor gives %q", got)
	}
	s := p.awaitStatus(t, "unset", statusError)
	for _, part := range []string{"headers.Authorization", "REMOTE_TOKEN_2"} {
		if !strings.Contains(s.GetReason(), part) {
			t.Errorf("reason %q lacks %s", s.GetReason(), part)
		}
	}
}

// SESS-028: an HTTP server causes no work on the file system.
func TestRemoteServersMakeNoWorkspace(t *testing.T) {
	r := newRemote(t, false)
	root := t.TempDir() + "/workspaces"
	p := startWith(t, toolproxy.Config{WorkspaceRoot: root}, newRegistry())
	defer p.stop()
	p.registry.publish(t, map[string]string{"r": fmt.Sprintf(`{"url":%q}`, r.URL)})
	p.awaitOK(t, "r")
	p.text(t, "r_echo", "{}", scoped("u", "t"))
	if exists(root) {
		t.Error("a workspace was made")
	}
}

func TestUnreachableRemoteServer(t *testing.T) {
	r := newRemote(t, false)
	p := startWith(t, toolproxy.Config{}, newRegistry())
	defer p.stop()
	p.registry.publish(t, map[string]string{"r": fmt.Sprintf(`{"url":%q}`, r.URL)})
	p.awaitOK(t, "r")
	r.CloseClientConnections()
	r.Close()
	started := time.Now()
	_, err := p.call(t, "r_echo", "{}")
	if err == nil || !strings.Contains(err.Error(), `"r"`) || time.Since(started) > 10*time.Second {
		t.Errorf("after %v: %v", time.Since(started), err)
	}
}
