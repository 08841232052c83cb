package scenario

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
)

// Ledger is what a scenario knows of the tasks it began. Its checks are the promises of durable tasks, whatever was killed:
// each task has one final state, none is lost, none is submitted again, no remote hears two calls about a task at once, and
// each end is told under one event id.
type Ledger struct {
	entries []entry
}

type entry struct {
	job  Job
	id   string
	ends []taskStatus
}

// Add records a task that an agent was handed, and how it may end.
func (l *Ledger) Add(j Job, id string, ends ...taskStatus) {
	l.entries = append(l.entries, entry{j, id, ends})
}

// AwaitEnds waits until each task has ended, and each sink in told has heard of it.
func (l *Ledger) AwaitEnds(t testing.TB, s *Stage, told func() []News) {
	t.Helper()
	await := func(what string, missing func() []string) {
		t.Helper()
		var last []string
		if !poll(patience, func() bool { last = missing(); return len(last) == 0 }) {
			t.Fatalf("waited %s in vain: %s; not so are\n%s", patience, what, strings.Join(last, "\n"))
		}
	}
	await("every task has ended", func() (open []string) {
		tasks := s.listAll(t)
		for _, e := range l.entries {
			if task := tasks[e.id]; !statusOf(task).final() {
				open = append(open, fmt.Sprintf("%s: %v", e.job.Name, task))
			}
		}
		return open
	})
	Eventually(t, "every job that the remote took is a task, or is one that says that nobody knows", func() bool {
		return len(jobNames(s.records(t))) <= len(s.listAll(t))
	})
	await("the end of every task has been told", func() (untold []string) {
		heard := map[string]bool{}
		for _, n := range told() {
			heard[n.Body.TaskID+" "+n.Body.Status] = true
		}
		for id, task := range s.listAll(t) {
			if !heard[id+" "+statusOf(task).String()] {
				untold = append(untold, fmt.Sprint(task, " ", s.deliveries(t, id)))
			}
		}
		return untold
	})
}

// deliveries lists what the notifier knows about the events of a task.
func (s *Stage) deliveries(t testing.TB, id string) []*notifierv1.Notification {
	t.Helper()
	page, err := s.Notifications(t).ListNotifications(t.Context(), &notifierv1.ListNotificationsRequest{TaskId: id})
	if err != nil {
		t.Logf("list the notifications of %s: %v", id, err)
	}
	return page.GetNotifications()
}

// Check verifies the promises for every task that the Stage has, expected or not.
func (l *Ledger) Check(t testing.TB, s *Stage, told []News) {
	t.Helper()
	records := s.records(t)
	l.checkTasks(t, s, records)
	checkCalls(t, records)
	checkNews(t, s.listAll(t), told)
}

