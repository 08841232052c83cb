package scenario

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/partners"
	"github.com/toolherd/toolherd/test/rawrpc"
)

// taskScenario is what may happen to a task while nothing is killed and nobody edits a file. Each has users of its own, so
// that all run side by side on one Stage.
type taskScenario struct {
	name string
	run  func(t *testing.T, s *Stage)
	// only, when not empty, names the topologies that it runs in, and why says what is different in the others.
	only []Topology
	why  string
}

func taskScenarios() []taskScenario {
	return []taskScenario{
		{name: "call", run: anOrdinaryCall},
		{name: "completes", run: aTaskCompletes},
		{name: "fails", run: aTaskFails},
		{name: "tells a stream", run: aStreamIsTold},
		{name: "cancelled once", run: aCancelReachesTheRemoteOnce},
		{name: "cancel acknowledged", run: anAcknowledgedCancelIsAwaited},
		{name: "cancel too late", run: aCancelThatComesLate},
		{name: "cancel fails first", run: aCancelThatFailsIsTriedAgain},
		{name: "cancel while a poll runs", run: aCancelWaitsForThePoll},
		{name: "asks", run: aTaskAsks},
		{name: "same request again", run: theSameRequestAgain},
		{name: "same request at once", run: theSameRequestAtOnce},
		{name: "submit refused", run: aSubmitThatTheToolRefuses},
		{name: "submit asks", run: aSubmitThatAsks},
		{name: "submit makes no sense", run: aSubmitAnswerThatMakesNoSense},
		{name: "remote id known", run: aRemoteIDThatIsKnown},
		{name: "large results", run: largeResults},
		{name: "bad hints", run: hintsThatMakeNoSense},
		{name: "status fails", run: aStatusToolThatFails},
		{name: "status makes no sense", run: aStatusAnswerThatMakesNoSense},
		{name: "status hangs", run: aStatusCallThatHangs},
		{name: "foreign scope", run: foreignAndUnknownTasksAreAlike},
		{name: "sinks", run: sinksThatAreUnknown},
		{name: "sink for others", run: aSinkForOtherRoles, only: []Topology{Split}, why: "without tokens every caller is an operator too"},
		{name: "run fails", run: aRunThatFailsIsStartedAgain},
		{name: "redrive", run: aRedriveKeepsTheEventID},
		{name: "watch", run: aWatchSeesEveryVersionOnce},
		{name: "one address", run: oneAddressIsEnough, only: []Topology{Split}, why: "an all-in-one has one address"},
		{name: "what agents see", run: agentsSeeNoServerAndNoRemoteID, only: []Topology{Split}, why: "without tokens every caller is an operator too"},
	}
}

// OPS-012: what tasks do when nothing is broken is the same in every topology.
func TestTasks(t *testing.T) {
	for _, topology := range Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			journal := ""
			s := NewStage(t, topology, StageOptions{
				Servers: map[string]any{"modern": toolset(partners.Fake(t, "-protocol", rawrpc.V20260728).Entry())},
				Setup: func(s *Stage) {
					journal = s.Journal
					if topology == Postgres { // OPS-013: up makes its tables itself
						s.dsn = dbtest.DSN(t, dbtest.Unmigrated())
					}
				},
			})
			t.Run("scenario", func(t *testing.T) { // a group: it ends when all have ended
				for _, sc := range taskScenarios() {
					if len(sc.only) > 0 && !slices.Contains(sc.only, topology) {
						continue
					}
					t.Run(sc.name, func(t *testing.T) {
						t.Parallel()
						sc.run(t, s)
					})
				}
			})
			records, err := fakemcp.ReadJournal(journal)
			if err != nil || len(records) == 0 {
				t.Fatalf("the journal has %d records, %v", len(records), err)
			}
			checkCalls(t, records) // TASK-029, over all of it
		})
	}
}

func anOrdinaryCall(t *testing.T, s *Stage) {
	if got := s.JSON(t, Call{Tool: "jobs_echo", Arguments: `{"n":1}`, User: "caller"}); !strings.Contains(got, `{"n":1}`) {
		t.Errorf("a call of the task server's ordinary tool gets %s", got)
	}
	for _, hidden := range []string{fakemcp.JobStatus, fakemcp.CancelJob} {
		if _, err := s.Do(t, Call{Tool: "jobs_" + hidden, Arguments: `{"task_id":"x"}`}); reasonOf(err).Reason != "TOOL_NOT_FOUND" {
			t.Errorf("a call of %s, which is not for agents, ends with %v", hidden, err)
		}
	}
}

