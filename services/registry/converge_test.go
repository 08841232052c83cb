package registry_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/registry"
)

// With every wake-up lost, registries whose files change while operators activate and release agree on what is effective
// in the end, and no edit gets past a hold.
func TestReplicasConvergeWhileOperatorsAndEditsRace(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		var places []*place
		var replicas []*node
		for i := range 3 {
			p := newPlace(t)
			p.user(fmt.Sprintf(`{"r%d":{"command":"x"}}`, i))
			places = append(places, p)
			replicas = append(replicas, start(t, d, options{cfg: p.config(), deps: registry.Deps{Wake: wake.None()}}))
		}
		first := replicas[0].kept(t)[0]
		var wg sync.WaitGroup
		for i, p := range places {
			wg.Go(func() {
				for edit := range 4 {
					p.user(fmt.Sprintf(`{"r%d-%d":{"command":"x"}}`, i, edit))
					if _, err := replicas[i].ActivateSnapshot(t.Context(), &registryv1.ActivateSnapshotRequest{SnapshotId: first}); err != nil {
						t.Error(err)
					}
					if _, err := replicas[(i+1)%3].ReleaseActivation(t.Context(), &registryv1.ReleaseActivationRequest{}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()

		held := replicas[1].activate(t, first, "quiet").GetSnapshot()
		for i, p := range places {
			p.user(fmt.Sprintf(`{"last%d":{"command":"x"}}`, i))
		}
		for i, n := range replicas {
			eventually(t, fmt.Sprintf("replica %d shows all last edits as candidates", i), func() bool {
				all := strings.Join(n.waiting(t), "; ")
				return strings.Contains(all, "added last0") && strings.Contains(all, "added last1") && strings.Contains(all, "added last2")
			})
			if got := n.current(t); got.GetRevision() != held.GetRevision() || got.GetSnapshotId() != first {
				t.Errorf("replica %d is at revision %d, want what is held, %d", i, got.GetRevision(), held.GetRevision())
			}
		}
		newest := replicas[0].hold(t).GetCandidates()[0].GetSnapshotId()
		released := replicas[2].release(t).GetSnapshot()
		if released.GetSnapshotId() != newest {
			t.Errorf("the release made %s effective, want the newest candidate, %s", released.GetSnapshotId(), newest)
		}
		for i, n := range replicas {
			eventually(t, fmt.Sprintf("replica %d is where the release led", i), func() bool {
				return n.current(t).GetRevision() == released.GetRevision() && n.hold(t) == nil
			})
		}
		if got := replicas[0].kept(t); !slices.Contains(got, first) {
			t.Errorf("the snapshot that was held is not among %v", got)
		}
	})
}
