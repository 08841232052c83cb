package toolproxy_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy"
)

// SESS-019: a child sees six variables of the service and its entry's env, nothing else.
// SESS-016, SESS-017: it works where its scope does, with a temporary directory of its own.
func TestEnvironmentOfChildren(t *testing.T) {
	t.Setenv("TOOLPROXY_TEST_LEAK", "must not be seen")
	t.Setenv("TERM", "() { echo function; }")
	root := filepath.Join(t.TempDir(), "w")
	p := start(t, toolproxy.Config{WorkspaceRoot: root})
	p.registry.publish(t, map[string]string{"peer": peerEntry(t, "", "OWN", "1")})
	p.awaitOK(t, "peer")
	text, _ := p.text(t, "peer_environ", "{}", scoped("ann", "t1"))
	temp := filepath.Join(root, "users", "ann", "threads", "t1", "user-data", "workspace", ".mcp", "tmp")
	vars := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		name, value, _ := strings.Cut(line, "=")
		vars[name] = value
	}
	for name, value := range vars {
		switch name {
		case "HOME", "LOGNAME", "PATH", "SHELL", "USER", "PEER":
		case "OWN":
			if value != "1" {
				t.Errorf("OWN is %q", value)
			}
		case "TMPDIR", "TMP", "TEMP":
			if value != temp {
				t.Errorf("%s is %q, want %q", name, value, temp)
			}
		default:
			t.Errorf("the child sees %s=%s", name, value)
		}
	}
	if vars["OWN"] == "" || vars["TMPDIR"] == "" || vars["PATH"] == "" {
		t.Errorf("environment is %q", vars)
	}
}

// Literal secrets come from the registry at activation, reach the server and are redacted everywhere else.
func TestLiteralSecretsComeFromTheRegistry(t *testing.T) {
	p := start(t, toolproxy.Config{})
	public, secrets := serverconfig.Externalize("peer", json.RawMessage(peerEntry(t, "", "API_TOKEN", "literal-s3cr3t")), func(label string, data []byte) string {
		return fmt.Sprintf("%x", sha256.Sum256(append([]byte(label), data...)))
	})
	if strings.Contains(string(public), "literal-s3cr3t") || len(secrets) == 0 {
		t.Fatalf("public JSON is %s", public)
	}
	p.registry.mu.Lock()
	p.registry.secrets = map[string]map[string]string{"peer": secrets}
	p.registry.mu.Unlock()
	p.registry.publishSnapshot(&registryv1.Snapshot{Servers: []*registryv1.ServerEntry{entry(t, "peer", string(public)), entry(t, "orphan", string(public))}})
	p.awaitOK(t, "peer")
	if text, _ := p.text(t, "peer_environ", "{}"); !strings.Contains(text, "API_TOKEN=literal-s3cr3t") {
		t.Errorf("the child sees %q", text)
	}
	if got := p.redactor.Redact("x literal-s3cr3t x"); got != "x *** x" {
		t.Errorf("the redactor gives %q", got)
	}
	// A literal that the registry does not have keeps that one server from starting, whatever it is.
	if s := p.awaitStatus(t, "orphan", statusError); !strings.Contains(s.GetReason(), "secret store") {
		t.Errorf("orphan is %v", s)
	}
}

// SESS-011: a changed entry's session carries its calls to the end, unchanged servers keep theirs.
func TestConfigurationChangeDrains(t *testing.T) {
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{"changed": peerEntry(t, ""), "kept": peerEntry(t, "")})
	p.awaitOK(t, "changed", "kept")
	p.text(t, "kept_count", "{}")
	working := make(chan error, 1)
	began := filepath.Join(t.TempDir(), "began")
	go func() {
		r, err := p.call(t, "changed_work", fmt.Sprintf(`{"steps":20,"pause_ms":50,"began":%q}`, began))
		if err == nil && r.GetResult().GetContent()[0].GetText().GetText() != "done" {
			err = fmt.Errorf("result %v", r)
		}
		working <- err
	}()
	await(t, "the call runs", func() bool { return exists(began) })
	p.registry.publish(t, map[string]string{"changed": peerEntry(t, "", "NEW", "1"), "kept": peerEntry(t, "")})
	await(t, "the new entry is in use", func() bool {
		text, err := p.call(t, "changed_environ", "{}")
		return err == nil && strings.Contains(text.GetResult().GetContent()[0].GetText().GetText(), "NEW=1")
	})
	if err := <-working; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	if text, _ := p.text(t, "kept_count", "{}"); text != "2" {
		t.Errorf("the unchanged server lost its session: %s", text)
	}
	await(t, "the old session ends", func() bool { return len(p.sessions(t)) == 2 })
}

