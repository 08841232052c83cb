package partners

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"testing"
)

// Each program is built once for each test binary.
var (
	buildFake     = sync.OnceValues(func() (string, error) { return build("test", "fakemcp") })
	buildEvil     = sync.OnceValues(func() (string, error) { return build("test", "evilmcp") })
	buildToolherd = sync.OnceValues(func() (string, error) { return goBuild(own("cmd/toolherd")) })
)

// FakeMCP returns the path of the command fakemcp; see [Fake] and [FakeHTTP] for its use.
func FakeMCP(t testing.TB) string { t.Helper(); return built(t, buildFake) }

// EvilMCP returns the path of the command evilmcp; see [Evil] and [EvilHTTP] for its use.
func EvilMCP(t testing.TB) string { t.Helper(); return built(t, buildEvil) }

// Toolherd returns the path of the command toolherd.
func Toolherd(t testing.TB) string { t.Helper(); return built(t, buildToolherd) }

// Fake is fakemcp over stdio.
func Fake(t testing.TB, args ...string) Command {
	t.Helper()
	return Command{Path: FakeMCP(t), Args: args}
}

// FakeHTTP starts fakemcp on HTTP; URL is its streamable endpoint, /sse beside it the older one.
func FakeHTTP(t testing.TB, args ...string) *Process {
	t.Helper()
	p := start(t, Fake(t, "-http", "127.0.0.1:0").With(args...))
	p.URL = p.announced(t, `(?m)^listening (\S+)$`)
	return p
}

// Evil is evilmcp in a mode over stdio.
func Evil(t testing.TB, mode string, args ...string) Command {
	t.Helper()
	return Command{Path: EvilMCP(t), Args: []string{"-mode", mode}}.With(args...)
}

// EvilHTTP starts evilmcp in a mode on HTTP; URL is its endpoint.
func EvilHTTP(t testing.TB, mode string, args ...string) *Process {
	t.Helper()
	p := start(t, Evil(t, mode, "-http", "127.0.0.1:0").With(args...))
	p.URL = p.announced(t, `(?m)^listening (\S+)$`)
	return p
}

func built(t testing.TB, build func() (string, error)) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// build compiles the main package in a directory of the repository.
func build(dir ...string) (string, error) {
	return goBuild(recipe{dir: filepath.Join(dir...), pkg: ".", name: dir[len(dir)-1]})
}

// recipe says how to build a program.
type recipe struct {
	dir, pkg string   // the main package, named from a directory of the repository
	name     string   // of the program
	env      []string // NAME=value, besides that of the test
	race     bool     // with the race detector
}

// own is the recipe of a program of Toolherd. A test under the race detector puts what it runs under it as well.
func own(dir string) recipe {
	return recipe{dir: filepath.FromSlash(dir), pkg: ".", name: path.Base(dir), race: raced}
}

// goBuild compiles a program. The path it returns carries the hash of the content, so that a rebuild never changes a
// program that another process is running.
func goBuild(r recipe) (string, error) {
	root, err := root()
	if err != nil {
		return "", err
	}
	cache := filepath.Join(root, ".cache", "go")
	latest, args, path := filepath.Join(cache, "latest", r.name), []string{"build"}, ""
	if r.race {
		latest, args = filepath.Join(cache, "latest-race", r.name), append(args, "-race")
	}
	err = locked(latest+".lock", func() error {
		cmd := exec.Command("go", append(args, "-o", latest, r.pkg)...)
		cmd.Dir = filepath.Join(root, r.dir)
		cmd.Env = append(os.Environ(), r.env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s in %s: %w\n%s", r.pkg, r.dir, err, out)
		}
		sum, err := hash(latest)
		if err != nil {
			return err
		}
		path = filepath.Join(cache, sum, r.name)
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.Link(latest, path)
	})
	return path, err
}

func hash(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}
