package snapshottest

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// position publishes content n over what is effective and over the newest candidate.
func position(t *testing.T, s snapshot.Store, n int) snapshot.Publication {
	t.Helper()
	h := head(t, s)
	p := publication(n, h.Revision)
	p.BaseCandidate = h.Candidate
	return p
}

func head(t *testing.T, s snapshot.Store) snapshot.Head {
	t.Helper()
	h, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func holding(t *testing.T, s snapshot.Store, n int) snapshot.Published {
	t.Helper()
	out, err := s.Activate(t.Context(), snapshot.Choice{ID: id(n), Hold: true, Actor: "ann", Reason: "it broke"})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// record publishes content n, which is to become a candidate.
func record(t *testing.T, s snapshot.Store, n int) {
	t.Helper()
	got, err := s.Publish(t.Context(), position(t, s, n))
	if err != nil || !got.Recorded || got.New {
		t.Fatalf("content %d gives %+v, %v, want a candidate", n, got, err)
	}
}

// candidates returns the ids of the candidates, newest first.
func candidates(t *testing.T, s snapshot.Store) []snapshot.ID {
	t.Helper()
	list, err := s.Candidates(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []snapshot.ID
	for _, c := range list {
		out = append(out, c.ID)
	}
	return out
}

func choose(t *testing.T, s snapshot.Store) {
	if _, err := s.Activate(t.Context(), snapshot.Choice{ID: id(1)}); !errors.Is(err, snapshot.ErrNone) {
		t.Errorf("before the first publication: %v, want ErrNone", err)
	}
	publish(t, s, 1, snapshot.Retention{})
	second := publish(t, s, 2, snapshot.Retention{})
	for name, c := range map[string]struct {
		choice snapshot.Choice
		reason fault.Reason
	}{
		"unknown": {snapshot.Choice{ID: id(3)}, fault.SnapshotNotFound},
		"stale":   {snapshot.Choice{ID: id(1), Expect: id(1)}, fault.ConfigConflict},
	} {
		if _, err := s.Activate(t.Context(), c.choice); !fault.Is(err, c.reason) {
			t.Errorf("%s: %v, want %s", name, err, c.reason)
		}
	}
	if h := head(t, s); h.Activation != second.Activation {
		t.Errorf("refused choices left %v", h)
	}
	got, err := s.Activate(t.Context(), snapshot.Choice{ID: id(1), Expect: id(2), Actor: "ann", Reason: "back"})
	if err != nil {
		t.Fatal(err)
	}
	if !got.New || got.Revision <= second.Revision || got.ID != id(1) || got.Actor != "ann" || got.Reason != "back" || got.Holds() {
		t.Errorf("the choice made %+v", got)
	}
	if h := head(t, s); h != (snapshot.Head{Activation: got.Activation}) {
		t.Errorf("head is %+v, want %+v", h, got.Activation)
	}
	if p := publish(t, s, 3, snapshot.Retention{}); !p.New {
		t.Error("a choice that does not hold keeps publications back")
	}
}

// SNAP-014
func hold(t *testing.T, s snapshot.Store) {
	publish(t, s, 1, snapshot.Retention{})
	before := publish(t, s, 2, snapshot.Retention{})
	stale := position(t, s, 3)
	held := holding(t, s, 1)
	if !held.Holds() || !held.HoldTime.Equal(held.ActivateTime) || held.Revision <= before.Revision {
		t.Errorf("it holds as %+v", held)
	}
	if _, err := s.Publish(t.Context(), stale); !errors.Is(err, snapshot.ErrMoved) {
		t.Errorf("a publication from before the hold: %v, want ErrMoved", err)
	}
	record(t, s, 3)
	old := position(t, s, 4)
	record(t, s, 1) // the files say what is held: a candidate like any other
	if _, err := s.Publish(t.Context(), old); !errors.Is(err, snapshot.ErrMoved) {
		t.Errorf("a publication that is older than the newest candidate: %v, want ErrMoved", err)
	}
	if again, err := s.Publish(t.Context(), position(t, s, 1)); err != nil || again.Recorded {
		t.Errorf("the newest candidate again: %+v, %v", again, err)
	}
	if diff := cmp.Diff([]snapshot.ID{id(1), id(3), id(2)}, candidates(t, s)); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
	if h := head(t, s); h.Activation != held.Activation || h.Candidate == 0 {
		t.Errorf("head is %+v, want %+v", h, held.Activation)
	}
	waiting, err := s.Get(t.Context(), id(3))
	if err != nil || waiting.Revision != 0 || !waiting.ActivateTime.IsZero() || string(waiting.Content) != `{"n":3}` {
		t.Errorf("a candidate reads as %+v, %v", waiting, err)
	}
	again, err := s.Activate(t.Context(), snapshot.Choice{ID: id(3), Hold: true, Actor: "bob"})
	if err != nil || !again.Holds() || again.Revision <= held.Revision {
		t.Errorf("a candidate chosen meanwhile: %+v, %v", again, err)
	}
	if got := candidates(t, s); len(got) != 3 {
		t.Errorf("candidates are %v, want the same as before", got)
	}
}

// SNAP-014
func release(t *testing.T, s snapshot.Store) {
	if _, err := s.Release(t.Context(), snapshot.End{}); !errors.Is(err, snapshot.ErrNone) {
		t.Errorf("before the first publication: %v, want ErrNone", err)
	}
	publish(t, s, 1, snapshot.Retention{})
	before := publish(t, s, 2, snapshot.Retention{})
	if got, err := s.Release(t.Context(), snapshot.End{Actor: "ann"}); err != nil || got.New || got.Activation != before.Activation {
		t.Errorf("where nothing holds: %+v, %v", got, err)
	}
	held := holding(t, s, 1)
	for _, n := range []int{3, 4} {
		record(t, s, n)
	}
	got, err := s.Release(t.Context(), snapshot.End{Actor: "bob", Reason: "mended"})
	if err != nil {
		t.Fatal(err)
	}
	if !got.New || got.ID != id(4) || got.Revision <= held.Revision || got.Holds() || got.Actor != "bob" || got.Reason != "mended" {
		t.Errorf("the release made %+v", got)
	}
	if c := candidates(t, s); len(c) != 0 {
		t.Errorf("candidates %v outlive the hold", c)
	}
	if _, err := s.Get(t.Context(), id(3)); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("a candidate that was never effective is kept: %v", err)
	}
	if p := publish(t, s, 5, snapshot.Retention{}); !p.New {
		t.Error("publications are kept back after the release")
	}

	holding(t, s, 1) // without any edit, what was effective before comes back
	if got, err := s.Release(t.Context(), snapshot.End{}); err != nil || got.ID != id(5) {
		t.Errorf("the release made %+v, %v, want snapshot 5", got, err)
	}
}

func amend(t *testing.T, s snapshot.Store) {
	publish(t, s, 1, snapshot.Retention{})
	p := position(t, s, 9)
	p.Amends = true
	if _, err := s.Publish(t.Context(), p); !errors.Is(err, snapshot.ErrMoved) {
		t.Errorf("where nothing holds: %v, want ErrMoved", err)
	}
	publish(t, s, 2, snapshot.Retention{})
	held := holding(t, s, 1)
	record(t, s, 3)
	if _, err := s.Publish(t.Context(), p); !errors.Is(err, snapshot.ErrMoved) {
		t.Errorf("on an old base: %v, want ErrMoved", err)
	}
	p = position(t, s, 9)
	p.Amends = true
	got, err := s.Publish(t.Context(), p)
	if err != nil || !got.New || got.ID != id(9) || got.Revision <= held.Revision || !got.HoldTime.Equal(held.HoldTime) {
		t.Errorf("the amendment made %+v, %v", got, err)
	}
	if diff := cmp.Diff([]snapshot.ID{id(3), id(2)}, candidates(t, s)); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
}

// SNAP-011, SNAP-014
func manyCandidates(t *testing.T, s snapshot.Store) {
	keep := snapshot.Retention{Snapshots: 1, Activations: 1, Candidates: 3}
	publish(t, s, 1, keep)
	held, err := s.Activate(t.Context(), snapshot.Choice{ID: id(1), Hold: true, Retain: keep})
	if err != nil {
		t.Fatal(err)
	}
	for n := 2; n < 9; n++ {
		p := position(t, s, n)
		p.Retain = keep
		if _, err := s.Publish(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]snapshot.ID{id(8), id(7), id(6)}, candidates(t, s)); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
	for n, want := range map[int]bool{1: true, 5: false, 6: true, 8: true} {
		if _, err := s.Get(t.Context(), id(n)); (err == nil) != want {
			t.Errorf("snapshot %d is kept: %t, want %t", n, err == nil, want)
		}
	}
	if h := head(t, s); h.Activation != held.Activation {
		t.Errorf("head is %+v, want what is held", h)
	}
}

// SNAP-014
func holdAtOnce(t *testing.T, s snapshot.Store) {
	publish(t, s, 100, snapshot.Retention{})
	publish(t, s, 101, snapshot.Retention{})
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			<-start
			for {
				h, err := s.Head(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				p := publication(i, h.Revision)
				p.BaseCandidate = h.Candidate
				if _, err := s.Publish(t.Context(), p); !errors.Is(err, snapshot.ErrMoved) {
					if err != nil {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	var held snapshot.Published
	wg.Go(func() { <-start; held = holding(t, s, 100) })
	close(start)
	wg.Wait()
	if h := head(t, s); h.Activation != held.Activation {
		t.Errorf("head is %+v, want what is held, %+v", h, held.Activation)
	}
	latest := candidates(t, s)[0]
	got, err := s.Release(t.Context(), snapshot.End{})
	if err != nil || got.ID != latest {
		t.Errorf("the release made %+v, %v, want %s", got, err, latest)
	}
}