func aTaskCompletes(t *testing.T, s *Stage) {
	for _, sink := range []string{hookSink, runtimeSink} {
		j := Job{Name: "completes-" + sink, Sink: sink, Spec: map[string]any{"polls": 3, "progress": true}}
		id := s.Begin(t, j)
		task := s.Await(t, j, id, completed)
		if task.GetResultJson() != j.result() || task.GetIsError() || task.GetError() != "" || task.GetEndTime() == nil || task.GetNextPollTime() != nil {
			t.Errorf("the task that completed is %v", task)
		}
		if task.GetRunId() != "run-"+j.Name || task.GetToolCallId() != "call-"+j.Name || task.GetNotifySink() != sink {
			t.Errorf("the task does not know its origin: %v", task)
		}
		if p := task.GetProgress(); p.GetCurrent() != 3 || p.GetTotal() != 3 || task.GetStatusMessage() != "step 3" {
			t.Errorf("progress %v, %q", p, task.GetStatusMessage())
		}
		n := AwaitNews(t, func() []News { return s.Told(t) }, id, completed)
		if n.Sink != sink || n.Body.TaskName == "" || n.Body.TaskName != task.GetTaskName() {
			t.Errorf("the news are %+v", n)
		}
		if n := len(s.callsOf(t, fakemcp.SubmitJob, j.Name)); n != 1 {
			t.Errorf("the remote took %d submits", n)
		}
		if n := len(s.callsOf(t, fakemcp.JobStatus, j.Name)); n != 3 {
			t.Errorf("the remote was asked %d times, want 3", n)
		}
	}
}

func aTaskFails(t *testing.T, s *Stage) {
	j := Job{Name: "fails", Sink: hookSink, Spec: map[string]any{"outcome": "failed", "error": "the quota is used up"}}
	id := s.Begin(t, j)
	task := s.Await(t, j, id, failed)
	if task.GetError() != "the quota is used up" || task.GetResultJson() != "" {
		t.Errorf("the task that failed is %v", task)
	}
	if n := AwaitNews(t, func() []News { return s.Told(t) }, id, failed); n.Body.Error != "the quota is used up" {
		t.Errorf("the news are %s", n.Raw)
	}
}

// NOTE-001: a task that names no sink goes to the built-in stream, where no default is configured.
func aStreamIsTold(t *testing.T, s *Stage) {
	for sink, told := range map[string]string{"": eventsSink, feedSink: feedSink} {
		j := Job{Name: "streamed-" + told, Sink: sink, Spec: map[string]any{"polls": 2}}
		f := s.Follow(t, told, j.scope())
		id := s.Begin(t, j)
		n := AwaitNews(t, f.Told, id, completed)
		s.Await(t, j, id, completed)
		s.awaitDelivered(t, n.EventID, told)
		for _, n := range f.Told() {
			if n.Body.TaskID != id {
				t.Errorf("the owner of one task hears of another: %s", n.Raw)
			}
		}
	}
}

func aCancelReachesTheRemoteOnce(t *testing.T, s *Stage) {
	j := Job{Name: "cancelled", Sink: hookSink, Spec: map[string]any{"polls": 100_000}}
	id := s.Begin(t, j)
	s.Await(t, j, id, working)
	for range 3 {
		if task := s.Cancel(t, j, id); task.GetCancelRequestedTime() == nil {
			t.Errorf("a task whose cancel was asked for is %v", task)
		}
	}
	s.Await(t, j, id, cancelled)
	AwaitNews(t, func() []News { return s.Told(t) }, id, cancelled)
	before := s.Get(t, j, id).GetVersion()
	if task := s.Cancel(t, j, id); statusOf(task) != cancelled || task.GetVersion() != before {
		t.Errorf("a cancel after the end changes the task: %v", task)
	}
	if n := len(s.callsOf(t, fakemcp.CancelJob, j.Name)); n != 1 {
		t.Errorf("the remote was told %d times, want once", n)
	}
}

// TASK-031: that a remote heard the wish is not the end of the task.
func anAcknowledgedCancelIsAwaited(t *testing.T, s *Stage) {
	j := Job{Name: "acknowledged", Sink: hookSink, Spec: map[string]any{"polls": 100_000, "cancel": "ack", "cancel_polls": 2}}
	id := s.Begin(t, j)
	s.Await(t, j, id, working)
	s.Cancel(t, j, id)
	Eventually(t, "the remote acknowledged the cancel", func() bool { return len(s.callsOf(t, fakemcp.CancelJob, j.Name)) == 1 })
	s.Await(t, j, id, cancelled)
	AwaitNews(t, func() []News { return s.Told(t) }, id, cancelled)
	if n := len(s.callsOf(t, fakemcp.CancelJob, j.Name)); n != 1 {
		t.Errorf("the remote was told %d times, want once", n)
	}
}

func aCancelThatComesLate(t *testing.T, s *Stage) {
	j := Job{Name: "late", Sink: hookSink, Spec: map[string]any{"polls": 100_000, "cancel": "late"}}
	id := s.Begin(t, j)
	s.Cancel(t, j, id)
	if task := s.Await(t, j, id, completed); task.GetResultJson() != j.result() {
		t.Errorf("the task that completed before its cancel is %v", task)
	}
	AwaitNews(t, func() []News { return s.Told(t) }, id, completed)
}

