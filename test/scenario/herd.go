package scenario

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/test/partners"
)

// Topology is what a Herd is made of.
type Topology string

// The topologies.
const (
	SQLite   Topology = "all-in-one on SQLite"
	Postgres Topology = "all-in-one on Postgres"
	Split    Topology = "split on Postgres"
)

// Topologies lists all of them.
func Topologies() []Topology { return []Topology{SQLite, Postgres, Split} }

// The programs of a Herd. A further taskworker or notifier is called taskworker-2 and so on.
const (
	up         = "up"
	registry   = "registry"
	toolproxy  = "toolproxy"
	taskworker = "taskworker"
	notifier   = "notifier"
)

// Options say how a Herd starts. The zero value has no MCP servers.
type Options struct {
	// Servers are the mcpServers of the explicit file. Nil means none.
	Servers map[string]any
	// Args are further flags of every program, Env further variables, NAME=value.
	Args, Env []string
	// YAML is the content of every program's toolherd.yaml; without it they have none.
	YAML string
	// Authenticated gives an all-in-one the tokens and the TLS that a split deployment always has.
	Authenticated bool
	// Workers and Notifiers are how many of each a split deployment has; every all-in-one has one.
	Workers, Notifiers int
	// Idle starts no program: the test does.
	Idle bool
}

// Herd is a running Toolherd.
type Herd struct {
	Topology Topology
	// Dir holds everything below: home (HOME of all programs), project (their working directory), state, config with
	// mcp.json, and out with what the programs print.
	Dir string
	// Config is the explicit file of MCP servers.
	Config string
	// Proxy serves ToolProxyService, Registry RegistryService; in the all-in-one they are the same.
	Proxy, Registry *Program

	t         testing.TB // the test that it ends with
	o         Options
	dsn       string
	authority *authority // nil: plaintext, no tokens
	tokens    map[string]string
	started   map[string]*Program
	addresses map[string]string // by program, fixed by its first start
	peers     map[string]string // what the others are told instead of a program's address
	http      map[string]string
	mu        sync.Mutex // guards conns
	conns     map[string]*grpc.ClientConn
}

// Each runs a test in every topology, side by side.
func Each(t *testing.T, o Options, test func(t *testing.T, h *Herd)) {
	t.Helper()
	for _, topology := range Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			test(t, New(t, topology, o))
		})
	}
}

