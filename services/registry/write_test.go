package registry_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/registry"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

func (n *node) config(t *testing.T) *registryv1.GetConfigResponse {
	t.Helper()
	resp, err := n.GetConfig(t.Context(), &registryv1.GetConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func (n *node) put(t *testing.T, name, entry string) error {
	t.Helper()
	_, err := n.PutServer(t.Context(), &registryv1.PutServerRequest{Name: name, ServerJson: entry})
	return err
}

func (n *node) replace(t *testing.T, config, etag string) error {
	t.Helper()
	_, err := n.ReplaceConfig(t.Context(), &registryv1.ReplaceConfigRequest{ConfigJson: config, Etag: etag})
	return err
}

func (n *node) enable(t *testing.T, name string, enabled bool) error {
	t.Helper()
	_, err := n.SetServerEnabled(t.Context(), &registryv1.SetServerEnabledRequest{Name: name, Enabled: enabled})
	return err
}

func (p *place) read(path string) string {
	p.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// refused checks that a write failed for want, and that neither file nor snapshot changed.
func (n *node) refused(t *testing.T, p *place, what string, want fault.Reason, write func() error) error {
	t.Helper()
	file, snapshot := p.read(p.userFile()), n.current(t).GetSnapshotId()
	err := write()
	if !fault.Is(err, want) {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
	if got := p.read(p.userFile()); got != file {
		t.Errorf("%s: the file changed to %s", what, got)
	}
	if got := n.current(t).GetSnapshotId(); got != snapshot {
		t.Errorf("%s: the snapshot changed", what)
	}
	return err
}

// API-014
func TestWritesTakeEffectAtOnce(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		n := start(t, d, options{cfg: p.config()})
		if got := n.states(t); got != "" {
			t.Fatalf("there are %s", got)
		}
		put, err := n.PutServer(t.Context(), &registryv1.PutServerRequest{Name: "a", ServerJson: `{"command":"npx","args":["-y","one"],"env":{"K":"literal-1"},"timeuot":1}`})
		if err != nil {
			t.Fatal(err)
		}
		now := n.current(t)
		if put.GetSnapshotId() != now.GetSnapshotId() || put.GetRevision() != now.GetRevision() || put.GetEtag() != n.config(t).GetEtag() || n.states(t) != "a: ACTIVE" {
			t.Errorf("the write says %v, in force is %s, revision %d: %s", put, now.GetSnapshotId(), now.GetRevision(), n.states(t))
		}
		if len(put.GetProblems()) != 1 || put.GetProblems()[0].GetReason() != "unknown_key" || put.GetProblems()[0].GetSeverity() != registryv1.Severity_SEVERITY_WARNING {
			t.Errorf("warnings: %v", put.GetProblems())
		}
		if actor := now.GetActor(); actor == "files" || actor == "" {
			t.Errorf("the actor is %q", actor)
		}
		if got, err := n.resolve(t, now.GetSnapshotId(), "a"); err != nil || got["env.K"] != "literal-1" {
			t.Errorf("its secret: %v, %v", got, err)
		}
		if info, err := os.Stat(p.userFile()); err != nil || info.Mode() != 0o600 {
			t.Errorf("the new file: %v, %v", info, err)
		}

		if err := n.put(t, "b", `{"url":"https://h.example/mcp"}`); err != nil || n.states(t) != "a: ACTIVE, b: ACTIVE" {
			t.Errorf("a second server: %v, %s", err, n.states(t))
		}
		if err := n.put(t, "a", `{"command":"npx","args":["-y","two"],"env":{"K":"***"}}`); err != nil {
			t.Error(err)
		}
		if got, err := n.resolve(t, n.current(t).GetSnapshotId(), "a"); err != nil || got["env.K"] != "literal-1" {
			t.Errorf("the secret that was kept: %v, %v", got, err)
		}
		if err := n.replace(t, `{"mcpServers":{"c":{"command":"uvx","enabled":false},"b":{"url":"https://h.example/mcp"}}}`, ""); err != nil || n.states(t) != "b: ACTIVE, c: DISABLED" {
			t.Errorf("replaced: %v, %s", err, n.states(t))
		}
		if _, err := n.DeleteServer(t.Context(), &registryv1.DeleteServerRequest{Name: "b"}); err != nil || n.states(t) != "c: DISABLED" {
			t.Errorf("deleted: %v, %s", err, n.states(t))
		}
		for _, name := range []string{"b", "", "nobody"} {
			n.refused(t, p, "delete "+name, fault.ServerNotFound, func() error {
				_, err := n.DeleteServer(t.Context(), &registryv1.DeleteServerRequest{Name: name})
				return err
			})
		}
		if got := n.revisions(t); got != 6 {
			t.Errorf("there are %d revisions, want the first and one of each write", got)
		}
	})
}

const rich = `{"skills":{"a" :1.10},"mcpServers":{
  "a":{"command":"npx","args":["-y","p","--api-key","s3cret-arg"],"env":{"K":"s3cret-env","R":"${HOME}"},"enabled":true},
  "b":{"url":"https://u:s3cret@h.example/?token=s3cret","headers":{"X":"s3cret"},"oauth":{"token_url":"https://t","client_secret":"s3cret"},"mystery":{"apiKey":"s3cret","n":1e5}},
  "broken":{"command":7}},
 "mcpInterceptors":["x:y"],"x-token":"s3cret","middlewares":[{"k":"\/"}]}`

// API-013, API-023, API-024
func TestWritingBackWhatWasReadChangesNothing(t *testing.T) {
	p := newPlace(t)
	p.write(p.userFile(), rich)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	shown := n.config(t)
	if strings.Contains(shown.GetConfigJson(), "s3cret") {
		t.Fatalf("secrets are shown: %s", shown.GetConfigJson())
	}
	var compact any
	if err := json.Unmarshal([]byte(shown.GetConfigJson()), &compact); err != nil {
		t.Fatal(err)
	}
	rewritten, err := json.Marshal(compact) // as a client does that decodes and encodes; 1e5 becomes 100000
	if err != nil {
		t.Fatal(err)
	}
	for name, sent := range map[string]string{"as it was shown": shown.GetConfigJson(), "decoded and encoded": strings.Replace(string(rewritten), "100000", "1e5", 1)} {
		resp, err := n.ReplaceConfig(t.Context(), &registryv1.ReplaceConfigRequest{ConfigJson: strings.Replace(sent, `"a":1.1}`, `"a":1.10}`, 1), Etag: shown.GetEtag()})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := p.read(p.userFile()); got != rich {
			t.Errorf("%s: the file is\n%s", name, got)
		}
		if resp.GetEtag() != shown.GetEtag() || resp.GetSnapshotId() != shown.GetSnapshotId() || n.revisions(t) != 1 {
			t.Errorf("%s: %v after %d revisions", name, resp, n.revisions(t))
		}
	}

	if err := n.put(t, "c", `{"command":"uvx"}`); err != nil {
		t.Fatal(err)
	}
	got := p.read(p.userFile())
	for _, untouched := range []string{
		`"skills": {"a" :1.10}`, `"mcpInterceptors": ["x:y"]`, `"middlewares": [{"k":"\/"}]`, `"x-token": "s3cret"`, `"broken": {"command":7}`,
		`{"command":"npx","args":["-y","p","--api-key","s3cret-arg"],"env":{"K":"s3cret-env","R":"${HOME}"},"enabled":true}`,
		`"mystery":{"apiKey":"s3cret","n":1e5}}`,
	} {
		if !strings.Contains(got, untouched) {
			t.Errorf("%s is gone from\n%s", untouched, got)
		}
	}
	// Keys that are left out stay, those that are sent change.
	if err := n.replace(t, `{"mcpServers":{},"middlewares":null,"x-token":"***"}`, ""); err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"skills\": {\"a\" :1.10},\n  \"mcpServers\": {},\n  \"mcpInterceptors\": [\"x:y\"],\n  \"x-token\": \"s3cret\",\n  \"middlewares\": null\n}\n"
	if diff := cmp.Diff(want, p.read(p.userFile())); diff != "" {
		t.Errorf("after all servers were deleted (-want +got):\n%s", diff)
	}
}

// API-017
func TestAStaleEtagIsAConflict(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"npx"}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	old := n.config(t).GetEtag()
	p.user(`{"a":{"command":"npx"},"b":{"command":"uvx"}}`) // by hand, perhaps not noticed yet
	for what, write := range map[string]func() error{
		"replace": func() error { return n.replace(t, `{"mcpServers":{}}`, old) },
		"put": func() error {
			_, err := n.PutServer(t.Context(), &registryv1.PutServerRequest{Name: "c", ServerJson: `{"command":"npx"}`, Etag: old})
			return err
		},
		"delete": func() error {
			_, err := n.DeleteServer(t.Context(), &registryv1.DeleteServerRequest{Name: "a", Etag: old})
			return err
		},
		"switch": func() error {
			_, err := n.SetServerEnabled(t.Context(), &registryv1.SetServerEnabledRequest{Name: "a", Etag: old})
			return err
		},
		"nonsense": func() error { return n.replace(t, `{"mcpServers":{}}`, "x") },
	} {
		file := p.read(p.userFile())
		if err := write(); !fault.Is(err, fault.ConfigConflict) || p.read(p.userFile()) != file {
			t.Errorf("%s: %v, want CONFIG_CONFLICT and the file as it was", what, err)
		}
	}
	if err := n.replace(t, `{"mcpServers":{"d":{"command":"npx"}}}`, n.config(t).GetEtag()); err != nil || n.states(t) != "d: ACTIVE" {
		t.Errorf("with the etag of now: %v, %s", err, n.states(t))
	}
}

// API-019, API-024: several registries on one database and one file.
func TestConcurrentWritersLoseNoUpdate(t *testing.T) {
	dsn := dbtest.DSN(t)
	p := newPlace(t)
	var replicas []*node
	for range 2 {
		d, err := db.Open(t.Context(), db.Config{PostgresDSN: dsn})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		replicas = append(replicas, start(t, d, options{cfg: p.config(), deps: registry.Deps{Wake: wake.None()}}))
	}
	var want []string
	var g sync.WaitGroup
	for i := range 8 {
		name := fmt.Sprint("s", i)
		want = append(want, name+": ACTIVE")
		g.Go(func() {
			if err := replicas[i%2].put(t, name, `{"command":"npx","env":{"K":"literal"}}`); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	g.Wait()
	for _, n := range replicas {
		n.becomes(t, strings.Join(want, ", "))
	}
	for _, n := range replicas {
		if got := n.current(t).GetRevision(); got != replicas[0].current(t).GetRevision() {
			t.Errorf("replicas are at revisions %d and %d", got, replicas[0].current(t).GetRevision())
		}
	}
	list, err := os.ReadDir(filepath.Dir(p.userFile()))
	if err != nil || len(list) != 2 {
		t.Errorf("beside the file and its lock are %v, %v", list, err)
	}
}

func TestAWriteIsRefusedBeforeItIsWrittenWhileTheDatabaseIsAway(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"npx"}}`)
	var store *failing
	n := start(t, dbtest.SQLite(t), options{cfg: p.config(), prepare: func(s *registry.Service) {
		s.WrapStore(func(inner snapshot.Store) snapshot.Store { store = &failing{Store: inner}; return store })
	}})
	store.set(true)
	p.user(`{"a":{"command":"npx"},"hand":{"command":"npx"}}`) // cannot be published: the write finds out
	file := p.read(p.userFile())
	if err := n.put(t, "b", `{"command":"npx"}`); !fault.Is(err, fault.NotReady) || p.read(p.userFile()) != file {
		t.Errorf("%v, want NOT_READY and the file as it was", err)
	}
	store.set(false)
	if err := n.put(t, "b", `{"command":"npx"}`); err != nil || n.states(t) != "a: ACTIVE, b: ACTIVE, hand: ACTIVE" {
		t.Errorf("when it is back: %v, %s", err, n.states(t))
	}
}

// While an activation holds, a write is stored and waits.
func TestAWriteWaitsBehindAHold(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"npx"}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	first := n.current(t).GetSnapshotId()
	if err := n.put(t, "b", `{"command":"npx"}`); err != nil {
		t.Fatal(err)
	}
	held, err := n.ActivateSnapshot(t.Context(), &registryv1.ActivateSnapshotRequest{SnapshotId: first})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := n.PutServer(t.Context(), &registryv1.PutServerRequest{Name: "c", ServerJson: `{"command":"npx"}`})
	if err != nil || resp.GetSnapshotId() != first || resp.GetRevision() != held.GetSnapshot().GetRevision() || resp.GetEtag() != n.config(t).GetEtag() {
		t.Errorf("a write behind a hold: %v, %v", resp, err)
	}
	if got := n.states(t); got != "a: ACTIVE" || !strings.Contains(p.read(p.userFile()), `"c"`) {
		t.Errorf("in force is %s, the file says %s", got, p.read(p.userFile()))
	}
	if _, err := n.ReleaseActivation(t.Context(), &registryv1.ReleaseActivationRequest{}); err != nil {
		t.Fatal(err)
	}
	n.becomes(t, "a: ACTIVE, b: ACTIVE, c: ACTIVE")
}
