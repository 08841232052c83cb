package registry_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
)

func (n *node) activate(t *testing.T, id, reason string) *registryv1.ActivateSnapshotResponse {
	t.Helper()
	resp, err := n.ActivateSnapshot(t.Context(), &registryv1.ActivateSnapshotRequest{SnapshotId: id, Reason: reason})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func (n *node) release(t *testing.T) *registryv1.ReleaseActivationResponse {
	t.Helper()
	resp, err := n.ReleaseActivation(t.Context(), &registryv1.ReleaseActivationRequest{Reason: "mended"})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// hold returns what GetSnapshot and ListSnapshots say about a hold, which has to be the same.
func (n *node) hold(t *testing.T) *registryv1.Hold {
	t.Helper()
	got, err := n.GetSnapshot(t.Context(), &registryv1.GetSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	listed, err := n.ListSnapshots(t.Context(), &registryv1.ListSnapshotsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := got.GetHold(), listed.GetHold(); len(a.GetCandidates()) == len(b.GetCandidates()) && a.String() != b.String() {
		t.Errorf("GetSnapshot and ListSnapshots show the holds %v and %v", a, b)
	}
	return listed.GetHold()
}

// waiting returns the changes of the candidates, newest first.
func (n *node) waiting(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, c := range n.hold(t).GetCandidates() {
		out = append(out, c.GetChange())
	}
	return out
}

// waits waits until the newest candidate makes this change.
func (n *node) waits(t *testing.T, change string) {
	t.Helper()
	eventually(t, "the newest candidate is "+change, func() bool {
		w := n.waiting(t)
		return len(w) > 0 && w[0] == change
	})
}

// SNAP-013, SNAP-014
func TestAnActivationHoldsAcrossEditsAndRestartsUntilItsRelease(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"a":{"command":"x"}}`)
		n := start(t, d, options{cfg: p.config()})
		good := n.current(t)
		p.user(`{"b":{"command":"x"}}`)
		n.becomes(t, "b: ACTIVE")
		bad := n.current(t)
		w := n.watch(t, bad.GetRevision())

		made, err := n.ActivateSnapshot(t.Context(), &registryv1.ActivateSnapshotRequest{
			SnapshotId: good.GetSnapshotId(), Reason: "b lost its tools", Etag: bad.GetSnapshotId(),
		})
		if err != nil {
			t.Fatal(err)
		}
		s := made.GetSnapshot()
		if s.GetSnapshotId() != good.GetSnapshotId() || s.GetRevision() <= bad.GetRevision() || s.GetActor() != "internal" ||
			s.GetActivateReason() != "b lost its tools" || s.GetServerCount() != 1 || len(s.GetServers()) != 0 {
			t.Errorf("activated %v", s)
		}
		if got := receive(t, w); got.GetRevision() != s.GetRevision() || got.GetSnapshotId() != s.GetSnapshotId() {
			t.Errorf("watchers got %v", got)
		}
		n.becomes(t, "a: ACTIVE")
		hold := made.GetHold()
		if hold.GetActor() != "internal" || hold.GetReason() != "b lost its tools" || hold.GetRevision() != s.GetRevision() ||
			!hold.GetHoldTime().AsTime().Equal(s.GetActivateTime().AsTime()) || len(hold.GetCandidates()) != 1 || hold.GetCandidates()[0].GetSnapshotId() != bad.GetSnapshotId() {
			t.Errorf("it holds as %v", hold)
		}

		p.user(`{"c":{"command":"x"}}`)
		n.waits(t, "added c; removed b")
		candidate := n.hold(t).GetCandidates()[0].GetSnapshotId()
		seen, err := n.GetSnapshot(t.Context(), &registryv1.GetSnapshotRequest{SnapshotId: candidate})
		if err != nil || seen.GetSnapshot().GetRevision() != 0 || seen.GetSnapshot().ActivateTime != nil || seen.GetSnapshot().GetServers()[0].GetName() != "c" {
			t.Errorf("the candidate reads as %v, %v", seen, err)
		}
		n.stop()
		p.user(`{"d":{"command":"x"}}`) // while no registry runs
		n = start(t, d, options{cfg: p.config()})
		n.waits(t, "added d; removed c")
		if got := n.states(t); got != "a: ACTIVE" {
			t.Errorf("after a restart the states are %s", got)
		}
		still := n.hold(t)
		if still.GetActor() != hold.GetActor() || still.GetRevision() != hold.GetRevision() || !still.GetHoldTime().AsTime().Equal(hold.GetHoldTime().AsTime()) {
			t.Errorf("after a restart it holds as %v, want %v", still, hold)
		}
		if diff := cmp.Diff([]string{"added d; removed c", "added c; removed b", "added b; removed a"}, n.waiting(t)); diff != "" {
			t.Errorf("candidates (-want +got):\n%s", diff)
		}

		released := n.release(t)
		if got := released.GetSnapshot(); !released.GetReleased() || got.GetRevision() <= s.GetRevision() || got.GetActivateReason() != "mended" || got.GetServerCount() != 1 {
			t.Errorf("released %v", released)
		}
		if got := n.states(t); got != "d: ACTIVE" {
			t.Errorf("right after the release the states are %s", got)
		}
		if hold := n.hold(t); hold != nil {
			t.Errorf("after the release it holds as %v", hold)
		}
		p.user(`{"e":{"command":"x"}}`)
		n.becomes(t, "e: ACTIVE")
		if again := n.release(t); again.GetReleased() || again.GetSnapshot().GetRevision() != n.current(t).GetRevision() {
			t.Errorf("a release without a hold: %v", again)
		}
	})
}

// SNAP-013
func TestAnActivationIsRefusedToStaleAndWrongRequests(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"x"}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	old := n.current(t).GetSnapshotId()
	p.user(`{"b":{"command":"x"}}`)
	n.becomes(t, "b: ACTIVE")
	now := n.current(t)
	for name, c := range map[string]struct {
		req  *registryv1.ActivateSnapshotRequest
		want fault.Reason
		says string
	}{
		"stale etag":    {&registryv1.ActivateSnapshotRequest{SnapshotId: old, Etag: old}, fault.ConfigConflict, now.GetSnapshotId()},
		"no id":         {&registryv1.ActivateSnapshotRequest{}, fault.SnapshotNotFound, "ListSnapshots"},
		"unknown id":    {&registryv1.ActivateSnapshotRequest{SnapshotId: "snap_00000000000000000000000000000000"}, fault.SnapshotNotFound, "ListSnapshots"},
		"long reason":   {&registryv1.ActivateSnapshotRequest{SnapshotId: old, Reason: strings.Repeat("é", 1001)}, fault.InvalidArguments, "1000"},
		"broken reason": {&registryv1.ActivateSnapshotRequest{SnapshotId: old, Reason: "a\x00b"}, fault.InvalidArguments, "NUL"},
	} {
		if _, err := n.ActivateSnapshot(t.Context(), c.req); !fault.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %s that names %s", name, err, c.want, c.says)
		}
	}
	if _, err := n.ReleaseActivation(t.Context(), &registryv1.ReleaseActivationRequest{Reason: strings.Repeat("x", 1001)}); !fault.Is(err, fault.InvalidArguments) {
		t.Errorf("a long reason of a release: %v", err)
	}
	if got := n.current(t); got.GetRevision() != now.GetRevision() || n.hold(t) != nil {
		t.Errorf("refused requests left %v", got)
	}
	longest := strings.Repeat("é", 1000)
	if got := n.activate(t, old, longest).GetHold().GetReason(); got != longest {
		t.Errorf("the longest reason became %q", got)
	}
}

// SNAP-013
func TestNoServerIsAskedWhenASnapshotIsActivated(t *testing.T) {
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	p := newPlace(t)
	p.user(fmt.Sprintf(`{"a":{"url":%q,"headers":{"K":"literal-one"}}}`, server.URL))
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	id := n.current(t).GetSnapshotId()
	p.user(`{}`)
	n.becomes(t, "")
	n.activate(t, id, "")
	n.becomes(t, "a: ACTIVE")
	n.release(t)
	n.becomes(t, "")
	if got := requests.Load(); got != 0 {
		t.Errorf("the server got %d requests", got)
	}
}

// SNAP-013: what an older snapshot says must be valid, complete and trusted today.
func TestAnActivationIsValidated(t *testing.T) {
	d := dbtest.SQLite(t)
	p := newPlace(t)
	p.projectConf(`{"ours":{"command":"x","env":{"K":"literal-one"}}}`)
	trusting := p.config()
	trusting.TrustProjectMCP = true
	n := start(t, d, options{cfg: trusting})
	withProject := n.current(t).GetSnapshotId()
	n.stop()
	n = start(t, d, options{cfg: p.config()})
	n.becomes(t, "ours: UNTRUSTED")
	if _, err := n.ActivateSnapshot(t.Context(), &registryv1.ActivateSnapshotRequest{SnapshotId: withProject}); !fault.Is(err, fault.ServerUntrusted) || !strings.Contains(err.Error(), `"ours"`) {
		t.Errorf("without trust: %v, want SERVER_UNTRUSTED", err)
	}
	n.stop()

	if err := execute(t, d, "delete from registry_secret"); err != nil {
		t.Fatal(err)
	}
	n = start(t, d, options{cfg: trusting})
	p.projectConf(`{}`)
	n.becomes(t, "")
	if err := execute(t, d, "delete from registry_secret"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.ActivateSnapshot(t.Context(), &registryv1.ActivateSnapshotRequest{SnapshotId: withProject}); !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), "env.K") {
		t.Errorf("without its secrets: %v, want CONFIG_INVALID", err)
	}
	if got := n.states(t); got != "" || n.hold(t) != nil {
		t.Errorf("refused activations left %s", got)
	}
}

// TRUST-002: trust that is gone beats a hold.
func TestAHeldSnapshotLosesWhatIsNotTrustedAnyMore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"mine":{"command":"x"}}`)
		p.projectConf(`{"ours":{"command":"x"}}`)
		trusting := p.config()
		trusting.TrustProjectMCP = true
		n := start(t, d, options{cfg: trusting})
		hold := n.activate(t, n.current(t).GetSnapshotId(), "freeze").GetHold()
		n.stop()
		n = start(t, d, options{cfg: p.config()})
		if got := n.states(t); got != "mine: ACTIVE, ours: UNTRUSTED" {
			t.Errorf("as soon as it is ready the states are %s", got)
		}
		still := n.hold(t)
		if still.GetActor() != hold.GetActor() || !still.GetHoldTime().AsTime().Equal(hold.GetHoldTime().AsTime()) || !strings.HasPrefix(still.GetReason(), "freeze (without") {
			t.Errorf("it holds as %v, want %v", still, hold)
		}
	})
}

