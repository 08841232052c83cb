// Package partners starts the programs that the tests and benchmarks talk to: MCP servers from npm, the
// fake and the evil server of this module, the proxies that are measured beside Toolherd, and Toolherd
// itself; and it connects to MCP servers directly, to compare with what comes through the proxy.
//
// npm packages are installed from a committed package.json and lock file into .cache/npm of the
// repository, once for each content of these files; Go programs are built into .cache/go. Both are safe
// to use from several test binaries at a time. What a function starts ends with its test.
//
// A program that is missing on the machine fails the test and says how to install it: nothing is
// skipped.
package partners

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Command is the command line of an MCP server over stdio.
type Command struct {
	Path string   // absolute
	Args []string // without the program
	Env  []string // NAME=value, besides the environment of the test
	Dir  string   // working directory; that of the test when empty
}

// Argv returns program and arguments as one list.
func (c Command) Argv() []string { return append([]string{c.Path}, c.Args...) }

// With returns the command with more arguments.
func (c Command) With(args ...string) Command {
	c.Args = append(c.Args[:len(c.Args):len(c.Args)], args...)
	return c
}

// Entry returns the command as an entry of mcpServers in .mcp.json.
func (c Command) Entry() map[string]any {
	e := map[string]any{"command": c.Path, "args": append([]string{}, c.Args...)}
	if c.Dir != "" {
		e["cwd"] = c.Dir
	}
	if len(c.Env) > 0 {
		env := map[string]string{}
		for _, pair := range c.Env {
			name, value, _ := strings.Cut(pair, "=")
			env[name] = value
		}
		e["env"] = env
	}
	return e
}

// cmd makes the command the leader of a process group, which the end of ctx kills.
func (c Command) cmd(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = waitDelay
	return cmd
}

func killGroup(pid int, signal syscall.Signal) error {
	if err := syscall.Kill(-pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// Root returns the root directory of the repository: the one above the test that has go.work.
func Root(t testing.TB) string {
	t.Helper()
	root, err := root()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.work above the test: run it inside the repository")
		}
		dir = parent
	}
}

// program finds a program of the machine.
func program(t testing.TB, name, fix string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		t.Fatalf("%s is not on PATH (%s): %s", name, os.Getenv("PATH"), fix)
	}
	return path
}

const installNode = "install Node.js 20 or later with npm, on Debian: apt-get install nodejs npm"

// Node returns the path of node.
func Node(t testing.TB) string {
	t.Helper()
	return program(t, "node", installNode)
}
