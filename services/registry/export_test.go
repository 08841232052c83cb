package registry

import (
	"context"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// WrapStore puts a layer between s and its store, before it runs.
func (s *Service) WrapStore(wrap func(snapshot.Store) snapshot.Store) {
	s.store = wrap(s.store)
	s.feed.store = s.store
}

// ShellWord quotes a word for a shell.
func ShellWord(word string) string { return shellWord(word) }

// Sweep does one round of deleting the secrets that nothing refers to any more.
func (s *Service) Sweep(ctx context.Context) (int, error) { return s.sweep(ctx) }
