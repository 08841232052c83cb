//go:build linux

package watchdog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startHost runs this binary as a service with one tree.
func startHost(t *testing.T, m string) (*exec.Cmd, io.Reader) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), mode+"="+m, marker+"="+t.Name())
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for p := range marked(t.Name()) {
			p.kill()
		}
	})
	return cmd, out
}

// SESS-010
func TestNothingOutlivesAServiceThatIsKilled(t *testing.T) {
	for _, looked := range []bool{false, true} {
		t.Run(fmt.Sprintf("after a look of the watchdog: %t", looked), func(t *testing.T) {
			cmd, out := startHost(t, "host")
			processes := readTree(t, out)
			dogs := dogsOf(cmd.Process.Pid)
			if len(dogs) != 1 {
				t.Fatalf("%d watchdogs, want one", len(dogs))
			}
			if looked {
				<-time.After(minLook + time.Second)
			} else {
				// One is below the leader alone, in a session of its own and without its streams. The leader dies
				// with the service; only a watchdog that has looked before can know that one.
				maps.DeleteFunc(processes, func(_ process, what string) bool {
					return what == "in its own session, without our streams"
				})
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			processes[dogs[0]] = "the watchdog"
			awaitGone(t, processes)
		})
	}
}

// SESS-010: the window between fork and registration, hit at random.
func TestNothingOutlivesAServiceThatIsKilledWhileItStartsChildren(t *testing.T) {
	for range 12 {
		cmd, out := startHost(t, "storm")
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "started\n" {
			t.Fatalf("the service says %q, %v", line, err)
		}
		<-time.After(time.Duration(rand.IntN(100)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the children to be gone", func() (string, bool) {
			left := marked(t.Name())
			// What left the session and the streams within milliseconds is beyond the watchdog, as its doc says.
			for p := range left {
				if s, ok := readStat(p.pid); !ok || s.session == p.pid && !strings.Contains(left[p], mode+"=tree") {
					delete(left, p)
				}
			}
			return fmt.Sprint(left), len(left) == 0
		})
	}
}

func TestTheWatchdogIgnoresSignalsAndIsReplacedWhenItDies(t *testing.T) {
	cmd, out := startHost(t, "host")
	processes := readTree(t, out)
	first := dogsOf(cmd.Process.Pid)[0]
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if err := syscall.Kill(first.pid, s); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(100 * time.Millisecond)
	if !first.alive() {
		t.Fatal("a signal ended the watchdog")
	}
	if s, _ := readStat(first.pid); s.session != first.pid {
		t.Error("the watchdog has no session of its own: the terminal would end it")
	}

	first.kill()
	waitFor(t, "another watchdog", func() (string, bool) {
		dogs := dogsOf(cmd.Process.Pid)
		return fmt.Sprint(dogs), len(dogs) == 1 && dogs[0] != first
	})
	for p, what := range processes {
		if !p.alive() {
			t.Errorf("%s died with the watchdog", what)
		}
	}
	<-time.After(minLook + time.Second)
	_ = cmd.Process.Kill()
	awaitGone(t, processes)
}

func TestReapKillsWhatLeftTheGroup(t *testing.T) {
	t.Setenv(marker, t.Name())
	guard, stop := runGuard(t.Context())
	defer stop()
	r, w, _ := os.Pipe()
	defer func() { _ = r.Close() }()
	child, err := guard.Start(t.Context(), testCommand("tree", w))
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	processes := readTree(t, r)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, r)
	}()

	child.Look()
	if err := syscall.Kill(child.PID(), syscall.SIGKILL); err != nil { // the leader alone
		t.Fatal(err)
	}
	if err := child.AwaitExit(); err != nil {
		t.Fatal(err)
	}
	state, err := child.Reap(drained)
	if err != nil {
		t.Fatal(err)
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Errorf("the leader ended with %v", state)
	}
	<-drained
	awaitGone(t, processes)
	child.Signal(syscall.SIGKILL) // does nothing: the number may be another's
	if n := len(guard.children); n != 0 {
		t.Errorf("%d children in the table", n)
	}
}

