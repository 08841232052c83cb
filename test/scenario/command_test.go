package scenario

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/toolherd/toolherd/test/partners"
)

// toolherd runs a command of the client to its end, in the Herd's project and on its state directory.
func (h *Herd) toolherd(t testing.TB, args ...string) Result {
	t.Helper()
	return h.toolherdWith(t, nil, args...)
}

func (h *Herd) toolherdWith(t testing.TB, env []string, args ...string) Result {
	t.Helper()
	return Run(t, partners.Command{
		Path: partners.Toolherd(t), Args: args, Dir: h.path("project"),
		Env: append([]string{"HOME=" + h.path("home"), "TOOLHERD_STATE_DIR=" + h.path("state")}, env...),
	})
}

// want checks exit status and output of a command.
func (r Result) want(t testing.TB, code int, stdout, stderr string) {
	t.Helper()
	if r.Code != code || !regexp.MustCompile(stdout).MatchString(r.Stdout) || !regexp.MustCompile(stderr).MatchString(r.Stderr) {
		t.Errorf("exit status %d, want %d\nstdout, want %s:\n%s\nstderr, want %s:\n%s", r.Code, code, stdout, tail(r.Stdout), stderr, tail(r.Stderr))
	}
}

// demo is the entry of the demo server in examples/mcp.json.
func demo() map[string]any {
	return map[string]any{"command": "${TOOLHERD_EXECUTABLE}", "args": []string{"demo-server"}}
}

// CLI-004, CLI-005: client commands find the running Toolherd of their state directory, show tables to people and JSON to
// programs, and tell by their exit status how it went.
func TestClientCommandsAskTheRunningToolherd(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Servers: map[string]any{
		"demo": demo(), "fake": partners.Fake(t).Entry(), "missing": map[string]any{"command": "no-such-command"},
	}})
	h.Settled(t, "demo", "fake", "missing")
	h.toolherd(t, "servers").want(t, 0,
		`(?m)^NAME +STATUS +TRANSPORT +TOOLS +REASON +NEXT STEP\ndemo +ok +stdio +\d+\nfake +ok +stdio +\d+\nmissing +error +stdio +0 +.*no-such-command`, `^$`)
	h.toolherd(t, "tools").want(t, 0, `(?m)^NAME +SERVER +DESCRIPTION\n(?s:.*)^demo_echo +demo +\S.*\n`, `server missing is error: .*no-such-command`)
	h.toolherd(t, "tools", "--server", "demo").want(t, 0, `^[^f]*\ndemo_`, ``)
	h.toolherd(t, "call", "demo_echo", "text=hello, herd").want(t, 0, `^hello, herd\n$`, `^$`)
	h.toolherd(t, "call", "demo_add", "a=2", "b=40").want(t, 0, `^42\n$`, `^$`)
	h.toolherd(t, "call", "fake_echo", "--json", `{"n":9007199254740993, "a":1.10}`).want(t, 0, `^\{"n":9007199254740993, "a":1.10\}\n$`, `^$`)
	h.toolherd(t, "call", "demo_slow_count", "steps=3", "interval_ms=1").want(t, 0, ``, `progress 3 of 3`)
	// A tool's own error is a failure of the command; so is a tool that is not there.
	h.toolherd(t, "call", "fake_fail", "message=no luck").want(t, 1, `^$`, `^no luck\n$`)
	h.toolherd(t, "call", "fake_nothing").want(t, 1, `^$`, `fake_nothing`)
	h.toolherd(t, "call", "missing_tool").want(t, 1, `^$`, `missing.*no-such-command`)
	h.toolherd(t, "call", "demo_add", "a=two", "b=1").want(t, 2, `^$`, `"a".*number`)

	pid := func(thread string) string {
		r := h.toolherd(t, "call", "fake_pid", "--thread", thread, "--output", "json")
		var out struct {
			Result struct{ StructuredContent struct{ PID json.Number } }
			Info   struct{ Server, SessionID string }
		}
		if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil || r.Code != 0 || out.Info.Server != "fake" {
			t.Fatalf("call fake_pid: %v, %+v", err, r)
		}
		return out.Result.StructuredContent.PID.String()
	}
	monday, tuesday := pid("monday"), pid("tuesday")
	if monday == tuesday || pid("monday") != monday {
		t.Errorf("thread monday has process %s and then %s, tuesday %s", monday, pid("monday"), tuesday)
	}
	for _, args := range [][]string{{"servers"}, {"tools"}, {"call", "demo_add", "a=1", "b=2"}, {"version"}, {"token", "new", "--name", "x"}} {
		r := h.toolherd(t, append(args, "--output", "json")...)
		var out map[string]any
		if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil || r.Code != 0 || len(out) == 0 {
			t.Errorf("%v prints no JSON object: %v\n%+v", args, err, r)
		}
	}
	h.toolherd(t, "version").want(t, 0, `^toolherd \S+ go1\.\S+ linux/\S+\n$`, `^$`)
	// What would compose another one cannot be meant.
	h.toolherd(t, "servers", "--mcp-config", h.Config).want(t, 2, `^$`, regexp.QuoteMeta(h.addresses[up]))
}

