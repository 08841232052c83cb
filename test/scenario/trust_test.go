package scenario

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/partners"
)

// doorbell listens and counts connections, which it closes.
func doorbell(t testing.TB) (url string, rings func() int64) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed by the clean-up
			}
			n.Add(1)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return "http://" + l.Addr().String() + "/mcp", n.Load
}

// TRUST-002, TRUST-003: what a project brings along is listed and nothing more: no process, no packet, no value; a flag allows
// it for one run and saves nothing.
func TestProjectServersAreNotTouchedUntilTheyAreTrusted(t *testing.T) {
	Each(t, Options{Idle: true, Env: []string{"SCENARIO_VARIABLE=value-of-the-variable"}}, func(t *testing.T, h *Herd) {
		url, rings := doorbell(t)
		marker := h.path("out", "started")
		fake := partners.Fake(t)
		h.save(t, h.path("project", ".mcp.json"), fmt.Sprintf(`{"mcpServers":{
			"touches": {"command": "touch", "args": [%q]},
			"rings": {"url": %q, "headers": {"X-Value": "${SCENARIO_VARIABLE}"}},
			"unset": {"command": "true", "env": {"A": "${SCENARIO_UNSET}"}},
			"serves": {"command": %q},
			"shadowed": {"command": "touch", "args": [%q]}}}`, marker, url, fake.Path, marker))
		h.Write(t, map[string]any{"own": fake.Entry(), "shadowed": fake.Entry()})
		names := []string{"own", "rings", "serves", "shadowed", "touches", "unset"}
		untouched := func() {
			t.Helper()
			for name, s := range h.Settled(t, names...) {
				want := corev1.ServerStatus_SERVER_STATUS_UNTRUSTED
				if name == "own" || name == "shadowed" {
					want = statusOK
				}
				if s.GetStatus() != want || want != statusOK && (s.GetReason() == "" || !strings.Contains(s.GetFixCommand(), "--trust-project-mcp")) {
					t.Errorf("%s is %v: %q, to mend it: %q", name, s.GetStatus(), s.GetReason(), s.GetFixCommand())
				}
			}
			for _, name := range []string{"touches", "rings", "serves", "unset"} {
				if _, err := h.Do(t, Call{Tool: name + "_echo"}); reasonOf(err).Reason != "SERVER_UNTRUSTED" {
					t.Errorf("a call of %s ends with %v", name, err)
				}
				for _, force := range []bool{false, true} {
					// What it answers does not matter; that it does nothing does.
					_, _ = h.Tools(t).RefreshServers(t.Context(), &toolproxyv1.RefreshServersRequest{Names: []string{name}, Force: force})
				}
			}
			if _, err := h.Tools(t).RefreshServers(t.Context(), &toolproxyv1.RefreshServersRequest{Force: true}); err != nil {
				t.Errorf("refresh all: %v", err)
			}
			if n := rings(); n != 0 {
				t.Errorf("%d connections were made", n)
			}
			if _, err := os.Stat(marker); err == nil {
				t.Error("a process was started")
			}
			for _, p := range h.Processes() {
				if filepath.Base(strings.Fields(p.Command + " ?")[0]) != "fakemcp" {
					t.Errorf("there is a process %v", p)
				}
			}
			if n := len(h.Processes()); n != 2 {
				t.Errorf("%d processes run, want those of own and shadowed", n)
			}
		}
		h.LaunchAll(t)
		untouched()
		// An edit of the project's file changes nothing about that.
		h.save(t, h.path("project", ".mcp.json"), strings.Replace(read(h.path("project", ".mcp.json")), `"rings"`, `"rings2"`, 1))
		names[1] = "rings2"
		h.Settled(t, names...)
		h.save(t, h.path("project", ".mcp.json"), strings.Replace(read(h.path("project", ".mcp.json")), `"rings2"`, `"rings"`, 1))
		names[1] = "rings"
		untouched()

		h.StopAll(t)
		h.o.Args = []string{"--trust-project-mcp"}
		h.LaunchAll(t)
		for name, s := range h.Settled(t, names...) {
			if s.GetStatus() == corev1.ServerStatus_SERVER_STATUS_UNTRUSTED {
				t.Errorf("%s is still untrusted", name)
			}
		}
		if got := h.JSON(t, Call{Tool: "serves_echo", Arguments: `{"n":7}`}); !strings.Contains(got, `{"n":7}`) {
			t.Errorf("the trusted server answers %s", got)
		}
		if _, err := os.Stat(marker); err != nil || rings() == 0 {
			t.Errorf("trusted servers were not started: %v, %d connections", err, rings())
		}

		h.StopAll(t)
		if err := os.Remove(marker); err != nil {
			t.Fatal(err)
		}
		h.o.Args = nil
		before := rings()
		h.LaunchAll(t)
		for name, s := range h.Settled(t, names...) {
			if trusted := name == "own" || name == "shadowed"; trusted != (s.GetStatus() == statusOK) {
				t.Errorf("in the run after that %s is %v", name, s.GetStatus())
			}
		}
		if _, err := os.Stat(marker); err == nil || rings() != before {
			t.Error("the trust of one run was saved")
		}
	})
}

