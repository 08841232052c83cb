package registry_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/registry"
)

func TestEditsBecomeRevisions(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		n := start(t, d, options{cfg: p.config()})
		if got := n.states(t); got != "" { // CFG-010: no file at all is no error
			t.Errorf("without files there are %s", got)
		}
		first := n.current(t)
		if first.GetRevision() < 1 || first.GetActor() != "files" || first.GetActivateReason() != "first configuration" || first.GetCreateTime() == nil || first.GetActivateTime() == nil {
			t.Errorf("the first snapshot is %v", first)
		}

		p.user(`{"a":{"command":"x"}}`)
		n.becomes(t, "a: ACTIVE")
		a := n.current(t)
		if a.GetRevision() <= first.GetRevision() || a.GetActivateReason() != "added a" {
			t.Errorf("after the first edit: %v", a)
		}
		p.user(`{"b":{"command":"x"}}`)
		n.becomes(t, "b: ACTIVE")
		b := n.current(t)
		p.user(`{"a":{"command":"x"}}`)
		n.becomes(t, "a: ACTIVE")
		again := n.current(t)
		// SNAP-006
		if again.GetSnapshotId() != a.GetSnapshotId() || a.GetRevision() >= b.GetRevision() || b.GetRevision() >= again.GetRevision() {
			t.Errorf("A, B, A are %s at %d, %s at %d, %s at %d", a.GetSnapshotId(), a.GetRevision(), b.GetSnapshotId(), b.GetRevision(), again.GetSnapshotId(), again.GetRevision())
		}
		if got := n.revisions(t); got != 4 {
			t.Errorf("there are %d revisions, want 4", got)
		}
		old, err := n.GetSnapshot(t.Context(), &registryv1.GetSnapshotRequest{SnapshotId: b.GetSnapshotId()})
		if err != nil || old.GetSnapshot().GetServers()[0].GetName() != "b" {
			t.Errorf("snapshot B is %v, %v", old, err)
		}
		for _, id := range []string{"snap_00000000000000000000000000000000", "nonsense"} {
			if _, err := n.GetSnapshot(t.Context(), &registryv1.GetSnapshotRequest{SnapshotId: id}); !fault.Is(err, fault.SnapshotNotFound) {
				t.Errorf("snapshot %s: %v, want SNAPSHOT_NOT_FOUND", id, err)
			}
		}
	})
}

