package source_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// SNAP-003
func TestAFileThatMovesWhileItIsReadIsReadAgainLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.json")
	write(t, path, server("a"))
	moving := false
	f := one(t, snapshot.Explicit, path)
	f.ReadWith(func(path string) ([]byte, serverconfig.Signature, error) {
		if moving {
			return nil, serverconfig.Signature{}, fault.Of(fault.Unavailable, "%s keeps changing while it is read", path)
		}
		return source.Read(path)
	})
	f.Check(time.Now())
	moving = true
	write(t, path, server("b"))
	if f.Check(time.Now()) {
		t.Error("content that moves counts as a change")
	}
	expect(t, f, "a")
	moving = false
	f.Check(time.Now())
	expect(t, f, "b")

	// Without a last good content, that there is none is said.
	f = one(t, snapshot.Explicit, path)
	f.ReadWith(func(path string) ([]byte, serverconfig.Signature, error) {
		return nil, serverconfig.Signature{}, fault.Of(fault.Unavailable, "%s keeps changing while it is read", path)
	})
	f.Check(time.Now())
	expect(t, f, "! unreadable")
}

// SNAP-004: without any event.
func TestACheckIsDueEveryTwoSecondsAndWhenADebounceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "f.json")
		write(t, path, server("a"))
		f := one(t, snapshot.Project, path)
		f.Check(time.Now())
		waited := func() time.Duration {
			t.Helper()
			start := time.Now()
			if err := f.Wait(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		if d := waited(); d != source.RecheckInterval {
			t.Errorf("the check came after %v, want %v", d, source.RecheckInterval)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		missed := time.Now()
		<-time.After(500 * time.Millisecond)
		f.Check(missed)
		if d := waited(); d != source.DeleteDebounce-500*time.Millisecond {
			t.Errorf("the check came after %v, want it when the debounce ends", d)
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	f := one(t, snapshot.Project, filepath.Join(t.TempDir(), "f.json"))
	f.Watch()
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Wait(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait returned %v", err)
	}
}

// SNAP-004: with events, a change is found before the next check by time.
func TestAnEventMakesTheCheckComeSooner(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"an edit":         func(t *testing.T, dir string) { write(t, filepath.Join(dir, "f.json"), server("b")) },
		"a removal":       func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "f.json")) },
		"a new file":      func(t *testing.T, dir string) { write(t, filepath.Join(dir, "new.json"), server("b")) },
		"a link's target": func(t *testing.T, dir string) { write(t, filepath.Join(dir, "target", "t.json"), server("b")) },
		"a replacement": func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "tmp"), server("b"))
			if err := os.Rename(filepath.Join(dir, "tmp"), filepath.Join(dir, "f.json")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "f.json"), server("a"))
			write(t, filepath.Join(dir, "target", "t.json"), server("c"))
			symlink(t, filepath.Join("target", "t.json"), filepath.Join(dir, "link.json"))
			var layers []source.Layer
			for _, n := range []string{"f.json", "new.json", "link.json"} {
				layers = append(layers, source.Layer{Path: filepath.Join(dir, n), Class: snapshot.Project})
			}
			f := source.New(layers, logger(t))
			f.Watch()
			defer f.Close()
			f.Check(time.Now())
			change(t, dir)
			start := time.Now()
			if err := f.Wait(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); d > source.RecheckInterval*3/4 {
				t.Errorf("the check came after %v", d)
			}
		})
	}
}

// A directory that holds the database as well changes all the time.
func TestEventsOfOtherFilesDoNotMatter(t *testing.T) {
	dir := t.TempDir()
	f := one(t, snapshot.User, filepath.Join(dir, "f.json"))
	f.Watch()
	defer f.Close()
	f.Check(time.Now())
	write(t, filepath.Join(dir, "toolherd.db-wal"), "x")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := f.Wait(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait returned %v before its time", err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
