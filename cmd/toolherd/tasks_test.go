package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// herd starts a tool server and a toolherd in front of it, and returns the flags that make commands ask that one.
func (p *place) herd() {
	p.t.Helper()
	_, url := p.start(`^ready (http://\S+)`, "demo-server", "--listen", "127.0.0.1:0")
	p.servers(map[string]any{"demo": map[string]any{
		"url": url,
		"task_toolsets": []any{map[string]any{
			"name": "report", "submit_tool": "start_report", "status_tool": "report_status", "cancel_tool": "stop_report",
		}},
	}})
	p.start(`ready grpc=(\S+) `, "up", "--listen", "127.0.0.1:0", "--http-listen", "", "--mcp-config", "mcp.json", "--log-level", "warn")
	eventually(p.t, "the tool server is well", func() bool {
		return strings.Contains(p.run("servers").stdout, "ok") && strings.Contains(p.run("tools").stdout, "demo_start_report")
	})
}

// servers writes mcp.json.
func (p *place) servers(entries map[string]any) {
	p.t.Helper()
	content, err := json.Marshal(map[string]any{"mcpServers": entries})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "mcp.json"), content, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

var taskID = regexp.MustCompile(`^mcp-task-[0-9a-f]{32}\n$`)

// submit starts a report and returns its task.
func (p *place) submit(args ...string) string {
	p.t.Helper()
	r := p.run(append([]string{"call", "demo_start_report", "topic=herds"}, args...)...)
	if r.code != 0 || !taskID.MatchString(r.stdout) || !strings.Contains(r.err, "toolherd tasks watch "+strings.TrimSpace(r.stdout)) {
		p.t.Fatalf("submit: exit status %d\nstdout: %s\nstderr: %s", r.code, r.stdout, r.err)
	}
	return strings.TrimSpace(r.stdout)
}

// CLI-006
func TestTasksAreListedFollowedAndCancelled(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.herd()
	done := p.submit("seconds=2", "--user", "ada", "--thread", "t1")
	p.run("tasks", "watch", done).want(0, `(?s)^\{\n  "chapters": 20,.*"title": "herds"\n\}\n$`, `(?m)^working +\[#*\.+\] +\d+%  writing chapter \d+ of 20\n(?s:.*)^completed +\[#{24}\] 100%\n`)
	p.run("tasks", "get", done).want(0, `(?s)name +report\nserver +demo\nuser +ada\nthread +t1\nstate +completed .*result +\{"chapters":20.*\nATTEMPT .*poll +ok +\S+`, `^$`)
	p.run("tasks", "result", done).want(0, `(?s)^\{\n  "chapters": 20,.*\}\n$`, `^$`)
	p.run("tasks", "result", done, "--output", "json").want(0, `^\{"chapters":20,.*\}\n$`, `^$`)

	failed := p.submit("seconds=0", "fail:=true")
	p.run("tasks", "watch", failed).want(1, `^$`, `(?s)failed.*the task failed: .*the last chapter could not be written`)
	long := p.submit("seconds=3600")
	p.run("tasks", "cancel", long).want(0, `\(to be cancelled\)\n$`, `tasks watch `+long)
	lines := strings.Split(strings.TrimSpace(p.run("tasks", "watch", long, "-o", "json").want(1, ``, `^$`).stdout), "\n")
	var last struct {
		TaskID string `json:"task_id"`
		Status string `json:"status"`
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.TaskID != long || last.Status != "TASK_STATUS_CANCELLED" {
		t.Errorf("the last line of a watch in JSON: %v, %v", last, err)
	}
	p.run("tasks", "cancel", long).want(0, `^cancelled`, `^$`) // as it is

	p.run("tasks", "list").want(0, `(?s)^TASK +NAME +SERVER +STATUS +CREATED +REMARK\n`+long+` +report +demo +cancelled .*`+failed+` .* failed .*`+done+` .* completed `, `^$`)
	p.run("tasks", "list", "--status", "completed").want(0, `\n`+done+` [^\n]*\n$`, `^$`)
	p.run("tasks", "list", "--limit", "1").want(0, `\n`+long+` [^\n]*\n$`, `there are more`)
	p.run("tasks", "list", "--user", "ada", "--thread", "t1").want(0, `\n`+done+` [^\n]*\n$`, `^$`)
	var list struct {
		Tasks []struct{ Status string }
	}
	p.run("tasks", "list", "--limit", "0", "-o", "json").want(0, ``, `^$`).decode(&list)
	if len(list.Tasks) != 3 {
		t.Errorf("%d tasks in JSON, want 3", len(list.Tasks))
	}
	p.run("call", "demo_start_report", "topic=x", "seconds=0", "-o", "json").want(0, `"task_id": "mcp-task-`, `^$`)
	same := p.submit("seconds=0", "--request-id", "r1")
	if again := p.submit("seconds=0", "--request-id", "r1"); again != same {
		t.Errorf("the same request gives %s and %s", same, again)
	}

	for _, sub := range []string{"get", "result", "watch", "cancel"} {
		p.run("tasks", sub, "mcp-task-00000000000000000000000000000000").want(1, `^$`, `^toolherd: .*task`)
		p.run("tasks", sub).want(2, `^$`, `tasks list`)
	}
	p.run("tasks", "list", "--status", "done").want(2, `^$`, `--status is "done", want one of submitted, working, input_required, completed, failed, cancelled`)
	p.run("call", "demo_start_report", "topic=x", "--notify-sink", "nowhere").want(1, `^$`, `nowhere`)
}

// CLI-006
func TestNotificationsAreListedAndDeliveredAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.herd()
	id := p.submit("seconds=0")
	p.run("tasks", "watch", id).want(0, ``, ``)
	var list struct {
		Notifications []struct {
			ID      string `json:"notification_id"`
			EventID string `json:"event_id"`
			Status  string
		}
	}
	eventually(t, "the notification is there", func() bool {
		p.run("notifications", "list", "-o", "json", "--task", id).want(0, ``, `^$`).decode(&list)
		return len(list.Notifications) == 1
	})
	n := list.Notifications[0]
	if n.EventID != id+":1" || n.Status != "NOTIFICATION_STATUS_PENDING" {
		t.Errorf("notification %+v", n)
	}
	p.run("notifications", "list", "--sink", "events", "--status", "pending").want(0, `^NOTIFICATION +EVENT +SINK +STATUS .*\n`+n.ID+` +`+n.EventID+` +events +pending +0`, `^$`)
	p.run("notifications", "list", "--status", "dead_letter").want(0, `^NOTIFICATION .*\n$`, `^$`)
	p.run("notifications", "get", n.ID).want(0, `(?s)task +`+id+`\nsink +events\n.*status +pending`, `^$`)
	p.run("notifications", "redrive", "--sink", "events", "--status", "pending", "--since", "1h", "--dry-run").want(0, `^1 would be delivered again\n$`, `^$`)
	p.run("notifications", "redrive", "--sink", "events", "--since", "2000-01-01T00:00:00Z").want(0, `^0 are delivered again\n$`, `^$`) // no dead letter
	p.run("notifications", "redrive", n.ID).want(0, `^1 are delivered again\n$`, `^$`)

	p.run("notifications", "get", "ntf_none").want(1, `^$`, `^toolherd: .*notification`)
	p.run("notifications", "redrive").want(2, `^$`, `--sink, --status or --since`)
	p.run("notifications", "redrive", n.ID, "--sink", "events").want(2, `^$`, `exclude each other`)
	p.run("notifications", "redrive", "--since", "yesterday").want(2, `^$`, `--since is "yesterday"`)
	p.run("notifications", "list", "--status", "lost").want(2, `^$`, `dead_letter`)
}