func aCancelThatFailsIsTriedAgain(t *testing.T, s *Stage) {
	j := Job{Name: "refuses-cancel", Sink: hookSink, Spec: map[string]any{"polls": 100_000, "cancel_failures": 2}}
	id := s.Begin(t, j)
	s.Cancel(t, j, id)
	s.Await(t, j, id, cancelled)
	if n := len(s.callsOf(t, fakemcp.CancelJob, j.Name)); n != 3 {
		t.Errorf("the remote was told %d times, want 3", n)
	}
}

// TASK-028, TASK-029: CancelTask does not wait for the poll in flight, the remote cancel does.
func aCancelWaitsForThePoll(t *testing.T, s *Stage) {
	gate, open := s.Gate(t, "cancel-while-polling")
	j := Job{Name: "busy", Sink: hookSink, Spec: map[string]any{"polls": 100_000, "status_file": gate}}
	id := s.Begin(t, j)
	Eventually(t, "a poll runs", func() bool { return len(s.callsOf(t, fakemcp.JobStatus, j.Name)) == 1 })
	if task := s.Cancel(t, j, id); statusOf(task).final() || task.GetCancelRequestedTime() == nil {
		t.Errorf("with a poll in flight the cancelled task is %v", task)
	}
	open()
	s.Await(t, j, id, cancelled)
	if n := len(s.callsOf(t, fakemcp.CancelJob, j.Name)); n != 1 {
		t.Errorf("the remote was told %d times, want once", n)
	}
}

func aTaskAsks(t *testing.T, s *Stage) {
	j := Job{Name: "asks", Sink: hookSink, Spec: map[string]any{"asks": 1}}
	id := s.Begin(t, j)
	task := s.Await(t, j, id, inputRequired)
	if !strings.Contains(task.GetInputRequiredJson(), "Which colour?") || task.GetEndTime() != nil {
		t.Errorf("the task that asks is %v", task)
	}
	told := func() []News { return s.Told(t) }
	asked := AwaitNews(t, told, id, inputRequired)
	if !strings.Contains(string(asked.Body.Input), "Which colour?") {
		t.Errorf("the news are %s", asked.Raw)
	}
	// Slowly it is asked again, and finds that somebody answered by other means.
	s.Await(t, j, id, completed)
	if done := AwaitNews(t, told, id, completed); done.Body.EventVersion != asked.Body.EventVersion+1 {
		t.Errorf("the question was event %s, the end %s", asked.EventID, done.EventID)
	}
}

// aWatchSeesEveryVersionOnce: a watch begins with the task as it is, rises and ends with the final state; one that resumes
// gets what came after.
func aWatchSeesEveryVersionOnce(t *testing.T, s *Stage) {
	gate, open := s.Gate(t, "watch")
	j := Job{Name: "watched", Spec: map[string]any{"polls": 3, "progress": true, "file": gate}}
	id := s.Begin(t, j)
	watch := func(after int64) func() *taskv1.Task {
		stream, err := s.Tasks(t).WatchTask(t.Context(), &taskv1.WatchTaskRequest{TaskId: id, Scope: j.scope(), AfterVersion: after})
		if err != nil {
			t.Fatal(err)
		}
		return func() *taskv1.Task {
			m, err := stream.Recv()
			if f := reasonOf(err); err != nil && f.Code != codes.Unknown { // EOF
				t.Fatalf("watch: %v", f)
			}
			return m.GetTask()
		}
	}
	next := watch(0)
	first := next()
	if first.GetTaskId() != id || statusOf(first).final() {
		t.Fatalf("the watch begins with %v", first)
	}
	last := first
	open()
	for task := next(); task != nil; task = next() {
		if task.GetVersion() <= last.GetVersion() {
			t.Errorf("after version %d comes %d", last.GetVersion(), task.GetVersion())
		}
		last = task
	}
	if statusOf(last) != completed {
		t.Errorf("the watch ends with %v", last)
	}
	resumed := watch(last.GetVersion() - 1)
	if task := resumed(); task.GetVersion() != last.GetVersion() {
		t.Errorf("a watch after version %d gets %v", last.GetVersion()-1, task)
	}
	if task := resumed(); task != nil {
		t.Errorf("after the final state comes %v", task)
	}
}

// awaitDelivered waits until the delivery of an event has ended well.
func (s *Stage) awaitDelivered(t testing.TB, eventID, sink string) {
	t.Helper()
	Eventually(t, fmt.Sprintf("the delivery of %s to %s is delivered", eventID, sink), func() bool {
		n := s.notification(t, eventID, sink)
		return n.GetStatus() == delivered
	})
}
