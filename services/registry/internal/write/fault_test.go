package write

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// faulty is a file of which one step fails.
type faulty struct {
	file
	step string
	err  error
}

func (f *faulty) fail(step string) error {
	if f.step == step {
		return f.err
	}
	return nil
}

// Write writes half of b before it fails, as a full disk does.
func (f *faulty) Write(b []byte) (int, error) {
	if err := f.fail("write"); err != nil {
		n, _ := f.file.Write(b[:len(b)/2])
		return n, err
	}
	return f.file.Write(b)
}

func (f *faulty) Chmod(mode fs.FileMode) error {
	return errors.Join(f.fail("chmod"), f.file.Chmod(mode))
}
func (f *faulty) Sync() error  { return errors.Join(f.fail("sync"), f.file.Sync()) }
func (f *faulty) Close() error { return errors.Join(f.file.Close(), f.fail("close")) }

func (f *faulty) Truncate(size int64) error {
	if err := f.fail("truncate"); err != nil {
		return err
	}
	return f.file.Truncate(size)
}

var errDisk = errors.New("no space left on device")

// breakAt lets one step of writing a temporary file fail.
func breakAt(w *Writer, step string, err error) {
	sys := operatingSystem()
	w.sys.temp = func(dir, pattern string) (file, error) {
		if step == "temp" {
			return nil, err
		}
		f, openErr := sys.temp(dir, pattern)
		return &faulty{f, step, err}, openErr
	}
	w.sys.rename = func(from, to string) error {
		if step == "rename" {
			return err
		}
		return sys.rename(from, to)
	}
	w.sys.syncDir = func(dir string) error {
		if step == "directory" {
			return err
		}
		return sys.syncDir(dir)
	}
}

// API-020, API-021
func TestWhateverStepFailsTheFileIsWhole(t *testing.T) {
	const before, after = "the old content", "the new content, which is longer"
	for _, exists := range []bool{true, false} {
		for _, step := range []string{"temp", "write", "chmod", "sync", "close", "rename", "directory"} {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.json")
			if exists {
				if err := os.WriteFile(path, []byte(before), 0o640); err != nil {
					t.Fatal(err)
				}
			} else if step == "chmod" {
				continue // there is no mode to keep
			}
			w := writer(t, path)
			breakAt(w, step, errDisk)
			err := change(t.Context(), w, to(after))
			if step == "directory" { // best effort
				if err != nil || content(t, path) != after {
					t.Errorf("%s: %v", step, err)
				}
				continue
			}
			if !errors.Is(err, errDisk) {
				t.Errorf("%s: got %v, want the error", step, err)
			}
			if strings.Contains(err.Error(), "content") {
				t.Errorf("%s: the error shows content: %v", step, err)
			}
			want := ""
			if exists {
				want = "a.json"
				if got := content(t, path); got != before || mode(t, path) != 0o640 {
					t.Errorf("%s: the file says %q, mode %v", step, got, mode(t, path))
				}
			}
			if got := entries(t, dir); got != want {
				t.Errorf("%s: the directory has %q, want %q", step, got, want)
			}
			w.sys = operatingSystem()
			if err := change(t.Context(), w, to(after)); err != nil || content(t, path) != after {
				t.Errorf("%s: the write after the failure: %v", step, err)
			}
		}
	}
}

// API-022
func TestAMountedFileIsOverwrittenInPlaceWithOneWarning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	if err := os.WriteFile(path, []byte("a long old content"), 0o644); err != nil {
		t.Fatal(err)
	}
	inode := func() uint64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	first := inode()
	var log strings.Builder
	w := New(path, os.ReadFile, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	breakAt(w, "rename", &os.LinkError{Op: "rename", Err: syscall.EBUSY})
	for _, text := range []string{"short", "a content that is longer than both", "x"} {
		if err := change(t.Context(), w, to(text)); err != nil || content(t, path) != text {
			t.Errorf("%q: %v, the file says %q", text, err, content(t, path))
		}
	}
	if inode() != first || mode(t, path) != 0o644 {
		t.Error("the file was replaced")
	}
	if n := strings.Count(log.String(), "overwritten in place"); n != 1 || !strings.Contains(log.String(), path) {
		t.Errorf("%d warnings, want one that names the file:\n%s", n, log.String())
	}
	if got := entries(t, filepath.Dir(path)); got != "a.json" {
		t.Errorf("the directory has %s", got)
	}
}

// API-021, API-022
func TestAnOverwriteThatFailsPutsTheOldContentBack(t *testing.T) {
	for _, step := range []string{"write", "truncate", "sync", "close"} {
		path := filepath.Join(t.TempDir(), "a.json")
		if err := os.WriteFile(path, []byte("the old content"), 0o644); err != nil {
			t.Fatal(err)
		}
		w := writer(t, path)
		breakAt(w, "rename", syscall.EBUSY)
		opened := 0
		w.sys.open = func(path string) (file, error) {
			opened++
			f, err := operatingSystem().open(path)
			if opened == 1 {
				return &faulty{f, step, errDisk}, err
			}
			return f, err
		}
		if err := change(t.Context(), w, to("the new content, which is longer")); !errors.Is(err, errDisk) {
			t.Errorf("%s: got %v, want the error", step, err)
		}
		if got := content(t, path); got != "the old content" {
			t.Errorf("%s: the file says %q", step, got)
		}
	}
}
