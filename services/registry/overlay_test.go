package registry_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/registry"
)

// API-015, API-016
func TestASwitchChangesNothingElse(t *testing.T) {
	p := newPlace(t)
	p.write(p.userFile(), `{"mcpServers":{"a":{ "command":"npx", "env":{"K":"\u0078${HOME}"},"n":1.10 },"bad":{"command":7,"enabled":false},
 "alias":{"transport":"streamableHttp","url":"https://h.example/","disabled":true},"nourl":{"type":"http","enabled":false},"shout":{"type":"HTTP","url":"https://h/","enabled":false},"list":[1]}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	for _, name := range []string{"bad", "nourl", "shout"} {
		n.refused(t, p, "enable "+name, fault.ConfigInvalid, func() error { return n.enable(t, name, true) })
		if err := n.enable(t, name, false); err != nil {
			t.Errorf("disable %s, which is off: %v", name, err)
		}
	}
	n.refused(t, p, "disable a list", fault.ConfigInvalid, func() error { return n.enable(t, "list", false) })
	n.refused(t, p, "nobody", fault.ServerNotFound, func() error { return n.enable(t, "nobody", false) })

	if err := n.enable(t, "a", false); err != nil {
		t.Fatal(err)
	}
	if err := n.enable(t, "alias", true); err != nil {
		t.Fatal(err)
	}
	if got, want := n.states(t), "a: DISABLED, alias: ACTIVE, bad: DISABLED, list: ERROR, nourl: DISABLED, shout: DISABLED"; got != want {
		t.Errorf("states are %s, want %s", got, want)
	}
	got := p.read(p.userFile())
	for _, part := range []string{`"env": {
        "K": "\u0078${HOME}"
      },
      "n": 1.10,
      "enabled": false`, `"bad": {"command":7,"enabled":false}`, `"disabled": false`} {
		if !strings.Contains(got, part) {
			t.Errorf("%s is not in\n%s", part, got)
		}
	}
	resp, err := n.SetServerEnabled(t.Context(), &registryv1.SetServerEnabledRequest{Name: "a", Enabled: true, Etag: n.config(t).GetEtag()})
	if err != nil || resp.GetSnapshotId() != n.current(t).GetSnapshotId() || resp.GetEtag() != n.config(t).GetEtag() || !strings.Contains(n.states(t), "a: ACTIVE") {
		t.Errorf("on again: %v, %v, %s", resp, err, n.states(t))
	}
}

// API-002, API-003
func TestEntriesOfOtherFilesAreSwitchedBesideThem(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		const project = `{"mcpServers":{"mine":{"command":"npx"},"off":{"url":"https://h.example/","enabled":false},"sh":{"command":"sh","enabled":false},"bad":{"command":7,"enabled":false}}}`
		p.write(p.projectFile(), project)
		p.user(`{"user":{"command":"npx"}}`)
		cfg := p.config()
		cfg.TrustProjectMCP = true
		o := options{cfg: cfg, deps: registry.Deps{Wake: wake.None()}}
		n := start(t, d, o)
		file := p.read(p.userFile())
		untouched := func(what string) {
			t.Helper()
			if p.read(p.projectFile()) != project || p.read(p.userFile()) != file {
				t.Errorf("%s: a file was touched", what)
			}
		}
		if err := n.enable(t, "mine", false); err != nil || !strings.HasPrefix(n.states(t), "bad: DISABLED, mine: DISABLED, off: DISABLED") {
			t.Errorf("off: %v, %s", err, n.states(t))
		}
		if err := n.enable(t, "off", true); err != nil || !strings.Contains(n.states(t), "off: ACTIVE") {
			t.Errorf("on: %v, %s", err, n.states(t))
		}
		untouched("switched")
		for _, s := range n.current(t).GetServers() {
			if s.GetName() == "mine" && (!strings.Contains(s.GetReason(), "through the API") || s.GetFixCommand() != "toolherd servers enable mine") {
				t.Errorf("mine: %s, %s", s.GetReason(), s.GetFixCommand())
			}
		}
		n.refused(t, p, "enable sh", fault.LaunchPolicy, func() error { return n.enable(t, "sh", true) })
		n.refused(t, p, "enable bad", fault.ConfigInvalid, func() error { return n.enable(t, "bad", true) })

		// It outlives the process, other replicas have it, and edits of either file leave it alone.
		n.stop()
		n = start(t, d, o)
		second := start(t, d, o)
		if got := n.revisions(t); got != 3 {
			t.Errorf("%d revisions, want 3", got)
		}
		if err := second.put(t, "new", `{"command":"npx"}`); err != nil {
			t.Error(err)
		}
		const states = "bad: DISABLED, mine: DISABLED, new: ACTIVE, off: ACTIVE, sh: DISABLED, user: ACTIVE"
		n.becomes(t, states)

		// Back to what the files say, by a replica that published exactly this before, or did not.
		file = p.read(p.userFile())
		for _, r := range []*node{n, second, n} {
			for _, enabled := range []bool{true, false} {
				if err := r.enable(t, "mine", enabled); err != nil || strings.Contains(r.states(t), "mine: ACTIVE") != enabled {
					t.Errorf("enabled %v: %v, %s", enabled, err, r.states(t))
				}
			}
		}
		n.becomes(t, states)
		second.becomes(t, states)
		untouched("switched again")
	})
}

// API-002
func TestEntriesOfOtherFilesAreReadOnly(t *testing.T) {
	p := newPlace(t)
	p.projectConf(`{"theirs":{"command":"npx","env":{"K":"s3cret"}}}`)
	p.user(`{"mine":{"command":"npx"},"theirs":{"command":"npx","description":"shadowed"}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	var shown string
	for _, e := range n.config(t).GetReadOnly() {
		if e.GetName() == "theirs" {
			shown = e.GetServerJson()
			if e.GetSource() != p.projectFile() || strings.Contains(shown, "s3cret") {
				t.Errorf("shown as %v", e)
			}
		}
	}
	const mine = `"mine":{"command":"npx"}`
	for what, write := range map[string]func() error{
		"put":                  func() error { return n.put(t, "theirs", `{"command":"uvx"}`) },
		"changed in a replace": func() error { return n.replace(t, `{"mcpServers":{`+mine+`,"theirs":{"command":"uvx"}}}`, "") },
	} {
		if err := n.refused(t, p, what, fault.ConfigConflict, write); !strings.Contains(err.Error(), p.projectFile()) {
			t.Errorf("%s: %v does not name %s", what, err, p.projectFile())
		}
	}
	// Its own entry of that name may go, and does not come back by sending what was shown.
	if err := n.replace(t, `{"mcpServers":{`+mine+`}}`, ""); err != nil {
		t.Error(err)
	}
	if err := n.replace(t, `{"mcpServers":{`+mine+`,"theirs":`+shown+`}}`, ""); err != nil {
		t.Error(err)
	}
	if got := p.read(p.userFile()); strings.Contains(got, "theirs") {
		t.Errorf("the file is\n%s", got)
	}
	err := n.refused(t, p, "delete", fault.ConfigConflict, func() error {
		_, err := n.DeleteServer(t.Context(), &registryv1.DeleteServerRequest{Name: "theirs"})
		return err
	})
	if !strings.Contains(err.Error(), p.projectFile()) {
		t.Errorf("%v does not name %s", err, p.projectFile())
	}
	if got := n.states(t); got != "mine: ACTIVE, theirs: UNTRUSTED" {
		t.Error(got)
	}
}

// API-002, API-022
func TestTheWritableLayerIsTheLastExplicitFile(t *testing.T) {
	p := newPlace(t)
	p.user(`{"user":{"command":"npx"}}`)
	one, two, real := filepath.Join(p.project, "one.json"), filepath.Join(p.project, "two.json"), filepath.Join(p.project, "real.json")
	p.write(one, servers2doc(`{"one":{"command":"npx"}}`))
	p.write(real, servers2doc(`{"two":{"command":"npx"}}`))
	if err := os.Symlink("real.json", two); err != nil {
		t.Fatal(err)
	}
	cfg := p.config()
	cfg.MCPConfig = []string{one, two}
	n := start(t, dbtest.SQLite(t), options{cfg: cfg})
	if err := n.put(t, "new", `{"command":"npx"}`); err != nil {
		t.Fatal(err)
	}
	if got := p.read(real); !strings.Contains(got, `"new"`) || strings.Contains(p.read(one)+p.read(p.userFile()), `"new"`) {
		t.Errorf("the file is\n%s", got)
	}
	if n.config(t).GetSource() != two || n.states(t) != "new: ACTIVE, one: ACTIVE, two: ACTIVE, user: ACTIVE" {
		t.Errorf("%s, %s", n.config(t).GetSource(), n.states(t))
	}
	if err := n.put(t, "one", `{"command":"uvx"}`); !fault.Is(err, fault.ConfigConflict) || !strings.Contains(err.Error(), one) {
		t.Errorf("an entry of another explicit file: %v", err)
	}
}

func TestWithoutAWritableFileOnlySwitchesWork(t *testing.T) {
	p := newPlace(t)
	p.projectConf(`{"a":{"command":"npx"}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: registry.Config{WorkDir: p.project, TrustProjectMCP: true}})
	if err := n.put(t, "b", `{"command":"npx"}`); !fault.Is(err, fault.ConfigConflict) || !strings.Contains(err.Error(), "--mcp-config") {
		t.Errorf("put: %v", err)
	}
	if err := n.enable(t, "a", false); err != nil || n.states(t) != "a: DISABLED" {
		t.Errorf("switch: %v, %s", err, n.states(t))
	}
}

// CFG-055
func TestWrittenEntriesResolveListedVariablesOnly(t *testing.T) {
	p := newPlace(t)
	p.user(`{"hand":{"command":"npx","env":{"K":"${ANY}"}}}`)
	d := dbtest.SQLite(t)
	cfg := p.config()
	cfg.EnvRefs = []string{"LISTED", "LATER"}
	n := start(t, d, options{cfg: cfg})
	for _, entry := range []string{`{"command":"npx","env":{"K":"${SECRET}"}}`, `{"url":"https://${SECRET:-h}/"}`, `{"url":"https://h/","user_auth":{"users":{"bob":"$SECRET"}}}`} {
		err := n.refused(t, p, entry, fault.ConfigInvalid, func() error { return n.put(t, "api", entry) })
		if !strings.Contains(err.Error(), "SECRET") || !strings.Contains(err.Error(), "registry.env_refs") {
			t.Errorf("%s: %v does not name variable and setting", entry, err)
		}
	}
	n.refused(t, p, "an entry of the file that is changed", fault.ConfigInvalid, func() error { return n.put(t, "hand", `{"command":"npx","env":{"K":"***"},"description":"x"}`) })
	if err := n.put(t, "api", `{"command":"npx","env":{"K":"${LISTED}","L":"$LATER"}}`); err != nil {
		t.Fatal(err)
	}
	if got := n.states(t); got != "api: ACTIVE, hand: ACTIVE" {
		t.Fatal(got)
	}

	// The list is narrowed: the entry is the API's still, through a switch, a rotation by hand and another write.
	n.stop()
	cfg.EnvRefs = []string{"LISTED"}
	n = start(t, d, options{cfg: cfg})
	inError := func(what string) {
		t.Helper()
		n.becomes(t, "api: ERROR, hand: ACTIVE")
		for _, s := range n.current(t).GetServers() {
			if s.GetName() == "api" && (!strings.Contains(s.GetReason(), "registry.env_refs") || !strings.Contains(s.GetReason(), "LATER")) {
				t.Errorf("%s: %s", what, s.GetReason())
			}
		}
	}
	inError("narrowed")
	if err := n.enable(t, "api", false); err != nil {
		t.Fatal(err)
	}
	if err := n.enable(t, "api", true); err != nil {
		t.Fatal(err)
	}
	inError("switched")
	if err := n.put(t, "other", `{"url":"https://h/"}`); err != nil {
		t.Fatal(err)
	}
	if _, err := n.DeleteServer(t.Context(), &registryv1.DeleteServerRequest{Name: "other"}); err != nil {
		t.Fatal(err)
	}
	inError("after other writes")

	// Whoever writes the file by hand may refer to anything.
	p.user(`{"hand":{"command":"npx","env":{"K":"${ANY}"}},"api":{"command":"npx","env":{"K":"${LISTED}","L":"${LATER}"}}}`)
	n.becomes(t, "api: ACTIVE, hand: ACTIVE")
}
