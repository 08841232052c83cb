package partners

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	startTimeout = 60 * time.Second // node on a busy machine
	stopGrace    = 2 * time.Second  // between SIGTERM and SIGKILL
	waitDelay    = 1 * time.Second  // for output that a grandchild keeps open
)

// Process is a running program that listens.
type Process struct {
	URL string // what to connect to
	PID int    // leader of its process group

	out    *output
	exited chan struct{}
	err    error // of the exit, once exited is closed
}

// Output returns the last 64 KiB that the process has written to its standard streams.
func (p *Process) Output() string { return p.out.String() }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Kill sends the process group a signal.
func (p *Process) Kill(signal syscall.Signal) error { return killGroup(p.PID, signal) }

// start runs c until the test ends: SIGTERM, then SIGKILL, to its whole group.
func start(t testing.TB, c Command) *Process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := c.cmd(ctx)
	p := &Process{out: new(output), exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatalf("start %v: %v", c.Argv(), err)
	}
	p.PID = cmd.Process.Pid
	go func() { // ends with the process, which the clean-up ends
		p.err = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		defer cancel()
		if err := p.Kill(syscall.SIGTERM); err != nil {
			t.Errorf("stop %v: %v", c.Argv(), err)
		}
		select {
		case <-p.exited:
		case <-time.After(stopGrace):
		}
		if err := p.Kill(syscall.SIGKILL); err != nil {
			t.Errorf("kill %v: %v", c.Argv(), err)
		}
		<-p.exited
	})
	return p
}

// await polls ok until it holds, and fails the test with what when the process ends or time is up.
func (p *Process) await(t testing.TB, what string, ok func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok(ctx) {
		select {
		case <-tick.C:
		case <-p.exited:
			t.Fatalf("waited for %s, but the process ended: %v\n%s", what, p.err, p.Output())
		case <-ctx.Done():
			t.Fatalf("waited %s for %s\n%s", startTimeout, what, p.Output())
		}
	}
}

// announced waits for a line that pattern matches and returns its first group.
func (p *Process) announced(t testing.TB, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	p.await(t, "a line like "+pattern, func(context.Context) bool {
		found = re.FindStringSubmatch(p.Output())
		return found != nil
	})
	return found[1]
}

// answering waits until url answers HTTP at all.
func (p *Process) answering(t testing.TB, url string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	p.await(t, "an answer of "+url, func(ctx context.Context) bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil
	})
}

// freePort returns a port that was free a moment ago, for programs that cannot pick one themselves.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	return strconv.Itoa(port)
}

// output keeps the end of what is written to it.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const outputLimit = 64 << 10

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b.Write(b)
	if over := o.b.Len() - outputLimit; over > 0 {
		o.b.Next(over)
	}
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// exitCode turns the error of a finished command into its code, -1 for a signal.
func exitCode(err error) (int, error) {
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return 0, nil
	}
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode(), nil
	}
	return 0, fmt.Errorf("wait: %w", err)
}
