package discovery_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

const (
	toolset   = `,"task_toolsets":[{"name":"job","submit_tool":"start","status_tool":"status","cancel_tool":"stop"}]`
	wholeList = `[{"name":"echo"},{"name":"start"},{"name":"status"},{"name":"stop"}]`
)

// lists is a server whose list of tools is what the pointer says at that time.
func lists(list *atomic.Pointer[string]) *wiretest.Server {
	return &wiretest.Server{Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method == "tools/list" {
			p.Reply(m.ID, `{"tools":`+*list.Load()+`}`)
		}
		return m.Method == "tools/list"
	}}
}

// TASK-047: a task tool that the server does not list puts that server alone in ERROR, which names it, and is tried again.
func TestMissingTaskToolsAreAnErrorOfTheirServerAlone(t *testing.T) {
	var list atomic.Pointer[string]
	list.Store(new(`[{"name":"echo"},{"name":"start"},{"name":"Status"}]`))
	with(t, map[string]*wiretest.Server{"jobs": lists(&list), "other": {}}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"jobs": entry("jobs", toolset), "other": entry("other", "")})
		jobs := f.server("jobs")
		if f.status("jobs") != failed || jobs.NextRetry.IsZero() {
			t.Fatalf("jobs is %v, next retry %v", jobs.Status, jobs.NextRetry)
		}
		for _, want := range []string{`"status"`, `"stop"`, "task_toolsets"} {
			if !strings.Contains(jobs.Reason, want) {
				t.Errorf("the reason %q does not mention %s", jobs.Reason, want)
			}
		}
		if strings.Contains(jobs.Reason, `"start"`) {
			t.Errorf("the reason %q names a tool that is there", jobs.Reason)
		}
		if diff := cmp.Diff([]string{"other_echo"}, f.tools()); diff != "" {
			t.Errorf("tools (-want +got):\n%s", diff)
		}

		list.Store(new(wholeList))
		time.Sleep(time.Second) // the first back-off, inside the bubble
		synctest.Wait()
		if f.status("jobs") != ok {
			t.Fatalf("jobs is %v: %s", f.status("jobs"), f.server("jobs").Reason)
		}
		if diff := cmp.Diff([]string{"jobs_echo", "jobs_start", "other_echo"}, f.tools()); diff != "" {
			t.Errorf("tools (-want +got):\n%s", diff)
		}
	})
}

// TASK-047: a list without a task tool is not papered over by the last good one, and a server that ends then does not
// bring that back.
func TestATaskToolThatGoesAwayTakesTheListWithIt(t *testing.T) {
	var list atomic.Pointer[string]
	list.Store(new(wholeList))
	with(t, map[string]*wiretest.Server{"jobs": lists(&list)}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"jobs": entry("jobs", toolset)})
		if diff := cmp.Diff([]string{"jobs_echo", "jobs_start"}, f.tools()); diff != "" {
			t.Fatalf("tools (-want +got):\n%s", diff)
		}
		list.Store(new(`[{"name":"echo"},{"name":"start"},{"name":"status"}]`))
		f.servers["jobs"].Processes()[0].Notify("notifications/tools/list_changed", "{}")
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		if f.status("jobs") != failed || len(f.tools()) != 0 {
			t.Fatalf("jobs is %v with %v", f.status("jobs"), f.tools())
		}
		list.Store(new(`7`))
		time.Sleep(time.Second)
		synctest.Wait()
		if f.status("jobs") != failed || len(f.tools()) != 0 {
			t.Errorf("jobs is %v with %v: %s", f.status("jobs"), f.tools(), f.server("jobs").Reason)
		}
		list.Store(new(wholeList))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if f.status("jobs") != ok || len(f.tools()) != 2 {
			t.Errorf("jobs is %v with %v", f.status("jobs"), f.tools())
		}
	})
}

// TASK-047: a task server that is down is an error of its own, and of nobody else.
func TestATaskServerThatIsDownTakesNoOthersTools(t *testing.T) {
	down := &wiretest.Server{DialError: errors.New("no such host")}
	with(t, map[string]*wiretest.Server{"jobs": down, "other": {}}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"jobs": entry("jobs", toolset), "other": entry("other", "")})
		if f.status("jobs") != failed || f.server("jobs").NextRetry.IsZero() || f.status("other") != ok {
			t.Errorf("jobs is %v, other %v", f.status("jobs"), f.status("other"))
		}
		if diff := cmp.Diff([]string{"other_echo"}, f.tools()); diff != "" {
			t.Errorf("tools (-want +got):\n%s", diff)
		}
	})
}

// TASK-046: while tasks are switched off servers with toolsets are in ERROR and not started, others are as ever.
func TestToolsetsWithoutTasksAreAnErrorOfTheirServer(t *testing.T) {
	jobs := &wiretest.Server{Tools: wholeList}
	with(t, map[string]*wiretest.Server{"jobs": jobs, "other": {}}, func(t *testing.T, f *fixture) {
		f.noTasks.Store(fault.New(fault.TasksUnavailable, "durable tasks are switched off"))
		f.publish(t, map[string]string{"jobs": entry("jobs", toolset), "other": entry("other", "")})
		if s := f.server("jobs"); s.Status != failed || !strings.HasPrefix(s.Reason, "TASKS_UNAVAILABLE: ") {
			t.Errorf("jobs is %v: %s", s.Status, s.Reason)
		}
		if n := len(jobs.Processes()); n != 0 {
			t.Errorf("%d processes were started", n)
		}
		if f.status("other") != ok {
			t.Errorf("other is %v", f.status("other"))
		}

		f.noTasks.Store(nil)
		f.TasksChanged()
		synctest.Wait()
		if diff := cmp.Diff([]string{"jobs_echo", "jobs_start", "other_echo"}, f.tools()); diff != "" {
			t.Errorf("with tasks (-want +got):\n%s", diff)
		}

		f.noTasks.Store(fault.New(fault.TasksUnavailable, "durable tasks are switched off"))
		f.TasksChanged()
		synctest.Wait()
		if diff := cmp.Diff([]string{"other_echo"}, f.tools()); diff != "" {
			t.Errorf("without tasks again (-want +got):\n%s", diff)
		}
		if n := f.opened.Load(); n != 2 {
			t.Errorf("%d sessions were opened", n)
		}
	})
}