// SESS-019, CFG-054: a child's environment is a fixed few of the service's and its entry's own; variables that belong to
// Toolherd and to Postgres never resolve.
func TestChildrenGetNothingOfTheServicesEnvironment(t *testing.T) {
	env := []string{
		"SCENARIO_VARIABLE=value-of-the-variable", "TERM=scenario", "LOGNAME=scenario", "SHELL=() { :;}; echo",
		"PGPASSWORD=secret-of-postgres", "TOOLHERD_SOMETHING=secret-of-toolherd",
	}
	Each(t, Options{Env: env, Servers: map[string]any{
		"fake":     with(partners.Fake(t).Entry(), "env", map[string]string{"OWN": "own", "REFERENCE": "x${SCENARIO_VARIABLE}x", "DEFAULT": "${SCENARIO_UNSET:-standard}"}),
		"postgres": with(partners.Fake(t).Entry(), "env", map[string]string{"A": "${PGPASSWORD}"}),
		"toolherd": with(partners.Fake(t).Entry(), "env", map[string]string{"A": "${TOOLHERD_SOMETHING:-x}"}),
		"demo":     map[string]any{"command": "${TOOLHERD_EXECUTABLE}", "args": []string{"--help"}},
	}}, func(t *testing.T, h *Herd) {
		all := h.Settled(t, "demo", "fake", "postgres", "toolherd")
		for name, variable := range map[string]string{"postgres": "PGPASSWORD", "toolherd": "TOOLHERD_SOMETHING"} {
			if s := all[name]; s.GetStatus() != statusError || !strings.Contains(s.GetReason(), variable) || strings.Contains(s.GetReason(), "secret-of") {
				t.Errorf("%s is %v: %s", name, s.GetStatus(), s.GetReason())
			}
		}
		// It is a program of ours, and ends after its help.
		if s := all["demo"]; strings.Contains(s.GetReason(), "TOOLHERD_EXECUTABLE") || !strings.Contains(s.GetReason(), "code 0") {
			t.Errorf("demo is %v: %s", s.GetStatus(), s.GetReason())
		}
		got := rawMap(t, structured(h.JSON(t, Call{Tool: "fake_env"})))
		for name, want := range map[string]string{
			"OWN": "own", "REFERENCE": "xvalue-of-the-variablex", "DEFAULT": "standard", "HOME": h.path("home"), "TERM": "scenario", "LOGNAME": "scenario",
		} {
			if got[name] != want {
				t.Errorf("the child has %s=%q, want %q", name, got[name], want)
			}
			delete(got, name)
		}
		for _, name := range []string{"TMPDIR", "TMP", "TEMP"} { // of its own
			if !strings.HasPrefix(got[name], h.path("state")+"/") {
				t.Errorf("the child has %s=%q, want a place in the state directory", name, got[name])
			}
			delete(got, name)
		}
		delete(got, "PATH")
		delete(got, "USER")
		if len(got) > 0 {
			t.Errorf("the child has more: %v", got)
		}
	})
}
