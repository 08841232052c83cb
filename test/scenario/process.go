package scenario

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolherd/toolherd/test/partners"
)

// patience bounds every wait. A passing test never comes near it, on a busy machine either.
const patience = 40 * time.Second

// Eventually polls ok until it holds; a test that waits in vain fails with what.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	EventuallyWithin(t, patience, what, ok)
}

// EventuallyWithin is [Eventually] with a bound that is itself what is tested.
func EventuallyWithin(t testing.TB, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	if !poll(bound, ok) {
		t.Fatalf("waited %s in vain: %s", bound, what)
	}
}

// poll asks ok until it holds, and reports whether it did within the bound. It asks often at first, then ten times a
// second.
func poll(bound time.Duration, ok func() bool) bool {
	deadline := time.NewTimer(bound)
	defer deadline.Stop()
	const most = 100 * time.Millisecond
	wait := 5 * time.Millisecond
	next := time.NewTimer(wait)
	defer next.Stop()
	for !ok() {
		select {
		case <-next.C:
			wait = min(wait+wait/4, most)
			next.Reset(wait)
		case <-deadline.C:
			return false
		}
	}
	return true
}

// Program is a program that runs until its test ends. Its output goes to files, so that nothing of it is lost and no
// pipe keeps a test waiting for somebody who inherited it.
type Program struct {
	Name string
	PID  int

	stdout, stderr output
	exited         chan struct{}
	err            error // of the exit, once exited is closed
}

// output is what one program has written to a file that an earlier one may have begun.
type output struct {
	path  string
	begin int
}

func (o output) String() string { return read(o.path)[o.begin:] }

// read returns the content of a file, "" if there is none.
func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// Start runs a command until the test ends, and shows what it wrote to standard error if the test fails. Its output goes to
// two files in dir, after what an earlier program of this name left there.
func Start(t testing.TB, name, dir string, c partners.Command) *Program {
	t.Helper()
	p := begin(t, name, dir, c)
	t.Cleanup(func() {
		if strings.Contains(p.Stderr(), "WARNING: DATA RACE") {
			t.Errorf("%s has a data race", name)
		}
		if t.Failed() {
			t.Logf("standard error of %s:\n%s", name, tail(p.Stderr()))
		}
	})
	return p
}

// begin starts a command that ends with the test at the latest.
func begin(t testing.TB, name, dir string, c partners.Command) *Program {
	t.Helper()
	p := &Program{
		Name: name, exited: make(chan struct{}),
		stdout: output{path: filepath.Join(dir, name+".stdout")}, stderr: output{path: filepath.Join(dir, name+".stderr")},
	}
	p.stdout.begin, p.stderr.begin = len(p.Stdout()), len(p.Stderr())
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), c.Path, c.Args...)
	cmd.Env, cmd.Dir = append(os.Environ(), c.Env...), c.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, errs := appendTo(t, p.stdout.path), appendTo(t, p.stderr.path)
	cmd.Stdout, cmd.Stderr = out, errs
	err := errors.Join(cmd.Start(), out.Close(), errs.Close())
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	p.PID = cmd.Process.Pid
	release := guard(t, p.PID)
	go func() { // ends with the process, which the clean-up ends
		p.err = cmd.Wait()
		release()
		close(p.exited)
	}()
	t.Cleanup(func() { p.Stop(t) })
	return p
}

// guard kills a process when this one ends without having released it: killed, or out of time. It is a shell that waits for
// the end of a pipe.
func guard(t testing.TB, pid int) (release func()) {
	t.Helper()
	in, hold, err := os.Pipe() // no other child inherits it
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sh", "-c", `read _; kill -KILL "$0"`, strconv.Itoa(pid))
	cmd.Stdin, cmd.SysProcAttr = in, &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(cmd.Start(), in.Close()); err != nil {
		t.Fatalf("start a guard: %v", err)
	}
	return func() {
		_ = cmd.Process.Kill() // before the pipe ends, or it would act
		_ = cmd.Wait()         // it was killed
		_ = hold.Close()       // never fails
	}
}

func appendTo(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// tail returns the end of a long text.
func tail(s string) string {
	const limit = 16 << 10
	if len(s) <= limit {
		return s
	}
	return "…" + s[len(s)-limit:]
}

// Stdout returns everything that the program has written to its standard output.
func (p *Program) Stdout() string { return p.stdout.String() }

// Stderr returns everything that the program has written to its standard error.
func (p *Program) Stderr() string { return p.stderr.String() }

// Signal sends the process, and no other, a signal.
func (p *Program) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.PID, s); err != nil {
		t.Fatalf("signal %s: %v", p.Name, err)
	}
}

// Exited reports whether the program has ended.
func (p *Program) Exited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Wait waits for the program to end and returns its exit code, -1 after a signal.
func (p *Program) Wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Fatalf("waited %s for the end of %s\n%s", patience, p.Name, tail(p.Stderr()))
	}
	return exitCode(t, p.err)
}

// Kill ends the process with SIGKILL, and nobody else, and waits for that.
func (p *Program) Kill(t testing.TB) {
	t.Helper()
	if !p.Exited() {
		p.Signal(t, syscall.SIGKILL)
	}
	<-p.exited
}

// Stop ends the program in order, or with SIGKILL if that takes too long, which is an error.
func (p *Program) Stop(t testing.TB) {
	t.Helper()
	if p.Exited() {
		return
	}
	p.Signal(t, syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Errorf("%s did not end within %s after SIGTERM", p.Name, patience)
		p.Kill(t)
	}
}

// Announced waits for text on standard error that pattern matches and returns its groups.
func (p *Program) Announced(t testing.TB, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	Eventually(t, p.Name+" prints "+pattern, func() bool {
		if found = re.FindStringSubmatch(p.Stderr()); found == nil && p.Exited() {
			t.Fatalf("%s ended (%v) without printing %s\n%s", p.Name, p.err, pattern, tail(p.Stderr()))
		}
		return found != nil
	})
	return found[1:]
}

// Result is what a command that has ended did.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs a command to its end.
func Run(t testing.TB, c partners.Command) Result {
	t.Helper()
	p := begin(t, "run", t.TempDir(), c)
	code := p.Wait(t)
	return Result{Code: code, Stdout: p.Stdout(), Stderr: p.Stderr()}
}

func exitCode(t testing.TB, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatalf("wait: %v", err)
	}
	return exit.ExitCode()
}