func TestWrongUsageExitsWith2AndSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Idle: true})
	for _, args := range [][]string{
		{"no-such-command"}, {"up", "--no-such-flag"}, {"up", "extra"}, {"servers", "--output", "yaml"}, {"call"},
		{"call", "x", "no-pair"}, {"call", "x", "a=1", "--json", "{}"}, {"call", "x", "--timeout", "-1s"}, {"token", "new"}, {"token", "new", "--name", "x", "--role", "king"},
		{"up", "--log-level", "loud"},
		// CFG-006
		{"up", "--no-mcp", "--mcp-config", h.Config},
	} {
		h.toolherd(t, args...).want(t, 2, `^$`, `^toolherd: .+\nRun 'toolherd --help' for usage.\n$`)
	}
	if left := h.Processes(); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// CLI-004: without a running Toolherd a client command composes one for itself, which leaves nothing behind.
func TestClientCommandsComposeTheirOwnToolherd(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Idle: true, Servers: map[string]any{
		"demo": demo(), "missing": map[string]any{"command": "no-such-command"},
	}})
	config := []string{"--mcp-config", h.Config}
	h.toolherd(t, append([]string{"call", "demo_add", "a=2", "b=40"}, config...)...).want(t, 0, `^42\n$`, `^$`)
	h.toolherd(t, append([]string{"servers"}, config...)...).want(t, 0, `demo +ok .*\nmissing +error`, `^$`)
	if left := h.Processes(); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	if _, err := os.Stat(h.path("state", "address.json")); err == nil {
		t.Error("a composition of a client left an address file")
	}
	// Two at a time wait for each other.
	first := Start(t, "first", h.path("out"), h.clientCommand(t, "call", "demo_slow_count", "steps=2", "interval_ms=200", "--mcp-config", h.Config))
	second := Start(t, "second", h.path("out"), h.clientCommand(t, "call", "demo_add", "a=1", "b=1", "--mcp-config", h.Config))
	if a, b := first.Wait(t), second.Wait(t); a != 0 || b != 0 || second.Stdout() != "2\n" {
		t.Errorf("two at a time exit with %d and %d: %s%s", a, b, first.Stderr(), second.Stderr())
	}
	// Ctrl-C ends it and its servers, and what these started.
	h.Write(t, map[string]any{"family": partners.Evil(t, "grandchild").Entry()})
	third := Start(t, "third", h.path("out"), h.clientCommand(t, "call", "family_sleep", "ms=60000", "--mcp-config", h.Config))
	Eventually(t, "the servers run", func() bool { return len(h.Processes()) == 3 })
	third.Signal(t, syscall.SIGINT)
	if code := third.Wait(t); code != 1 || !strings.Contains(third.Stderr(), "was cancelled") {
		t.Errorf("an interrupted command exits with %d and %s", code, third.Stderr())
	}
	EventuallyWithin(t, patience, "nothing is left", func() bool { return len(h.Processes()) == 0 })
}

