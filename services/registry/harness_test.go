package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is a home directory and a project with their files.
type place struct {
	t             *testing.T
	home, project string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, home: filepath.Join(dir, "home"), project: filepath.Join(dir, "project")}
	for _, d := range []string{filepath.Join(p.home, ".toolherd"), filepath.Join(p.home, ".deepagents"), filepath.Join(p.project, ".git")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *place) userFile() string    { return filepath.Join(p.home, ".toolherd", ".mcp.json") }
func (p *place) projectFile() string { return filepath.Join(p.project, ".mcp.json") }

// write replaces the file at path atomically.
func (p *place) write(path, content string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path+".tmp", []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) user(servers string) { p.t.Helper(); p.write(p.userFile(), servers2doc(servers)) }
func (p *place) projectConf(servers string) {
	p.t.Helper()
	p.write(p.projectFile(), servers2doc(servers))
}

func servers2doc(servers string) string { return `{"mcpServers":` + servers + `}` }

func (p *place) config() registry.Config {
	return registry.Config{Home: p.home, WorkDir: p.project}
}

func testKey(tb testing.TB) *secret.Key {
	tb.Helper()
	k, err := secret.NewKey([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// node is a registry with an internal listener of its own.
type node struct {
	*registry.Service
	registryv1.RegistryServiceClient
	credential credentialv1.CredentialServiceClient
	stop       func() // ends it and waits; may be called twice
}

type options struct {
	cfg  registry.Config
	deps registry.Deps
	// prepare is called before the registry runs.
	prepare func(*registry.Service)
	// idle leaves the registry not running.
	idle bool
}

func start(t *testing.T, d *db.DB, o options) *node {
	t.Helper()
	o.deps.DB = d
	if o.deps.Wake == nil {
		o.deps.Wake = wake.NewLocal()
	}
	if o.deps.Key == nil {
		o.deps.Key = testKey(t)
	}
	if o.deps.Log == nil {
		o.deps.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	s, err := registry.New(o.cfg, o.deps)
	if err != nil {
		t.Fatal(err)
	}
	if o.prepare != nil {
		o.prepare(s)
	}
	server, err := rpc.NewServer(rpc.ServerOptions{Name: "internal", Log: o.deps.Log, Peer: true})
	if err != nil {
		t.Fatal(err)
	}
	s.RegisterInternal(server)
	loopback := rpc.NewLoopback()
	conn, err := loopback.Dial(rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	tasks := []run.Task{{Name: "listener", Run: func(ctx context.Context) error { return server.Serve(ctx, loopback.Listener()) }}}
	if !o.idle {
		tasks = append(tasks, run.Task{Name: "registry", Run: s.Run})
	}
	go func() { ended <- run.All(ctx, tasks...) }()
	n := &node{
		Service: s, RegistryServiceClient: registryv1.NewRegistryServiceClient(conn), credential: credentialv1.NewCredentialServiceClient(conn),
		stop: sync.OnceFunc(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("registry ended with %v", err)
			}
			conn.Close()
		}),
	}
	t.Cleanup(n.stop)
	if !o.idle {
		eventually(t, "the registry is ready", func() bool { return s.Ready(t.Context()) == nil })
	}
	return n
}

// eventually waits until ok is true.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			tb.Fatalf("20 s passed before %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// current returns the effective snapshot.
func (n *node) current(t *testing.T) *registryv1.Snapshot {
	t.Helper()
	resp, err := n.GetSnapshot(t.Context(), &registryv1.GetSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetSnapshot()
}

// states returns "name: STATE" of each entry of the effective snapshot.
func (n *node) states(t *testing.T) string {
	t.Helper()
	var out []string
	for _, s := range n.current(t).GetServers() {
		state := strings.TrimPrefix(s.GetState().String(), "ENTRY_STATE_")
		if s.GetStale() {
			state += " stale"
		}
		out = append(out, fmt.Sprintf("%s: %s", s.GetName(), state))
	}
	return strings.Join(out, ", ")
}

// becomes waits until the effective snapshot has these states.
func (n *node) becomes(t *testing.T, want string) {
	t.Helper()
	got := ""
	defer func() {
		if t.Failed() {
			t.Logf("the last states were %q", got)
		}
	}()
	eventually(t, "the states are "+want, func() bool { got = n.states(t); return got == want })
}

// revisions returns how often a snapshot was activated.
func (n *node) revisions(t *testing.T) int {
	t.Helper()
	resp, err := n.ListSnapshots(t.Context(), &registryv1.ListSnapshotsRequest{PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return len(resp.GetSnapshots())
}

func newBus() wake.Bus { return wake.NewLocal() }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func secretsOf(id, server string) *credentialv1.ResolveSecretsRequest {
	return &credentialv1.ResolveSecretsRequest{SnapshotId: id, Server: server}
}

// seen reports whether a revision was made for this reason, whatever else changed with it.
func seen(t *testing.T, n *node, reason string) bool {
	t.Helper()
	resp, err := n.ListSnapshots(t.Context(), &registryv1.ListSnapshotsRequest{PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(resp.GetSnapshots(), func(s *registryv1.Snapshot) bool { return strings.Contains(s.GetActivateReason(), reason) })
}
