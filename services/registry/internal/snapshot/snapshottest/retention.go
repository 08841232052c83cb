package snapshottest

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

func pruning(t *testing.T, s snapshot.Store) {
	keep := snapshot.Retention{Snapshots: 3}
	for _, n := range []int{1, 2, 3, 1, 4, 5} { // 1 is used again, so 2 and 3 are the oldest
		publish(t, s, n, keep)
	}
	for n, want := range map[int]bool{1: true, 2: false, 3: false, 4: true, 5: true} {
		_, err := s.Get(t.Context(), id(n))
		if got := err == nil; got != want {
			t.Errorf("snapshot %d is kept: %t, want %t (%v)", n, got, want, err)
		}
		if err != nil && !errors.Is(err, snapshot.ErrNotFound) {
			t.Error(err)
		}
	}
	var ids []snapshot.ID
	for _, l := range list(t, s) {
		ids = append(ids, l.ID)
	}
	if diff := cmp.Diff([]snapshot.ID{id(5), id(4), id(1), id(1)}, ids); diff != "" {
		t.Errorf("activations (-want +got):\n%s", diff)
	}
	if p := publish(t, s, 2, keep); !p.New {
		t.Error("a pruned content cannot come back")
	}
	if stored, err := s.Get(t.Context(), id(2)); err != nil || string(stored.Content) != `{"n":2}` {
		t.Errorf("a pruned content came back as %s, %v", stored.Content, err)
	}
}

func keepOne(t *testing.T, s snapshot.Store) {
	for _, n := range []int{1, 2, 1, 3} {
		p := publish(t, s, n, snapshot.Retention{Snapshots: 1, Activations: 1})
		if stored, err := s.Get(t.Context(), id(n)); err != nil || stored.Revision != p.Revision {
			t.Errorf("the effective snapshot %d is %v, %v", n, stored, err)
		}
		if l := list(t, s); len(l) != 1 || l[0].Activation != p.Activation {
			t.Errorf("list is %v, want the effective one alone", l)
		}
	}
}

func thinning(t *testing.T, s snapshot.Store) {
	keep := snapshot.Retention{Activations: 3}
	for _, n := range []int{9, 1, 2, 1, 2, 1, 2} {
		publish(t, s, n, keep)
	}
	var ids []snapshot.ID
	for _, l := range list(t, s) {
		ids = append(ids, l.ID)
	}
	if diff := cmp.Diff([]snapshot.ID{id(2), id(1), id(2), id(9)}, ids); diff != "" {
		t.Errorf("activations (-want +got):\n%s", diff)
	}
}

func secrets(t *testing.T, s snapshot.Store) {
	secret := func(server, path, mac string, ciphertext []byte) snapshot.Secret {
		return snapshot.Secret{Ref: snapshot.Ref{Server: server, FieldPath: path, MAC: mac}, Ciphertext: ciphertext, KeyID: "key1"}
	}
	first := []snapshot.Secret{
		secret("a", "env.TOKEN", "m1", []byte{0, 255, 10}),
		secret("a", "env.OTHER", "m1", []byte("other field")),
		secret("b", "env.TOKEN", "m1", []byte("other server")),
	}
	p := publication(1, 0)
	p.Secrets = first
	published, err := s.Publish(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	rotated := secret("a", "env.TOKEN", "m2", []byte("rotated"))
	p = publication(2, published.Revision)
	p.Secrets = []snapshot.Secret{rotated, secret("a", "env.OTHER", "m1", []byte("sealed again, with another nonce"))}
	if _, err := s.Publish(t.Context(), p); err != nil {
		t.Fatal(err)
	}

	// SNAP-008: the secrets of the older snapshot stay resolvable beside those of the newer one.
	want := append(slices.Clone(first), rotated)
	var refs []snapshot.Ref
	for _, x := range want {
		refs = append(refs, x.Ref)
	}
	refs = append(refs, snapshot.Ref{Server: "a", FieldPath: "env.TOKEN", MAC: "unknown"}, snapshot.Ref{Server: "c", FieldPath: "env.TOKEN", MAC: "m1"})
	got, err := s.Secrets(t.Context(), refs)
	if err != nil {
		t.Fatal(err)
	}
	order := func(a, b snapshot.Secret) int {
		return strings.Compare(a.Server+" "+a.FieldPath+" "+a.MAC, b.Server+" "+b.FieldPath+" "+b.MAC)
	}
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	if diff := cmp.Diff(want, got, cmp.Comparer(bytes.Equal)); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	if none, err := s.Secrets(t.Context(), nil); err != nil || len(none) != 0 {
		t.Errorf("no reference gives %v, %v", none, err)
	}
}

// SNAP-009
func staleSecrets(t *testing.T, s snapshot.Store) {
	ref := func(n string) snapshot.Ref { return snapshot.Ref{Server: n, FieldPath: "env.K", MAC: "m"} }
	p := publication(1, 0)
	for _, n := range []string{"a", "b", "c"} {
		p.Secrets = append(p.Secrets, snapshot.Secret{Ref: ref(n), Ciphertext: []byte(n), KeyID: "k"})
	}
	published, err := s.Publish(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	// What counts is the database's time: a negative age lies ahead of it, so that everything is older.
	const ahead, ago = -time.Hour, time.Hour
	if stale, err := s.StaleSecrets(t.Context(), ago, 10); err != nil || len(stale) != 0 {
		t.Errorf("stale by an hour are %v, %v", stale, err)
	}
	if stale, err := s.StaleSecrets(t.Context(), ahead, 2); err != nil || len(stale) != 2 {
		t.Errorf("two of the stale are %v, %v", stale, err)
	}
	refs := []snapshot.Ref{ref("a"), ref("c"), ref("unknown")}
	if err := s.UseSecrets(t.Context(), refs); err != nil {
		t.Error(err)
	}
	if n, err := s.DropSecrets(t.Context(), refs, ago); n != 0 || err != nil {
		t.Errorf("%d were dropped that are in use, %v", n, err)
	}
	if n, err := s.DropSecrets(t.Context(), refs, ahead); n != 2 || err != nil {
		t.Errorf("%d were dropped, %v, want two", n, err)
	}
	if left, err := s.Secrets(t.Context(), append(refs, ref("b"))); err != nil || len(left) != 1 || left[0].Ref != ref("b") {
		t.Errorf("left are %v, %v, want that of b", left, err)
	}
	again := publication(2, published.Revision)
	again.Secrets = p.Secrets
	if _, err := s.Publish(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if back, err := s.Secrets(t.Context(), refs); err != nil || len(back) != 2 {
		t.Errorf("published again they are %v, %v", back, err)
	}
}
