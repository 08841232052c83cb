package source_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/source"
)

func server(name string) string { return fmt.Sprintf(`{"mcpServers":{%q:{"command":"x"}}}`, name) }

// one watches a single file of that class.
func one(t *testing.T, class snapshot.Class, path string) *source.Files {
	t.Helper()
	return source.New([]source.Layer{{Path: path, Name: path, Class: class}}, logger(t))
}

func logger(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// names returns the servers of all files, with what is wrong.
func names(f *source.Files) []string {
	var out []string
	for _, file := range f.Present() {
		for _, s := range file.Document.Servers {
			out = append(out, s.Name)
		}
		if file.Problem != nil {
			out = append(out, "! "+file.Problem.Reason)
		}
	}
	return out
}

func expect(t *testing.T, f *source.Files, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, names(f)); diff != "" {
		t.Errorf("servers (-want +got):\n%s", diff)
	}
}

func stamp(t *testing.T, path string, at time.Time) {
	t.Helper()
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// SNAP-001, SNAP-002
func TestEveryChangeOfContentIsFound(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	for name, edit := range map[string]func(t *testing.T, path string){
		"equal size in the same second": func(t *testing.T, path string) {
			write(t, path, server("b"))
			stamp(t, path, at)
		},
		"the mtime goes back": func(t *testing.T, path string) {
			write(t, path, server("b"))
			stamp(t, path, at.Add(-time.Hour))
		},
		"an atomic replacement with an older file of equal size": func(t *testing.T, path string) {
			write(t, path+".new", server("b"))
			stamp(t, path+".new", at.Add(-time.Hour))
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		},
		"a file becomes a link": func(t *testing.T, path string) {
			write(t, path+".target", server("b"))
			stamp(t, path+".target", at)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			symlink(t, path+".target", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f.json")
			write(t, path, server("a"))
			stamp(t, path, at)
			f := one(t, snapshot.Explicit, path)
			f.Check(at)
			expect(t, f, "a")
			if f.Check(at) {
				t.Error("an untouched file counts as changed")
			}
			edit(t, path)
			if !f.Check(at) {
				t.Error("the change was not found")
			}
			expect(t, f, "b")
		})
	}
}

// SNAP-002
func TestALinkThatLeadsElsewhereIsFound(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	dir := t.TempDir()
	for _, version := range []string{"v1", "v2"} { // as Kubernetes mounts a config map
		path := filepath.Join(dir, version, "f.json")
		write(t, path, server(strings.Replace(version, "v", "s", 1)))
		stamp(t, path, at)
	}
	symlink(t, "v1", filepath.Join(dir, "current"))
	symlink(t, filepath.Join("current", "f.json"), filepath.Join(dir, "f.json"))
	f := one(t, snapshot.Explicit, filepath.Join(dir, "f.json"))
	f.Check(at)
	expect(t, f, "s1")
	symlink(t, "v2", filepath.Join(dir, "next"))
	if err := os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "current")); err != nil {
		t.Fatal(err)
	}
	if !f.Check(at) {
		t.Error("the change was not found")
	}
	expect(t, f, "s2")
}

// SNAP-003
func TestContentReadDuringAWriteIsNeverUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.json")
	version := func(n int) []byte {
		filler := strings.Repeat("x", 100_000)
		return fmt.Appendf(nil, `{"mcpServers":{"first-%d":{"command":"x"},"filler":{"command":"%s"},"last-%d":{"command":"x"}}}`, n, filler, n)
	}
	write(t, path, string(version(0)))
	out, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // writes as an editor does, in place and piece by piece
		defer close(stopped)
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := out.Truncate(0); err != nil {
				t.Error(err)
				return
			}
			at := int64(0)
			for piece := range slices.Chunk(version(n), 9000) {
				if _, err := out.WriteAt(piece, at); err != nil {
					t.Error(err)
					return
				}
				at += int64(len(piece))
			}
		}
	}()
	f := one(t, snapshot.Explicit, path)
	for range 100 {
		f.Check(time.Now())
		for _, file := range f.Present() {
			if !file.Good {
				continue
			}
			s := file.Document.Servers
			if strings.TrimPrefix(s[0].Name, "first-") != strings.TrimPrefix(s[2].Name, "last-") {
				t.Fatalf("half of %s and half of %s was used", s[0].Name, s[2].Name)
			}
		}
	}
	close(stop)
	<-stopped
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	f.Check(time.Now())
	if got := names(f); len(got) != 3 {
		t.Errorf("at rest the file gives %v", got)
	}
}

