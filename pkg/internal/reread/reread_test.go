package reread_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolherd/toolherd/pkg/internal/reread"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, log *slog.Logger, paths ...string) (*reread.Value[string], error) {
	t.Helper()
	return reread.Open(reread.Source[string]{
		What:  "test file",
		Paths: paths,
		Log:   log,
		Parse: func(contents [][]byte) (string, error) {
			var all strings.Builder
			for _, c := range contents {
				all.WriteString(string(c))
			}
			if strings.Contains(all.String(), "broken") {
				return "", errors.New("broken content")
			}
			return all.String(), nil
		},
	})
}

func TestGetFollowsTheContentWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
		write(t, a, "1")
		write(t, b, "2")
		v, err := open(t, slog.New(slog.DiscardHandler), a, b)
		if err != nil {
			t.Fatal(err)
		}
		before, err := os.Stat(b)
		if err != nil {
			t.Fatal(err)
		}
		write(t, b, "3")
		// An equal modification time and size must not hide the change.
		if err := os.Chtimes(b, before.ModTime(), before.ModTime()); err != nil {
			t.Fatal(err)
		}
		if got := v.Get(); got != "12" {
			t.Errorf("Get looked again at once: %q", got)
		}
		time.Sleep(reread.Interval)
		if got := v.Get(); got != "13" {
			t.Errorf("after the interval Get is %q, want 13", got)
		}
	})
}

func TestGetKeepsTheLastGoodValueAndWarnsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		path := filepath.Join(t.TempDir(), "f")
		write(t, path, "good")
		v, err := open(t, slog.New(slog.NewTextHandler(&out, nil)), path)
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, "broken")
		for range 3 {
			time.Sleep(reread.Interval)
			if got := v.Get(); got != "good" {
				t.Errorf("Get is %q, want the last good value", got)
			}
		}
		if n := strings.Count(out.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings about one content:\n%s", n, out.String())
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reread.Interval)
		if got := v.Get(); got != "good" {
			t.Errorf("without the file Get is %q, want the last good value", got)
		}
		write(t, path, "better")
		time.Sleep(reread.Interval)
		if got := v.Get(); got != "better" {
			t.Errorf("after the repair Get is %q, want better", got)
		}
	})
}

func TestOpenRefusesWhatItCannotParse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if _, err := open(t, slog.New(slog.DiscardHandler), path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	write(t, path, "broken")
	if _, err := open(t, slog.New(slog.DiscardHandler), path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("broken file: %v, want an error with its path", err)
	}
	write(t, path, strings.Repeat("x", reread.MaxBytes+1))
	if _, err := open(t, slog.New(slog.DiscardHandler), path); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("huge file: %v", err)
	}
}
