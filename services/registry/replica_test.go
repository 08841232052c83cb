package registry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/registry"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

func TestReplicasWithTheSameFilesMakeOneRevisionOfEachEdit(t *testing.T) {
	dsn := dbtest.DSN(t)
	p := newPlace(t)
	p.user(`{"a":{"command":"x","env":{"K":"literal"}}}`)
	var replicas []*node
	for range 3 {
		d, err := db.Open(t.Context(), db.Config{PostgresDSN: dsn})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		replicas = append(replicas, start(t, d, options{cfg: p.config(), deps: registry.Deps{Wake: wake.None()}})) // every wake-up is lost
	}
	for i, states := range []string{"a: ACTIVE", "b: ACTIVE", "c: DISABLED"} {
		switch i {
		case 1:
			p.user(`{"b":{"command":"x"}}`)
		case 2:
			p.user(`{"c":{"command":"x","enabled":false}}`)
		}
		for _, n := range replicas {
			n.becomes(t, states)
		}
		for _, n := range replicas {
			if got, want := n.current(t).GetRevision(), replicas[0].current(t).GetRevision(); got != want {
				t.Errorf("replicas are at revisions %d and %d", got, want)
			}
			if got := n.revisions(t); got != i+1 {
				t.Errorf("there are %d revisions after %d contents", got, i+1)
			}
		}
	}
}

// storeWith calls before, once, ahead of the first publication.
type storeWith struct {
	snapshot.Store
	before func()
}

func (s *storeWith) Publish(ctx context.Context, p snapshot.Publication) (snapshot.Published, error) {
	s.before()
	return s.Store.Publish(ctx, p)
}

func TestOldContentNeverFollowsNewerContent(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"old":{"command":"x"}}`)
		var first *node
		// The second replica has read the old content and is about to publish it when the file is edited and the
		// first replica publishes that.
		second := start(t, d, options{cfg: p.config(), prepare: func(s *registry.Service) {
			s.WrapStore(func(store snapshot.Store) snapshot.Store {
				return &storeWith{store, sync.OnceFunc(func() {
					p.user(`{"new":{"command":"x"}}`)
					first = start(t, d, options{cfg: p.config()})
				})}
			})
		}})
		for _, n := range []*node{first, second} {
			n.becomes(t, "new: ACTIVE")
			if got := n.revisions(t); got != 1 {
				t.Errorf("there are %d revisions, want the one of the new content", got)
			}
		}
	})
}

// failing is a store whose database is away for as long as down says.
type failing struct {
	snapshot.Store
	mu   sync.Mutex
	down bool
}

var errDown = errors.New("connection refused")

func (f *failing) set(down bool) { f.mu.Lock(); defer f.mu.Unlock(); f.down = down }

func (f *failing) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errDown
	}
	return nil
}

func (f *failing) Head(ctx context.Context) (snapshot.Head, error) {
	if err := f.err(); err != nil {
		return snapshot.Head{}, err
	}
	return f.Store.Head(ctx)
}

func (f *failing) Publish(ctx context.Context, p snapshot.Publication) (snapshot.Published, error) {
	if err := f.err(); err != nil {
		return snapshot.Published{}, err
	}
	return f.Store.Publish(ctx, p)
}

func (f *failing) List(ctx context.Context, before snapshot.Revision, limit int) ([]snapshot.Listed, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	return f.Store.List(ctx, before, limit)
}

func TestWhileTheDatabaseIsAwayTheKnownSnapshotIsServed(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"x"}}`)
	var store *failing
	n := start(t, dbtest.SQLite(t), options{cfg: p.config(), prepare: func(s *registry.Service) {
		s.WrapStore(func(inner snapshot.Store) snapshot.Store { store = &failing{Store: inner}; return store })
	}})
	store.set(true)
	p.user(`{"b":{"command":"x"}}`)
	for i := range 20 {
		if got := n.states(t); got != "a: ACTIVE" {
			t.Fatalf("read %d gives %s", i, got)
		}
	}
	if _, err := n.ListSnapshots(t.Context(), nil); !fault.Is(err, fault.NotReady) {
		t.Errorf("ListSnapshots: %v, want NOT_READY", err)
	}
	store.set(false)
	n.becomes(t, "b: ACTIVE")
}

func TestARegistryStartsBeforeItsDatabase(t *testing.T) {
	cluster := dbtest.NewCluster(t)
	d := cluster.Open(t)
	cluster.Stop()
	p := newPlace(t)
	p.user(`{"a":{"command":"x"}}`)
	n := start(t, d, options{cfg: p.config(), idle: true})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	if err := n.Ready(t.Context()); !fault.Is(err, fault.NotReady) {
		t.Errorf("ready without a database: %v", err)
	}
	cluster.Start()
	eventually(t, "the registry is ready", func() bool { return n.Ready(t.Context()) == nil })
	n.becomes(t, "a: ACTIVE")
	cluster.Stop()
	if err := n.Ready(t.Context()); !fault.Is(err, fault.NotReady) {
		t.Errorf("ready after the database went away: %v", err)
	}
	if got := n.states(t); got != "a: ACTIVE" {
		t.Errorf("after the database went away: %s", got)
	}
	cluster.Start()
	p.user(`{"b":{"command":"x"}}`)
	n.becomes(t, "b: ACTIVE")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// With every wake-up lost, concurrent edits of files that the replicas do not share end at the last revision everywhere.
func TestReplicasWithDifferentFilesConverge(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		var places []*place
		var replicas []*node
		for i := range 2 {
			p := newPlace(t)
			p.user(fmt.Sprintf(`{"r%d":{"command":"x"}}`, i))
			places = append(places, p)
			replicas = append(replicas, start(t, d, options{cfg: p.config(), deps: registry.Deps{Wake: wake.None()}}))
		}
		for edit := range 5 {
			for i, p := range places {
				p.user(fmt.Sprintf(`{"r%d-%d":{"command":"x"}}`, i, edit))
			}
		}
		eventually(t, "both replicas have published their last content and agree", func() bool {
			a, b := replicas[0].current(t), replicas[1].current(t)
			last := map[string]bool{"r0-4": true, "r1-4": true}
			return a.GetRevision() == b.GetRevision() && last[a.GetServers()[0].GetName()] && seen(t, replicas[0], "added r0-4") && seen(t, replicas[0], "added r1-4")
		})
	})
}
