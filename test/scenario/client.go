package scenario

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// bearer shows a token with each call.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return true }

// Conn returns a connection to a program whose calls have a role. Without tokens every caller has the same roles. The
// role "" shows no token; anything that is no role is shown as the token itself.
func (h *Herd) Conn(t testing.TB, program, role string) *grpc.ClientConn {
	t.Helper()
	if h.Topology != Split {
		program = up
	}
	key := program + "/" + role
	h.mu.Lock()
	defer h.mu.Unlock()
	if conn := h.conns[key]; conn != nil {
		return conn
	}
	options := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20), grpc.MaxCallSendMsgSize(32<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
	if h.authority == nil {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	} else {
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(h.authority.client())))
		token, ok := h.tokens[role]
		if !ok {
			token = role
		}
		if token != "" {
			options = append(options, grpc.WithPerRPCCredentials(bearer(token)))
		}
	}
	conn, err := grpc.NewClient(h.addresses[program], options...)
	if err != nil {
		t.Fatal(err)
	}
	h.conns[key] = conn
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

// Tools is the agent's client.
func (h *Herd) Tools(t testing.TB) toolproxyv1.ToolProxyServiceClient {
	t.Helper()
	return toolproxyv1.NewToolProxyServiceClient(h.Conn(t, toolproxy, "agent"))
}

// Operator is the operator's client of toolproxy.
func (h *Herd) Operator(t testing.TB) toolproxyv1.ToolProxyServiceClient {
	t.Helper()
	return toolproxyv1.NewToolProxyServiceClient(h.Conn(t, toolproxy, "operator"))
}

// Configuration is the operator's client of registry.
func (h *Herd) Configuration(t testing.TB) registryv1.RegistryServiceClient {
	t.Helper()
	return registryv1.NewRegistryServiceClient(h.Conn(t, registry, "operator"))
}

// Credentials is a client of registry's CredentialService in a role.
func (h *Herd) Credentials(t testing.TB, role string) credentialv1.CredentialServiceClient {
	t.Helper()
	return credentialv1.NewCredentialServiceClient(h.Conn(t, registry, role))
}

// Call calls a tool with JSON arguments as the agent.
type Call struct {
	Tool, Arguments string
	View            toolproxyv1.ResultView
	User, Thread    string
	Timeout         time.Duration // of the caller; patience when 0
}

// Request is the call as a message.
func (c Call) Request() *toolproxyv1.CallToolRequest {
	r := &toolproxyv1.CallToolRequest{Name: c.Tool, View: c.View, Scope: &corev1.Scope{UserId: c.User, ThreadId: c.Thread}}
	if c.Arguments != "" {
		r.Args = &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: c.Arguments}
	}
	return r
}

// Do makes the call.
func (h *Herd) Do(t testing.TB, c Call) (*toolproxyv1.CallToolResponse, error) {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = patience
	}
	ctx, cancel := context.WithTimeout(t.Context(), c.Timeout)
	defer cancel()
	return h.Tools(t).CallTool(ctx, c.Request())
}

// JSON makes the call in view JSON and returns the result object; an error of the call fails the test.
func (h *Herd) JSON(t testing.TB, c Call) string {
	t.Helper()
	c.View = toolproxyv1.ResultView_RESULT_VIEW_JSON
	out, err := h.Do(t, c)
	if err != nil {
		t.Fatalf("call %s: %v", c.Tool, err)
	}
	return out.GetResult().GetResultJson()
}

// Servers returns every server by name, as an operator sees it.
func (h *Herd) Servers(t testing.TB) map[string]*toolproxyv1.Server {
	t.Helper()
	all := map[string]*toolproxyv1.Server{}
	for token := ""; ; {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		page, err := h.Operator(t).ListServers(ctx, &toolproxyv1.ListServersRequest{PageToken: token, PageSize: 1000}, grpc.WaitForReady(true))
		cancel()
		if err != nil {
			t.Fatalf("list servers: %v", err)
		}
		for _, s := range page.GetServers() {
			all[s.GetName()] = s
		}
		if token = page.GetNextPageToken(); token == "" {
			return all
		}
	}
}

// Apply replaces the explicit file of MCP servers by one that says something else, and waits until toolproxy uses it.
func (h *Herd) Apply(t testing.TB, servers map[string]any) {
	t.Helper()
	revision := func() int64 {
		page, err := h.Operator(t).ListServers(t.Context(), &toolproxyv1.ListServersRequest{PageSize: 1})
		if err != nil {
			t.Fatalf("list servers: %v", err)
		}
		return page.GetRevision()
	}
	before := revision()
	h.Write(t, servers)
	Eventually(t, "the new configuration is in use", func() bool { return revision() > before })
}

// Settled waits until there are exactly these servers and each has had its first verdict.
func (h *Herd) Settled(t testing.TB, names ...string) map[string]*toolproxyv1.Server {
	t.Helper()
	slices.Sort(names)
	var servers map[string]*toolproxyv1.Server
	Eventually(t, "every server has its first verdict", func() bool {
		servers = h.Servers(t)
		if !slices.Equal(slices.Sorted(maps.Keys(servers)), names) {
			return false
		}
		for _, s := range servers {
			if s.GetStatus() == corev1.ServerStatus_SERVER_STATUS_STARTING {
				return false
			}
		}
		return true
	})
	return servers
}

// SettledOK is Settled where every server must be OK.
func (h *Herd) SettledOK(t testing.TB, names ...string) {
	t.Helper()
	for name, s := range h.Settled(t, names...) {
		if s.GetStatus() != corev1.ServerStatus_SERVER_STATUS_OK {
			t.Fatalf("server %s is %v: %s", name, s.GetStatus(), s.GetReason())
		}
	}
}

// ListTools returns all tools, over all pages.
func (h *Herd) ListTools(t testing.TB, request *toolproxyv1.ListToolsRequest) []*toolproxyv1.Tool {
	t.Helper()
	var all []*toolproxyv1.Tool
	for {
		page, err := h.Tools(t).ListTools(t.Context(), request)
		if err != nil {
			t.Fatalf("list tools: %v", err)
		}
		all = append(all, page.GetTools()...)
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return all
		}
	}
}
