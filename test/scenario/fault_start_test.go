package scenario

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/evilmcp/evil"
	"github.com/toolherd/toolherd/test/partners"
)

const (
	statusOK       = corev1.ServerStatus_SERVER_STATUS_OK
	statusError    = corev1.ServerStatus_SERVER_STATUS_ERROR
	statusStarting = corev1.ServerStatus_SERVER_STATUS_STARTING
	viewJSON       = toolproxyv1.ResultView_RESULT_VIEW_JSON
)

// with returns an entry with one more member.
func with(entry map[string]any, key string, value any) map[string]any {
	entry[key] = value
	return entry
}

// CFG-016, CFG-030, CFG-031, CFG-051, STAT-003, STAT-005, STAT-007, SESS-027: servers that cannot start, or
// start badly, say what is wrong and take nothing from a good one beside them.
func TestServersThatCannotStartSayWhyAndHinderNobody(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no-such-server")
	servers := map[string]any{
		"good":     partners.Fake(t).Entry(),
		"missing":  map[string]any{"command": "no-such-command-of-scenario"},
		"path":     map[string]any{"command": missing},
		"exits":    partners.Evil(t, "exit-at-start").Entry(),
		"silent":   with(partners.Evil(t, "silent").Entry(), "session_init_timeout", 2),
		"deaf":     with(partners.Evil(t, "deaf-at-start").Entry(), "session_init_timeout", "2s"),
		"listless": with(partners.Evil(t, "no-list").Entry(), "session_init_timeout", 2),
		"noisy":    partners.Evil(t, "noise").Entry(),
		"unset":    map[string]any{"command": "true", "args": []string{"${SCENARIO_UNSET}"}},
		"empty":    map[string]any{"command": ""},
		"both":     map[string]any{"type": "stdio", "command": "true", "url": "http://127.0.0.1:1/mcp"},
		"urlless":  map[string]any{"type": "http"},
		"either":   map[string]any{"type": "http", "command": "true", "url": "http://127.0.0.1:1/mcp"},
		"number":   7,
	}
	Each(t, Options{Servers: servers}, func(t *testing.T, h *Herd) {
		// The good one is there before the slow ones have given up.
		Eventually(t, "the good server is listed", func() bool { return h.Servers(t)["good"].GetStatus() == statusOK })
		if got := h.JSON(t, Call{Tool: "good_echo", Arguments: `{"n":1}`}); !strings.Contains(got, `{"n":1}`) {
			t.Errorf("the good server answers %s", got)
		}
		all := h.Settled(t, "both", "deaf", "either", "empty", "exits", "good", "listless", "missing", "noisy", "number", "path", "silent", "unset", "urlless")
		for name, wants := range map[string][]string{
			"missing":  {"no-such-command-of-scenario", "PATH="},
			"path":     {missing},
			"exits":    {"code 3", "boom: cannot start"},
			"silent":   {`"silent"`, "2 s"},
			"deaf":     {`"deaf"`, "2 s"},
			"listless": {`"listless"`, "2 s"},
			"unset":    {"args[0]", "SCENARIO_UNSET", "$${SCENARIO_UNSET}"},
			"empty":    {"command"},
			"both":     {"url", "http", "sse"},
			"urlless":  {"url"},
			"either":   {"command", "stdio"},
			"number":   {"object"},
		} {
			s := all[name]
			if s.GetStatus() != statusError || s.GetToolCount() != 0 {
				t.Errorf("%s is %v with %d tools", name, s.GetStatus(), s.GetToolCount())
			}
			for _, want := range wants {
				if !strings.Contains(s.GetReason()+s.GetFixCommand(), want) {
					t.Errorf("%s: neither reason nor fix says %q: %s; to mend it: %s", name, want, s.GetReason(), s.GetFixCommand())
				}
			}
			if !strings.HasSuffix(s.GetSource(), "mcp.json") {
				t.Errorf("%s comes from %q", name, s.GetSource())
			}
			if strings.Contains(s.GetReason(), evil.Secret) {
				t.Errorf("%s: the reason shows a secret: %s", name, s.GetReason())
			}
		}
		for _, name := range []string{"good", "noisy"} {
			if s := all[name]; s.GetStatus() != statusOK || s.GetReason() != "" {
				t.Errorf("%s is %v: %s", name, s.GetStatus(), s.GetReason())
			}
		}
		if got := h.JSON(t, Call{Tool: "noisy_echo", Arguments: `{"n":2}`}); !strings.Contains(got, `{"n":2}`) {
			t.Errorf("the noisy server answers %s", got)
		}
		// Its tools are unknown, so any name with its prefix may be one of them.
		for name, reason := range map[string]string{"exits_echo": "SERVER_ERROR", "nobody_echo": "TOOL_NOT_FOUND", "good_nothing": "TOOL_NOT_FOUND"} {
			if _, err := h.Do(t, Call{Tool: name}); reasonOf(err).Reason != reason {
				t.Errorf("call %s: got %v, want %s", name, err, reason)
			}
		}
		for _, tool := range h.ListTools(t, &toolproxyv1.ListToolsRequest{}) {
			if s := tool.GetServer(); s != "good" && s != "noisy" {
				t.Errorf("%s is listed as a tool of %s", tool.GetName(), s)
			}
		}
		page, err := h.Tools(t).ListTools(t.Context(), &toolproxyv1.ListToolsRequest{Servers: []string{"exits"}})
		if err != nil || len(page.GetTools()) != 0 || len(page.GetServers()) != len(servers) {
			t.Errorf("the tools of a broken server: %v, %v; want none, and the status of all servers", page, err)
		}
	})
}

// STAT-006: a name of a server in its first start waits for it, within the caller's deadline; no caller waits
// for readiness.
func TestACallWaitsForAServerInItsFirstStart(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Servers: map[string]any{
		"slow":  partners.Evil(t, "slow-start", "-delay", "1500ms").Entry(),
		"never": with(partners.Evil(t, "silent").Entry(), "session_init_timeout", 30),
	}})
	if got := h.Servers(t)["never"].GetStatus(); got != statusStarting {
		t.Errorf("a server in its first start is %v", got)
	}
	started := time.Now()
	if _, err := h.Do(t, Call{Tool: "never_echo", Timeout: 300 * time.Millisecond}); reasonOf(err).Code.String() != "DeadlineExceeded" {
		t.Errorf("the call of a server that never starts ends with %v", err)
	}
	if d := time.Since(started); d > 5*time.Second {
		t.Errorf("the call had 300 ms and took %s", d)
	}
	if got := h.JSON(t, Call{Tool: "slow_echo", Arguments: `{"n":3}`}); !strings.Contains(got, `{"n":3}`) {
		t.Errorf("the slow server answers %s", got)
	}
}
