package scenario

import (
	"slices"
	"strings"
	"testing"

	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
	fakeruntime "github.com/toolherd/toolherd/test/fakeruntime/fake"
)

const delivered = notifierv1.NotificationStatus_NOTIFICATION_STATUS_DELIVERED

// notification returns the delivery of an event to a sink, nil if there is none.
func (s *Stage) notification(t testing.TB, eventID, sink string) *notifierv1.Notification {
	t.Helper()
	task, _, _ := cutLast(eventID, ":")
	page, err := s.Notifications(t).ListNotifications(t.Context(), &notifierv1.ListNotificationsRequest{TaskId: task, Sink: sink})
	if err != nil {
		t.Fatalf("list notifications: %v", err)
	}
	i := slices.IndexFunc(page.GetNotifications(), func(n *notifierv1.Notification) bool { return n.GetEventId() == eventID })
	if i < 0 {
		return nil
	}
	return page.GetNotifications()[i]
}

// A hint that is no number above 0 is as good as none, one that is far too long is cut to a day. NaN and Infinity are no
// JSON: such an answer is none, and the next one counts.
func hintsThatMakeNoSense(t *testing.T, s *Stage) {
	ids := map[string]string{}
	job := func(hint string) Job {
		return Job{Name: "hint " + hint, User: "hints", Thread: strings.Map(printable, hint), Spec: map[string]any{"polls": 2, "poll_after": hint}}
	}
	for _, hint := range []string{`-5`, `0`, `"soon"`, `null`, `[]`, `1e999`, `0.3`, `NaN`, `Infinity`, `1e9`} {
		ids[hint] = s.Begin(t, job(hint))
	}
	const aDay = `1e9`
	task := s.Await(t, job(aDay), ids[aDay], working)
	if wait := task.GetNextPollTime().AsTime().Sub(task.GetLastPollTime().AsTime()); wait.Hours() < 20 || wait.Hours() > 30 {
		t.Errorf("after a hint of 1e9 seconds the next poll is in %s, want a day", wait)
	}
	// The wish to cancel it does not wait so long.
	s.Cancel(t, job(aDay), ids[aDay])
	s.Await(t, job(aDay), ids[aDay], cancelled)
	delete(ids, aDay)
	for hint, id := range ids {
		s.Await(t, job(hint), id, completed)
	}
}

func printable(r rune) rune {
	if r == '"' || r == '[' || r == ']' {
		return '_'
	}
	return r
}

// TASK-038: errors of the status tool are not errors of the task.
func aStatusToolThatFails(t *testing.T, s *Stage) {
	j := Job{Name: "stutters", Spec: map[string]any{"status_answers": []string{"is_error", "rpc_error", "is_error"}, "polls": 4}}
	id := s.Begin(t, j)
	task := s.Await(t, j, id, completed)
	if task.GetTrackingDegraded() || task.GetError() != "" {
		t.Errorf("the task that completed is %v", task)
	}
	if n := len(s.callsOf(t, fakemcp.JobStatus, j.Name)); n != 4 {
		t.Errorf("the remote was asked %d times, want 4", n)
	}
}

// A status answer that means nothing ends the task, and says so; one that says that there is no such job, too.
func aStatusAnswerThatMakesNoSense(t *testing.T, s *Stage) {
	reasons := map[string]string{
		"other_id": "protocol_error", "no_structured": "protocol_error", "unknown_status": "protocol_error", "no_question": "protocol_error",
		"not_found": "remote_lost",
	}
	ids := map[string]string{}
	job := func(answer string) Job {
		return Job{Name: "answers-" + answer, Sink: hookSink, Spec: map[string]any{"status_answers": []string{"ok", answer}, "polls": 100_000}}
	}
	for answer := range reasons {
		ids[answer] = s.Begin(t, job(answer))
	}
	for answer, reason := range reasons {
		task := s.Await(t, job(answer), ids[answer], failed)
		if task.GetFailureReason() != reason || task.GetError() == "" {
			t.Errorf("after the answer %s the task is %v, want the reason %s", answer, task, reason)
		}
		AwaitNews(t, func() []News { return s.Told(t) }, ids[answer], failed)
	}
}

