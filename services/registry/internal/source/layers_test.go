package source_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/source"
)

// tree makes a directory with files (a name that ends in / is a directory) and returns its path with links resolved.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "/") {
			if err := os.MkdirAll(filepath.Join(root, f), 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		write(t, filepath.Join(root, f), `{}`)
	}
	return root
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, link string) {
	t.Helper()
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
}

// layers returns "class path" of each layer, with root and home shortened.
func layers(t *testing.T, p source.Places, root string) []string {
	t.Helper()
	got, err := source.Layers(p)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, l := range got {
		path := l.Path
		if p.Home != "" {
			path = strings.Replace(path, p.Home+"/", "~/", 1)
		}
		out = append(out, string(l.Class)+" "+strings.Replace(path, root+"/", "", 1))
	}
	return out
}

// CFG-001
func TestLayersComeFromTheUserTheProjectAndTheCommandLineInThisOrder(t *testing.T) {
	home := tree(t)
	root := tree(t, ".git/", "sub/dir/", "one.json", "sub/two.json")
	got := layers(t, source.Places{
		Home: home, WorkDir: filepath.Join(root, "sub"), Explicit: []string{"../one.json", "two.json"},
	}, root)
	want := []string{
		"user ~/.deepagents/.mcp.json",
		"user ~/.toolherd/.mcp.json",
		"project .deepagents/.mcp.json",
		"project .toolherd/.mcp.json",
		"project extensions_config.json",
		"project mcp_config.json",
		"project .mcp.json",
		"explicit one.json",
		"explicit sub/two.json",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
}

// CFG-004
func TestExplicitPathsCountFromTheWorkingDirectoryAndHome(t *testing.T) {
	home := tree(t, "mine.json", "~odd.json")
	root := tree(t, "a/b.json", "~odd.json")
	got := layers(t, source.Places{
		Home: home, WorkDir: filepath.Join(root, "a"), Explicit: []string{"~/mine.json", "b.json", "../~odd.json", filepath.Join(home, "~odd.json")},
	}, root)
	want := []string{"explicit ~/mine.json", "explicit a/b.json", "explicit ~odd.json", "explicit ~/~odd.json"}
	if diff := cmp.Diff(want, got[len(got)-4:]); diff != "" {
		t.Errorf("explicit layers (-want +got):\n%s", diff)
	}
}

// CFG-011
func TestAMissingExplicitPathIsFatalAndNamesPathAndOrigin(t *testing.T) {
	root := tree(t, "there.json")
	symlink(t, filepath.Join(root, "nowhere"), filepath.Join(root, "dangling.json"))
	for _, name := range []string{"gone.json", "dangling.json", "no/such/dir.json"} {
		for _, from := range []string{"--mcp-config", "TOOLHERD_MCP_CONFIG"} {
			_, err := source.Layers(source.Places{WorkDir: root, Explicit: []string{"there.json", name}, ExplicitFrom: from})
			if !fault.Is(err, fault.ConfigInvalid) {
				t.Fatalf("%s: %v, want CONFIG_INVALID", name, err)
			}
			for _, want := range []string{filepath.Join(root, name), from} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %s", err, want)
				}
			}
		}
	}
}

// CFG-006
func TestWithoutServersThereIsNoLayerAndAnExplicitFileIsAConflict(t *testing.T) {
	root := tree(t, ".mcp.json", "x.json")
	got, err := source.Layers(source.Places{Home: root, WorkDir: root, None: true})
	if err != nil || len(got) != 0 {
		t.Errorf("layers are %v, %v, want none", got, err)
	}
	_, err = source.Layers(source.Places{WorkDir: root, None: true, Explicit: []string{"x.json"}, ExplicitFrom: "--mcp-config"})
	if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), "--no-mcp") || !strings.Contains(err.Error(), "--mcp-config") {
		t.Errorf("both flags: %v, want CONFIG_INVALID that names both", err)
	}
}

