package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/test/evilmcp/evil"
	"github.com/toolherd/toolherd/test/partners"
	"github.com/toolherd/toolherd/test/rawrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quietWhile is how long a server that never answers is given.
const quietWhile = 300 * time.Millisecond

// attacked is a running evil server behind a raw client.
type attacked struct {
	*partners.Stdio
	client *rawrpc.Stdio
}

func run(t *testing.T, mode string, args ...string) *attacked {
	t.Helper()
	p := partners.StartStdio(t, partners.Evil(t, mode, args...))
	c := rawrpc.NewStdio(p.Out, p.In, rawrpc.ClientOptions{})
	t.Cleanup(func() {
		_ = p.In.Close() // some modes close it
		if err := syscall.Kill(-p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
		_ = p.Out.Close() // a child in another group may hold the other end
		<-c.Done()
	})
	return &attacked{p, c}
}

// meet runs a mode and shakes hands with it.
func meet(t *testing.T, mode string, args ...string) *attacked {
	t.Helper()
	a := run(t, mode, args...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := rawrpc.Initialize(ctx, a.client, rawrpc.V20251125, nil); err != nil {
		t.Fatalf("%s: %v\n%s", mode, err, a.Stderr())
	}
	return a
}

func (a *attacked) ask(ctx context.Context, method string) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return a.client.Call(ctx, method, rawrpc.CallParams("echo", json.RawMessage(`{"a":1}`)))
}

// ignored fails the test unless the server leaves the method without an answer and lives on.
func (a *attacked) ignored(t *testing.T, method string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), quietWhile)
	defer cancel()
	if result, err := a.ask(ctx, method); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s was answered: %s, %v", method, result, err)
	}
	if err := syscall.Kill(a.PID, 0); err != nil {
		t.Errorf("the server is gone: %v", err)
	}
}

func (a *attacked) answered(t *testing.T, method string) {
	t.Helper()
	if _, err := a.ask(t.Context(), method); err != nil {
		t.Errorf("%s: %v", method, err)
	}
}

func TestListNamesEveryMode(t *testing.T) {
	out, err := exec.Command(partners.EvilMCP(t), "-list").Output()
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := evil.List(&want); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, want.Bytes()) {
		t.Errorf("-list printed\n%s", out)
	}
}

func TestServersThatExit(t *testing.T) {
	for _, c := range []struct {
		mode, method string
		code         int
		stderr       string
	}{
		{"exit-at-start", "initialize", 3, "Authorization: Bearer " + evil.Secret},
		{"exit-first-message", "server/discover", 1, "expected initialize, got server/discover"},
	} {
		a := run(t, c.mode)
		if _, err := a.ask(t.Context(), c.method); err == nil {
			t.Errorf("%s: %s was answered", c.mode, c.method)
		}
		if code := a.Wait(t); code != c.code || !strings.Contains(a.Stderr(), c.stderr) {
			t.Errorf("%s: exit code %d, standard error %q", c.mode, code, a.Stderr())
		}
	}
	for mode, code := range map[string]int{"exit-after-init": 4, "exit-mid-call": 7, "crash-mid-call": 2, "half-frame": 9} {
		a := meet(t, mode)
		if mode != "exit-after-init" {
			a.answered(t, "tools/list")
		}
		if _, err := a.ask(t.Context(), "tools/call"); err == nil {
			t.Errorf("%s: the call was answered", mode)
		}
		if got := a.Wait(t); got != code {
			t.Errorf("%s: exit code %d, want %d", mode, got, code)
		}
		if mode == "crash-mid-call" && !strings.Contains(a.Stderr(), "password="+evil.Secret) {
			t.Errorf("%s: standard error %q", mode, a.Stderr())
		}
	}
	meet(t, "exit-first-message").answered(t, "tools/list")
}

func TestServersThatHang(t *testing.T) {
	run(t, "silent").ignored(t, "initialize")
	run(t, "deaf-at-start").ignored(t, "initialize")
	meet(t, "only-initialize").ignored(t, "tools/list")
	meet(t, "no-list").ignored(t, "tools/list")
	for _, mode := range []string{"no-call", "deaf", "half-frame-hang", "closes-stdout"} {
		a := meet(t, mode)
		a.answered(t, "tools/list")
		if mode == "closes-stdout" {
			if _, err := a.ask(t.Context(), "tools/call"); !errors.Is(err, rawrpc.ErrClosed) {
				t.Errorf("%s: %v", mode, err)
			}
			continue
		}
		a.ignored(t, "tools/call")
	}
}