// TASK-019, TASK-021: a call that hangs is given up within its lease and tried again, and nobody else waits for it.
func aStatusCallThatHangs(t *testing.T, s *Stage) {
	hangs := Job{Name: "hangs", Spec: map[string]any{"status_answers": []string{"hang"}, "polls": 2}}
	id := s.Begin(t, hangs)
	Eventually(t, "the call hangs", func() bool { return len(s.callsOf(t, fakemcp.JobStatus, hangs.Name)) == 1 })
	other := Job{Name: "beside-one-that-hangs"}
	s.Await(t, other, s.Begin(t, other), completed)
	if n := len(s.callsOf(t, fakemcp.JobStatus, hangs.Name)); n != 1 {
		t.Errorf("the other task was done after the call that hung: %d calls", n)
	}
	s.Await(t, hangs, id, completed)
	if n := len(s.callsOf(t, fakemcp.JobStatus, hangs.Name)); n != 2 {
		t.Errorf("the remote was asked %d times, want 2", n)
	}
}

// NOTE-001: a sink that nobody configured is refused before the remote hears of the submit.
func sinksThatAreUnknown(t *testing.T, s *Stage) {
	j := Job{Name: "nowhere", Sink: "nowhere"}
	if _, err := s.Submit(t, j); reasonOf(err).Reason != "SINK_UNKNOWN" {
		t.Errorf("a submit that names an unknown sink ends with %v", err)
	}
	if n := len(s.callsOf(t, fakemcp.SubmitJob, j.Name)); n != 0 {
		t.Errorf("the remote took %d submits", n)
	}
	if tasks := s.tasksOf(t, j); len(tasks) != 0 {
		t.Errorf("there are tasks: %v", tasks)
	}
}

// NOTE-001: so is one that is for others.
func aSinkForOtherRoles(t *testing.T, s *Stage) {
	j := Job{Name: "not-for-agents", Sink: operatorsSink}
	if f := reasonOf(func() error { _, err := s.Submit(t, j); return err }()); f.Reason != "FORBIDDEN" || !strings.Contains(f.Message, operatorsSink) {
		t.Errorf("a submit that names a sink of operators ends with %v", f)
	}
	if n := len(s.callsOf(t, fakemcp.SubmitJob, j.Name)); n != 0 {
		t.Errorf("the remote took %d submits", n)
	}
}

// NOTE-003, NOTE-011: a run that failed is no delivery: another one is started, for the same event, in the owner's thread.
func aRunThatFailsIsStartedAgain(t *testing.T, s *Stage) {
	j := Job{Name: "woken", Sink: runtimeSink, Thread: "thread-whose-runs-fail"}
	plan, err := fakeruntime.ParsePlan("fail,interrupt,forget,succeed")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Runtime.SetPlan(j.thread(), plan); err != nil {
		t.Fatal(err)
	}
	id := s.Begin(t, j)
	n := AwaitNews(t, func() []News { return s.Told(t) }, id, completed)
	s.awaitDelivered(t, n.EventID, runtimeSink)
	keys := map[string]bool{}
	starts := 0
	for _, start := range s.Runtime.Starts() {
		event, _, _ := cutLast(start.IdempotencyKey, ":")
		if event != n.EventID {
			continue
		}
		starts++
		keys[start.IdempotencyKey] = true
		if start.UserID != j.user() || start.ThreadID != j.thread() || !start.RequireExistingThread || start.OriginRunID != "run-"+j.Name || start.Instruction == "" {
			t.Errorf("a start is %+v", start)
		}
		if strings.Contains(start.Instruction, j.result()) {
			t.Errorf("the trusted instruction has what the remote said: %s", start.Instruction)
		}
	}
	if starts < 4 || len(keys) != 4 {
		t.Errorf("%d starts under %d keys, want 4", starts, len(keys))
	}
}

// NOTE-003: what is delivered again at an operator's wish has the same id.
func aRedriveKeepsTheEventID(t *testing.T, s *Stage) {
	j := Job{Name: "redriven", Sink: hookSink}
	id := s.Begin(t, j)
	n := AwaitNews(t, func() []News { return s.Told(t) }, id, completed)
	s.awaitDelivered(t, n.EventID, hookSink)
	target := &notifierv1.RedriveNotificationRequest_NotificationId{NotificationId: s.notification(t, n.EventID, hookSink).GetNotificationId()}
	out, err := s.Notifications(t).RedriveNotification(t.Context(), &notifierv1.RedriveNotificationRequest{Target: target})
	if err != nil || out.GetCount() != 1 {
		t.Fatalf("redrive: %v, %v", out, err)
	}
	count := func() (n int) {
		for _, told := range s.Told(t) {
			if told.Body.TaskID != id {
				continue
			}
			if n++; told.EventID != id+":1" {
				t.Errorf("it was told as %s", told.EventID)
			}
		}
		return n
	}
	Eventually(t, "the webhook comes again", func() bool { return count() == 2 })
}
