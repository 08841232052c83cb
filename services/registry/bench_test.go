package registry_test

import (
	"context"
	"testing"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/registry"
)

// BenchmarkFirstSnapshot is what a registry adds to the start of a process: from nothing to the first snapshot.
func BenchmarkFirstSnapshot(b *testing.B) {
	d := dbtest.SQLite(b)
	for b.Loop() {
		s, err := registry.New(registry.Config{WorkDir: b.TempDir()}, registry.Deps{DB: d, Wake: newBus(), Log: discard(), Key: testKey(b)})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		eventually(b, "the registry is ready", func() bool { return s.Ready(ctx) == nil })
		cancel()
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
	}
}