// SNAP-011
func TestTheNewestHundredSnapshotsAreKeptAndWhatIsHeld(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"a":{"command":"x"}}`)
		n := start(t, d, options{cfg: p.config()})
		first := n.current(t).GetSnapshotId()
		fill(t, d, 120)
		n.becomes(t, "s119: ACTIVE")
		ids := n.kept(t)
		if len(ids) != 100 || slices.Contains(ids, first) {
			t.Errorf("%d snapshots are kept, the first among them: %t", len(ids), slices.Contains(ids, first))
		}
		for name, err := range map[string]error{
			"GetSnapshot": func() error {
				_, err := n.GetSnapshot(t.Context(), &registryv1.GetSnapshotRequest{SnapshotId: first})
				return err
			}(),
			"DiffSnapshots": func() error {
				_, err := n.DiffSnapshots(t.Context(), &registryv1.DiffSnapshotsRequest{FromSnapshotId: first})
				return err
			}(),
			"ActivateSnapshot": func() error {
				_, err := n.ActivateSnapshot(t.Context(), &registryv1.ActivateSnapshotRequest{SnapshotId: first})
				return err
			}(),
		} {
			if !fault.Is(err, fault.SnapshotNotFound) {
				t.Errorf("%s of a pruned snapshot: %v, want SNAPSHOT_NOT_FOUND", name, err)
			}
		}
		oldest := ids[len(ids)-1]
		n.activate(t, oldest, "")
		fill(t, d, 150) // all of it becomes candidates
		n.waits(t, "fill")
		if got := n.current(t).GetSnapshotId(); got != oldest {
			t.Errorf("current is %s, want what is held, %s", got, oldest)
		}
		if got := n.kept(t); !slices.Contains(got, oldest) || len(got) != 100 {
			t.Errorf("%d snapshots are kept, the held one among them: %t", len(got), slices.Contains(got, oldest))
		}
	})
}