func TestTheWatchdogIsToldInOrderAndForgets(t *testing.T) {
	lines, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lines.Close() }()
	guard := New(nil)
	guard.dog = &dog{in: in}
	streams, w, _ := os.Pipe()
	defer func() { _ = streams.Close() }()
	child, err := guard.fork(t.Context(), Command{Path: "/bin/true", Args: []string{"true"}, Stdin: w, Stdout: w, Stderr: w})
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if err := child.AwaitExit(); err != nil {
		t.Fatal(err)
	}
	if s, ok := readStat(child.PID()); !ok || s.state != 'Z' {
		t.Errorf("the leader that exited is %c, want a zombie, whose number nobody else can get", s.state)
	}
	drained := make(chan struct{})
	close(drained)
	if _, err := child.Reap(drained); err != nil {
		t.Fatal(err)
	}
	if _, ok := readStat(child.PID()); ok {
		t.Error("the leader is not reaped")
	}
	_ = in.Close()
	told, _ := io.ReadAll(lines)
	inode := streamsOf(streams)[0]
	want := fmt.Sprintf("start 1 %d %d %d\ngroup 1 %d\nend 1\n", inode, inode, inode, child.PID())
	if string(told) != want {
		t.Errorf("the watchdog was told\n%swant\n%s", told, want)
	}
	groups := map[uint64]*group{}
	for i, line := range strings.Split(strings.TrimSpace(want), "\n") {
		apply(groups, line)
		if g := groups[1]; (g != nil) != (i < 2) || i == 1 && g.pgid != child.PID() {
			t.Errorf("after %q the table is %v", line, groups)
		}
	}
}

func TestAFailedStartLeavesNoTrace(t *testing.T) {
	guard, stop := runGuard(t.Context())
	defer stop()
	null, _ := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	defer func() { _ = null.Close() }()
	_, err := guard.Start(t.Context(), Command{Path: "/no/such/bin", Args: []string{"bin"}, Stdin: null, Stdout: null, Stderr: null})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if n := len(guard.children); n != 0 {
		t.Errorf("%d children in the table", n)
	}
}

func TestAStuckWatchdogIsReplacedAndHarmsNobody(t *testing.T) {
	t.Setenv(marker, t.Name())
	guard, stop := runGuard(t.Context())
	defer stop()
	r, w, _ := os.Pipe()
	defer func() { _ = r.Close() }()
	child, err := guard.Start(t.Context(), testCommand("tree", w))
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	processes := readTree(t, r)

	stuck := guard.dog
	_ = syscall.Kill(stuck.process.Pid, syscall.SIGSTOP)
	guard.mu.Lock()
	for guard.tell("end 0\n") {
	}
	guard.mu.Unlock()
	<-stuck.died
	waitFor(t, "another watchdog", func() (string, bool) {
		guard.mu.Lock()
		defer guard.mu.Unlock()
		return "", guard.dog != nil && guard.dog != stuck
	})
	for p, what := range processes {
		if !p.alive() {
			t.Errorf("%s died with the watchdog", what)
		}
	}
	end(t, child, r)
	awaitGone(t, processes)
}

// end kills a child and reaps it.
func end(t *testing.T, child *Child, r io.Reader) {
	t.Helper()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, r)
	}()
	child.Look()
	child.Signal(syscall.SIGKILL)
	if err := child.AwaitExit(); err != nil {
		t.Error(err)
	}
	if _, err := child.Reap(drained); err != nil {
		t.Error(err)
	}
	<-drained
}

func TestRunKillsChildrenThatNobodyEnded(t *testing.T) {
	t.Setenv(marker, t.Name())
	guard, stop := runGuard(t.Context())
	guard.grace = 10 * time.Millisecond
	r, w, _ := os.Pipe()
	defer func() { _ = r.Close() }()
	child, err := guard.Start(t.Context(), testCommand("tree", w))
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	processes := readTree(t, r)
	child.Look()
	<-time.After(minLook + time.Second)
	stop()
	awaitGone(t, processes)
	if _, err := guard.Start(t.Context(), testCommand("idle", w)); !errors.Is(err, ErrStopped) {
		t.Errorf("a start after the end: %v", err)
	}
	end(t, child, r)
}

func FuzzApply(f *testing.F) {
	f.Add("start 1 2 3\ngroup 1 4711\nend 1")
	f.Add("group 1 -1\nstart x\nend\nstart 18446744073709551615 99999999999999999999")
	f.Fuzz(func(t *testing.T, lines string) {
		groups := map[uint64]*group{}
		for line := range strings.SplitSeq(lines, "\n") {
			apply(groups, line)
		}
		for _, g := range groups {
			if g.pgid < 0 || g.pgid == 1 {
				t.Errorf("%q: would kill group %d", lines, g.pgid)
			}
		}
	})
}
