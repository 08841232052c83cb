package toolproxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/pkg/telemetry"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy"
)

func TestMain(m *testing.M) {
	switch {
	case toolproxy.IsWatchdog():
		os.Exit(toolproxy.Watchdog())
	case os.Getenv("PEER") == "sdk":
		os.Exit(runSDKPeer())
	case os.Getenv("PEER") == "proxy":
		os.Exit(runProxyPeer())
	case os.Getenv("PEER") != "":
		os.Exit(runPeer())
	}
	goleak.VerifyTestMain(m)
}

// registry is a registry whose snapshots the test makes by hand.
type registry struct {
	registryv1.UnimplementedRegistryServiceServer
	credentialv1.UnimplementedCredentialServiceServer

	mu       sync.Mutex
	snapshot *registryv1.Snapshot
	changed  chan struct{}
	secrets  map[string]map[string]string // by server
	calls    int                          // of ResolveSecrets
}

func newRegistry() *registry { return &registry{changed: make(chan struct{})} }

// publish makes entries, raw JSON by name, the current snapshot.
func (r *registry) publish(t testing.TB, entries map[string]string) {
	t.Helper()
	s := &registryv1.Snapshot{}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		s.Servers = append(s.Servers, entry(t, name, entries[name]))
	}
	r.publishSnapshot(s)
}

func entry(t testing.TB, name, raw string) *registryv1.ServerEntry {
	t.Helper()
	canonical, err := serverconfig.Canonical([]byte(raw))
	if err != nil {
		t.Fatalf("entry %s: %v", name, err)
	}
	return &registryv1.ServerEntry{
		Name: name, State: registryv1.EntryState_ENTRY_STATE_ACTIVE, EntryJson: string(canonical),
		Fingerprint: serverconfig.Fingerprint(canonical), Source: "test.json", SourceClass: "explicit",
	}
}

