package scenario

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/partners"
)

// SESS-012: the session that a task was submitted in lives as long as the task: idleness does not end it, others do not evict
// it, an edit of its entry does not drain it. The server keeps its jobs in memory, so that another process knows nothing of
// them. Once the task has ended, the session is like any other.
func TestASessionWithALiveTaskIsHeld(t *testing.T) {
	for _, topology := range Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			s := NewStage(t, topology, StageOptions{
				Options: Options{Idle: true},
				YAML:    "toolproxy: {session_idle_timeout: 1s, max_sessions: 3}\n",
			})
			memory := func(args ...string) map[string]any {
				return toolset(partners.Fake(t, append(args, "-journal", s.Journal, "-private-jobs")...).Entry())
			}
			servers := map[string]any{"memory": memory(), "crowd": partners.Fake(t).Entry()}
			s.Write(t, servers)
			s.LaunchAll(t)
			s.SettledOK(t, "memory", "crowd")
			s.AwaitTasks(t)
			j := Job{Name: "held", Server: "memory", Sink: hookSink, Spec: map[string]any{"polls": 3, "poll_after": "6"}}
			id := s.Begin(t, j)
			Eventually(t, "the first poll was answered", func() bool { return s.Get(t, j, id).GetLastPollTime() != nil })
			pid := s.callsOf(t, fakemcp.SubmitJob, j.Name)[0].PID
			calls := func() int { return len(s.callsOf(t, fakemcp.JobStatus, j.Name)) }
			before := calls()
			// Others come and go until the next poll, which is far beyond the idle time.
			var seen []int
			for thread := 0; calls() == before; thread++ {
				other := s.pid(t, Call{Tool: "crowd_pid", User: "crowd", Thread: fmt.Sprint(thread % 7)})
				if !slices.Contains(seen, other) {
					seen = append(seen, other)
				}
				if thread == 10 {
					servers["memory"] = memory("-filler", "2")
					s.Apply(t, servers)
				}
				if _, alive := process(pid); !alive {
					t.Fatal("the process of the task's session has ended")
				}
			}
			if len(seen) < 4 {
				t.Errorf("the others had only %d sessions: no pressure", len(seen))
			}
			task := s.Await(t, j, id, completed)
			if task.GetResultJson() != j.result() {
				t.Errorf("the task is %v", task)
			}
			for _, r := range s.records(t) {
				if r.PID != pid {
					t.Errorf("another process was asked: %+v", r)
				}
			}
			Eventually(t, "the session ends as its entry was edited and its task has ended", func() bool {
				_, alive := process(pid)
				return !alive
			})
		})
	}
}

// TASK-052: background calls run where the toolset says: in the session of the submit's thread, or in one for all.
func TestBackgroundCallsRunInTheSessionOfTheirScope(t *testing.T) {
	t.Parallel()
	s := NewStage(t, Split, StageOptions{Options: Options{Idle: true}})
	command := partners.Fake(t, "-journal", s.Journal)
	s.Write(t, map[string]any{
		"thread": toolset(command.Entry()), "shared": toolset(command.Entry(), "background_scope", "shared"),
	})
	s.LaunchAll(t)
	s.SettledOK(t, "thread", "shared")
	s.AwaitTasks(t)
	for _, scope := range []string{"thread", "shared"} {
		asked := map[int]bool{}
		for _, thread := range []string{"monday", "tuesday"} {
			j := Job{Name: scope + "-" + thread, Server: scope, Thread: thread, Sink: hookSink, Spec: map[string]any{"polls": 2}}
			s.Await(t, j, s.Begin(t, j), completed)
			submit := s.callsOf(t, fakemcp.SubmitJob, j.Name)[0]
			if pid := s.pid(t, Call{Tool: scope + "_pid", User: j.user(), Thread: thread}); pid != submit.PID {
				t.Errorf("%s: the submit ran in process %d, the thread's is %d", scope, submit.PID, pid)
			}
			for _, r := range s.callsOf(t, fakemcp.JobStatus, j.Name) {
				asked[r.PID] = true
				if scope == "thread" && r.PID != submit.PID {
					t.Errorf("the poll ran in process %d, the submit in %d", r.PID, submit.PID)
				}
			}
		}
		if want := map[string]int{"thread": 2, "shared": 1}[scope]; len(asked) != want {
			t.Errorf("scope %s: the polls ran in %d processes, want %d", scope, len(asked), want)
		}
	}
	sessions := s.listSessions(t)
	if slices.ContainsFunc(sessions, func(x *toolproxyv1.Session) bool { return x.GetServer() == "" }) {
		b, _ := json.Marshal(sessions)
		t.Errorf("a session has no server: %s", b)
	}
}
