//go:build linux

package stdio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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

	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/watchdog"
)

// mode is the variable that makes this test binary one of the processes of the tests.
const mode = "STDIO_TEST_MODE"

func TestMain(m *testing.M) {
	if watchdog.IsWatchdog(os.Args) {
		os.Exit(watchdog.Main())
	}
	switch os.Getenv(mode) {
	case "":
		goleak.VerifyTestMain(guarded{m})
	case "server":
		serve()
	case "sdk":
		sdkServer()
	case "exits at start":
		fmt.Fprintln(os.Stderr, "cannot open database: password=hunter2hunter2")
		os.Exit(3)
	case "deaf":
		deaf()
	case "idle":
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		forever()
	case "host":
		host()
	}
	os.Exit(0)
}

// serve is an MCP server as far as these tests need one: it answers each method in its own way.
func serve() {
	var cancelled []string
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		m, err := jsonrpc.Parse(line)
		if err != nil {
			fmt.Fprintln(os.Stderr, "broken message:", err)
			os.Exit(9)
		}
		switch m.Method {
		case "notifications/cancelled":
			cancelled = append(cancelled, string(m.Params))
		case "never":
		case "cancelled":
			reply(m, "["+strings.Join(cancelled, ",")+"]")
		case "noise":
			fmt.Println("Server listening on port 8080")
			fmt.Println()
			fmt.Println(`{"level":"info","msg":"a log line"}`)
			fmt.Print("\r\n \n")
			reply(m, `{}`)
		case "big":
			size, _ := jsonrpc.Int(jsonrpc.Member(m.Params, "size"))
			result := `{"id":99,"text":"` + strings.Repeat("\\\"x", int(size)/3) + `"}`
			if last, _ := jsonrpc.String(jsonrpc.Member(m.Params, "id")); last == "last" {
				fmt.Printf(`{"jsonrpc":"2.0","result":%s,"id":%s}`+"\n", result, m.ID)
			} else {
				reply(m, result)
			}
		case "environment":
			list, _ := json.Marshal(os.Environ())
			reply(m, string(list))
		case "directory":
			dir, _ := os.Getwd()
			reply(m, string(jsonrpc.AppendString(nil, dir)))
		case "stderr":
			text, _ := jsonrpc.String(jsonrpc.Member(m.Params, "text"))
			_, _ = io.WriteString(os.Stderr, text)
			reply(m, `{}`)
		case "exit":
			fmt.Fprintln(os.Stderr, "panic: boom")
			reply(m, `{"last":"answer"}`)
			os.Exit(3)
		case "freeze":
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		case "close stdin":
			_ = os.Stdin.Close()
			reply(m, `{}`)
			forever()
		case "close stdout":
			_ = os.Stdout.Close()
			forever()
		case "fork": // a grandchild that ignores signals and holds our streams, or does not
			self, _ := os.Executable()
			cmd := exec.CommandContext(context.Background(), self)
			cmd.Env = []string{mode + "=idle"}
			if streams, _ := jsonrpc.String(jsonrpc.Member(m.Params, "streams")); streams != "none" {
				cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
			}
			session, _ := jsonrpc.String(jsonrpc.Member(m.Params, "session"))
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session == "own"}
			if err := cmd.Start(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(9)
			}
			reply(m, fmt.Sprint(cmd.Process.Pid))
		default:
			params := m.Params
			if params == nil {
				params = json.RawMessage(`{}`)
			}
			reply(m, string(params))
		}
	}
}

func reply(m jsonrpc.Message, result string) {
	_, _ = os.Stdout.Write(append(jsonrpc.AppendResult(nil, m.ID, json.RawMessage(result)), '\n'))
}

// deaf notes what it is told and never ends by itself.
func deaf() {
	note := func(what string) {
		f, err := os.OpenFile(os.Getenv("NOTES"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			os.Exit(9)
		}
		_, _ = fmt.Fprintf(f, "%s %d\n", what, time.Now().UnixMilli())
		_ = f.Close()
	}
	terms := make(chan os.Signal, 10)
	signal.Notify(terms, syscall.SIGTERM)
	note("start")
	fmt.Println(`{"jsonrpc":"2.0","method":"ready"}`)
	go func() {
		for range terms {
			note("term")
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	note("eof")
	forever()
}

// host is a service with one session, whose server has a grandchild. It tells both numbers.
func host() {
	go func() { _ = guard.Run(context.Background()) }()
	p, err := NewLauncher(guard).Start(context.Background(), serverSpec("server"))
	if err != nil {
		fmt.Println(err)
		return
	}
	l := link.New(p, link.Options{})
	go func() { _ = l.Run(context.Background()) }()
	pid, err := l.Call(context.Background(), "fork", nil)
	fmt.Println(p.PID(), string(pid), err)
	forever()
}

func serverSpec(m string) Spec {
	self, _ := os.Executable()
	return Spec{Server: "demo", Command: self, Env: map[string]string{mode: m, "GORACE": "atexit_sleep_ms=0"}}
}

// guard starts the processes of all tests of this package.
var guard = watchdog.New(nil)

// guarded runs tests while the guard runs.
type guarded struct{ m *testing.M }

func (g guarded) Run() int {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- guard.Run(ctx) }()
	code := g.m.Run()
	cancel()
	if err := <-done; err != nil {
		fmt.Fprintln(os.Stderr, "guard:", err)
		return 1
	}
	return code
}

func launcher() *Launcher { return NewLauncher(guard) }

// running is a session of a test.
type running struct {
	*link.Link
	process *Process
	ended   chan struct{} // closed when Run has returned
	err     error         // of Run, once ended is closed
}

// open starts a session that is closed when the test ends.
func open(tb testing.TB, l *Launcher, spec Spec, o link.Options) *running {
	tb.Helper()
	p, err := l.Start(tb.Context(), spec)
	if err != nil {
		tb.Fatal(err)
	}
	o.Server = spec.Server
	r := &running{Link: link.New(p, o), process: p, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = r.Run(context.WithoutCancel(tb.Context()))
	}()
	tb.Cleanup(func() {
		p.Kill()
		<-r.ended
		assertGone(tb, p.PID())
	})
	return r
}

func (r *running) must(tb testing.TB, method, params string) string {
	tb.Helper()
	got, err := r.Call(tb.Context(), method, json.RawMessage(params))
	if err != nil {
		tb.Fatalf("%s: %v", method, err)
	}
	return string(got)
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	state := stateOf(pid)
	return state != 'Z' && state != 'X'
}

// stateOf returns the letter of a process's state: T where it is stopped, X where there is none.
func stateOf(pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 'X'
	}
	return b[bytes.LastIndexByte(b, ')')+2]
}

func assertGone(tb testing.TB, pids ...int) {
	tb.Helper()
	for _, pid := range pids {
		waitFor(tb, fmt.Sprintf("process %d to be gone", pid), func() bool { return !alive(pid) })
	}
}

// waitFor polls until cond holds.
func waitFor(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			tb.Fatalf("waited 20 s for %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// forever waits without being taken for a deadlock.
func forever() {
	for {
		_ = syscall.Pause()
	}
}
