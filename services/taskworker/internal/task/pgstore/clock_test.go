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
	d := open(t, "")
	dsn := d.Pool().Config().ConnString()
	for _, f := range []string{"now", "clock_timestamp"} {
		if _, err := d.Pool().Exec(t.Context(), "create function "+f+"() returns timestamptz language sql as $$ select pg_catalog."+f+"() + interval '1000 hours' $$"); err != nil {
			t.Fatal(err)
		}
	}
	// Our functions come before the built-in ones.
	fast := oneSession(t, dsn)
	if _, err := fast.Exec(t.Context(), "select set_config('search_path', current_schema() || ', pg_catalog', false)"); err != nil {
		t.Fatal(err)
	}
	s := pgstore.New(fast, tasktest.Policy())
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
	bench(d, tasktest.Policy()).Pass(t, time.Minute)
	claims, err := s.Claim(t.Context(), "w", 1)
	if err != nil || len(claims) != 1 {
		t.Fatalf("claimed %v, %v", claims, err)
	}
	var end time.Time
	if err := d.Pool().QueryRow(t.Context(), "select due_time from task_live").Scan(&end); err != nil {
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

func oneSession(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = 1 // one session, which keeps its settings
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