// CFG-009
func TestProjectReplacesTheWorkingDirectoryAndMustExist(t *testing.T) {
	root := tree(t, "p/.git/", "p/sub/", "other/", "file")
	got := layers(t, source.Places{WorkDir: filepath.Join(root, "other"), ProjectDir: "../p/sub"}, root)
	if want := "project p/.mcp.json"; got[len(got)-1] != want {
		t.Errorf("last layer is %s, want %s", got[len(got)-1], want)
	}
	for _, dir := range []string{"gone", "../file"} {
		_, err := source.Layers(source.Places{WorkDir: filepath.Join(root, "other"), ProjectDir: dir})
		if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), filepath.Join(root, "other", dir)) {
			t.Errorf("--project %s: %v, want CONFIG_INVALID that names it", dir, err)
		}
	}
}

func TestAFileOfTwoLayersIsReadOnce(t *testing.T) {
	// CFG-002: the home directory is the project's root, under another name.
	home := tree(t, ".git/", ".toolherd/.mcp.json")
	link := filepath.Join(tree(t), "home")
	symlink(t, home, link)
	got := layers(t, source.Places{Home: link, WorkDir: home}, home)
	want := []string{
		"user ~/.deepagents/.mcp.json", "user ~/.toolherd/.mcp.json",
		"project extensions_config.json", "project mcp_config.json", "project .mcp.json",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	// A file that is named explicitly has that class and place.
	root := tree(t, ".mcp.json", "b.json")
	got = layers(t, source.Places{WorkDir: root, Explicit: []string{".mcp.json", "b.json", "./.mcp.json"}}, root)
	want = []string{
		"project .deepagents/.mcp.json", "project .toolherd/.mcp.json", "project extensions_config.json", "project mcp_config.json",
		"explicit b.json", "explicit .mcp.json",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
}

func TestTheClassIsThatOfThePlaceAndNotOfTheTarget(t *testing.T) {
	// CFG-003
	home := tree(t, ".toolherd/.mcp.json")
	root := tree(t, ".git/")
	symlink(t, filepath.Join(home, ".toolherd", ".mcp.json"), filepath.Join(root, ".mcp.json"))
	got, err := source.Layers(source.Places{Home: home, WorkDir: root})
	if err != nil {
		t.Fatal(err)
	}
	last := got[len(got)-1]
	if last.Path != filepath.Join(root, ".mcp.json") || last.Class != snapshot.Project {
		t.Errorf("the link is %+v, want project class", last)
	}
}

func TestRootIsTheNearestDirectoryWithGit(t *testing.T) {
	root := tree(t,
		"repo/.git/", "repo/a/b/", "repo/nested/.git/", "repo/nested/x/",
		"plain/dir/", "admin/worktrees/w/", "wt/x/", "rel/x/", "broken/up/", "broken/x/", "repo/sub/x/", "notes/x/")
	write(t, filepath.Join(root, "wt/.git"), "gitdir: "+filepath.Join(root, "admin/worktrees/w")+"\n")
	write(t, filepath.Join(root, "rel/.git"), "gitdir: ../admin/worktrees/w\r\n")
	write(t, filepath.Join(root, "repo/sub/.git"), "gitdir: ../gone\n")
	write(t, filepath.Join(root, "notes/.git"), "my notes on git: gitdir: ../admin\n")
	symlink(t, filepath.Join(root, "repo/a"), filepath.Join(root, "link"))
	for dir, want := range map[string]string{
		"repo":          "repo", // CFG-007
		"repo/a/b":      "repo",
		"repo/nested/x": "repo/nested",
		"link/b":        "repo",
		"plain/dir":     "plain/dir",
		"wt/x":          "wt", // CFG-008
		"rel/x":         "rel",
		"repo/sub/x":    "repo/sub/x", // an invalid .git file ends the walk below the real root
		"notes/x":       "notes/x",
	} {
		if got := source.Root(filepath.Join(root, dir)); got != filepath.Join(root, want) {
			t.Errorf("root of %s is %s, want %s", dir, strings.TrimPrefix(got, root+"/"), want)
		}
	}
}
