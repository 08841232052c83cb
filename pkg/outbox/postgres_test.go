package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/outbox"
)

// begin returns an open transaction.
func begin(t *testing.T, d *db.DB) pgx.Tx {
	t.Helper()
	tx, err := d.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.WithoutCancel(t.Context())) }) // a no-op after the commit
	return tx
}

// soon bounds what would wait for ever for a lock.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAnEventThatCommitsLateUnderALowerIDIsNotLost(t *testing.T) {
	d := dbtest.Postgres(t)
	late := begin(t, d)
	if err := outbox.AppendPostgres(t.Context(), late, event("late", 1)); err != nil {
		t.Fatal(err)
	}
	add(t, d, event("early", 1))
	if got := ids(take(t, d, 10)); !slices.Equal(got, []string{"early:1"}) {
		t.Fatalf("took %v, want what has committed", got)
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ids(take(t, d, 10)); !slices.Equal(got, []string{"late:1"}) {
		t.Errorf("took %v, want the late event", got)
	}
}

func TestTakersNeitherWaitForOneAnotherNorTakeTheSame(t *testing.T) {
	d := dbtest.Postgres(t)
	for i := range 4 {
		add(t, d, event(fmt.Sprint("t", i), 1))
	}
	first, second := begin(t, d), begin(t, d)
	a, err := outbox.TakePostgres(soon(t), first, 2)
	if err != nil {
		t.Fatal(err)
	}
	b, err := outbox.TakePostgres(soon(t), second, 10)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(ids(a), []string{"t0:1", "t1:1"}) || !slices.Equal(ids(b), []string{"t2:1", "t3:1"}) {
		t.Errorf("took %v and %v", ids(a), ids(b))
	}
	third := begin(t, d)
	if err := outbox.AppendPostgres(soon(t), third, event("t4", 1)); err != nil { // nor does who appends
		t.Error(err)
	}
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ids(take(t, d, 10)); !slices.Equal(got, []string{"t0:1", "t1:1"}) {
		t.Errorf("took %v, want what the taker gave back", got)
	}
}

func TestManyTakersTakeEachEventOnce(t *testing.T) {
	d := dbtest.Postgres(t)
	const tasks, takers, appenders = 200, 4, 4
	var mu sync.Mutex
	taken := map[string]int{}
	total := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(taken)
	}
	ctx := soon(t)
	var wg sync.WaitGroup
	for a := range appenders {
		wg.Go(func() {
			for i := range tasks / appenders {
				if err := inTx(ctx, d, func(tx tx) error { return tx.add(event(fmt.Sprint("t", a, "_", i), 1)) }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range takers {
		wg.Go(func() {
			for total() < tasks {
				var events []outbox.Event
				err := inTx(ctx, d, func(tx tx) (err error) {
					events, err = tx.take(7)
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, id := range ids(events) {
					taken[id]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for id, n := range taken {
		if n != 1 {
			t.Errorf("%s was taken %d times", id, n)
		}
	}
	if n := total(); n != tasks {
		t.Errorf("%d events were taken, want %d", n, tasks)
	}
}

// The table is looked at all the time and is mostly dead rows: a look must follow the index and sort nothing.
func TestTakeFollowsTheIndex(t *testing.T) {
	d := dbtest.Postgres(t)
	rows, err := d.Pool().Query(t.Context(), "explain "+strings.Replace(outbox.TakePostgresSQL, "$1", "100", 1))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	next, _, _ := strings.Cut(plan[strings.Index(plan, "CTE next"):], "CTE taken")
	if !strings.Contains(next, "Index Scan using outbox_pk") || strings.Contains(next, "Sort") {
		t.Errorf("the plan of the look is:\n%s", next)
	}
}

func TestNothingBelongsToASession(t *testing.T) {
	for _, mode := range []string{"exec", "simple_protocol"} { // those for PgBouncer in transaction mode
		t.Run(mode, func(t *testing.T) {
			d, err := db.Open(t.Context(), db.Config{PostgresDSN: dbtest.DSN(t) + "&default_query_exec_mode=" + mode, MaxConns: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			e := event("a", 1)
			e.Body = []byte(`{"quote":"it's \\ \"'; drop table outbox; --"}`)
			add(t, d, e, event("b", 1))
			if got := take(t, d, 10); len(got) != 2 || string(got[0].Body) != string(e.Body) {
				t.Errorf("took %v", got)
			}
			var left int
			err = d.Pool().QueryRow(t.Context(), `select (select count(*) from pg_prepared_statements)
				+ (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())`).Scan(&left)
			if err != nil || left > 0 {
				t.Errorf("the session holds %d prepared statements and locks, %v", left, err)
			}
		})
	}
}
