//go:build linux

package stdio

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
)

// STAT-007
func TestACommandThatCannotBeExecutedFailsAtOnce(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, perm os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), perm); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("no-permission", "#!/bin/sh\n", 0o600)
	interpreter := write("no-interpreter", "#!/no/such/interpreter\n", 0o700)
	garbage := write("garbage", "\x00\x01\x02", 0o700)
	l := launcher()
	for _, c := range []struct {
		name string
		spec Spec
		want []string
	}{
		{"not on the service's PATH", Spec{Command: "no-such-command"}, []string{`"no-such-command" was not found`, "PATH=" + os.Getenv("PATH")}},
		{"not on the entry's PATH", Spec{Command: "sh", Env: map[string]string{"PATH": "/no/such/dir:" + dir}},
			[]string{`"sh" was not found`, "PATH=/no/such/dir:" + dir}},
		{"an absolute path", Spec{Command: "/no/such/bin"}, []string{`"/no/such/bin"`, "no such file or directory", "PATH=" + os.Getenv("PATH")}},
		{"a relative path", Spec{Command: "./bin", Dir: dir}, []string{`"./bin"`, dir + "/bin: no such file or directory"}},
		{"a directory", Spec{Command: dir}, []string{"is a directory"}},
		{"a file without permission, on the PATH", Spec{Command: "no-permission", Env: map[string]string{"PATH": dir}},
			[]string{dir + "/no-permission: permission denied", "PATH=" + dir}},
		{"a script whose interpreter is missing", Spec{Command: interpreter}, []string{interpreter, "interpreter"}},
		{"something else", Spec{Command: garbage}, []string{garbage, "no program for this machine"}},
		{"nothing", Spec{}, []string{"no command"}},
		{"a missing directory", Spec{Command: "sh", Dir: dir + "/gone"}, []string{dir + "/gone: no such file or directory", "cwd"}},
		{"a bad variable name", Spec{Command: "sh", Env: map[string]string{"A=B": "x"}}, []string{`"A=B"`}},
		{"a bad variable value", Spec{Command: "sh", Env: map[string]string{"TOKEN": "secret\x00"}}, []string{"env.TOKEN"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.spec.Server = "demo"
			p, err := l.Start(t.Context(), c.spec)
			if err == nil {
				_ = p.Close(t.Context())
				t.Fatal("it started")
			}
			if !fault.Is(err, fault.ServerError) {
				t.Errorf("error %v, want SERVER_ERROR", err)
			}
			for _, part := range append(c.want, `server "demo"`) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q tells a value", err)
			}
		})
	}
}

func TestTheCommandIsLookedUpInTheEntrysPath(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tool", "bin/tool"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/no/such:" + dir:   dir + "/tool",
		dir + "/bin:" + dir: dir + "/bin/tool",
		"bin":               dir + "/bin/tool", // relative to the server's directory
		":" + dir + "/bin":  dir + "/bin/tool", // an empty element is not the current directory
	} {
		got, err := Spec{Command: "tool", Dir: dir}.find([]string{"HOME=/", "PATH=" + path})
		if err != nil || got != want {
			t.Errorf("PATH=%s finds %s, %v; want %s", path, got, err, want)
		}
	}
}

func TestEnviron(t *testing.T) {
	service := map[string]string{"HOME": "/h", "PATH": "/bin", "SHELL": "()x", "USER": "", "OTHER": "x"}
	lookup := func(name string) (string, bool) { v, ok := service[name]; return v, ok }
	got, err := environ(lookup, map[string]string{"PATH": "/entry", "EMPTY": "", "SHELLSHOCK": "() { :; }"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"EMPTY=", "HOME=/h", "PATH=/entry", "SHELLSHOCK=() { :; }", "USER="}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := environ(lookup, map[string]string{"": "x"}); err == nil {
		t.Error("an empty name is accepted")
	}
}

func TestExitErrorSaysHowItEnded(t *testing.T) {
	for want, e := range map[string]*ExitError{
		"the process exited with code 3":                                       {Code: 3},
		`it was stopped; the process was ended by the signal "killed"`:         {Cause: "it was stopped", Code: -1, Signal: "killed"},
		"it stopped reading its stdin for 10s; the process could not be ended": {Cause: "it stopped reading its stdin for 10s", Code: -1},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if _, ok := errors.AsType[*ExitError](error(&ExitError{})); !ok {
		t.Error("an ExitError is no ExitError")
	}
}
