package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// topic is what replicas wake each other by.
const topic = "registry.snapshot"

// pollInterval bounds how long a revision stays unnoticed where no wake-up arrives.
const pollInterval = time.Second

// effective is the snapshot that is in force, in the forms in which it is served. It is immutable.
type effective struct {
	snapshot.Head
	content *snapshot.Content
	message *registryv1.Snapshot
	hold    *registryv1.Hold // nil if nothing holds
}

// feed holds what is effective and wakes whoever waits for the next.
type feed struct {
	store snapshot.Store
	log   *slog.Logger

	refreshing sync.Mutex // held from reading the head until it is set, so that an older head never follows a newer one

	mu   sync.Mutex
	now  *effective
	next chan struct{} // closed when now changes
}

func newFeed(store snapshot.Store, log *slog.Logger) *feed {
	return &feed{store: store, log: log, next: make(chan struct{})}
}

// current returns what is effective, or NOT_READY.
func (f *feed) current() (*effective, error) {
	now, _ := f.watch()
	if now == nil {
		return nil, snapshot.ErrNone
	}
	return now, nil
}

// watch returns what is effective, nil if nothing is yet, and a channel that is closed when that changes.
func (f *feed) watch() (*effective, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.next
}

func (f *feed) set(e *effective) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = e
	close(f.next)
	f.next = make(chan struct{})
}

// refresh reads the head of the store and makes it what is effective. It returns that.
func (f *feed) refresh(ctx context.Context) (*effective, error) {
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	head, err := f.store.Head(ctx)
	if err != nil {
		return nil, fmt.Errorf("refresh: %w", err)
	}
	now, _ := f.watch()
	if now != nil && now.Head == head {
		return now, nil
	}
	stored, err := f.store.Get(ctx, head.ID)
	if err != nil {
		return nil, fmt.Errorf("refresh: %w", err)
	}
	stored.Activation = head.Activation
	content, err := snapshot.Decode(stored.ID, stored.Content)
	if err != nil {
		return nil, fmt.Errorf("refresh: %w", err)
	}
	next := &effective{Head: head, content: content, message: snapshotMessage(stored, content)}
	if head.Holds() {
		candidates, err := f.store.Candidates(ctx)
		if err != nil {
			return nil, fmt.Errorf("refresh: %w", err)
		}
		next.hold = holdMessage(head.Activation, candidates)
	}
	if now != nil && head.Revision < now.Revision {
		f.log.WarnContext(ctx, "the database has an older revision than before: was it restored? restart the registry to publish its files again",
			"revision", head.Revision, "revision_before", now.Revision)
	}
	f.set(next)
	return next, nil
}

// followLoop keeps the feed current, once this replica has published.
func (s *Service) followLoop(ctx context.Context, published <-chan struct{}) error {
	woken, stop := s.wake.Subscribe(topic)
	defer stop()
	select {
	case <-published:
	case <-ctx.Done():
		return ctx.Err()
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	failing := false
	for {
		_, err := s.feed.refresh(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !failing && !errors.Is(err, context.Canceled):
			s.log.WarnContext(ctx, "cannot read what is effective, serving the snapshot known so far", "err", err)
		case err == nil && failing:
			s.log.InfoContext(ctx, "reading what is effective again")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-woken:
		case <-tick.C:
		}
	}
}
