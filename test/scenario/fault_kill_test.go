package scenario

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/partners"
	"github.com/toolherd/toolherd/test/rawrpc"
)

// family is a set of servers whose processes have children of their own. The npx shape is a launcher that waits for the
// process that serves.
func family(t testing.TB, pids string) map[string]any {
	t.Helper()
	return map[string]any{
		"plain":      partners.Fake(t).Entry(),
		"npx":        partners.Evil(t, "npx", "-pidfile", pids).Entry(),
		"grandchild": partners.Evil(t, "grandchild", "-pidfile", pids).Entry(),
		"escaped":    partners.Evil(t, "grandchild-setsid", "-pidfile", pids).Entry(),
		"stubborn":   partners.Evil(t, "ignores-sigterm").Entry(),
		"shell":      map[string]any{"command": "sh", "args": []string{"-c", strings.Join(partners.Fake(t).Argv(), " ") + "; true"}},
	}
}

// readPIDs reads the file in which evil servers note their children.
func readPIDs(t testing.TB, path string) []int {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for word := range strings.FieldsSeq(string(content)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// SESS-010: kill -9 of the process that has the sessions leaves nothing behind: no server, no grandchild, no process that
// left its group, no watchdog; calls were running.
func TestKillLeavesNoProcessBehind(t *testing.T) {
	Each(t, Options{}, func(t *testing.T, h *Herd) {
		pids := filepath.Join(t.TempDir(), "pids")
		h.Write(t, family(t, pids))
		h.SettledOK(t, "plain", "npx", "grandchild", "escaped", "stubborn", "shell")
		for _, server := range []string{"plain", "npx", "stubborn"} {
			for thread := range 2 {
				h.running(t, Call{Tool: server + "_sleep", Arguments: `{"ms":60000}`, Thread: fmt.Sprint("t", thread)})
			}
		}
		Eventually(t, "two more sessions of three servers run", func() bool { return len(h.listSessions(t)) == 6+3*2 })

		descendants := Descendants(h.Proxy.PID)
		children := readPIDs(t, pids)
		all := h.Processes()
		for _, pid := range children {
			if !slices.ContainsFunc(all, func(p Proc) bool { return p.PID == pid }) {
				t.Fatalf("the grandchild %d is not among %v: the test would prove nothing", pid, all)
			}
		}
		if len(children) < 3 || len(all) < 12 {
			t.Fatalf("only %d grandchildren, %d processes: %v", len(children), len(all), all)
		}
		h.Proxy.Kill(t)
		EventuallyWithin(t, 10*time.Second, "no process is left", func() bool {
			return !slices.ContainsFunc(append(all, descendants...), Proc.Alive) && len(h.Processes()) == 0
		})
		if h.Topology == Split && h.Registry.Exited() {
			t.Error("the registry ended with the toolproxy")
		}
	})
}

// CLI-003, SESS-009, SESS-010: an interrupt drains the running call, ends every server, stubborn ones and grandchildren
// included, and the process itself with status 0.
func TestInterruptDrainsAndLeavesNoProcess(t *testing.T) {
	Each(t, Options{}, func(t *testing.T, h *Herd) {
		h.Write(t, family(t, filepath.Join(t.TempDir(), "pids")))
		h.SettledOK(t, "plain", "npx", "grandchild", "escaped", "stubborn", "shell")
		wait := h.running(t, Call{Tool: "plain_sleep", Arguments: `{"ms":1000}`, View: viewJSON})
		Eventually(t, "the call runs", func() bool { return h.stats(t, "plain").Calls["sleep"] == 1 })
		all := append(h.Processes(), Descendants(h.Proxy.PID)...)
		h.Proxy.Signal(t, syscall.SIGINT)
		if out, err := wait(); err != nil || !strings.Contains(out.GetResult().GetResultJson(), `"slept_ms":1000`) {
			t.Errorf("the running call ends with %v, %v", out, err)
		}
		if code := h.Proxy.Wait(t); code != 0 {
			t.Errorf("exit status %d\n%s", code, tail(h.Proxy.Stderr()))
		}
		for _, p := range all {
			if p.Alive() {
				t.Errorf("%v still runs after the end", p)
			}
		}
	})
}

// A second interrupt does not wait for the drain, and still leaves nothing.
func TestASecondInterruptEndsAtOnce(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Servers: map[string]any{"plain": partners.Fake(t).Entry()}})
	h.SettledOK(t, "plain")
	wait := h.running(t, Call{Tool: "plain_sleep", Arguments: `{"ms":60000}`})
	Eventually(t, "the call runs", func() bool { return h.stats(t, "plain").Calls["sleep"] == 1 })
	all := append(h.Processes(), Descendants(h.Proxy.PID)...)
	h.Proxy.Signal(t, syscall.SIGINT)
	// The first one closes the listener.
	Eventually(t, "no new call is taken", func() bool {
		_, err := h.Do(t, Call{Tool: "plain_echo", Timeout: time.Second})
		return err != nil
	})
	h.Proxy.Signal(t, syscall.SIGINT)
	EventuallyWithin(t, 5*time.Second, "the process ends", h.Proxy.Exited)
	if _, err := wait(); err == nil {
		t.Error("the call succeeded")
	}
	EventuallyWithin(t, 5*time.Second, "no process is left", func() bool { return !slices.ContainsFunc(all, Proc.Alive) })
}