// records returns the journal of jobs.
func (s *Stage) records(t testing.TB) []fakemcp.Record {
	t.Helper()
	records, err := fakemcp.ReadJournal(s.Journal)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// callsOf returns the first records of the calls of a tool about jobs of that name.
func (s *Stage) callsOf(t testing.TB, tool, name string) []fakemcp.Record {
	t.Helper()
	var calls []fakemcp.Record
	records := s.records(t)
	names := jobNames(records)
	for _, r := range records {
		if r.Begins() && r.Tool == tool && names[r.Job] == name {
			calls = append(calls, r)
		}
	}
	return calls
}

var jobName = regexp.MustCompile(`"name":"([^"]*)"`)

// jobNames maps the ids of jobs to their names.
func jobNames(records []fakemcp.Record) map[string]string {
	names := map[string]string{}
	for _, r := range records {
		if r.Tool == fakemcp.SubmitJob && r.Begins() {
			if found := jobName.FindSubmatch(r.Arguments); found != nil {
				names[r.Job] = string(found[1])
			}
		}
	}
	return names
}

func (l *Ledger) checkTasks(t testing.TB, s *Stage, records []fakemcp.Record) {
	t.Helper()
	tasks := s.listAll(t)
	for _, e := range l.entries {
		task := tasks[e.id]
		if task == nil {
			t.Errorf("the task %s of job %s is lost", e.id, e.job.Name)
			continue
		}
		if got := statusOf(task); !slices.Contains(e.ends, got) {
			t.Errorf("the task of job %s is %s (%s), want one of %s", e.job.Name, got, task.GetError(), e.ends)
		}
		if seen := s.Get(t, e.job, e.id); seen.GetStatus() == completed.proto() && e.job.Spec["result_bytes"] == nil && seen.GetResultJson() != e.job.result() {
			t.Errorf("the result of job %s is %s", e.job.Name, seen.GetResultJson())
		}
	}
	submits := map[string]int{}
	for id, name := range jobNames(records) {
		submits[name]++
		if submits[name] == 2 {
			t.Errorf("job %s was submitted again, as %s", name, id)
		}
	}
	if len(submits) > len(tasks) {
		t.Errorf("the remote took %d jobs, there are %d tasks", len(submits), len(tasks))
	}
}

// checkCalls fails the test if a remote heard two calls about one job at once. A call whose process was killed has no
// end; the calls of the process that lives are whole.
func checkCalls(t testing.TB, records []fakemcp.Record) {
	t.Helper()
	type call struct {
		pid int
		n   int64
	}
	ends := map[call]fakemcp.Record{}
	for _, r := range records {
		if !r.Begins() {
			ends[call{r.PID, r.Call}] = r
		}
	}
	running := map[string]map[call]fakemcp.Record{} // by job
	for _, r := range records {
		c := call{r.PID, r.Call}
		end, ended := ends[c]
		if running[r.Job] == nil {
			running[r.Job] = map[call]fakemcp.Record{}
		}
		if !r.Begins() {
			delete(running[r.Job], c)
			continue
		}
		if !ended {
			continue
		}
		for earlier, begin := range running[r.Job] {
			over := ends[earlier]
			t.Errorf("%s of job %s begins at %s and answers %s, while %s runs, from %s to %s, and answers %s", r.Tool, r.Job,
				stamp(r.Time), end.Answer, begin.Tool, stamp(begin.Time), stamp(over.Time), over.Answer)
		}
		running[r.Job][c] = r
	}
}

func stamp(at time.Time) string { return at.Format("15:04:05.000") }

// checkNews fails the test if an event has two contents, a task two ends, or an end was not told.
func checkNews(t testing.TB, tasks map[string]*taskv1.Task, told []News) {
	t.Helper()
	contents := map[string]string{}      // by sink and event
	ends := map[string]map[string]bool{} // events by task
	for _, n := range told {
		if before, ok := contents[n.Sink+" "+n.EventID]; ok && before != n.Raw {
			t.Errorf("event %s was told to %s as %s and as %s", n.EventID, n.Sink, before, n.Raw)
		}
		contents[n.Sink+" "+n.EventID] = n.Raw
		if want := fmt.Sprintf("%s:%d", n.Body.TaskID, n.Body.EventVersion); n.EventID != want {
			t.Errorf("an event of task %s has the id %s, want %s", n.Body.TaskID, n.EventID, want)
		}
		task := tasks[n.Body.TaskID]
		if task == nil {
			t.Errorf("event %s is of a task that does not exist", n.EventID)
			continue
		}
		if status := n.Body.Status; status == completed.String() || status == failed.String() || status == cancelled.String() {
			if status != statusOf(task).String() {
				t.Errorf("event %s says %s of a task that is %s", n.EventID, status, statusOf(task))
			}
			if ends[n.Body.TaskID] == nil {
				ends[n.Body.TaskID] = map[string]bool{}
			}
			ends[n.Body.TaskID][n.EventID] = true
		}
	}
	for id, task := range tasks {
		switch {
		case !statusOf(task).final():
			t.Errorf("task %s has not ended: %v", id, task)
		case len(ends[id]) == 0:
			t.Errorf("nobody was told that task %s is %s", id, statusOf(task))
		case len(ends[id]) > 1:
			t.Errorf("the end of task %s was told as %s", id, strings.Join(slices.Sorted(maps.Keys(ends[id])), " and "))
		}
	}
}
