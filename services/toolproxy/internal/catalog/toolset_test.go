package catalog

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

func jobs() []serverconfig.TaskToolset {
	return []serverconfig.TaskToolset{
		{Name: "job", SubmitTool: "start", StatusTool: "status", CancelTool: "stop"},
		{Name: "report", SubmitTool: "report", StatusTool: "report_status", CancelTool: "report_stop", AnswerTool: "report_answer"},
	}
}

var jobTools = []string{"echo", "report", "report_answer", "report_status", "report_stop", "start", "status", "stop"}

// TASK-039, as far as the catalog decides it.
func TestToolsThatFollowTasksAreHidden(t *testing.T) {
	c := Build("snap_1", 1, []Source{filtered(t, Rules{Server: "s", Prefix: true, Toolsets: jobs()}, jobTools...)})
	if diff := cmp.Diff([]string{"s_echo", "s_report", "s_start"}, names(c)); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	for name, set := range map[string]string{"s_start": "job", "s_report": "report"} {
		if got := c.Tool(name).Toolset; got == nil || got.Name != set {
			t.Errorf("%s submits to %v", name, got)
		}
	}
	if c.Tool("s_echo").Toolset != nil {
		t.Error("echo submits a task")
	}
	if n := c.Server("s").View.GetToolCount(); n != 3 {
		t.Errorf("%d tools are counted", n)
	}
}

// TASK-039: the submit tool is as the server describes it, but for a sentence.
func TestASubmitToolKeepsItsDefinition(t *testing.T) {
	raw := `{"name":"start","title":"Start","description":"Starts a job.","inputSchema":{"type":"object","n":1.0},"outputSchema":{"type":"object","x":2e1},` +
		`"annotations":{"readOnlyHint":false},"_meta":{"k":1.10}}`
	build := func(raw string, sets []serverconfig.TaskToolset) *Tool {
		d, err := Define(json.RawMessage(raw))
		if err != nil {
			t.Fatal(err)
		}
		return Build("snap_1", 1, []Source{{
			Name: "s", Prefix: true, Status: corev1.ServerStatus_SERVER_STATUS_OK, Listed: true, Upstream: &upstream.Server{Name: "s"},
			Tools: Contribute(Rules{Server: "s", Prefix: true, MaxLength: 64, Toolsets: sets}, []Definition{d}),
		}}).Tool("s_start")
	}
	plain, submit := build(raw, nil).View, build(raw, jobs()).View
	if !strings.HasPrefix(submit.GetDescription(), "Starts a job.\n\n") || strings.Count(submit.GetDescription(), ".") != 2 ||
		!strings.Contains(submit.GetDescription(), "background") || !strings.Contains(submit.GetDescription(), "task_id") {
		t.Errorf("the description is %q", submit.GetDescription())
	}
	submit.Description = plain.GetDescription()
	if plain.String() != submit.String() {
		t.Errorf("the submit tool is\n%v\nwant\n%v", submit, plain)
	}
	bare := build(`{"name":"start","inputSchema":{"type":"object"}}`, jobs()).View.GetDescription()
	if !strings.HasPrefix(bare, "This tool works in the background") {
		t.Errorf("without a description it is %q", bare)
	}
}

// TASK-047: filters decide what agents see, not what toolsets find.
func TestToolsetsBindAgainstTheWholeList(t *testing.T) {
	for name, f := range map[string]Filter{
		"allowed":  {Allowed: []string{"start", "echo"}},
		"disabled": {Disabled: []string{"status", "stop", "report*"}},
	} {
		c := Build("snap_1", 1, []Source{filtered(t, Rules{Server: "s", Prefix: true, Toolsets: jobs(), Filter: f}, jobTools...)})
		if diff := cmp.Diff([]string{"s_echo", "s_start"}, names(c)); diff != "" {
			t.Errorf("%s: tools (-want +got):\n%s", name, diff)
		}
		if w := c.Server("s").View.GetWarnings(); len(w) != 0 {
			t.Errorf("%s: warnings %q", name, w)
		}
	}
	// Whoever asks for a hidden tool does not get it.
	c := Build("snap_1", 1, []Source{filtered(t, Rules{Server: "s", Toolsets: jobs(), Filter: Filter{Allowed: []string{"*"}}}, jobTools...)})
	if diff := cmp.Diff([]string{"echo", "report", "start"}, names(c)); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
}

func TestMissingTaskToolsAreNamed(t *testing.T) {
	rules := Rules{Toolsets: jobs()}
	define := func(names ...string) (defs []Definition) {
		for _, n := range names {
			defs = append(defs, Definition{Name: n})
		}
		return defs
	}
	if got := rules.MissingTaskTools(define(jobTools...)); got != nil {
		t.Errorf("%v are missing from the whole list", got)
	}
	if diff := cmp.Diff([]string{"stop", "report_answer"}, rules.MissingTaskTools(define("echo", "report", "report_status", "report_stop", "start", "status", "Stop"))); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	if got := (Rules{}).MissingTaskTools(nil); got != nil {
		t.Errorf("%v are missing without toolsets", got)
	}
}
