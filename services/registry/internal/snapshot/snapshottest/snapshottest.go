// Package snapshottest is the conformance suite of snapshot.Store. Every driver passes all of it.
package snapshottest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// Run runs the suite. open returns a store on a database of its own that is empty and has the current schema.
func Run(t *testing.T, open func(t *testing.T) snapshot.Store) {
	for name, test := range map[string]func(*testing.T, snapshot.Store){
		"an empty store has no head":                               emptyStore,
		"what was published is the head and can be read":           readBack,
		"content is kept byte for byte":                            bytesAreKept,
		"A B A makes three revisions of two snapshots":             backAndForth,
		"content that is effective already makes no revision":      sameContent,
		"a publication based on an older revision changes nothing": moved,
		"ConcurrentSafe: equal content at once is one revision":    equalAtOnce,
		"ConcurrentSafe: of different content at once one wins":    differentAtOnce,
		"activations are listed newest first, page by page":        pages,
		"only the snapshots activated last are kept":               pruning,
		"the effective snapshot outlives every other":              keepOne,
		"old activations go, the newest of each snapshot stays":    thinning,
		"secrets are found by reference and never overwritten":     secrets,
		"secrets that are not used for long can be dropped":        staleSecrets,
		"a chosen snapshot is effective under the next revision":   choose,
		"an activation that holds makes candidates":                hold,
		"the newest candidate is effective after a release":        release,
		"a held snapshot can be amended and holds on":              amend,
		"candidates are kept in number, held snapshots for good":   manyCandidates,
		"ConcurrentSafe: no publication gets past a hold":          holdAtOnce,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// id returns a valid id that ends in n.
func id(n int) snapshot.ID { return snapshot.ID(fmt.Sprintf("snap_%032x", n)) }

func publication(n int, base snapshot.Revision) snapshot.Publication {
	return snapshot.Publication{
		ID: id(n), Content: fmt.Appendf(nil, `{"n":%d}`, n), ServerCount: n, Base: base, Actor: "files", Reason: fmt.Sprint("content ", n),
	}
}

// publish publishes content n over the head.
func publish(t *testing.T, s snapshot.Store, n int, keep snapshot.Retention) snapshot.Published {
	t.Helper()
	head, err := s.Head(t.Context())
	if err != nil && !errors.Is(err, snapshot.ErrNone) {
		t.Fatal(err)
	}
	p := publication(n, head.Revision)
	p.Retain = keep
	out, err := s.Publish(t.Context(), p)
	if err != nil {
		t.Fatalf("publish content %d: %v", n, err)
	}
	return out
}

func list(t *testing.T, s snapshot.Store) []snapshot.Listed {
	t.Helper()
	out, err := s.List(t.Context(), 0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func emptyStore(t *testing.T, s snapshot.Store) {
	if _, err := s.Head(t.Context()); !errors.Is(err, snapshot.ErrNone) || !fault.Is(err, fault.NotReady) {
		t.Errorf("head is %v, want ErrNone", err)
	}
	if _, err := s.Get(t.Context(), id(1)); !errors.Is(err, snapshot.ErrNotFound) || !fault.Is(err, fault.SnapshotNotFound) {
		t.Errorf("get says %v, want ErrNotFound", err)
	}
	if l := list(t, s); len(l) != 0 {
		t.Errorf("list has %v", l)
	}
}

func readBack(t *testing.T, s snapshot.Store) {
	before := time.Now().Add(-time.Minute)
	got, err := s.Publish(t.Context(), publication(7, 0))
	if err != nil {
		t.Fatal(err)
	}
	want := snapshot.Published{New: true, Activation: snapshot.Activation{
		Revision: got.Revision, ID: id(7), ActivateTime: got.ActivateTime, Actor: "files", Reason: "content 7",
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	if got.Revision < 1 {
		t.Errorf("the first revision is %d, want at least 1", got.Revision)
	}
	if got.ActivateTime.Before(before) || got.ActivateTime.Location() != time.UTC {
		t.Errorf("activate time is %v", got.ActivateTime)
	}
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(snapshot.Head{Activation: got.Activation}, head); diff != "" {
		t.Errorf("head (-want +got):\n%s", diff)
	}
	stored, err := s.Get(t.Context(), id(7))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(snapshot.Stored{Activation: got.Activation, Content: []byte(`{"n":7}`), CreateTime: stored.CreateTime}, stored); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	wantList := []snapshot.Listed{{Activation: got.Activation, CreateTime: stored.CreateTime, ServerCount: 7}}
	if diff := cmp.Diff(wantList, list(t, s)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func bytesAreKept(t *testing.T, s snapshot.Store) {
	p := publication(1, 0)
	p.Content = []byte(`{"z":"nul \u0000, half a pair \ud800, ünïcode <&>",  "a":[1.10, 1e400, 9007199254740993]}`)
	if _, err := s.Publish(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	stored, err := s.Get(t.Context(), id(1))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(p.Content), string(stored.Content)); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
}

// SNAP-006
func backAndForth(t *testing.T, s snapshot.Store) {
	var revisions []snapshot.Revision
	for _, n := range []int{1, 2, 1} {
		p := publish(t, s, n, snapshot.Retention{})
		if !p.New {
			t.Errorf("content %d made no revision", n)
		}
		revisions = append(revisions, p.Revision)
	}
	if revisions[0] >= revisions[1] || revisions[1] >= revisions[2] {
		t.Errorf("revisions %v do not rise", revisions)
	}
	l := list(t, s)
	if len(l) != 3 || l[0].ID != id(1) || l[1].ID != id(2) || l[2].ID != id(1) {
		t.Errorf("list is %v, want the ids 1, 2, 1", l)
	}
	stored, err := s.Get(t.Context(), id(1))
	if err != nil {
		t.Fatal(err)
	}
	if stored.Revision != revisions[2] {
		t.Errorf("snapshot 1 has revision %d, want its newest, %d", stored.Revision, revisions[2])
	}
	if !stored.CreateTime.Equal(l[2].CreateTime) || stored.CreateTime.After(l[1].ActivateTime) {
		t.Errorf("create time %v is not that of the first time", stored.CreateTime)
	}
}

func sameContent(t *testing.T, s snapshot.Store) {
	first := publish(t, s, 1, snapshot.Retention{})
	for _, base := range []snapshot.Revision{first.Revision, 0, first.Revision + 7} {
		again, err := s.Publish(t.Context(), publication(1, base))
		if err != nil {
			t.Fatal(err)
		}
		if again.New || again.Activation != first.Activation {
			t.Errorf("on base %d it made %v, want the first activation", base, again)
		}
	}
	if l := list(t, s); len(l) != 1 {
		t.Errorf("list is %v, want one activation", l)
	}
}

func moved(t *testing.T, s snapshot.Store) {
	first := publish(t, s, 1, snapshot.Retention{})
	second := publish(t, s, 2, snapshot.Retention{})
	for _, base := range []snapshot.Revision{0, first.Revision, second.Revision + 1} {
		p := publication(3, base)
		p.Secrets = []snapshot.Secret{{Ref: snapshot.Ref{Server: "s", FieldPath: "env.K", MAC: "m"}, Ciphertext: []byte{1}, KeyID: "k"}}
		if _, err := s.Publish(t.Context(), p); !errors.Is(err, snapshot.ErrMoved) {
			t.Errorf("on base %d: %v, want ErrMoved", base, err)
		}
		if got, err := s.Secrets(t.Context(), []snapshot.Ref{p.Secrets[0].Ref}); err != nil || len(got) != 0 {
			t.Errorf("a refused publication left secrets: %v, %v", got, err)
		}
	}
	if _, err := s.Get(t.Context(), id(3)); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("a refused publication left a snapshot: %v", err)
	}
	if head, err := s.Head(t.Context()); err != nil || head.ID != id(2) {
		t.Errorf("head is %v, %v, want snapshot 2", head, err)
	}
}

// atOnce publishes content(i) for i in 0..n-1 concurrently, all based on nothing.
func atOnce(t *testing.T, s snapshot.Store, n int, content func(i int) int) ([]snapshot.Published, []error) {
	t.Helper()
	out, errs := make([]snapshot.Published, n), make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			out[i], errs[i] = s.Publish(t.Context(), publication(content(i), 0))
		})
	}
	close(start)
	wg.Wait()
	return out, errs
}

func equalAtOnce(t *testing.T, s snapshot.Store) {
	out, errs := atOnce(t, s, 8, func(int) int { return 1 })
	made := 0
	for i, p := range out {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if p.New {
			made++
		}
		if p.Activation != out[0].Activation {
			t.Errorf("publishers see %v and %v", p.Activation, out[0].Activation)
		}
	}
	if l := list(t, s); made != 1 || len(l) != 1 {
		t.Errorf("%d publishers made a revision, list is %v, want one", made, l)
	}
}

func differentAtOnce(t *testing.T, s snapshot.Store) {
	out, errs := atOnce(t, s, 8, func(i int) int { return i + 1 })
	winner := snapshot.ID("")
	for i, p := range out {
		switch {
		case errs[i] == nil && winner == "":
			winner = p.ID
		case errs[i] == nil:
			t.Errorf("both %s and %s were published on the same base", winner, p.ID)
		case !errors.Is(errs[i], snapshot.ErrMoved):
			t.Error(errs[i])
		}
	}
	if l := list(t, s); len(l) != 1 || l[0].ID != winner {
		t.Errorf("list is %v, want %s alone", l, winner)
	}
}

func pages(t *testing.T, s snapshot.Store) {
	for n := range 7 {
		publish(t, s, n+1, snapshot.Retention{})
	}
	var got []snapshot.ID
	before := snapshot.Revision(0)
	for range 10 {
		page, err := s.List(t.Context(), before, 3)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, l := range page {
			got = append(got, l.ID)
		}
		before = page[len(page)-1].Revision
	}
	if diff := cmp.Diff([]snapshot.ID{id(7), id(6), id(5), id(4), id(3), id(2), id(1)}, got); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
}
