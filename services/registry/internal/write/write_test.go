package write

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// counts is how often the process that TestMain becomes counts in the file "count" of its working directory.
const counts = "WRITE_TEST_COUNTS"

// counter returns a process that counts in path, whose name is count.
func counter(path string, times int) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Dir = filepath.Dir(path)
	cmd.Env = append(os.Environ(), counts+"="+strconv.Itoa(times))
	return cmd
}

func TestMain(m *testing.M) {
	if times := os.Getenv(counts); times != "" {
		n, err := strconv.Atoi(times)
		if err == nil {
			err = count(context.Background(), New("count", os.ReadFile, slog.New(slog.DiscardHandler)), n)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// count adds one to the number that the file begins with, n times. The rest makes it long enough to be torn.
func count(ctx context.Context, w *Writer, n int) error {
	for range n {
		if err := change(ctx, w, func(before string) string {
			number, _, _ := strings.Cut(before, "\n")
			i, _ := strconv.Atoi(number) // of no file: 0
			return numbered(i + 1)
		}); err != nil {
			return err
		}
	}
	return nil
}

func numbered(i int) string {
	return fmt.Sprintf("%d\n%s\n%d", i, strings.Repeat("x", 100_000), i)
}

// change reads, edits and writes under the lock.
func change(ctx context.Context, w *Writer, edit func(string) string) (err error) {
	l, err := w.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	before, err := l.Read()
	if err != nil {
		return err
	}
	return l.Write([]byte(edit(string(before))))
}

func to(content string) func(string) string { return func(string) string { return content } }

func writer(t *testing.T, path string) *Writer {
	return New(path, os.ReadFile, slog.New(slog.NewTextHandler(t.Output(), nil)))
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// entries returns the names in a directory but for lock files.
func entries(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		if !strings.HasSuffix(e.Name(), ".lock") {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

// API-020
func TestANewFileIsPrivateAndAnOldOneKeepsItsMode(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	w := writer(t, path)
	var lockedAt fs.FileMode
	if err := change(t.Context(), w, func(before string) string {
		lockedAt = mode(t, filepath.Join(dir, ".a.json.lock"))
		return "one" + before
	}); err != nil {
		t.Fatal(err)
	}
	if got := mode(t, path); got != 0o600 || !lockedAt.IsRegular() {
		t.Errorf("a new file has mode %v, its lock file %v", got, lockedAt)
	}
	for _, want := range []fs.FileMode{0o644, 0o640, 0o400} {
		if err := os.Chmod(path, want); err != nil {
			t.Fatal(err)
		}
		if err := change(t.Context(), w, to(want.String())); err != nil {
			t.Fatal(err)
		}
		if got := mode(t, path); got != want || content(t, path) != want.String() {
			t.Errorf("a file of mode %v has mode %v and says %q after a write", want, got, content(t, path))
		}
	}
	if got := entries(t, dir); got != "a.json" {
		t.Errorf("the directory has %s", got)
	}
}

// API-022
func TestLinksStayAndDirectoriesAreMade(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	for _, d := range []string{real, filepath.Join(dir, "links")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(real, "a.json"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		"one.json": "../real/a.json", "two.json": "one.json", "dangling.json": filepath.Join(real, "new", "b.json"), "dir": "../real",
	} {
		if err := os.Symlink(target, filepath.Join(dir, "links", link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, target := range map[string]string{
		"links/one.json": "real/a.json", "links/two.json": "real/a.json", "links/dangling.json": "real/new/b.json", "links/dir/c.json": "real/c.json",
		"links/dir/x/y/d.json": "real/x/y/d.json", "fresh/e.json": "fresh/e.json",
	} {
		before := fs.FileMode(0)
		if info, err := os.Lstat(filepath.Join(dir, path)); err == nil {
			before = info.Mode().Type()
		}
		if err := change(t.Context(), writer(t, filepath.Join(dir, path)), to(path)); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if got := content(t, filepath.Join(dir, target)); got != path {
			t.Errorf("%s: %s says %q", path, target, got)
		}
		if got := mode(t, filepath.Join(dir, path)).Type(); got != before {
			t.Errorf("%s was %v and is %v", path, before, got)
		}
		if _, err := os.Stat(filepath.Join(dir, filepath.Dir(target), "."+filepath.Base(target)+".lock")); err != nil {
			t.Errorf("%s: the lock is not beside what it leads to: %v", path, err)
		}
	}
	if got := entries(t, filepath.Join(dir, "links")); got != "dangling.json dir one.json two.json" {
		t.Errorf("beside the links are %s", got)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	if err := change(t.Context(), writer(t, loop), to("x")); err == nil {
		t.Error("a link to itself could be written through")
	}
}

// API-019
func TestConcurrentWritersAndProcessesLoseNoUpdate(t *testing.T) {
	const writers, processes, times = 3, 3, 20
	path := filepath.Join(t.TempDir(), "count")
	var g sync.WaitGroup
	for range processes {
		g.Go(func() {
			if out, err := counter(path, times).CombinedOutput(); err != nil {
				t.Errorf("a process: %v\n%s", err, out)
			}
		})
	}
	shared := writer(t, path)
	for range writers {
		g.Go(func() {
			if err := count(t.Context(), shared, times); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	if got, want := content(t, path), numbered((writers+processes)*times); got != want {
		t.Errorf("counted to %.10q, want %.10q", got, want)
	}
	if got := entries(t, filepath.Dir(path)); got != "count" {
		t.Errorf("the directory has %s", got)
	}
}

// API-021: whenever it is killed, what a reader finds is whole.
func TestAKilledWriterLeavesOldOrNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "count")
	for round := range 5 {
		cmd := counter(path, 100_000)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		deadline := time.After(30 * time.Second)
		for seen := 0; seen < 20; {
			select {
			case <-deadline:
				t.Fatal("30 s passed before the process had written 20 times")
			default:
			}
			b, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			number, _, _ := strings.Cut(string(b), "\n")
			if i, _ := strconv.Atoi(number); err != nil || string(b) != numbered(i) {
				t.Fatalf("round %d: a torn file of %d bytes, %v", round, len(b), err)
			}
			seen++
		}
		cmd.Process.Kill()
		cmd.Wait()
		number, _, _ := strings.Cut(content(t, path), "\n")
		if i, _ := strconv.Atoi(number); content(t, path) != numbered(i) {
			t.Fatalf("round %d: a torn file after the kill", round)
		}
	}
	if err := count(t.Context(), writer(t, path), 1); err != nil {
		t.Errorf("a lock outlived its process: %v", err)
	}
}

// API-019
func TestARequestThatEndsDoesNotReleaseTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	first, second := writer(t, path), writer(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	l, err := first.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for name, w := range map[string]*Writer{"the same writer": first, "another": second} {
		short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if got, err := w.Lock(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %v, %v while the lock is held", name, got, err)
		}
		stop()
	}
	if err := l.Write([]byte("x")); err != nil {
		t.Errorf("a write after the request has ended: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := change(t.Context(), second, func(before string) string { return before + "y" }); err != nil || content(t, path) != "xy" {
		t.Errorf("after the release: %v, %q", err, content(t, path))
	}
}

func TestALinkThatMovesWhileAWriterWaitsLeadsToItsNewTarget(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("old", link); err != nil {
		t.Fatal(err)
	}
	holder := writer(t, link)
	l, err := holder.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- change(t.Context(), writer(t, link), to("second")) }()
	if err := os.Symlink("new", link+".next"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".next", link); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := entries(t, dir); got != "link new" || content(t, filepath.Join(dir, "new")) != "second" {
		t.Errorf("the directory has %s", got)
	}
}