// listSessions lists all sessions, as an operator.
func (h *Herd) listSessions(t testing.TB) []*toolproxyv1.Session {
	t.Helper()
	page, err := h.Operator(t).ListSessions(t.Context(), &toolproxyv1.ListSessionsRequest{PageSize: 1000})
	if err != nil {
		t.Fatalf("list sessions: %v", err)
	}
	return page.GetSessions()
}

// pid asks a fake or evil server for its process id.
func (h *Herd) pid(t testing.TB, c Call) int {
	t.Helper()
	var p struct{ PID int }
	if err := json.Unmarshal(structured(h.JSON(t, c)), &p); err != nil {
		t.Fatal(err)
	}
	return p.PID
}

// An edit of the configuration while calls run: the running calls finish, on servers that are changed and removed as well; a
// server that stays keeps its process; what is new appears.
func TestConfigurationEditedWhileCallsRun(t *testing.T) {
	Each(t, Options{}, func(t *testing.T, h *Herd) {
		stays, goes := partners.Fake(t).Entry(), partners.Fake(t).Entry()
		h.Write(t, map[string]any{"stays": stays, "changes": partners.Fake(t, "-name", "before").Entry(), "goes": goes})
		h.SettledOK(t, "stays", "changes", "goes")
		pids := map[string]int{}
		var waits []func() (*toolproxyv1.CallToolResponse, error)
		for _, server := range []string{"stays", "changes", "goes"} {
			pids[server] = h.pid(t, Call{Tool: server + "_pid"})
			waits = append(waits, h.running(t, Call{Tool: server + "_sleep", Arguments: `{"ms":2000}`, View: viewJSON}))
			Eventually(t, "the call of "+server+" runs", func() bool { return h.stats(t, server).Calls["sleep"] == 1 })
		}
		h.Apply(t, map[string]any{
			"stays": stays, "changes": partners.Fake(t, "-name", "after", "-filler", "1").Entry(), "new": partners.Fake(t).Entry(),
		})
		h.SettledOK(t, "stays", "changes", "new")
		if got := h.JSON(t, Call{Tool: "new_echo", Arguments: `{"n":5}`}); !strings.Contains(got, `{"n":5}`) {
			t.Errorf("the new server answers %s", got)
		}
		Eventually(t, "the changed server's new tool is there", func() bool {
			return slices.ContainsFunc(h.ListTools(t, &toolproxyv1.ListToolsRequest{}), func(tool *toolproxyv1.Tool) bool {
				return tool.GetName() == "changes_filler_0000"
			})
		})
		if pid := h.pid(t, Call{Tool: "changes_pid"}); pid == pids["changes"] {
			t.Error("the changed server still has the process of before")
		}
		if pid := h.pid(t, Call{Tool: "stays_pid"}); pid != pids["stays"] {
			t.Errorf("the server that stays has process %d, it was %d", pid, pids["stays"])
		}
		if _, err := h.Do(t, Call{Tool: "goes_echo"}); reasonOf(err).Reason != "TOOL_NOT_FOUND" {
			t.Errorf("a call of the removed server ends with %v", err)
		}
		for _, wait := range waits {
			if out, err := wait(); err != nil || !strings.Contains(out.GetResult().GetResultJson(), `"slept_ms":2000`) {
				t.Errorf("a call that ran over the edit ends with %v, %v", out, err)
			}
		}
		for _, server := range []string{"changes", "goes"} {
			pid := pids[server]
			Eventually(t, "the old process of "+server+" is gone", func() bool { _, alive := process(pid); return !alive })
		}
		if calls := string(rawrpc.Member(structured(h.JSON(t, Call{Tool: "stays_stats"})), "sessions_opened")); calls != "1" {
			t.Errorf("the server that stays was greeted %s times", calls)
		}
	})
}
