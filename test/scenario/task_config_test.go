package scenario

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/partners"
)

// TASK-045: a task belongs to the entry it was submitted under: its server is changed, disabled and removed, and it goes to its
// end there; a cancel gets there too. New submits see the new configuration.
func TestTasksKeepTheServerTheyWereSubmittedTo(t *testing.T) {
	for _, topology := range Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			names := []string{"changes", "off", "gone"}
			s := NewStage(t, topology, StageOptions{Options: Options{Idle: true}, Setup: func(s *Stage) {
				servers := map[string]any{"jobs": s.entry()}
				for _, name := range names {
					servers[name] = s.entry()
				}
				s.Write(t, servers)
			}})
			s.LaunchAll(t)
			s.SettledOK(t, append(names, "jobs")...)
			s.AwaitTasks(t)
			gate, open := s.Gate(t, "edited")
			ledger := &Ledger{}
			var toCancel []entry
			for _, name := range names {
				j := Job{Name: name, Server: name, Sink: hookSink, Spec: map[string]any{"file": gate}}
				ledger.Add(j, s.Begin(t, j), completed)
				c := Job{Name: name + "-cancelled", Server: name, Sink: hookSink, Spec: map[string]any{"polls": 100_000}}
				id := s.Begin(t, c)
				ledger.Add(c, id, cancelled)
				toCancel = append(toCancel, entry{job: c, id: id})
			}
			// Elsewhere nobody knows the jobs.
			elsewhere := partners.FakeHTTP(t)
			s.Apply(t, map[string]any{
				"jobs": s.entry(), "changes": toolset(map[string]any{"url": elsewhere.URL}), "off": with(s.entry(), "enabled", false),
			})
			s.Settled(t, "jobs", "changes", "off")
			for name, want := range map[string]string{"off": "SERVER_DISABLED", "gone": "TOOL_NOT_FOUND"} {
				if _, err := s.Submit(t, Job{Name: "late-" + name, Server: name}); reasonOf(err).Reason != want {
					t.Errorf("a submit to the server %s ends with %v, want %s", name, err, want)
				}
			}
			fresh := Job{Name: "fresh", Server: "changes", Sink: hookSink}
			ledger.Add(fresh, s.Begin(t, fresh), completed)
			for _, e := range toCancel {
				s.Cancel(t, e.job, e.id)
			}
			open()
			ledger.AwaitEnds(t, s, s.everybody(t))
			ledger.Check(t, s, s.Told(t))
			for _, e := range toCancel {
				s.submittedOnce(t, e.job, 1)
			}
			if n := len(s.callsOf(t, fakemcp.SubmitJob, fresh.Name)); n != 0 {
				t.Errorf("the new task was submitted to the old server")
			}
		})
	}
}

// TASK-047: a task server that is down, or lacks a tool of its toolset, is in ERROR alone and says why; it is tried again.
func TestTaskServersThatAreDownHinderNobody(t *testing.T) {
	for _, topology := range Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			s := NewStage(t, topology, StageOptions{Options: Options{Idle: true}})
			s.reserve(t, "down") // nobody listens there
			down := toolset(map[string]any{"url": "http://" + s.addresses["down"] + "/mcp"})
			servers := map[string]any{
				"jobs": s.entry(), "down": down, "plain": partners.Fake(t).Entry(),
				"lacks": toolset(map[string]any{"url": s.Jobs.URL}, "cancel_tool", "stop_job"),
				// Filters do not hide a toolset's tools from itself.
				"filtered": with(s.entry(), "disabledTools", []string{fakemcp.JobStatus, fakemcp.CancelJob}),
			}
			s.Write(t, servers)
			s.LaunchAll(t)
			all := s.Settled(t, slices.Collect(maps.Keys(servers))...)
			s.AwaitTasks(t)
			for name, want := range map[string]string{"down": ``, "lacks": `stop_job`} {
				if got := all[name]; got.GetStatus() != corev1.ServerStatus_SERVER_STATUS_ERROR || !strings.Contains(got.GetReason(), want) {
					t.Errorf("server %s is %v: %s", name, got.GetStatus(), got.GetReason())
				}
			}
			for _, name := range []string{"jobs", "plain", "filtered"} {
				if got := all[name]; got.GetStatus() != corev1.ServerStatus_SERVER_STATUS_OK {
					t.Errorf("server %s is %v: %s", name, got.GetStatus(), got.GetReason())
				}
			}
			for _, server := range []string{"jobs", "filtered"} {
				j := Job{Name: "meanwhile-" + server, Server: server, Sink: hookSink}
				s.Await(t, j, s.Begin(t, j), completed)
			}
			partners.FakeHTTP(t, "-http", s.addresses["down"], "-journal", s.Journal)
			Eventually(t, "the server that was down is OK", func() bool {
				return s.Servers(t)["down"].GetStatus() == corev1.ServerStatus_SERVER_STATUS_OK
			})
			j := Job{Name: "afterwards", Server: "down", Sink: hookSink}
			s.Await(t, j, s.Begin(t, j), completed)
		})
	}
}

