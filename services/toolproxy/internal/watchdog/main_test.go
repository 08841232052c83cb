//go:build linux

package watchdog

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// mode is the environment variable that makes this test binary one of the processes of the tests.
const mode = "WATCHDOG_TEST_MODE"

func TestMain(m *testing.M) {
	if IsWatchdog(os.Args) {
		os.Exit(Main())
	}
	switch os.Getenv(mode) {
	case "":
		goleak.VerifyTestMain(m)
	case "host":
		host()
	case "storm":
		storm()
	case "tree":
		tree()
	case "middle":
		middle()
	case "idle":
		idle()
	}
	os.Exit(0)
}

// host is a service: it starts one tree and passes on what it says, until it is killed.
func host() {
	guard, stop := runGuard(context.Background())
	defer stop()
	r, w, _ := os.Pipe()
	if _, err := guard.Start(context.Background(), testCommand("tree", w)); err != nil {
		fmt.Println("error", err)
		return
	}
	_ = w.Close()
	_, _ = io.Copy(os.Stdout, r)
	forever()
}

// storm is a service that never stops starting trees.
func storm() {
	guard, stop := runGuard(context.Background())
	defer stop()
	null, _ := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	for n := 0; ; n++ {
		if _, err := guard.Start(context.Background(), testCommand("tree", null)); err != nil {
			return
		}
		if n == 0 {
			fmt.Println("started")
		}
	}
}

func runGuard(ctx context.Context) (*Guard, func()) {
	guard := New(nil)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := guard.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "guard:", err)
		}
	}()
	return guard, func() { cancel(); <-done }
}

// testCommand executes this binary in a mode, with stdout as its standard output and error.
func testCommand(m string, stdout *os.File) Command {
	self, _ := os.Executable()
	null, _ := os.Open(os.DevNull)
	return Command{
		Path: self, Args: []string{self}, Env: []string{mode + "=" + m, marker + "=" + os.Getenv(marker)},
		Stdin: null, Stdout: stdout, Stderr: stdout,
	}
}

// marker is an environment variable that tells the processes of one test from others.
const marker = "WATCHDOG_TEST_MARKER"

// tree is a child that starts others in every way that we know how to follow, tells their numbers and idles.
func tree() {
	say("leader", os.Getpid())
	spawn("in the group", "idle", false, false)
	spawn("in its own session, with our streams", "idle", true, true)
	spawn("the middle", "middle", false, true)
	spawn("in its own session, without our streams", "idle", true, false)
	say("complete", 0)
	idle()
}

// middle stays in the group and has a child that does not.
func middle() {
	spawn("below the middle, in its own session, without our streams", "idle", true, false)
	idle()
}

func idle() {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	forever()
}

func say(what string, pid int) { fmt.Printf("%d %s\n", pid, what) }

func spawn(what, m string, session, streams bool) {
	self, _ := os.Executable()
	cmd := exec.CommandContext(context.Background(), self)
	cmd.Env = []string{mode + "=" + m, marker + "=" + os.Getenv(marker)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	if streams {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	}
	if err := cmd.Start(); err != nil {
		fmt.Println("error", err)
		return
	}
	say(what, cmd.Process.Pid)
}

// readTree reads what a tree tells until it is complete: name by process.
func readTree(t *testing.T, r io.Reader) map[process]string {
	t.Helper()
	found := map[process]string{}
	complete := false
	for s := bufio.NewScanner(r); s.Scan(); {
		var pid int
		number, what, _ := strings.Cut(s.Text(), " ")
		if _, err := fmt.Sscan(number, &pid); err != nil {
			t.Fatalf("the tree says %q", s.Text())
		}
		if pid == 0 {
			complete = true
		} else {
			st, ok := readStat(pid)
			if !ok {
				t.Fatalf("%s, process %d, is not there", what, pid)
			}
			found[process{pid, st.start}] = what
		}
		if complete && len(found) == 6 {
			return found
		}
	}
	t.Fatalf("the tree ended early: %v", found)
	return nil
}

// awaitGone polls until none of the processes lives.
func awaitGone(t *testing.T, processes map[process]string) {
	t.Helper()
	waitFor(t, "processes to be gone", func() (string, bool) {
		var left []string
		for p, what := range processes {
			if p.alive() {
				left = append(left, fmt.Sprintf("%d %s", p.pid, what))
			}
		}
		return strings.Join(left, "; "), len(left) == 0
	})
}

// waitFor polls until cond holds; what cond says is in the message if it never does.
func waitFor(t *testing.T, what string, cond func() (string, bool)) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		state, ok := cond()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s for %s: %s", what, state)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// marked returns the living processes that carry the marker.
func marked(value string) map[process]string {
	found := map[process]string{}
	everyProcess(func(pid int, s stat) {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if strings.Contains(string(env), marker+"="+value+"\x00") {
			found[process{pid, s.start}] = strings.ReplaceAll(string(env), "\x00", " ")
		}
	})
	return found
}

// dogsOf returns the watchdog processes of a service.
func dogsOf(service int) []process {
	var dogs []process
	for _, p := range descendants(service) {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		if strings.TrimRight(string(args), "\x00") == name && p.alive() {
			dogs = append(dogs, p)
		}
	}
	return dogs
}

// forever waits without being taken for a deadlock.
func forever() {
	for {
		_ = syscall.Pause()
	}
}
