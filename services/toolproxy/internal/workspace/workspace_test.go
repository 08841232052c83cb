package workspace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/authn"
)

var defaultScope = authn.Scope{UserID: authn.DefaultID, ThreadID: authn.DefaultID}

func place(t *testing.T, l Layout, r Request) Place {
	t.Helper()
	p, err := l.Place(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// SESS-016: cwd is the entry's, else the project root for scope default, else the thread's workspace, created.
func TestWorkingDirectory(t *testing.T) {
	root, project := filepath.Join(t.TempDir(), "not", "yet"), t.TempDir()
	l := Layout{Root: root, Project: project}
	scope := authn.Scope{UserID: "ann", ThreadID: "t-1"}

	if got := place(t, l, Request{Scope: scope, Cwd: "/srv"}).Dir; got != "/srv" {
		t.Errorf("the entry's cwd became %q", got)
	}
	if got := place(t, l, Request{Scope: scope, Cwd: "sub"}).Dir; got != filepath.Join(project, "sub") {
		t.Errorf("a relative cwd became %q", got)
	}
	if got := place(t, l, Request{Scope: defaultScope}).Dir; got != project {
		t.Errorf("scope default works in %q, want the project root", got)
	}
	want := filepath.Join(root, "users", "ann", "threads", "t-1", "user-data", "workspace")
	if got := place(t, l, Request{Scope: scope}).Dir; got != want {
		t.Errorf("a thread works in %q, want %q", got, want)
	}
	if info, err := os.Stat(want); err != nil || !info.IsDir() {
		t.Errorf("the workspace was not made: %v", err)
	}
}

// SESS-017: TMPDIR, TMP and TEMP are pinned unless the entry sets that one; a directory that cannot be made warns.
func TestTemporaryDirectory(t *testing.T) {
	root := t.TempDir()
	l := Layout{Root: root}
	scope := authn.Scope{UserID: "ann", ThreadID: "t"}
	temp := filepath.Join(root, Dir(scope), ".mcp", "tmp")

	p := place(t, l, Request{Scope: scope, Env: map[string]string{"TMP": "/operator"}})
	if diff := cmp.Diff(map[string]string{"TMPDIR": temp, "TEMP": temp}, p.Env); diff != "" {
		t.Error(diff)
	}
	if info, err := os.Stat(temp); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the temporary directory is %v, %v", info, err)
	}

	other := authn.Scope{UserID: "bob", ThreadID: "t"}
	workspace := filepath.Join(root, Dir(other))
	if err := os.MkdirAll(workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(workspace, ".mcp"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p = place(t, l, Request{Scope: other})
	if p.Warning == "" || len(p.Env) != 0 || p.Dir != workspace {
		t.Errorf("a file in the way of the temporary directory gave %+v", p)
	}
}

// SESS-018: ids become one path segment each, and neither `..`, `/` nor a symlink leads outside the root.
func TestNothingLeadsOutOfTheRoot(t *testing.T) {
	for id, want := range map[string]string{
		"plain-ID_1": "plain-ID_1",
		"..":         "__-",
		"a/b":        "a_b-",
		"":           "-",
		"a b":        "a_b-",
		"ü":          "_-",
	} {
		got := segment(id)
		exact := !strings.HasSuffix(want, "-")
		if exact && got != want || !exact && (!strings.HasPrefix(got, want) || len(got) != len(want)+16) {
			t.Errorf("segment of %q is %q", id, got)
		}
	}
	if segment("a/b") == segment("a b") {
		t.Error("two ids share a segment")
	}

	root, outside := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "users"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "users", "eve")); err != nil {
		t.Fatal(err)
	}
	p, err := Layout{Root: root}.Place(Request{Scope: authn.Scope{UserID: "eve", ThreadID: "t"}})
	if err == nil {
		t.Errorf("a symlink out of the root was followed to %+v", p)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Errorf("something was made outside of the root: %v", entries)
	}
}

func TestNoRootIsAnErrorThatNamesTheSetting(t *testing.T) {
	_, err := Layout{}.Place(Request{Scope: defaultScope})
	if err == nil || !strings.Contains(err.Error(), "workspace_root") {
		t.Errorf("error is %v", err)
	}
}
