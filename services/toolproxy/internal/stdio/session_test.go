//go:build linux

package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

func TestManyCallsShareOneProcess(t *testing.T) {
	r := open(t, launcher(), serverSpec("server"), link.Options{})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			params := fmt.Sprintf(`{"n":%d,"pad":"%s"}`, i, strings.Repeat("x", i*50))
			if got, err := r.Call(t.Context(), "echo", json.RawMessage(params)); err != nil || string(got) != params {
				t.Errorf("call %d: %.40s, %v", i, got, err)
			}
		})
	}
	wg.Wait()
}

// CALL-011, at the level of link and process.
func TestACancelledCallReturnsAtOnceAndTheProcessHearsOfIt(t *testing.T) {
	r := open(t, launcher(), serverSpec("server"), link.Options{})
	r.must(t, "echo", `{}`)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := r.Call(ctx, "never", nil)
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
		t.Errorf("error %v after %v", err, took)
	}
	const want = `[{"requestId":2,"reason":"the deadline passed"}]`
	waitFor(t, "the server to hear of the cancel", func() bool { return r.must(t, "cancelled", "") == want })
}

// SESS-019
func TestTheEnvironmentIsSixVariablesAndTheEntrys(t *testing.T) {
	for name, value := range map[string]string{
		"HOME": "/home/me", "LOGNAME": "me", "USER": "me", "SHELL": "/bin/sh", "TERM": "() { :; }; echo vulnerable",
		"SECRET_TOKEN": "x", "LD_PRELOAD": "", "TOOLHERD_STATE_DIR": "/x", "LANG": "de",
	} {
		t.Setenv(name, value)
	}
	spec := serverSpec("server")
	spec.Env["USER"] = "entry"
	spec.Env["EXTRA"] = "a=b c"
	r := open(t, launcher(), spec, link.Options{})
	var got []string
	if err := json.Unmarshal([]byte(r.must(t, "environment", "")), &got); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	want := []string{"EXTRA=a=b c", "GORACE=atexit_sleep_ms=0", "HOME=/home/me", "LOGNAME=me", "PATH=" + os.Getenv("PATH"), "SHELL=/bin/sh", mode + "=server", "USER=entry"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheWorkingDirectoryIsTheSpecs(t *testing.T) {
	spec := serverSpec("server")
	spec.Dir = t.TempDir()
	r := open(t, launcher(), spec, link.Options{})
	want, err := filepath.EvalSymlinks(spec.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.must(t, "directory", ""); got != strconv.Quote(want) {
		t.Errorf("directory %s, want %q", got, want)
	}
}

// SESS-023
func TestNoiseOnStdoutIsSkippedAndCounted(t *testing.T) {
	r := open(t, launcher(), serverSpec("server"), link.Options{})
	for range 3 {
		r.must(t, "noise", "")
	}
	if s := r.Stats(); s.Skipped != 6 {
		t.Errorf("%d lines skipped, want 6: a banner and a log line in each round", s.Skipped)
	}
}

// SESS-023
func TestALargeMessageIsWholeAndATooLargeOneFailsItsCallAlone(t *testing.T) {
	r := open(t, launcher(), serverSpec("server"), link.Options{})
	for _, size := range []int{70_000, 5 << 20} {
		got := r.must(t, "big", fmt.Sprintf(`{"size":%d}`, size))
		if len(got) < size-10 || !json.Valid([]byte(got)) {
			t.Errorf("asked for %d bytes, got %d", size, len(got))
		}
	}
	waiting := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := r.Call(ctx, "never", nil)
		waiting <- err
	}()
	for _, id := range []string{"first", "last"} {
		_, err := r.Call(t.Context(), "big", json.RawMessage(`{"size":20000000,"id":"`+id+`"}`))
		if !fault.Is(err, fault.PayloadTooLarge) {
			t.Fatalf("id %s: error %v, want PAYLOAD_TOO_LARGE", id, err)
		}
		for _, part := range []string{`"demo"`, "16777216", "toolproxy.max_message_bytes"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("error %q does not name %s", err, part)
			}
		}
		r.must(t, "echo", `{}`)
	}
	select {
	case err := <-waiting:
		t.Errorf("another call ended: %v", err)
	default:
	}
	cancel()
	<-waiting
}

// SESS-021, STAT-007
func TestAProcessThatExitsFailsItsCallsAtOnceWithExitCodeAndStderr(t *testing.T) {
	l := launcher()
	t.Run("at its start", func(t *testing.T) {
		spec := serverSpec("exits at start")
		spec.Redact = func(s string) string { return strings.ReplaceAll(s, "hunter2hunter2", "***") }
		r := open(t, l, spec, link.Options{})
		began := time.Now()
		_, err := r.Call(t.Context(), "initialize", nil)
		if !fault.Is(err, fault.SessionClosed) || time.Since(began) > 5*time.Second {
			t.Fatalf("error %v after %v, want SESSION_CLOSED", err, time.Since(began))
		}
		for _, part := range []string{`"demo"`, "exited with code 3", "cannot open database: password=***"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("error %q does not say %q", err, part)
			}
		}
		e, ok := errors.AsType[*ExitError](err)
		if !ok || e.Code != 3 || e.Signal != "" || e.Cause != "" || e.LastWords() != "cannot open database: password=***" {
			t.Errorf("exit %+v", e)
		}
	})
	t.Run("during calls, with its last answer delivered", func(t *testing.T) {
		r := open(t, l, serverSpec("server"), link.Options{})
		waiting := make(chan error, 1)
		go func() {
			_, err := r.Call(t.Context(), "never", nil)
			waiting <- err
		}()
		waitFor(t, "the call to be in flight", func() bool { return r.Stats().InFlight == 1 })
		if got := r.must(t, "exit", ""); got != `{"last":"answer"}` {
			t.Errorf("answer %s", got)
		}
		err := <-waiting
		if e, ok := errors.AsType[*ExitError](err); !ok || e.Code != 3 || e.LastWords() != "panic: boom" {
			t.Errorf("error %v", err)
		}
		<-r.Done()
		if _, err := r.Call(t.Context(), "echo", nil); !errors.Is(err, link.ErrNotSent) || !strings.Contains(err.Error(), "code 3") {
			t.Errorf("the next call: %v", err)
		}
	})
	t.Run("by a signal", func(t *testing.T) {
		r := open(t, l, serverSpec("server"), link.Options{})
		r.must(t, "echo", `{}`)
		_ = syscall.Kill(r.process.PID(), syscall.SIGKILL)
		<-r.ended
		if e, ok := errors.AsType[*ExitError](r.err); !ok || e.Signal != "killed" || e.Cause != "" {
			t.Errorf("error %v", r.err)
		}
	})
}

