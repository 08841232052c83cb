package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// program is the built command line.
var program string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "toolherd-test-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "toolherd")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// patience bounds every wait.
const patience = 60 * time.Second

// place is a home directory and what runs there.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	return &place{t, t.TempDir()}
}

func (p *place) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = p.dir
	cmd.Env = []string{"HOME=" + p.dir, "TMPDIR=" + p.dir, "PATH=" + os.Getenv("PATH"), "TOOLHERD_TASKS_POLL_INTERVAL=1s"}
	return cmd
}

// ran is what a command that has ended did.
type ran struct {
	t           *testing.T
	args        string
	code        int
	stdout, err string
}

func (p *place) run(args ...string) ran {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	cmd := p.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	r := ran{t: p.t, args: strings.Join(args, " ")}
	if err := cmd.Run(); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			p.t.Fatalf("%s: %v", r.args, err)
		}
		r.code = exit.ExitCode()
	}
	r.stdout, r.err = stdout.String(), stderr.String()
	return r
}

// want fails the test unless the command ended so, with output that the patterns match.
func (r ran) want(code int, stdout, stderr string) ran {
	r.t.Helper()
	if r.code != code || !regexp.MustCompile(stdout).MatchString(r.stdout) || !regexp.MustCompile(stderr).MatchString(r.err) {
		r.t.Errorf("%s: exit status %d, want %d, %s and %s\nstdout: %s\nstderr: %s", r.args, r.code, code, stdout, stderr, r.stdout, r.err)
	}
	return r
}

// decode reads JSON output.
func (r ran) decode(into any) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.stdout), into); err != nil {
		r.t.Fatalf("%s: %v in %s", r.args, err, r.stdout)
	}
}

// running is a program that lasts.
type running struct {
	cmd    *exec.Cmd
	stderr *output
	ended  chan struct{}
}

type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start starts a program, waits until its standard error matches ready, and returns what the first group matched. The program
// ends with the test.
func (p *place) start(ready string, args ...string) (*running, string) {
	p.t.Helper()
	r := &running{cmd: p.command(context.WithoutCancel(p.t.Context()), args...), stderr: &output{}, ended: make(chan struct{})}
	r.cmd.Stderr = r.stderr
	if err := r.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait() // how it ends is looked at by what it wrote
	}()
	p.t.Cleanup(func() { r.stop(p.t) })
	re := regexp.MustCompile(ready)
	var found []string
	eventually(p.t, strings.Join(args, " ")+" is ready", func() bool {
		found = re.FindStringSubmatch(r.stderr.String())
		return found != nil
	})
	return r, found[1]
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
	select {
	case <-r.ended:
	case <-time.After(patience):
		t.Errorf("%v does not end:\n%s", r.cmd.Args, r.stderr)
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