// CFG-012
func TestAFileThatCannotBeUsedKeepsItsLastGoodContent(t *testing.T) {
	now := time.Now()
	for name, spoil := range map[string]struct {
		do   func(path string) error
		want string
	}{
		"broken":             {func(path string) error { return os.WriteFile(path, []byte(`{"mcpServers":`), 0o644) }, "! syntax"},
		"truncated":          {func(path string) error { return os.Truncate(path, 0) }, "! syntax"},
		"vanished, explicit": {os.Remove, "! missing"},
		"unreadable": {func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o755)
		}, "! unreadable"},
		"linked in a circle": {func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Symlink(path, path)
		}, "! unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f.json")
			write(t, path, server("a"))
			f := one(t, snapshot.Explicit, path)
			f.Check(now)
			if err := spoil.do(path); err != nil {
				t.Fatal(err)
			}
			if !f.Check(now) {
				t.Error("that it cannot be used was not found")
			}
			expect(t, f, "a", spoil.want)
			if f.Check(now.Add(time.Hour)) {
				t.Error("what has not changed counts as changed")
			}
			expect(t, f, "a", spoil.want)
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, server("b"))
			f.Check(now)
			expect(t, f, "b")
		})
	}
}

func TestAFileThatNeverWasGoodHasAProblemAndNoServers(t *testing.T) {
	dir := t.TempDir()
	broken, directory := filepath.Join(dir, "broken.json"), filepath.Join(dir, "directory.json")
	write(t, broken, `{`)
	if err := os.Mkdir(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	f := one(t, snapshot.User, broken)
	f.Check(time.Now())
	expect(t, f, "! syntax")
	f = one(t, snapshot.Explicit, directory)
	f.Check(time.Now())
	expect(t, f, "! unreadable")
	// CFG-010: what is no regular file is no candidate.
	f = one(t, snapshot.Project, directory)
	f.Check(time.Now())
	expect(t, f)
}

// CFG-013
func TestADeletedFileCountsAsDeletedAfterAMoment(t *testing.T) {
	path := filepath.Join(t.TempDir(), ".mcp.json")
	start := time.Now()
	f := one(t, snapshot.Project, path)
	f.Check(start)
	expect(t, f)

	write(t, path, server("a"))
	if !f.Check(start) {
		t.Error("a file that appeared was not found")
	}
	expect(t, f, "a")

	remove := func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	for _, after := range []time.Duration{0, time.Second, source.DeleteDebounce - time.Millisecond} {
		if f.Check(start.Add(after)) {
			t.Errorf("deleted counts as changed %v later", after)
		}
		expect(t, f, "a")
	}
	write(t, path, server("a"))
	f.Check(start.Add(source.DeleteDebounce))
	expect(t, f, "a")

	remove()
	f.Check(start.Add(10 * time.Second)) // the time counts from here: the file was there meanwhile
	expect(t, f, "a")
	if !f.Check(start.Add(10*time.Second + source.DeleteDebounce)) {
		t.Error("that the file is deleted was not found")
	}
	expect(t, f)
}

// CFG-002
func TestTheLegacyFileCountsOnlyWithoutTheOther(t *testing.T) {
	dir := t.TempDir()
	ext, legacy := filepath.Join(dir, "extensions_config.json"), filepath.Join(dir, "mcp_config.json")
	write(t, legacy, server("legacy"))
	f := source.New([]source.Layer{
		{Path: ext, Class: snapshot.Project},
		{Path: legacy, Class: snapshot.Project, InsteadOf: ext},
	}, logger(t))
	now := time.Now()
	f.Check(now)
	expect(t, f, "legacy")
	write(t, ext, server("ext"))
	if !f.Check(now) {
		t.Error("the other file was not found")
	}
	expect(t, f, "ext")
	write(t, legacy, `{`)
	f.Check(now)
	expect(t, f, "ext")
	write(t, legacy, server("legacy2"))
	if err := os.Remove(ext); err != nil {
		t.Fatal(err)
	}
	f.Check(now)
	expect(t, f, "ext")
	f.Check(now.Add(source.DeleteDebounce))
	expect(t, f, "legacy2")
}

func TestAProblemIsLoggedOnceAndSoIsItsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.json")
	write(t, path, `{"mcpServers":{"a":{"env":{"TOKEN":"hunter2hunter2"`)
	var log bytes.Buffer
	f := source.New([]source.Layer{{Path: path, Class: snapshot.User}}, slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		f.Check(time.Now())
	}
	write(t, path, server("a"))
	for range 3 {
		f.Check(time.Now())
	}
	if n := strings.Count(log.String(), "cannot be used"); n != 1 {
		t.Errorf("the problem was logged %d times:\n%s", n, log.String())
	}
	if n := strings.Count(log.String(), "can be used again"); n != 1 {
		t.Errorf("its end was logged %d times:\n%s", n, log.String())
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("the log has a secret:\n%s", log.String())
	}
}