// CLI-006: without a running toolherd the commands compose one, and a task goes on where it was.
func TestTasksGoOnInAComposition(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.servers(map[string]any{"demo": map[string]any{
		"command": "${TOOLHERD_EXECUTABLE}", "args": []string{"demo-server"},
		"task_toolsets": []any{map[string]any{
			"name": "report", "submit_tool": "start_report", "status_tool": "report_status", "cancel_tool": "stop_report",
		}},
	}})
	r := p.run("call", "demo_start_report", "topic=x", "seconds=1", "--mcp-config", "mcp.json").want(0, `^mcp-task-`, `'toolherd up'`)
	id := strings.TrimSpace(r.stdout)
	p.run("tasks", "list", "--no-mcp").want(0, `\n`+id+` `, `^$`)
	p.run("tasks", "watch", id, "--mcp-config", "mcp.json").want(0, `"title": "x"`, `completed`)
}

// CLI-006
func TestTheDoctorSaysWhatIsWrongAndWhatToDo(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.servers(map[string]any{"missing": map[string]any{"command": "no-such-command"}})
	p.run("doctor", "--mcp-config", "mcp.json").want(1, `(?s)ok +configuration .*ok +state directory .*no toolherd runs there.*ok +database .*ok +taskworker .*`+
		`fail +server missing +.*no-such-command.*ok +tasks .*ok +sink events`, `^$`)
	p.run("doctor", "--no-mcp").want(0, `warn +servers +no MCP server is configured +→ .*--mcp-config`, `^$`)
	var report struct {
		Checks []struct {
			Check, Verdict, Detail string
			NextStep               string `json:"next_step"`
		}
	}
	p.run("doctor", "--no-mcp", "-o", "json").want(0, ``, `^$`).decode(&report)
	if len(report.Checks) < 8 || report.Checks[0].Check != "configuration" {
		t.Errorf("in JSON: %+v", report)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "toolherd.yaml"), []byte("tasks: {leese: 5s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.run("doctor", "--config", "toolherd.yaml").want(1, `fail +configuration .*did you mean "tasks.lease"`, `^$`)
	p.run("doctor", "--postgres", "postgres://nobody@127.0.0.1:1/none").want(1, `fail +database `, `^$`)
	p.run("doctor", "--state-dir", "/proc/none").want(1, `fail +`, `^$`)
	p.run("doctor", "--addr", "127.0.0.1:1").want(1, `fail +connection .*127\.0\.0\.1:1 cannot be reached`, `^$`)

	p.herd()
	p.run("doctor").want(0, `(?s)a toolherd with process id \d+ runs there.*ok +registry .*ok +notifier .*ok +server demo +8 tools.*ok +tasks .*ok +sink events`, `^$`)
}
