package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/partners"
)

// local is a second task server, over stdio, whose processes end with those that started them; its jobs outlive them.
func local(t testing.TB, s *Stage) map[string]any {
	t.Helper()
	return toolset(partners.Fake(t, "-journal", s.Journal).Entry())
}

// crowd are jobs of all kinds, on a server over HTTP and one over stdio, each told to a sink. Most run for some seconds.
func crowd(count int) []entry {
	var all []entry
	for i := range count {
		e := entry{job: Job{Name: fmt.Sprintf("crowd-%02d", i), RequestID: fmt.Sprintf("request-%02d", i)}, ends: []taskStatus{completed}}
		spec := map[string]any{"polls": 2 + i%3, "duration_ms": 500 * (i % 7), "status_ms": 20, "submit_ms": 10 * (i % 5)}
		switch i % 6 {
		case 0:
			spec["outcome"] = "failed"
			e.ends = []taskStatus{failed}
		case 1:
			spec["result_bytes"] = 100_000
		case 2:
			spec["polls"] = 100_000 // it ends by its cancel
			e.ends = []taskStatus{cancelled}
		case 3:
			spec["status_answers"] = []string{"is_error", "ok", "rpc_error"}
			spec["polls"] = 4
		case 4:
			spec["poll_after"] = "0.5"
		}
		e.job.Spec = spec
		e.job.Sink = []string{hookSink, runtimeSink, eventsSink}[i%3]
		if i%4 == 3 {
			e.job.Server = "local"
		}
		all = append(all, e)
	}
	return all
}

// beginAll submits jobs, some at a time, and cancels those that end so.
func (s *Stage) beginAll(t testing.TB, jobs []entry) *Ledger {
	t.Helper()
	const atOnce = 8
	ids := make([]string, len(jobs))
	errs := make([]error, len(jobs))
	slots := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for i := range jobs {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			poll(patience, func() bool {
				out, err := s.Submit(t, jobs[i].job)
				ids[i], errs[i] = out.GetTask().GetTaskId(), err
				if !unavailable(err) {
					return true
				}
				// A busy machine. Nothing was submitted, so it may be made anew.
				jobs[i].job.RequestID += "-again"
				return false
			})
		})
	}
	running.Wait()
	l := &Ledger{}
	for i, e := range jobs {
		if errs[i] != nil || ids[i] == "" {
			t.Fatalf("submit %s: %v", e.job.Name, errs[i])
		}
		l.Add(e.job, ids[i], e.ends...)
		if slices.Contains(e.ends, cancelled) {
			s.Cancel(t, e.job, ids[i])
		}
	}
	return l
}

// everybody returns what all sinks were told.
func (s *Stage) everybody(t testing.TB, followers ...*Follower) func() []News {
	return func() []News {
		all := s.Told(t)
		for _, f := range followers {
			all = append(all, f.Told()...)
		}
		return all
	}
}

// again submits every job of a ledger once more: each is the task that it was.
func (l *Ledger) again(t testing.TB, s *Stage) {
	t.Helper()
	for _, e := range l.entries {
		if e.job.RequestID == "" {
			continue
		}
		if id := s.Begin(t, e.job); id != e.id {
			t.Errorf("submitted again, job %s is task %s, it was %s", e.job.Name, id, e.id)
		}
	}
}

// TASK-055, TASK-020, OPS-012: kill -9 of everything but the remotes, twice, at any moment, while 50 tasks run and others are
// being submitted: each task ends once, as its remote says, none is lost, none is submitted again, each end is told under
// one event id, and no process is left.
func TestCrashOfEverything(t *testing.T) {
	for _, topology := range Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			s := NewStage(t, topology, StageOptions{Options: Options{Idle: true, Workers: 2, Notifiers: 2}, Setup: func(stage *Stage) {
				stage.Write(t, map[string]any{"jobs": stage.entry(), "local": local(t, stage)})
			}})
			s.LaunchAll(t)
			s.SettledOK(t, "jobs", "local")
			s.AwaitTasks(t)
			f := s.Follow(t, eventsSink, nil)
			ledger := s.beginAll(t, crowd(50))
			statuses := func() (n int) {
				for _, r := range s.records(t) {
					if r.Begins() && r.Tool == fakemcp.JobStatus {
						n++
					}
				}
				return n
			}
			for round := range 2 {
				torn := s.beginTorn(t, round, 4)
				enough := statuses() + 5 + rand.IntN(60)
				poll(3*time.Second, func() bool { return statuses() >= enough }) // late, fewer are left
				servers := s.Processes()
				s.KillAll(t)
				torn()
				EventuallyWithin(t, 10*time.Second, "no process is left", func() bool { return len(s.Processes()) == 0 })
				if round == 0 && len(servers) == 0 {
					t.Error("no server over stdio ran: the test proves less than it says")
				}
				s.LaunchAll(t)
				s.AwaitTasks(t)
			}
			told := s.everybody(t, f)
			ledger.AwaitEnds(t, s, told)
			ledger.again(t, s)
			ledger.Check(t, s, told())
		})
	}
}

// beginTorn submits jobs that are still being submitted when the test goes on; wait returns when their callers have heard how
// that ended. Whether the remote took them or not, and whether they became tasks, the ledger's checks hold for them too.
func (s *Stage) beginTorn(t testing.TB, round, count int) (wait func()) {
	t.Helper()
	var running sync.WaitGroup
	for i := range count {
		j := Job{
			Name: fmt.Sprintf("torn-%d-%d", round, i), RequestID: fmt.Sprintf("request-torn-%d-%d", round, i), Sink: hookSink,
			Spec: map[string]any{"submit_ms": 500 * i},
		}
		running.Go(func() { _, _ = s.Submit(t, j) })
	}
	Eventually(t, "a submit is under way", func() bool {
		return slices.Contains(slices.Collect(maps.Values(jobNames(s.records(t)))), fmt.Sprintf("torn-%d-%d", round, count-1))
	})
	return running.Wait
}

// An orderly end and a new start in the middle of everything lose nothing either. NOTE-001: what names no sink goes to the
// default one.
func TestRestartOfEverything(t *testing.T) {
	for _, topology := range Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			s := NewStage(t, topology, StageOptions{Notifier: []string{"default_sink: " + hookSink}})
			f := s.Follow(t, eventsSink, nil)
			jobs := crowd(20)
			for i := range jobs {
				jobs[i].job.Server = ""
				if jobs[i].job.Sink == hookSink {
					jobs[i].job.Sink = ""
				}
			}
			ledger := s.beginAll(t, jobs)
			before := time.Now()
			s.StopAll(t)
			if took := time.Since(before); took > 12*time.Second {
				t.Errorf("the end took %s", took)
			}
			for name, p := range s.started {
				if code := p.Wait(t); code != 0 {
					t.Errorf("%s ends with %d", name, code)
				}
			}
			s.LaunchAll(t)
			s.AwaitTasks(t)
			told := s.everybody(t, f)
			ledger.AwaitEnds(t, s, told)
			ledger.again(t, s)
			ledger.Check(t, s, told())
			toldAt := map[string]string{}
			for _, n := range told() {
				toldAt[n.Body.TaskID] = n.Sink
			}
			for _, e := range ledger.entries {
				if want := cmp.Or(e.job.Sink, hookSink); toldAt[e.id] != want {
					t.Errorf("the end of job %s was told to %s, want %s", e.job.Name, toldAt[e.id], want)
				}
			}
		})
	}
}
