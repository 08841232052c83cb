package catalog

import (
	"context"
	"sync"
	"sync/atomic"
)

// Store holds the current catalog. The zero value is ready and holds none.
type Store struct {
	current atomic.Pointer[Catalog]

	mu      sync.Mutex
	changed chan struct{} // closed by the next Publish
}

// Load returns the current catalog, or nil before the first Publish.
func (s *Store) Load() *Catalog { return s.current.Load() }

// Publish makes c current and wakes all who wait.
func (s *Store) Publish(c *Catalog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(c)
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Watch returns the current catalog, which may be nil, and a channel that is closed as soon as there is another one.
func (s *Store) Watch() (*Catalog, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.current.Load(), s.changed
}

// Wait returns the first catalog that fulfils done, the current one included, or the last one seen, which may be nil,
// with the cause of ctx's end.
func (s *Store) Wait(ctx context.Context, done func(*Catalog) bool) (*Catalog, error) {
	for {
		c, changed := s.Watch()
		if c != nil && done(c) {
			return c, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return c, context.Cause(ctx)
		}
	}
}