func (r *registry) publishSnapshot(s *registryv1.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Revision = 1
	if r.snapshot != nil {
		s.Revision = r.snapshot.GetRevision() + 1
	}
	s.SnapshotId = fmt.Sprintf("snap_%032x", s.GetRevision())
	r.snapshot = s
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *registry) WatchSnapshots(_ *registryv1.WatchSnapshotsRequest, stream grpc.ServerStreamingServer[registryv1.WatchSnapshotsResponse]) error {
	var sent int64
	for {
		r.mu.Lock()
		s, changed := r.snapshot, r.changed
		r.mu.Unlock()
		if s != nil && s.GetRevision() > sent {
			sent = s.GetRevision()
			if err := stream.Send(&registryv1.WatchSnapshotsResponse{Snapshot: s}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-rpc.Draining(stream.Context()):
			return fault.New(fault.NotReady, "shutting down")
		}
	}
}

func (r *registry) ResolveSecrets(_ context.Context, q *credentialv1.ResolveSecretsRequest) (*credentialv1.ResolveSecretsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	return &credentialv1.ResolveSecretsResponse{Secrets: r.secrets[q.GetServer()]}, nil
}

// proxy is a running toolproxy with its registry.
type proxy struct {
	toolproxyv1.ToolProxyServiceClient

	conn     *grpc.ClientConn
	registry *registry
	service  *toolproxy.Service
	redactor *secret.Redactor
	stop     func() // ends it, and waits
}

// serve runs a server with these services until the test ends, and returns a connection to it.
func serve(t testing.TB, register func(grpc.ServiceRegistrar)) (*grpc.ClientConn, func()) {
	t.Helper()
	server, err := rpc.NewServer(rpc.ServerOptions{Log: quiet(), Peer: true, DrainTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	register(server)
	loopback := rpc.NewLoopback()
	conn, err := loopback.Dial(rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop := background(t, func(ctx context.Context) error { return server.Serve(ctx, loopback.Listener()) })
	return conn, func() {
		if err := conn.Close(); err != nil {
			t.Errorf("close connection: %v", err)
		}
		stop()
	}
}

// background runs f until the returned function or the end of the test ends its context.
func background(t testing.TB, f func(context.Context) error) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return stop
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// start runs a toolproxy. The registry has no snapshot yet.
func start(t testing.TB, c toolproxy.Config) *proxy {
	t.Helper()
	p := startWith(t, c, newRegistry())
	t.Cleanup(p.stop)
	return p
}

// startWith runs a toolproxy with this registry and, if given, other dependencies.
func startWith(t testing.TB, c toolproxy.Config, r *registry, change ...func(*toolproxy.Deps)) *proxy {
	t.Helper()
	conn, stopRegistry := serve(t, func(s grpc.ServiceRegistrar) {
		registryv1.RegisterRegistryServiceServer(s, r)
		credentialv1.RegisterCredentialServiceServer(s, r)
	})
	tel, err := telemetry.New(t.Context(), telemetry.Config{Service: "toolproxy", LogOutput: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if c.WorkspaceRoot == "" {
		c.WorkspaceRoot = filepath.Join(t.TempDir(), "workspaces")
	}
	p := &proxy{registry: r, redactor: secret.NewRedactor()}
	deps := toolproxy.Deps{
		Registry: registryv1.NewRegistryServiceClient(conn), Credentials: credentialv1.NewCredentialServiceClient(conn),
		Log: quiet(), Telemetry: tel, Redactor: p.redactor,
	}
	for _, c := range change {
		c(&deps)
	}
	p.service, err = toolproxy.New(c, deps)
	if err != nil {
		t.Fatal(err)
	}
	stopService := background(t, p.service.Run)
	own, stopServer := serve(t, p.service.RegisterInternal)
	p.conn = own
	p.ToolProxyServiceClient = toolproxyv1.NewToolProxyServiceClient(own)
	p.stop = sync.OnceFunc(func() {
		stopServer()
		stopService()
		stopRegistry()
	})
	return p
}

// peerEntry is the entry of a stdio server that is this test binary, with further members of the entry, `,"key":value`,
// and environment variables.
func peerEntry(t testing.TB, more string, env ...string) string {
	t.Helper()
	vars := map[string]string{"PEER": "1"}
	for i := 0; i < len(env); i += 2 {
		vars[env[i]] = env[i+1]
	}
	encoded, err := json.Marshal(vars)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"command":%q,"env":%s%s}`, exe, encoded, more)
}

// await polls until done returns true, and fails the test after a while, saying what was waited for.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: waited in vain", what)
		}
	}
}

// server returns the status of one server.
func (p *proxy) server(t testing.TB, name string) *toolproxyv1.Server {
	t.Helper()
	r, err := p.ListServers(t.Context(), &toolproxyv1.ListServersRequest{})
	if err != nil {
		if fault.Is(err, fault.NotReady) {
			return &toolproxyv1.Server{}
		}
		t.Fatalf("list servers: %v", err)
	}
	for _, s := range r.GetServers() {
		if s.GetName() == name {
			return s
		}
	}
	return &toolproxyv1.Server{}
}

func (p *proxy) awaitStatus(t testing.TB, name string, want corev1.ServerStatus) *toolproxyv1.Server {
	t.Helper()
	got := &toolproxyv1.Server{}
	t.Cleanup(func() {
		if got.GetStatus() != want {
			t.Logf("server %s was last seen as %v", name, got)
		}
	})
	await(t, fmt.Sprintf("server %s becomes %v", name, want), func() bool {
		got = p.server(t, name)
		return got.GetStatus() == want
	})
	return got
}

func (p *proxy) awaitOK(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		p.awaitStatus(t, name, corev1.ServerStatus_SERVER_STATUS_OK)
	}
}

// call calls a tool with arguments as JSON.
func (p *proxy) call(t testing.TB, name, arguments string, change ...func(*toolproxyv1.CallToolRequest)) (*toolproxyv1.CallToolResponse, error) {
	t.Helper()
	r := &toolproxyv1.CallToolRequest{Name: name, Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: arguments}}
	for _, c := range change {
		c(r)
	}
	return p.CallTool(t.Context(), r)
}

// text calls a tool that must succeed and returns its first text.
func (p *proxy) text(t testing.TB, name, arguments string, change ...func(*toolproxyv1.CallToolRequest)) (string, *toolproxyv1.CallInfo) {
	t.Helper()
	r, err := p.call(t, name, arguments, change...)
	if err != nil {
		t.Fatalf("call %s: %v", name, err)
	}
	if len(r.GetResult().GetContent()) == 0 {
		t.Fatalf("call %s: no content in %v", name, r)
	}
	return r.GetResult().GetContent()[0].GetText().GetText(), r.GetInfo()
}

func scoped(user, thread string) func(*toolproxyv1.CallToolRequest) {
	return func(r *toolproxyv1.CallToolRequest) { r.Scope = &corev1.Scope{UserId: user, ThreadId: thread} }
}

func refresh(t testing.TB, p *proxy, names ...string) {
	t.Helper()
	if _, err := p.RefreshServers(t.Context(), &toolproxyv1.RefreshServersRequest{Names: names, Force: true}); err != nil {
		t.Fatalf("refresh: %v", err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// listen serves on loopback and returns the address.
func listen(t testing.TB, server *rpc.Server) (string, func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String(), background(t, func(ctx context.Context) error { return server.Serve(ctx, l) })
}