// TASK-046: with tasks disabled, a toolset in a file of the operator stops the start and says why; one that comes later, or
// from a project, puts its server alone in ERROR.
func TestToolsetsWithoutTasks(t *testing.T) {
	for _, topology := range Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			s := NewStage(t, topology, StageOptions{Options: Options{Idle: true}, Tasks: []string{"enabled: false"}})
			program := s.programs()[0] // up, or the registry, which reads the files
			Run(t, s.Command(t, program)).want(t, 1, `^$`, `jobs.*tasks\.enabled`)

			plain := partners.Fake(t).Entry()
			s.Write(t, map[string]any{"plain": plain})
			s.LaunchAll(t)
			s.SettledOK(t, "plain")
			s.Apply(t, map[string]any{"plain": plain, "jobs": s.entry()})
			all := s.Settled(t, "plain", "jobs")
			if got := all["jobs"]; got.GetStatus() != corev1.ServerStatus_SERVER_STATUS_ERROR || !regexp.MustCompile(`TASKS_UNAVAILABLE|tasks\.enabled`).MatchString(got.GetReason()) {
				t.Errorf("a server whose toolset came later is %v: %s", got.GetStatus(), got.GetReason())
			}
			if got := all["plain"]; got.GetStatus() != corev1.ServerStatus_SERVER_STATUS_OK {
				t.Errorf("the server beside it is %v: %s", got.GetStatus(), got.GetReason())
			}
			page, err := s.Tools(t).ListTools(t.Context(), &toolproxyv1.ListToolsRequest{})
			if err != nil || page.GetTasksAvailable() {
				t.Errorf("tasks are available: %t, %v", page.GetTasksAvailable(), err)
			}
		})
	}
}

// TASK-046: a project's toolset does not stop the start.
func TestAProjectsToolsetWithoutTasksDoesNotStopTheStart(t *testing.T) {
	t.Parallel()
	s := NewStage(t, SQLite, StageOptions{Options: Options{Idle: true, Args: []string{"--trust-project-mcp"}}, Tasks: []string{"enabled: false"}})
	s.Write(t, map[string]any{"plain": partners.Fake(t).Entry()})
	project := filepath.Join(s.path("project"), ".mcp.json")
	content := `{"mcpServers":{"theirs":{"url":"` + s.Jobs.URL + `","task_toolsets":[{"name":"job","submit_tool":"start_job","status_tool":"job_status","cancel_tool":"cancel_job"}]}}}`
	if err := os.WriteFile(project, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	s.LaunchAll(t)
	all := s.Settled(t, "plain", "theirs")
	if got := all["theirs"]; got.GetStatus() != corev1.ServerStatus_SERVER_STATUS_ERROR || got.GetReason() == "" {
		t.Errorf("the project's server is %v: %s", got.GetStatus(), got.GetReason())
	}
	if got := all["plain"]; got.GetStatus() != corev1.ServerStatus_SERVER_STATUS_OK {
		t.Errorf("the server beside it is %v: %s", got.GetStatus(), got.GetReason())
	}
}