// SESS-024
func TestAProcessThatStopsReadingIsKilledAndOthersGoOn(t *testing.T) {
	l := launcher()
	other := open(t, l, serverSpec("server"), link.Options{})
	spec := serverSpec("server")
	spec.WriteStall = 300 * time.Millisecond
	r := open(t, l, spec, link.Options{})
	grandchild, err := strconv.Atoi(r.must(t, "fork", ""))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Notify(t.Context(), "freeze", nil); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the server to be stopped", func() bool { return stateOf(r.process.PID()) == 'T' })
	params := json.RawMessage(`{"pad":"` + strings.Repeat("x", 50_000) + `"}`)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if i%2 == 0 {
				// These give up before the process is killed, and are free at once.
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				began := time.Now()
				if _, err := r.Call(ctx, "echo", params); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 250*time.Millisecond {
					t.Errorf("error %v after %v", err, time.Since(began))
				}
				return
			}
			_, err := r.Call(t.Context(), "echo", params)
			e, ok := errors.AsType[*ExitError](err)
			if !fault.Is(err, fault.SessionClosed) || !ok || e.Cause != "it stopped reading its stdin for 300ms" || e.Signal != "killed" {
				t.Errorf("error %v", err)
			}
		})
	}
	wg.Wait()
	assertGone(t, r.process.PID(), grandchild)
	if got := other.must(t, "echo", `{"still":"here"}`); got != `{"still":"here"}` {
		t.Errorf("the other server says %s", got)
	}
}

func TestAProcessThatClosesAStreamEndsTheSession(t *testing.T) {
	l := launcher()
	for _, stream := range []string{"stdin", "stdout"} {
		t.Run(stream, func(t *testing.T) {
			spec := serverSpec("server")
			spec.Grace = 50 * time.Millisecond
			r := open(t, l, spec, link.Options{})
			_, err := r.Call(t.Context(), "close "+stream, nil)
			if stream == "stdin" {
				if err != nil {
					t.Fatal(err)
				}
				_, err = r.Call(t.Context(), "echo", nil) // EPIPE
			}
			if e, ok := errors.AsType[*ExitError](err); !ok || e.Cause != "it closed its "+stream {
				t.Errorf("error %v", err)
			}
		})
	}
}

