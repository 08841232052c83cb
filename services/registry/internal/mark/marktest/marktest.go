// Package marktest is the conformance suite of mark.Store. Every driver passes all of it.
package marktest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/services/registry/internal/mark"
)

// Run runs the suite. open returns a store on a database of its own that is empty and has the current schema.
func Run(t *testing.T, open func(t *testing.T) mark.Store) {
	for name, test := range map[string]func(*testing.T, mark.Store){
		"an empty store has no marks":                         empty,
		"the last switch of a place counts until it is clear": overlays,
		"definitions are added and kept file by file":         written,
		"ConcurrentSafe: writers of different files":          concurrent,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// has checks what the store has, in order.
func has(t *testing.T, s mark.Store, want mark.Set) {
	t.Helper()
	got, err := s.All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got.Overlays, func(a, b mark.Overlay) int { return mark.Compare(a.Place, b.Place) })
	slices.SortFunc(got.Written, func(a, b mark.Written) int {
		if c := mark.Compare(a.Place, b.Place); c != 0 {
			return c
		}
		return strings.Compare(a.Definition, b.Definition)
	})
	if len(got.Overlays) == 0 {
		got.Overlays = nil
	}
	if len(got.Written) == 0 {
		got.Written = nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("marks (-want +got):\n%s", diff)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func empty(t *testing.T, s mark.Store) {
	has(t, s, mark.Set{})
	must(t, s.Clear(t.Context(), mark.Place{Path: "/a", Server: "x"}))
	must(t, s.Add(t.Context(), nil))
	must(t, s.Keep(t.Context(), "/a", nil))
	has(t, s, mark.Set{})
}

func overlays(t *testing.T, s mark.Store) {
	a, b := mark.Place{Path: "/a", Server: "x"}, mark.Place{Path: "/b", Server: "x"}
	must(t, s.Switch(t.Context(), mark.Overlay{Place: a, Enabled: true}, "one"))
	must(t, s.Switch(t.Context(), mark.Overlay{Place: b}, "one"))
	must(t, s.Switch(t.Context(), mark.Overlay{Place: a}, "two"))
	has(t, s, mark.Set{Overlays: []mark.Overlay{{Place: a}, {Place: b}}})
	must(t, s.Switch(t.Context(), mark.Overlay{Place: b, Enabled: true}, "two"))
	must(t, s.Clear(t.Context(), a))
	has(t, s, mark.Set{Overlays: []mark.Overlay{{Place: b, Enabled: true}}})
}

func written(t *testing.T, s mark.Store) {
	w := func(path, server, definition string) mark.Written {
		return mark.Written{Place: mark.Place{Path: path, Server: server}, Definition: definition}
	}
	must(t, s.Add(t.Context(), []mark.Written{w("/a", "x", "1"), w("/b", "x", "1")}))
	must(t, s.Add(t.Context(), []mark.Written{w("/a", "x", "1"), w("/a", "x", "2"), w("/a", "y", "3")}))
	has(t, s, mark.Set{Written: []mark.Written{w("/a", "x", "1"), w("/a", "x", "2"), w("/a", "y", "3"), w("/b", "x", "1")}})
	must(t, s.Keep(t.Context(), "/a", []mark.Written{w("/a", "x", "2"), w("/a", "z", "9")}))
	has(t, s, mark.Set{Written: []mark.Written{w("/a", "x", "2"), w("/b", "x", "1")}})
	must(t, s.Keep(t.Context(), "/a", nil))
	has(t, s, mark.Set{Written: []mark.Written{w("/b", "x", "1")}})
}

func concurrent(t *testing.T, s mark.Store) {
	var g sync.WaitGroup
	var want mark.Set
	for i := range 4 {
		path := fmt.Sprint("/", i)
		last := mark.Written{Place: mark.Place{Path: path, Server: "x"}, Definition: "9"}
		want.Written = append(want.Written, last)
		g.Go(func() {
			for n := range 10 {
				d := mark.Written{Place: last.Place, Definition: fmt.Sprint(n)}
				if err := s.Add(t.Context(), []mark.Written{d}); err != nil {
					t.Error(err)
				}
				if err := s.Keep(t.Context(), path, []mark.Written{d}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	g.Wait()
	has(t, s, want)
}