// New starts a Herd and waits until it serves. It ends with the test.
func New(t testing.TB, topology Topology, o Options) *Herd {
	t.Helper()
	h := &Herd{
		Topology: topology, Dir: t.TempDir(), t: t, o: o,
		started: map[string]*Program{}, addresses: map[string]string{}, peers: map[string]string{}, http: map[string]string{}, conns: map[string]*grpc.ClientConn{},
	}
	for _, dir := range []string{"home", "project", "state", "config", "out"} {
		if err := os.Mkdir(filepath.Join(h.Dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h.Config = h.path("config", "mcp.json")
	h.Write(t, o.Servers)
	if o.YAML != "" {
		h.save(t, h.path("config", "toolherd.yaml"), o.YAML)
	}
	if topology != SQLite {
		h.dsn = dbtest.DSN(t) // dropped after the programs have ended
	}
	if topology == Split || o.Authenticated {
		h.authority = newAuthority(t, h.path("config"))
		h.writeTokens(t)
	}
	if topology == Split {
		h.save(t, h.path("config", "secret.key"), strings.Repeat("0a1b2c3d", 8))
		for _, name := range h.programs() {
			h.reserve(t, name) // each is told where the others will be
		}
	}
	t.Cleanup(func() { h.verifyNothingIsLeft(t) }) // after the clean-ups that stop the programs
	if !o.Idle {
		h.LaunchAll(t)
	}
	return h
}

// LaunchAll starts the programs, all at once, and waits until they serve.
func (h *Herd) LaunchAll(t testing.TB) {
	t.Helper()
	for _, name := range h.programs() {
		h.Command(t, name) // builds it
	}
	for _, name := range h.programs() {
		h.Launch(t, name)
	}
	for _, name := range h.programs() {
		h.AwaitReady(t, name)
	}
}

// KillAll ends every program with SIGKILL, as a power cut would.
func (h *Herd) KillAll(t testing.TB) {
	t.Helper()
	for _, p := range h.started {
		if !p.Exited() {
			p.Signal(t, syscall.SIGKILL)
		}
	}
	for _, p := range h.started {
		<-p.exited
	}
}

func (h *Herd) path(elem ...string) string { return filepath.Join(append([]string{h.Dir}, elem...)...) }

func (h *Herd) save(t testing.TB, path, content string) {
	t.Helper()
	// Beside the file and then into its place, as editors do.
	if err := os.WriteFile(path+".tmp", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

// Write replaces the explicit file of MCP servers.
func (h *Herd) Write(t testing.TB, servers map[string]any) {
	t.Helper()
	if servers == nil {
		servers = map[string]any{}
	}
	content, err := json.MarshalIndent(map[string]any{"mcpServers": servers}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	h.save(t, h.Config, string(content))
}

// roles lists the roles that a token may have; a Herd has a token of each, named like it.
func roles() []string { return []string{"agent", "operator", "worker", "toolproxy", "notifier"} }

func (h *Herd) writeTokens(t testing.TB) {
	t.Helper()
	h.tokens = map[string]string{}
	var b strings.Builder
	for _, role := range roles() {
		token := "thd_scenario-" + role + "-0123456789abcdef0123456789abcdef"
		h.tokens[role] = token
		sum := sha256.Sum256([]byte(token))
		fmt.Fprintf(&b, "- {name: %s, sha256: %s, roles: [%s]", role, hex.EncodeToString(sum[:]), role)
		if role == "agent" {
			b.WriteString(", act_as: any")
		}
		b.WriteString("}\n")
	}
	h.save(t, h.path("config", "tokens.yaml"), b.String())
	for program, role := range map[string]string{registry: "operator", toolproxy: "toolproxy", taskworker: "worker", notifier: "notifier"} {
		h.save(t, h.path("config", program+".token"), h.tokens[role]+"\n")
	}
}

// StopAll ends the programs in order, the last one first, and waits for that.
func (h *Herd) StopAll(t testing.TB) {
	t.Helper()
	for _, name := range slices.Backward(h.programs()) {
		if p := h.started[name]; p != nil {
			p.Stop(t)
		}
	}
}

// programs lists what the Herd is made of, in the order of a start.
func (h *Herd) programs() []string {
	if h.Topology != Split {
		return []string{up}
	}
	names := []string{registry, toolproxy}
	for kind, count := range map[string]int{taskworker: h.o.Workers, notifier: h.o.Notifiers} {
		for i := range count {
			names = append(names, nth(kind, i+1))
		}
	}
	slices.Sort(names[2:])
	return names
}

// nth names one of several programs of a kind; kindOf is the way back.
func nth(kind string, n int) string {
	if n == 1 {
		return kind
	}
	return fmt.Sprintf("%s-%d", kind, n)
}

func kindOf(program string) string {
	kind, _, _ := strings.Cut(program, "-")
	return kind
}

// reserve fixes a free address for a program that others must know before it runs, and that must be free again after a kill:
// its port is none that the kernel gives to connections or to listeners on port 0.
func (h *Herd) reserve(t testing.TB, program string) {
	t.Helper()
	const first, count = 18_000, 14_000
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(count))
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		h.addresses[program] = address
		return
	}
	t.Fatalf("no free port of %d..%d", first, first+count-1)
}

// Launch starts one of the programs, at the address that it had before if it ran already.
func (h *Herd) Launch(t testing.TB, name string) *Program {
	t.Helper()
	p := Start(t, name, h.path("out"), h.Command(t, name))
	switch name {
	case up:
		h.Registry, h.Proxy = p, p
	case registry:
		h.Registry = p
	case toolproxy:
		h.Proxy = p
	}
	h.started[name] = p
	return p
}

// Command is the command line of one of the programs.
func (h *Herd) Command(t testing.TB, name string) partners.Command {
	t.Helper()
	kind := kindOf(name)
	var c partners.Command
	if kind == up {
		c = partners.Command{Path: partners.Toolherd(t), Args: []string{up}}
	} else {
		c = partners.GoProgram(t, filepath.Join("services", kind, "cmd", kind))
	}
	address := h.addresses[name]
	if address == "" {
		address = "127.0.0.1:0"
	}
	c = c.With("--listen", address, "--http-listen", "127.0.0.1:0", "--state-dir", h.path("state"), "--project", h.path("project"))
	if kind == up || kind == registry {
		c = c.With("--mcp-config", h.Config)
	}
	if h.dsn != "" && kind != toolproxy { // which has no database
		c = c.With("--postgres", h.dsn)
	}
	if h.o.YAML != "" {
		c = c.With("--config", h.path("config", "toolherd.yaml"))
	}
	if h.authority != nil {
		c = c.With("--tokens-file", h.path("config", "tokens.yaml"), "--tls-cert-file", h.authority.Cert, "--tls-key-file", h.authority.Key)
	}
	if h.Topology == Split {
		c = c.With("--peer-token-file", h.path("config", kind+".token"), "--peer-ca-file", h.authority.CA)
		for _, peer := range []string{registry, toolproxy, taskworker, notifier} {
			if address := cmp.Or(h.peers[peer], h.addresses[peer]); address != "" {
				c = c.With("--"+peer, address)
			}
		}
	}
	c.Dir = h.path("project")
	c.Env = append(c.Env, "HOME="+h.path("home"))
	if kind == registry {
		c.Env = append(c.Env, "TOOLHERD_REGISTRY_SECRET_KEY_FILE="+h.path("config", "secret.key"))
	}
	c.Env = append(c.Env, h.o.Env...)
	return c.With(h.o.Args...)
}

// AwaitReady waits for the ready line of a program that was launched.
func (h *Herd) AwaitReady(t testing.TB, name string) {
	t.Helper()
	found := h.started[name].Announced(t, `(?m)^ready grpc=(127\.0\.0\.1:[1-9]\d*) http=(127\.0\.0\.1:[1-9]\d*)$`)
	h.addresses[name], h.http[name] = found[0], found[1]
}

// Processes lists the MCP servers of the Herd and all that they started, wherever it went; the Herd's own programs and
// their watchdogs are not among them.
func (h *Herd) Processes() []Proc {
	var found []Proc
	for _, p := range withHome(h.path("home")) {
		own := false
		for _, program := range h.started {
			own = own || program.PID == p.PID
		}
		if !own {
			found = append(found, p)
		}
	}
	return found
}

// verifyNothingIsLeft fails the test if a process of the Herd survived it.
func (h *Herd) verifyNothingIsLeft(t testing.TB) {
	t.Helper()
	// After a kill a watchdog may still be at its work.
	if poll(5*time.Second, func() bool { return len(withHome(h.path("home"))) == 0 }) {
		return
	}
	for _, p := range withHome(h.path("home")) {
		t.Errorf("process %v is left over", p)
	}
}