// SESS-009
func TestStoppingTakesItsThreeSteps(t *testing.T) {
	spec := serverSpec("deaf")
	notes := filepath.Join(t.TempDir(), "notes")
	spec.Env["NOTES"] = notes
	ready := make(chan struct{})
	r := open(t, launcher(), spec, link.Options{OnNotification: func(string, json.RawMessage) { close(ready) }})
	<-ready
	began := time.Now()
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-r.ended
	killed := time.Now()

	content, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]time.Time{}
	for line := range strings.Lines(string(content)) {
		var what string
		var ms int64
		if _, err := fmt.Sscan(line, &what, &ms); err != nil {
			t.Fatal(err)
		}
		at[what] = time.UnixMilli(ms)
	}
	const slack = 800 * time.Millisecond
	for _, step := range []struct {
		what     string
		from, to time.Time
		want     time.Duration
	}{
		{"stdin closed", began, at["eof"], 0},
		{"SIGTERM", at["eof"], at["term"], 2 * time.Second},
		{"SIGKILL", at["term"], killed, 2 * time.Second},
	} {
		if took := step.to.Sub(step.from); took < step.want-50*time.Millisecond || took > step.want+slack {
			t.Errorf("%s after %v, want %v; notes:\n%s", step.what, took, step.want, content)
		}
	}
	if e, ok := errors.AsType[*ExitError](r.err); !ok || e.Signal != "killed" || e.Cause != "it was stopped" {
		t.Errorf("error %v", r.err)
	}
}

func TestAWellBehavedProcessStopsAtOnce(t *testing.T) {
	r := open(t, launcher(), serverSpec("server"), link.Options{})
	r.must(t, "echo", `{}`)
	began := time.Now()
	if err := r.Close(t.Context()); err != nil || time.Since(began) > time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	<-r.ended
	if e, ok := errors.AsType[*ExitError](r.err); !ok || e.Code != 0 || e.Signal != "" {
		t.Errorf("error %v", r.err)
	}
}

// SESS-010
func TestGrandchildrenEndWithTheirSession(t *testing.T) {
	l := launcher()
	for _, how := range []string{`{}`, `{"session":"own"}`, `{"streams":"none"}`} {
		for name, end := range map[string]func(t *testing.T, r *running){
			"stopped": func(t *testing.T, r *running) {
				if err := r.Close(t.Context()); err != nil {
					t.Error(err)
				}
			},
			"crashed": func(_ *testing.T, r *running) { _ = syscall.Kill(r.process.PID(), syscall.SIGKILL) },
			"killed":  func(_ *testing.T, r *running) { r.process.Kill() },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				spec := serverSpec("server")
				spec.Grace = 100 * time.Millisecond
				r := open(t, l, spec, link.Options{})
				pid, err := strconv.Atoi(r.must(t, "fork", how))
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				end(t, r)
				// If it holds the pipes, that must not hold up the end.
				<-r.ended
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("the end took %v", took)
				}
				assertGone(t, pid)
			})
		}
	}
}

// SESS-010
func TestChildAndGrandchildOfAServiceThatIsKilledAreGone(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), mode+"=host")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child, grandchild int
	var callErr string
	if _, err := fmt.Fscan(out, &child, &grandchild, &callErr); err != nil || callErr != "<nil>" {
		t.Fatalf("%v, call error %s", err, callErr)
	}
	if !alive(child) || !alive(grandchild) {
		t.Fatal("they are not there")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	assertGone(t, child, grandchild)
}

func TestAHundredSessionsLeaveNothingBehind(t *testing.T) {
	l := launcher()
	// A server that is quickly started, with a child of its own that holds its streams.
	spec := Spec{Server: "demo", Command: "sh", Grace: 50 * time.Millisecond, Args: []string{"-c",
		`sleep 1000 & read -r line; echo '{"jsonrpc":"2.0","id":1,"result":{}}'; cat >/dev/null`}}
	open(t, l, spec, link.Options{}).must(t, "echo", `{}`)
	files := openFiles(t)
	for range 10 {
		var wg sync.WaitGroup
		for range 10 {
			r := open(t, l, spec, link.Options{})
			r.must(t, "echo", `{}`)
			wg.Go(func() {
				if err := r.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	waitFor(t, "file descriptors to be closed", func() bool { return openFiles(t) <= files })
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestCloseOfAProcessThatNobodyRunsEndsIt(t *testing.T) {
	p, err := launcher().Start(t.Context(), serverSpec("server"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	assertGone(t, p.PID())
	if err := p.Run(t.Context(), func([]byte) {}); err == nil {
		t.Error("it can be run after that")
	}
	if err := p.Send(t.Context(), []byte(`{}`)); !errors.Is(err, link.ErrEnded) {
		t.Errorf("Send: %v", err)
	}
}
