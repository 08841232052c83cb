package pgstore_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/pgstore"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/tasktest"
)

func TestConformance(t *testing.T) { conform(t, dbtest.Postgres(t)) }

func TestInterleavings(t *testing.T) {
	tasktest.Interleave(t, bench(dbtest.Postgres(t), tasktest.Policy()))
}

// What PgBouncer in transaction mode needs: no statement is kept in a session.
//
// TASK-054
func TestConformanceWithoutPreparedStatements(t *testing.T) {
	for _, mode := range []string{"exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) { conform(t, open(t, "&default_query_exec_mode="+mode)) })
	}
}

func open(t *testing.T, parameters string) *db.DB {
	t.Helper()
	d, err := db.Open(t.Context(), db.Config{PostgresDSN: dbtest.DSN(t) + parameters})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// conform runs the suite on one database that is emptied for each test.
func conform(t *testing.T, d *db.DB) {
	t.Helper()
	tasktest.Run(t, func(t *testing.T, p task.Policy) tasktest.Bench {
		b := bench(d, p)
		b.Exec(t, "alter table task_attempt drop constraint if exists task_attempt_worker_ck")
		b.Exec(t, "truncate task_binding, task_request, task_reservation, task_task, task_live, task_attempt, task_result, task_worker")
		b.Events(t)
		return b
	})
}

func bench(d *db.DB, p task.Policy) tasktest.Bench {
	exec := func(t *testing.T, statement string, args ...any) {
		t.Helper()
		if _, err := d.Pool().Exec(t.Context(), statement, args...); err != nil {
			t.Fatal(err)
		}
	}
	return tasktest.Bench{
		Store: pgstore.New(d.Pool(), p),
		Pass: func(t *testing.T, by time.Duration) {
			t.Helper()
			for _, statement := range tasktest.Pass("$1::bigint * interval '1 millisecond'") {
				exec(t, statement, by.Milliseconds())
			}
		},
		Events: func(t *testing.T) (events []outbox.Event) {
			t.Helper()
			if err := pgx.BeginFunc(t.Context(), d.Pool(), func(tx pgx.Tx) (err error) {
				events, err = outbox.TakePostgres(t.Context(), tx, 1000)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return events
		},
		Count: func(t *testing.T, table string) (n int) {
			t.Helper()
			if err := d.Pool().QueryRow(t.Context(), "select count(*) from "+table).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
		Exec: func(t *testing.T, statement string) { t.Helper(); exec(t, statement) },
		Refuse: func(t *testing.T, worker string) {
			t.Helper()
			exec(t, "alter table task_attempt add constraint task_attempt_worker_ck check (worker <> '"+worker+"')")
		},
	}
}