func (p *proxy) sessions(t *testing.T) []*toolproxyv1.Session {
	t.Helper()
	r, err := p.ListSessions(t.Context(), &toolproxyv1.ListSessionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetSessions()
}

// SESS-008: sessions are listed with pid, calls and memory, and ended by server, scope, both or all.
func TestListAndResetSessions(t *testing.T) {
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{"a": peerEntry(t, ""), "b": peerEntry(t, "")})
	p.awaitOK(t, "a", "b")
	for _, server := range []string{"a", "b"} {
		for _, s := range []string{"1", "2"} {
			p.text(t, server+"_echo", "{}", scoped("ann", s))
		}
	}
	var paged []string
	token := ""
	for {
		page, err := p.ListSessions(t.Context(), &toolproxyv1.ListSessionsRequest{PageSize: 4, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.GetSessions() {
			paged = append(paged, s.GetServer()+s.GetScope().GetUserId()+s.GetScope().GetThreadId())
			if s.GetPid() == 0 || s.GetCallCount() < 1 || s.GetResidentBytes() == 0 || !s.GetStartTime().IsValid() || s.GetTransport() != "stdio" {
				t.Errorf("session is %v", s)
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if want := []string{"aann1", "aann2", "adefaultdefault", "bann1", "bann2", "bdefaultdefault"}; !slices.Equal(paged, want) {
		t.Errorf("sessions are %q", paged)
	}
	for _, tc := range []struct {
		request *toolproxyv1.ResetSessionsRequest
		ended   int32
	}{
		{&toolproxyv1.ResetSessionsRequest{Server: "a", Scope: &corev1.Scope{UserId: "ann", ThreadId: "1"}}, 1},
		{&toolproxyv1.ResetSessionsRequest{Scope: &corev1.Scope{UserId: "ann", ThreadId: "2"}}, 2},
		{&toolproxyv1.ResetSessionsRequest{Server: "b"}, 2},
		{&toolproxyv1.ResetSessionsRequest{Server: "nobody"}, 0},
		{&toolproxyv1.ResetSessionsRequest{}, 1},
	} {
		r, err := p.ResetSessions(t.Context(), tc.request)
		if err != nil || r.GetEnded() != tc.ended {
			t.Errorf("%v ended %d, %v", tc.request, r.GetEnded(), err)
		}
	}
	if n := len(p.sessions(t)); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	if text, _ := p.text(t, "a_count", "{}"); text != "1" {
		t.Errorf("after the reset: %s", text)
	}
}

// withTokens serves p to callers with tokens: ann and bob are agents who speak for themselves, any for anybody, op operates.
func withTokens(t *testing.T, p *proxy) map[string]toolproxyv1.ToolProxyServiceClient {
	t.Helper()
	var lines strings.Builder
	tokens := map[string]string{}
	for name, rights := range map[string]string{
		"ann": "roles: [agent], user_id: ann", "bob": "roles: [agent], user_id: bob", "plain": "roles: [agent]",
		"any": "roles: [agent], act_as: any", "op": "roles: [operator]",
	} {
		token, sum := authn.NewToken()
		tokens[name] = token
		fmt.Fprintf(&lines, "- {name: %s, sha256: %s, %s}\n", name, sum, rights)
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	table, err := authn.OpenTokens(path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	server, err := rpc.NewServer(rpc.ServerOptions{Log: quiet(), Tokens: table, DrainTimeout: 1e9})
	if err != nil {
		t.Fatal(err)
	}
	p.service.Register(server)
	clients := serveTokens(t, server, tokens)
	return clients
}

func serveTokens(t *testing.T, server *rpc.Server, tokens map[string]string) map[string]toolproxyv1.ToolProxyServiceClient {
	t.Helper()
	l, stop := listen(t, server)
	out := map[string]toolproxyv1.ToolProxyServiceClient{}
	var conns []*grpc.ClientConn
	for name, token := range tokens {
		conn, err := rpc.Dial(l, rpc.ClientOptions{Token: func() (string, error) { return token, nil }})
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		out[name] = toolproxyv1.NewToolProxyServiceClient(conn)
	}
	t.Cleanup(func() {
		for _, c := range conns {
			_ = c.Close()
		}
		stop()
	})
	return out
}

// SESS-003 and the rules of identity hold on calls, lists and resets alike; what a server printed is for its owner.
func TestCallersSpeakForThemselves(t *testing.T) {
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{"peer": peerEntry(t, ""), "bad": peerEntry(t, "", "PEER_START", "exit")})
	p.awaitOK(t, "peer")
	p.awaitStatus(t, "bad", statusError)
	as := withTokens(t, p)
	count := func(name string, s *corev1.Scope) (string, error) {
		r, err := as[name].CallTool(t.Context(), &toolproxyv1.CallToolRequest{Name: "peer_count", Scope: s})
		if err != nil {
			return "", err
		}
		return r.GetResult().GetContent()[0].GetText().GetText(), nil
	}
	user := func(id string) *corev1.Scope { return &corev1.Scope{UserId: id} }
	for _, tc := range []struct {
		caller string
		scope  *corev1.Scope
		want   string // "" means FORBIDDEN
	}{
		{"ann", nil, "1"}, {"ann", user("ann"), "2"}, {"ann", user("bob"), ""}, {"bob", nil, "1"},
		{"any", user("ann"), "3"}, {"any", nil, "1"}, {"plain", user("ann"), ""}, {"plain", nil, "2"}, {"op", user("ann"), ""},
	} {
		got, err := count(tc.caller, tc.scope)
		if got != tc.want || tc.want == "" && !fault.Is(err, fault.Forbidden) || tc.want != "" && err != nil {
			t.Errorf("%s for %v: %q, %v", tc.caller, tc.scope, got, err)
		}
	}
	for _, s := range []*corev1.Scope{user("a\x00b"), user(strings.Repeat("u", 129)), {ThreadId: "a\nb"}, {ThreadId: strings.Repeat("t", 129)}} {
		if _, err := count("any", s); !fault.Is(err, fault.InvalidArguments) {
			t.Errorf("scope %q: %v", s, err)
		}
		if _, err := as["any"].ListTools(t.Context(), &toolproxyv1.ListToolsRequest{Scope: s}); !fault.Is(err, fault.InvalidArguments) {
			t.Errorf("list with scope %q: %v", s, err)
		}
	}
	// SESS-022: a tail goes to operators and to the owner, here the user default.
	for name, sees := range map[string]bool{"op": true, "plain": true, "any": true, "ann": false} {
		r, err := as[name].ListServers(t.Context(), &toolproxyv1.ListServersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(r.GetServers()[0].GetReason(), "cannot find my configuration"); got != sees {
			t.Errorf("%s sees the tail: %v", name, got)
		}
	}
	// Resets: all takes an operator, and others reach their own sessions only.
	if _, err := as["ann"].ResetSessions(t.Context(), &toolproxyv1.ResetSessionsRequest{}); !fault.Is(err, fault.Forbidden) {
		t.Errorf("ann resets all: %v", err)
	}
	if _, err := as["ann"].ResetSessions(t.Context(), &toolproxyv1.ResetSessionsRequest{Scope: user("bob")}); !fault.Is(err, fault.Forbidden) {
		t.Errorf("ann resets bob's: %v", err)
	}
	if _, err := as["ann"].ListSessions(t.Context(), &toolproxyv1.ListSessionsRequest{}); !fault.Is(err, fault.Forbidden) {
		t.Errorf("ann lists sessions: %v", err)
	}
	r, err := as["ann"].ResetSessions(t.Context(), &toolproxyv1.ResetSessionsRequest{Server: "peer"})
	if err != nil || r.GetEnded() != 1 {
		t.Errorf("ann resets her own: %v, %v", r, err)
	}
	if got, err := count("ann", nil); got != "1" || err != nil {
		t.Errorf("ann afterwards: %q, %v", got, err)
	}
	if got, err := count("bob", nil); got != "2" || err != nil {
		t.Errorf("bob afterwards: %q, %v", got, err)
	}
	if _, err := as["op"].ResetSessions(t.Context(), &toolproxyv1.ResetSessionsRequest{}); err != nil {
		t.Errorf("an operator resets all: %v", err)
	}
}

func TestWhatIsNotBuiltSaysSo(t *testing.T) {
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, nil)
	_, search := p.SearchTools(t.Context(), &toolproxyv1.SearchToolsRequest{})
	_, prompt := p.GetPromptSection(t.Context(), &toolproxyv1.GetPromptSectionRequest{})
	for _, err := range []error{search, prompt} {
		if e, ok := errors.AsType[*fault.Error](err); !ok || e.Kind() != fault.Unimplemented || e.Error() == "" {
			t.Errorf("error is %v", err)
		}
	}
}
