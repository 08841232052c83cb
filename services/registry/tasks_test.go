package registry_test

import (
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/registry"
)

const toolset = `"task_toolsets":[{"name":"t","submit_tool":"s","status_tool":"q","cancel_tool":"c"}]`

// TASK-046, for a registry whose tasks are switched off.
func TestOperatorsToolsetsWithoutTasksStopTheStart(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"jobs":{"command":"x",` + toolset + `},"plain":{"command":"x"}}`)
		cfg := p.config()
		cfg.NoTasks = true
		s, err := registry.New(cfg, registry.Deps{DB: d, Wake: newBus(), Key: testKey(t), Log: discard()})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Run(t.Context())
		if !fault.Is(err, fault.TasksUnavailable) {
			t.Fatalf("Run: %v, want TASKS_UNAVAILABLE", err)
		}
		for _, want := range []string{`"jobs"`, "task_toolsets", "~/.toolherd/.mcp.json", "tasks.enabled"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not mention %q", err, want)
			}
		}
	})
}

// TASK-046: a project's file stops nobody else's servers, and neither does a later edit.
func TestToolsetsWithoutTasksThatComeLaterAreAnErrorOfTheirServer(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"mine":{"command":"x"}}`)
		p.projectConf(`{"theirs":{"command":"x",` + toolset + `}}`)
		cfg := p.config()
		cfg.NoTasks, cfg.TrustProjectMCP = true, true
		n := start(t, d, options{cfg: cfg})
		if got, want := n.states(t), "mine: ACTIVE, theirs: ERROR"; got != want {
			t.Fatalf("states are %s, want %s", got, want)
		}
		for _, e := range n.current(t).GetServers() {
			if e.GetName() == "theirs" && !strings.HasPrefix(e.GetReason(), "TASKS_UNAVAILABLE") {
				t.Errorf("the reason is %q", e.GetReason())
			}
		}

		p.user(`{"jobs":{"command":"x",` + toolset + `},"mine":{"command":"x"}}`)
		n.becomes(t, "jobs: ERROR, mine: ACTIVE, theirs: ERROR")
	})
}

func TestToolsetsAreActiveWithTasks(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"jobs":{"command":"x",` + toolset + `}}`)
		n := start(t, d, options{cfg: p.config()})
		if got := n.states(t); got != "jobs: ACTIVE" {
			t.Errorf("states are %s", got)
		}
	})
}

func TestTheRegistryKnowsWhetherThereAreTasks(t *testing.T) {
	c := config.Defaults()
	for _, enabled := range []bool{true, false} {
		c.Tasks.Enabled = enabled
		got, err := registry.FromConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		if got.NoTasks == enabled {
			t.Errorf("tasks.enabled is %v, NoTasks %v", enabled, got.NoTasks)
		}
	}
}
