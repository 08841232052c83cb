package registry_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
)

func (n *node) diff(t *testing.T, from, to string) *registryv1.DiffSnapshotsResponse {
	t.Helper()
	resp, err := n.DiffSnapshots(t.Context(), &registryv1.DiffSnapshotsRequest{FromSnapshotId: from, ToSnapshotId: to})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// SNAP-012
func TestADiffNamesWhatChangedAndNoSecret(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.write(p.userFile(), `{"mcpServers":{
			"a":{"command":"x","args":["--token=arg-literal-1"],"env":{"K":"env-literal-1","V":"${ONE}"}},
			"gone":{"command":"x","env":{"K":"gone-literal"}},"same":{"command":"x"}}}`)
		p.projectConf(`{"theirs":{"command":"x"}}`)
		n := start(t, d, options{cfg: p.config()})
		first := n.current(t).GetSnapshotId()
		p.write(p.userFile(), `{"mcpServers":{
			"a":{"command":"x","args":["--token=arg-literal-2"],"env":{"K":"env-literal-2","V":"${TWO}"},"enabled":false},
			"fresh":{"command":"x","env":{"K":"new-literal"}},"same":{"command":"x"}},"mcpInterceptors":["pkg.audit:build"]}`)
		n.becomes(t, "a: DISABLED, fresh: ACTIVE, same: ACTIVE, theirs: UNTRUSTED")
		second := n.current(t).GetSnapshotId()

		got := n.diff(t, "", "")
		want := &registryv1.DiffSnapshotsResponse{
			FromSnapshotId: first, ToSnapshotId: second, Added: []string{"fresh"}, Removed: []string{"gone"},
			Interceptors: &registryv1.FieldDiff{Path: "mcpInterceptors", BeforeJson: `[]`, AfterJson: `["pkg.audit:build"]`},
			Changed: []*registryv1.ServerDiff{{
				Name: "a", Reconnects: true,
				Fields: []*registryv1.FieldDiff{
					{Path: "args[0]", BeforeJson: `"--token=***"`, AfterJson: `"--token=***"`},
					{Path: "enabled", AfterJson: `false`},
					{Path: "env.K", BeforeJson: `"***"`, AfterJson: `"***"`},
					{Path: "env.V", BeforeJson: `"${ONE}"`, AfterJson: `"${TWO}"`},
				},
				Verdict: []*registryv1.FieldDiff{
					{Path: "fix_command", AfterJson: `"edit ~/.toolherd/.mcp.json: set \"enabled\": true for \"a\""`},
					{Path: "reason", AfterJson: `"disabled in ~/.toolherd/.mcp.json"`},
					{Path: "state", BeforeJson: `"active"`, AfterJson: `"disabled"`},
				},
			}},
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("diff (-want +got):\n%s", diff)
		}
		if strings.Contains(got.String(), "literal") {
			t.Errorf("the diff has a literal secret: %v", got)
		}
		back := n.diff(t, second, first)
		if len(back.GetAdded()) != 1 || back.GetAdded()[0] != "gone" || len(back.GetRemoved()) != 1 || back.GetRemoved()[0] != "fresh" {
			t.Errorf("the other way round: %v", back)
		}
		if none := n.diff(t, second, second); len(none.GetAdded())+len(none.GetRemoved())+len(none.GetChanged()) != 0 || none.GetInterceptors() != nil {
			t.Errorf("a snapshot against itself: %v", none)
		}
		if all := n.diff(t, "", first); all.GetFromSnapshotId() != "" || len(all.GetAdded()) != 4 {
			t.Errorf("the first against nothing: %v", all)
		}
		if _, err := n.DiffSnapshots(t.Context(), &registryv1.DiffSnapshotsRequest{ToSnapshotId: "snap_00000000000000000000000000000000"}); !fault.Is(err, fault.SnapshotNotFound) {
			t.Errorf("an unknown snapshot: %v", err)
		}
	})
}

func TestADiffShowsVerdictsOnTrustAndWhatACandidateWouldChange(t *testing.T) {
	d := dbtest.SQLite(t)
	p := newPlace(t)
	p.projectConf(`{"theirs":{"command":"x"}}`)
	n := start(t, d, options{cfg: p.config()})
	n.stop()
	trusting := p.config()
	trusting.TrustProjectMCP = true
	n = start(t, d, options{cfg: trusting})
	got := n.diff(t, "", "").GetChanged()
	if len(got) != 1 || len(got[0].GetFields()) != 0 || got[0].GetReconnects() {
		t.Fatalf("trust changed %v", got)
	}
	verdict := got[0].GetVerdict()
	if state := verdict[len(verdict)-1]; state.GetPath() != "state" || state.GetBeforeJson() != `"untrusted"` || state.GetAfterJson() != `"active"` {
		t.Errorf("the verdict changed as %v", verdict)
	}

	held := n.current(t).GetSnapshotId()
	n.activate(t, held, "")
	p.projectConf(`{"theirs":{"command":"y"}}`)
	eventually(t, "the edit waits beside what was current", func() bool { return len(n.waiting(t)) == 2 })
	candidate := n.hold(t).GetCandidates()[0].GetSnapshotId()
	if got := n.diff(t, "", candidate); got.GetFromSnapshotId() != held || len(got.GetChanged()) != 1 || got.GetChanged()[0].GetFields()[0].GetPath() != "command" {
		t.Errorf("the candidate changes %v", got)
	}
}

// SNAP-018: that a session lives as long as its fingerprint is proven in toolproxy's discovery.
func TestWordsForModelsAndFiltersLeaveTheFingerprint(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"x","env":{"K":"literal"}}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	before := n.current(t)
	for _, more := range []string{
		`"description":"d"`, `"routing":{"mode":"prefer"}`, `"tools":{"t":{}}`, `"tool_name_prefix":false`, `"allowedTools":["a"]`, `"disabledTools":["a"]`,
	} {
		p.user(`{"a":{"command":"x","env":{"K":"literal"},` + more + `}}`)
		eventually(t, "a snapshot has "+more, func() bool { return strings.Contains(n.current(t).GetServers()[0].GetEntryJson(), more) })
		now := n.current(t)
		if got, want := now.GetServers()[0].GetFingerprint(), before.GetServers()[0].GetFingerprint(); got != want || now.GetSnapshotId() == before.GetSnapshotId() {
			t.Errorf("%s: the fingerprint %s became %s", more, want, got)
		}
		if d := n.diff(t, before.GetSnapshotId(), now.GetSnapshotId()); len(d.GetChanged()) != 1 || d.GetChanged()[0].GetReconnects() {
			t.Errorf("%s: the difference is %v", more, d)
		}
	}
	revisions := n.revisions(t)
	p.write(p.userFile(), `{"mcpServers":{"a":{"command":"x","env":{"K":"literal"},"disabledTools":["a"]}},"skills":{"s":{"enabled":false}}}`)
	p.user(`{"a":{"command":"x","env":{"K":"rotated"}}}`)
	eventually(t, "a rotated secret makes another fingerprint", func() bool {
		return n.current(t).GetServers()[0].GetFingerprint() != before.GetServers()[0].GetFingerprint()
	})
	if got := n.revisions(t); got != revisions+1 {
		t.Errorf("%d revisions became %d: a change of skills made one", revisions, got)
	}
}
