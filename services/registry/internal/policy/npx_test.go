package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/services/registry/internal/policy"
)

// realNpx is the npx of this machine in a project that has a package of its own. It reaches no network.
type realNpx struct {
	t    *testing.T
	path string
	dir  string
}

func newRealNpx(t *testing.T) realNpx {
	t.Helper()
	path, err := exec.LookPath("npx")
	if err != nil {
		t.Fatalf("%v: install Node.js 20 or later with npm, as for the tests of test/partners", err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"package.json":                      `{"name":"project","version":"1.0.0","workspaces":["ws"],"dependencies":{"pkg":"1.0.0"}}`,
		"ws/package.json":                   `{"name":"ws","version":"1.0.0"}`,
		"node_modules/pkg/package.json":     `{"name":"pkg","version":"1.0.0","bin":{"pkg":"server.js"}}`,
		"node_modules/pkg/server.js":        "#!/usr/bin/env node\nconsole.log('server got ' + JSON.stringify(process.argv.slice(2)))\n",
		"node_modules/.package-lock.json":   `{"name":"project","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{"node_modules/pkg":{"version":"1.0.0","bin":{"pkg":"server.js"}}}}`,
		"node_modules/.bin/.keep-directory": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../pkg/server.js", filepath.Join(dir, "node_modules", ".bin", "pkg")); err != nil {
		t.Fatal(err)
	}
	return realNpx{t, path, dir}
}

// run returns what npx and what it started wrote.
func (n realNpx) run(args ...string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, n.path, args...)
	cmd.Dir = n.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + n.dir, "npm_config_cache=" + filepath.Join(n.dir, "cache"), "npm_config_offline=true",
		"npm_config_update_notifier=false", "npm_config_fund=false", "npm_config_audit=false",
	}
	out, _ := cmd.CombinedOutput() // of a refusal by npx itself the output tells
	return string(out)
}

// POL-018
func TestRealNpxPassesOnWhatThePolicyAllows(t *testing.T) {
	n := newRealNpx(t)
	t.Logf("npm %s", n.run("--version"))
	for args, want := range map[string][]string{
		"-y pkg":                   {},
		"--yes --package=pkg pkg":  {},
		"-p pkg pkg":               {},
		"-y pkg -c f":              {"-c", "f"},
		"-y pkg -e production":     {"-e", "production"},
		"-y pkg -- -c f":           {"--", "-c", "f"},
		"-- pkg --eval x":          {"--eval", "x"},
		"pkg --call x":             {"--call", "x"},
		"--parseable pkg -c f":     {"-c", "f"},
		"-C " + n.dir + " pkg":     {},
		"-P pkg -c f":              {"-c", "f"},
		"-y pkg -name v":           {"-name", "v"},
		"-y pkg --node-options=-e": {"--node-options=-e"},
	} {
		if got := policy.New(nil).Judge(entry(t, "npx", args)); got != nil {
			t.Errorf("%s is refused: %v", args, got)
		}
		out := n.run(strings.Fields(args)...)
		_, text, ok := strings.Cut(out, "server got ")
		var got []string
		if err := json.NewDecoder(strings.NewReader(text)).Decode(&got); !ok || err != nil {
			t.Errorf("npx %s did not start the server: %s", args, out)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("npx %s: arguments of the server (-want +got):\n%s", args, diff)
		}
	}
}

// POL-018: these do run a string, so that refusing them is no formality. Those without a reference are spellings that npm
// takes too.
func TestRealNpxRunsTheStringsThatThePolicyRefuses(t *testing.T) {
	n := newRealNpx(t)
	const script = "echo ran-$((40+2))"
	for _, args := range [][]string{
		{"-c", script}, {"--yes", "-c", script}, {"--call=" + script}, {"-c=" + script}, {"--call", script},
		{"-p", "pkg", "-c", script}, {"--package", "pkg", "--call", script}, {"--registry", "http://127.0.0.1:9", "-c", script},
		{"-w", "ws", "-c", script}, {"--loglevel", "silly", "-c", script},

		{"-yc", script}, {"-call", script}, {"---call", script}, {"--foo", "--call=" + script},
	} {
		text, err := json.Marshal(map[string]any{"command": "npx", "args": args})
		if err != nil {
			t.Fatal(err)
		}
		if got := policy.New(nil).Judge(parse(t, string(text))); len(got) != 1 || strings.Contains(fmt.Sprint(got), "echo") {
			t.Errorf("%q: %v, want one refusal that does not repeat the string", args, got)
		}
		if out := n.run(args...); !strings.Contains(out, "ran-42") {
			t.Errorf("npx %q did not run the string: %s", args, out)
		}
	}
}
