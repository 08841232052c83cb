package stack

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
)

// patience is long enough for what the tests wait for, and short enough for what must fail.
const patience = 100 * time.Millisecond

func hold(t *testing.T, dir string) (release func()) {
	t.Helper()
	unlock, err := acquire(t.Context(), dir, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unlock(); err != nil {
			t.Error(err)
		}
	}
}

// CLI-005
func TestASecondCompositionOnOneStateDirectoryIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	release := hold(t, dir)
	if _, err := acquire(t.Context(), dir, patience, false); !fault.Is(err, fault.ConfigConflict) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("got %v, want CONFIG_CONFLICT that names %s", err, dir)
	}
	if _, err := publish(dir, Address{GRPC: "127.0.0.1:1", PID: 42}); err != nil {
		t.Fatal(err)
	}
	_, err := acquire(t.Context(), dir, patience, false)
	if !fault.Is(err, fault.ConfigConflict) || !strings.Contains(err.Error(), "process id 42 at 127.0.0.1:1") {
		t.Fatalf("got %v, want who holds it", err)
	}
	release()
	hold(t, dir)()
}

func TestAnAddressThatAKilledProcessLeftBehindIsNobodys(t *testing.T) {
	dir := t.TempDir()
	if _, err := publish(dir, Address{GRPC: "127.0.0.1:1", PID: 42}); err != nil {
		t.Fatal(err)
	}
	if a, ok, err := Find(dir); ok || err != nil {
		t.Fatalf("nothing runs: got %v, %v", a, err)
	}
	defer hold(t, dir)()
	if a, ok, err := Find(dir); ok || err != nil {
		t.Fatalf("its successor has not published an address: got %v, %v", a, err)
	}
}

func TestAClientThatComesWhileUpStartsUsesIt(t *testing.T) {
	dir := t.TempDir()
	release := hold(t, dir)
	defer release()
	want := Address{GRPC: "127.0.0.1:7400", HTTP: "127.0.0.1:7480", PID: 42}
	found := make(chan error)
	go func() {
		_, err := acquire(t.Context(), dir, time.Minute, true)
		found <- err
	}()
	remove, err := publish(dir, want)
	if err != nil {
		t.Fatal(err)
	}
	if running, ok := errors.AsType[*RunningError](<-found); !ok || running.Address != want {
		t.Fatalf("got %v, want that %v runs", running, want)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
}

func TestTheAddressFileIsWrittenThroughNoLink(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{addressName, addressName + ".tmp"} {
		if err := os.Symlink(victim, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	remove, err := publish(dir, Address{GRPC: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(victim); err != nil || string(content) != "precious" {
		t.Fatalf("the file that a link leads to now says %q, %v", content, err)
	}
	info, err := os.Lstat(filepath.Join(dir, addressName))
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("got %v, %v, want a file of mode 0600", info, err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
}

func TestALockThatCannotBeHadSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, lockName), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"find":    func() error { _, _, err := Find(dir); return err }(),
		"acquire": func() error { _, err := acquire(t.Context(), dir, patience, false); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "--state-dir") {
			t.Errorf("%s: got %v, want the directory and the next step", name, err)
		}
	}
}