func TestDeafServerStopsReading(t *testing.T) {
	p := partners.StartStdio(t, partners.Evil(t, "deaf-at-start"))
	stuck := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(p.In, io.LimitReader(zeros{}, 64<<20)) // ends when the server is killed
		stuck <- n
	}()
	select {
	case n := <-stuck:
		t.Errorf("the server took %d bytes", n)
	case <-time.After(quietWhile):
	}
	if err := syscall.Kill(-p.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-stuck
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestServerThatClosesItsInput(t *testing.T) {
	a := meet(t, "closes-stdin")
	a.answered(t, "tools/list")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil { // the close comes right after the answer
		if err := a.client.Notify(ctx, "notifications/x", nil); err != nil {
			if !errors.Is(err, syscall.EPIPE) {
				t.Errorf("writing failed with %v, want EPIPE", err)
			}
			if err := syscall.Kill(a.PID, 0); err != nil {
				t.Errorf("the server is gone: %v", err)
			}
			return
		}
	}
	t.Error("the input stayed open")
}

func TestNoiseLeavesTheAnswersReadable(t *testing.T) {
	for _, mode := range []string{"noise", "crlf", "unknown-ids", "duplicate-answer", "requests-odd", "progress-bad", "notifications-odd", "list-changed-storm", "request-flood", "long-70k"} {
		a := meet(t, mode)
		a.answered(t, "tools/list")
		a.answered(t, "tools/call")
		a.answered(t, "tools/call")
	}
}

func TestStderrFloodDoesNotEnd(t *testing.T) {
	a := meet(t, "stderr-flood", "-size", strconv.Itoa(4<<20))
	a.answered(t, "tools/call")
	if got := len(a.Stderr()); got != 64<<10 {
		t.Errorf("the tail of standard error has %d bytes", got)
	}
}

func TestSwappedAnswersAreSwapped(t *testing.T) {
	a := meet(t, "swapped-answers")
	answers := make(chan string, 2)
	for i := range 2 {
		go func() {
			result, err := a.client.Call(t.Context(), "tools/call", rawrpc.CallParams("echo", fmt.Appendf(nil, `{"i":%d}`, i)))
			answers <- fmt.Sprint(i, string(rawrpc.Member(result, "structuredContent")), err)
		}()
	}
	for range 2 {
		if got := <-answers; got != `0{"i":1}<nil>` && got != `1{"i":0}<nil>` {
			t.Errorf("got %s", got)
		}
	}
}

// children reads the pids that a mode wrote down.
func children(t *testing.T, file string, want int) []int {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var pids []int
		if b, err := os.ReadFile(file); err == nil {
			for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
				pid, err := strconv.Atoi(s.Text())
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
			}
		}
		if len(pids) == want {
			return pids
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited 10 s for %d children, found %v", want, pids)
		}
	}
}

// gone waits until a process that is not our child has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for alive(pid) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("process %d is still alive", pid)
		}
	}
}

// alive reports whether a process runs; a zombie that nobody has waited for does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestChildrenOutliveTheirParent(t *testing.T) {
	for _, c := range []struct {
		mode      string
		sameGroup bool
		serves    bool // the mode's own process or its child
	}{
		{"grandchild", true, true}, {"grandchild-setsid", false, true}, {"npx", true, true}, {"orphan", true, false},
	} {
		t.Run(c.mode, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pids")
			a := run(t, c.mode, "-pidfile", file)
			child := children(t, file, 1)[0]
			t.Cleanup(func() {
				_ = syscall.Kill(child, syscall.SIGKILL) // dead already, if the test passed
			})
			group, err := syscall.Getpgid(child)
			if err != nil || (group == a.PID) != c.sameGroup {
				t.Errorf("the child is in group %d, %v; its parent leads %d", group, err, a.PID)
			}
			if c.serves {
				if _, err := rawrpc.Initialize(t.Context(), a.client, rawrpc.V20251125, nil); err != nil {
					t.Fatal(err)
				}
				a.answered(t, "tools/call")
				if err := syscall.Kill(-a.PID, syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			gone(t, a.PID)
			if code := a.Wait(t); c.mode == "orphan" && code != 5 {
				t.Errorf("exit code %d, want 5", code)
			}
			if !alive(child) {
				t.Fatal("the child ended with its parent")
			}
			select {
			case <-a.client.Done():
				t.Error("the output ended with the parent: the child does not hold it")
			case <-time.After(quietWhile):
			}
			target := child
			if c.sameGroup {
				target = -a.PID
			}
			if err := syscall.Kill(target, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			gone(t, child)
		})
	}
}

func TestOnlySIGKILLEndsTheStubborn(t *testing.T) {
	a := meet(t, "ignores-sigterm")
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if err := syscall.Kill(a.PID, signal); err != nil {
			t.Fatal(err)
		}
	}
	a.answered(t, "tools/call")
	if err := a.In.Close(); err != nil {
		t.Fatal(err)
	}
	lingers := meet(t, "lingers")
	if err := lingers.In.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.client.Done():
		t.Error("ignores-sigterm ended")
	case <-lingers.client.Done():
		t.Error("lingers ended")
	case <-time.After(quietWhile):
	}
	if err := syscall.Kill(lingers.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-lingers.client.Done()
}

func TestHTTPProcessListensAndTellsWhatItSaw(t *testing.T) {
	p := partners.EvilHTTP(t, "elicit-unasked")
	asked := ""
	c := partners.RawHTTP(t, p.URL, rawrpc.V20251125, rawrpc.ClientOptions{OnMessage: func(m rawrpc.Message) { asked = m.Method }})
	if _, err := c.Call(t.Context(), "tools/call", rawrpc.CallParams("echo", nil)); err != nil || asked != "elicitation/create" {
		t.Errorf("call: %v, asked %q", err, asked)
	}
}

func TestItEndsByItself(t *testing.T) {
	if code := run(t, "silent", "-life", "50ms").Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
