package partners

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// installTimeout bounds npm ci, which takes seconds with a warm cache.
const installTimeout = 8 * time.Minute

// install returns the directory with node_modules of a set, servers or bench, after installing exactly
// what its lock file names. No install script runs.
func install(t testing.TB, set string) string {
	t.Helper()
	root := Root(t)
	sum := sha256.New()
	files := []string{".npmrc", "package.json", "package-lock.json"}
	if set == serverSet {
		files = append(files, modernScript)
	}
	content := map[string][]byte{}
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(root, "test", "partners", "npm", set, name))
		if err != nil {
			t.Fatalf("read pins of %s: %v", set, err)
		}
		content[name] = b
		fmt.Fprintf(sum, "%s %d\n%s", name, len(b), b)
	}
	dir := filepath.Join(root, ".cache", "npm", set+"-"+hex.EncodeToString(sum.Sum(nil))[:16])
	npm := program(t, "npm", installNode)
	err := cached(dir, func(tmp string) error {
		for name, b := range content {
			if err := os.WriteFile(filepath.Join(tmp, name), b, 0o644); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), installTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
		cmd.Dir = tmp
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("npm ci: %w\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("install the npm packages of test/partners/npm/%s: %v\ncheck that npm reaches its registry (npm ping) and run the test again", set, err)
	}
	return dir
}

// script is a JavaScript file of an installed package, run by node.
func script(t testing.TB, set string, path ...string) Command {
	t.Helper()
	file := filepath.Join(append([]string{install(t, set)}, path...)...)
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("%v: the package does not have the file that test/partners expects; look at its bin member", err)
	}
	return Command{Path: Node(t), Args: []string{file}}
}
