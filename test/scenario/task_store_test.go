package scenario

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
)

// onPostgres are the topologies with a server that may be away or behind a pooler. SQLite is a file of the process.
func onPostgres() []Topology { return []Topology{Postgres, Split} }

// TASK-055: Postgres goes away and comes back while tasks run: ordinary calls go on, submits are refused before the remote
// hears of them, and each task ends once.
func TestCrashOfPostgresUnderLoad(t *testing.T) {
	for _, topology := range onPostgres() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			cluster := dbtest.NewCluster(t)
			s := NewStage(t, topology, StageOptions{Options: Options{Workers: 2, Notifiers: 2}, Setup: func(s *Stage) { s.dsn = cluster.DSN(t) }})
			f := s.Follow(t, eventsSink, nil)
			jobs := crowd(24)
			for i := range jobs {
				jobs[i].job.Server = ""
			}
			ledger := s.beginAll(t, jobs)
			for round := range 2 {
				cluster.Stop()
				for i := range 5 {
					j := Job{Name: fmt.Sprintf("refused-%d-%d", round, i)}
					if out, err := s.Submit(t, j); err == nil {
						t.Errorf("a submit without a database ends with %v", out)
					}
					if n := len(s.callsOf(t, fakemcp.SubmitJob, j.Name)); n != 0 {
						t.Errorf("the remote took %d submits that nothing remembers", n)
					}
					if got := s.JSON(t, Call{Tool: "jobs_echo", Arguments: `{"n":1}`}); !strings.Contains(got, `{"n":1}`) {
						t.Errorf("an ordinary call gets %s", got)
					}
				}
				cluster.Start()
				j := Job{Name: fmt.Sprintf("taken-%d", round), Sink: hookSink}
				var id string
				Eventually(t, "a submit is taken again", func() bool {
					out, err := s.Submit(t, j)
					id = out.GetTask().GetTaskId()
					return err == nil
				})
				ledger.Add(j, id, completed)
			}
			told := s.everybody(t, f)
			ledger.AwaitEnds(t, s, told)
			ledger.again(t, s)
			ledger.Check(t, s, told())
		})
	}
}

// TASK-054: behind a pooler in transaction mode, where every wake-up is lost, tasks are polled and told all the same.
func TestTasksBehindAConnectionPooler(t *testing.T) {
	for _, topology := range onPostgres() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			s := NewStage(t, topology, StageOptions{Options: Options{Workers: 2, Notifiers: 2}, Setup: func(s *Stage) {
				s.dsn = newPooler(t, s.dsn, 4)
			}})
			f := s.Follow(t, eventsSink, nil)
			jobs := crowd(12)
			for i := range jobs {
				jobs[i].job.Server = ""
			}
			ledger := s.beginAll(t, jobs)
			told := s.everybody(t, f)
			ledger.AwaitEnds(t, s, told)
			ledger.again(t, s)
			ledger.Check(t, s, told())
		})
	}
}
