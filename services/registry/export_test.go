package registry

import "github.com/toolherd/toolherd/services/registry/internal/snapshot"

// WrapStore puts a layer between s and its store, before it runs.
func (s *Service) WrapStore(wrap func(snapshot.Store) snapshot.Store) {
	s.store = wrap(s.store)
	s.feed.store = s.store
}

// ShellWord quotes a word for a shell.
func ShellWord(word string) string { return shellWord(word) }