// SNAP-006
func TestEqualContentMakesNoRevision(t *testing.T) {
	p := newPlace(t)
	p.write(p.userFile(), `{"skills":{"s":{"enabled":true}},"mcpServers":{"a":{"command":"x","args":["1"]},"b":{"url":"https://example.com"}}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	before := n.current(t)
	for _, same := range []string{
		"\ufeff{ \"mcpServers\" : {\n\t\"b\":{\"url\":\"https:\\/\\/example.com\"}, \"a\":{\"args\":[\"1\"],\"command\":\"x\"}}, \"skills\":{\"s\":{\"enabled\":true}}}\n\n",
		`{"skills":{"s":{"enabled":false},"t":{}},"mcpServers":{"a":{"command":"x","args":["1"]},"b":{"url":"https://example.com"}}}`,
		`{"mcp_servers":{"a":{"command":"x","args":["1"]},"b":{"url":"https://example.com"}},"middlewares":["m:C"]}`,
	} {
		p.write(p.userFile(), same)
		settled(t, p, n)
	}
	if err := os.Chtimes(p.userFile(), time.Now(), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	settled(t, p, n)
	after := n.current(t)
	// settled itself made two revisions each time; without those there is one content.
	if after.GetSnapshotId() != before.GetSnapshotId() {
		t.Errorf("the snapshot became %s, was %s", after.GetSnapshotId(), before.GetSnapshotId())
	}
	if got := n.revisions(t); got != 1+2*4 {
		t.Errorf("there are %d revisions, want the first and two for each of 4 settlings", got)
	}
}

// settled returns when the registry has seen every edit so far: it makes another one and waits for it, and undoes it.
func settled(t *testing.T, p *place, n *node) {
	t.Helper()
	marker := filepath.Join(p.home, ".deepagents", ".mcp.json")
	p.write(marker, servers2doc(`{"marker":{"command":"x"}}`))
	eventually(t, "the marker is there", func() bool { return strings.Contains(n.states(t), "marker") })
	p.write(marker, servers2doc(`{}`))
	eventually(t, "the marker is gone", func() bool { return !strings.Contains(n.states(t), "marker") })
}

func TestFilesComeBreakAndGo(t *testing.T) {
	p := newPlace(t)
	extra := filepath.Join(p.project, "extra.json")
	p.write(extra, servers2doc(`{"e":{"command":"x"}}`))
	cfg := p.config()
	cfg.MCPConfig = []string{"extra.json"}
	n := start(t, dbtest.SQLite(t), options{cfg: cfg})
	n.becomes(t, "e: ACTIVE")

	p.user(`{"u":{"command":"x"}}`) // CFG-013
	n.becomes(t, "e: ACTIVE, u: ACTIVE")
	p.write(p.userFile(), `{"mcpServers":{"u":`) // CFG-012
	n.becomes(t, "e: ACTIVE, u: ACTIVE stale, <config:.mcp.json>: ERROR")
	if err := os.Remove(extra); err != nil {
		t.Fatal(err)
	}
	n.becomes(t, "e: ACTIVE stale, u: ACTIVE stale, <config:.mcp.json>: ERROR, <config:extra.json>: ERROR")
	p.write(extra, servers2doc(`{"e":{"command":"x"}}`))
	p.user(`{"u":{"command":"x"}}`)
	n.becomes(t, "e: ACTIVE, u: ACTIVE")
	if err := os.Remove(p.userFile()); err != nil {
		t.Fatal(err)
	}
	n.becomes(t, "e: ACTIVE")
}

func TestALaterExplicitFileBeatsAnEarlierOne(t *testing.T) {
	// CFG-004
	p := newPlace(t)
	p.write(filepath.Join(p.home, "one.json"), servers2doc(`{"a":{"command":"one"},"b":{"command":"one"}}`))
	p.write(filepath.Join(p.project, "two.json"), servers2doc(`{"b":{"command":"two"}}`))
	cfg := p.config()
	cfg.MCPConfig = []string{"~/one.json", "two.json"}
	n := start(t, dbtest.SQLite(t), options{cfg: cfg})
	servers := n.current(t).GetServers()
	if len(servers) != 2 || !strings.Contains(servers[0].GetEntryJson(), "one") || !strings.Contains(servers[1].GetEntryJson(), "two") {
		t.Errorf("servers are %v", servers)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	p := newPlace(t)
	d := dbtest.SQLite(t)
	deps := registry.Deps{DB: d, Wake: newBus(), Log: discard()}
	for name, tt := range map[string]struct {
		change func(c *registry.Config)
		want   []string
	}{
		"a missing explicit file": { // CFG-011
			func(c *registry.Config) { c.MCPConfig, c.MCPConfigFrom = []string{"gone.json"}, "TOOLHERD_MCP_CONFIG" },
			[]string{"TOOLHERD_MCP_CONFIG", filepath.Join(p.project, "gone.json"), "does not exist"},
		},
		"no servers and a file of servers": { // CFG-006
			func(c *registry.Config) { c.NoMCP, c.MCPConfig = true, []string{"x.json"} },
			[]string{"--no-mcp", "--mcp-config"},
		},
		"a source that is not built": {
			func(c *registry.Config) { c.Source = "database" },
			[]string{"registry.source", "not supported by this version"},
		},
	} {
		cfg := p.config()
		tt.change(&cfg)
		_, err := registry.New(cfg, deps)
		if !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("%s: %v, want CONFIG_INVALID", name, err)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not mention %q", name, err, w)
			}
		}
	}
	if _, err := registry.New(p.config(), registry.Deps{}); err == nil {
		t.Error("a registry without a database was made")
	}
}

func TestNothingIsServedBeforeTheFirstOwnPublication(t *testing.T) {
	// TRUST-002: what an earlier run trusted is not served by one that does not.
	p := newPlace(t)
	p.projectConf(`{"a":{"command":"x"}}`)
	d := dbtest.SQLite(t)
	cfg := p.config()
	cfg.TrustProjectMCP = true
	before := start(t, d, options{cfg: cfg})
	before.becomes(t, "a: ACTIVE") // TRUST-003
	id := before.current(t).GetSnapshotId()
	before.stop()

	idle := start(t, d, options{cfg: p.config(), idle: true})
	if err := idle.Ready(t.Context()); !fault.Is(err, fault.NotReady) {
		t.Errorf("ready before it ran: %v", err)
	}
	for _, asked := range []string{"", id} {
		if _, err := idle.GetSnapshot(t.Context(), &registryv1.GetSnapshotRequest{SnapshotId: asked}); !fault.Is(err, fault.NotReady) {
			t.Errorf("GetSnapshot %q: %v, want NOT_READY", asked, err)
		}
	}
	if _, err := idle.ListServers(t.Context(), &registryv1.ListServersRequest{}); !fault.Is(err, fault.NotReady) {
		t.Errorf("ListServers: %v, want NOT_READY", err)
	}
	if _, err := idle.GetConfig(t.Context(), &registryv1.GetConfigRequest{}); !fault.Is(err, fault.NotReady) {
		t.Errorf("GetConfig: %v, want NOT_READY", err)
	}
	if _, err := idle.ListSnapshots(t.Context(), &registryv1.ListSnapshotsRequest{}); !fault.Is(err, fault.NotReady) {
		t.Errorf("ListSnapshots: %v, want NOT_READY", err)
	}
	if _, err := idle.credential.ResolveSecrets(t.Context(), secretsOf(id, "a")); !fault.Is(err, fault.NotReady) {
		t.Errorf("ResolveSecrets: %v, want NOT_READY", err)
	}

	after := start(t, d, options{cfg: p.config()})
	if got := after.states(t); got != "a: UNTRUSTED" {
		t.Errorf("after a restart without trust: %s", got)
	}
}

// CFG-025
func TestAServerNameThatNoDatabaseTakesIsAnErrorOfThatEntryAlone(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"a":{"command":"x"}}`)
		n := start(t, d, options{cfg: p.config()})
		p.user(`{"a":{"command":"y"},"b\u0000\u001b[2J":{"command":"x"}}`)
		n.becomes(t, "a: ACTIVE, b\x00\x1b[2J: ERROR")
		if got, want := n.current(t).GetActivateReason(), `added "b\x00\x1b[2J"; changed a`; got != want {
			t.Errorf("the reason is %q, want %q", got, want)
		}
	})
}
