package pgstore_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/pgstore"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/tasktest"
)

// TASK-019
func TestTimeIsTheDatabases(t *testing.T) {
	const ahead = 1000 * time.Hour
	c := config(t, "")
	c.MaxConns = 1 // one session, which keeps its settings
	pool := open(t, c)
	for _, f := range []string{"now", "clock_timestamp"} {
		exec(t, pool, "create function "+f+"() returns timestamptz language sql as $$ select pg_catalog."+f+"() + interval '1000 hours' $$")
	}
	// Our functions come before the built-in ones.
	exec(t, pool, "select set_config('search_path', current_schema() || ', pg_catalog', false)")
	s := pgstore.New(pool, tasktest.Policy())
	r, err := s.Reserve(t.Context(), task.Intent{
		Scope: authn.Scope{UserID: "u", ThreadID: "t"}, Server: "s", TaskName: "n", Fingerprint: "fp", Binding: []byte("b"),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantAhead := func(what string, at time.Time, more time.Duration) {
		t.Helper()
		if off := time.Until(at) - ahead - more; off.Abs() > time.Minute {
			t.Errorf("%s is %v off the database's time", what, off)
		}
	}
	wantAhead("the end of the reservation", r.Expires, task.ReservationTTL)
	made, err := s.Commit(t.Context(), task.Commitment{Hold: task.Hold{TaskID: r.TaskID, Fence: r.Fence}, Handle: []byte("h"), RemoteID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	wantAhead("the creation", made.Created, 0)
	wantAhead("the first poll", made.NextPoll, 5*time.Second)
	bench(pool, tasktest.Policy()).Pass(t, time.Minute)
	claims, err := s.Claim(t.Context(), "w", 1)
	if err != nil || len(claims) != 1 {
		t.Fatalf("claimed %v, %v", claims, err)
	}
	var end time.Time
	if err := pool.QueryRow(t.Context(), "select due_time from task_live").Scan(&end); err != nil {
		t.Fatal(err)
	}
	wantAhead("the end of the lease", end, 30*time.Second)
	settled, err := s.Settle(t.Context(), []task.Outcome{{Claim: claims[0], Worker: "w", Snapshot: &task.Snapshot{Status: task.Working}}})
	if err != nil || settled[0].Dropped {
		t.Fatalf("settled %+v, %v", settled, err)
	}
	got, err := s.Get(t.Context(), made.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantAhead("the end of the call", got.Attempts[0].Time, 0)
	wantAhead("the next poll", got.NextPoll, 5*time.Second)
}

func exec(t *testing.T, pool *pgxpool.Pool, statement string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}