func (h *Herd) clientCommand(t testing.TB, args ...string) partners.Command {
	t.Helper()
	return partners.Command{
		Path: partners.Toolherd(t), Args: args, Dir: h.path("project"),
		Env: []string{"HOME=" + h.path("home"), "TOOLHERD_STATE_DIR=" + h.path("state")},
	}
}

// CLI-005: a second composition on one state directory is refused and told of the first; a lock that a killed one leaves
// hinders nobody.
func TestOneStateDirectoryHasOneToolherd(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Servers: map[string]any{"demo": demo()}})
	h.SettledOK(t, "demo")
	running := h.Proxy.PID
	second := h.Command(t, up)
	second.Args = slices.Replace(slices.Clone(second.Args), 2, 3, "127.0.0.1:0") // not the address of the first
	Run(t, second).want(t, 1, `^$`, fmt.Sprintf(`%s .*process id %d at %s`, regexp.QuoteMeta(h.path("state")), running, regexp.QuoteMeta(h.addresses[up])))
	h.toolherd(t, "call", "demo_add", "a=1", "b=2").want(t, 0, `^3\n$`, `^$`)

	h.Proxy.Kill(t)
	if _, err := os.Stat(h.path("state", "address.json")); err != nil {
		t.Fatalf("the killed one should have left its address: %v", err)
	}
	// The address is stale, and the lock is free: the command composes.
	h.toolherd(t, "call", "demo_add", "a=1", "b=2", "--mcp-config", h.Config).want(t, 0, `^3\n$`, `^$`)
	h.LaunchAll(t)
	h.toolherd(t, "call", "demo_add", "a=1", "b=2").want(t, 0, `^3\n$`, `^$`)
	h.Proxy.Stop(t)
	if _, err := os.Stat(h.path("state", "address.json")); err == nil {
		t.Error("one that ended in order left its address")
	}
}

// OPS-002, CFG-059: a token made by `token new` works once its entry is in tokens.yaml, which is read again while the
// server runs.
func TestATokenFromTheCommandLineOpensARunningServer(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Idle: true, Servers: map[string]any{"fake": partners.Fake(t).Entry()}})
	tokens := h.path("config", "tokens.yaml")
	h.save(t, tokens, "[]\n")
	h.o.Args = []string{"--tokens-file", tokens}
	h.LaunchAll(t)
	h.toolherd(t, "servers").want(t, 1, `^$`, `no token`)

	r := h.toolherd(t, "token", "new", "--name", "ci", "--role", "agent", "--user-id", "alice")
	r.want(t, 0, `^token: thd_\S+\n(?s:.*)- name: "ci"\n  sha256: [0-9a-f]{64}\n  roles: \[agent\]\n  user_id: "alice"\n$`, `^$`)
	token := regexp.MustCompile(`thd_\S+`).FindString(r.Stdout)
	_, entry, _ := strings.Cut(r.Stdout, "- name")
	h.save(t, tokens, "- name"+entry)
	h.save(t, h.path("config", "token"), token+"\n")
	Eventually(t, "the token is known", func() bool {
		return h.toolherd(t, "servers", "--token-file", h.path("config", "token")).Code == 0
	})
	h.toolherdWith(t, []string{"TOOLHERD_TOKEN=" + token}, "call", "fake_echo", "n:=1").want(t, 0, `^\{"n":1\}\n$`, `^$`)
	h.toolherdWith(t, []string{"TOOLHERD_TOKEN=" + token}, "call", "fake_echo", "--user", "bob").want(t, 1, `^$`, `alice`)
	h.toolherdWith(t, []string{"TOOLHERD_TOKEN=thd_wrong"}, "servers").want(t, 1, `^$`, `unknown token`)
	if filepath.Dir(tokens) == "" || strings.Contains(h.Proxy.Stderr()+h.Proxy.Stdout(), token) {
		t.Error("the server shows the token")
	}
}
