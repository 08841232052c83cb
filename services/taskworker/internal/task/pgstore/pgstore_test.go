package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/pgstore"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/tasktest"
)

func TestConformance(t *testing.T) { conform(t, dbtest.Postgres(t).Pool()) }

func TestInterleavings(t *testing.T) {
	tasktest.Interleave(t, bench(dbtest.Postgres(t).Pool(), tasktest.Policy()))
}

// What PgBouncer in transaction mode gives: no transaction finds in its session what the ones before left there.
//
// TASK-054
func TestConformanceWithoutSessions(t *testing.T) {
	c := config(t, "&default_query_exec_mode=exec")
	ctx := context.WithoutCancel(t.Context()) // sessions are given back until the pool is closed
	c.AfterRelease = func(conn *pgx.Conn) bool {
		_, err := conn.Exec(ctx, "discard all")
		return err == nil
	}
	conform(t, open(t, c))
}

func TestConformanceWithSimpleProtocol(t *testing.T) {
	conform(t, open(t, config(t, "&default_query_exec_mode=simple_protocol")))
}

func config(t *testing.T, parameters string) *pgxpool.Config {
	t.Helper()
	c, err := pgxpool.ParseConfig(dbtest.DSN(t) + parameters)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func open(t *testing.T, c *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// conform runs the suite on one database that is emptied for each test.
func conform(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	tasktest.Run(t, func(t *testing.T, p task.Policy) tasktest.Bench {
		b := bench(pool, p)
		b.Exec(t, "alter table task_attempt drop constraint if exists task_attempt_worker_ck")
		b.Exec(t, "truncate task_binding, task_request, task_reservation, task_task, task_live, task_attempt, task_result, task_worker")
		b.Events(t)
		return b
	})
}

func bench(pool *pgxpool.Pool, p task.Policy) tasktest.Bench {
	exec := func(t *testing.T, statement string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), statement, args...); err != nil {
			t.Fatal(err)
		}
	}
	return tasktest.Bench{
		Store: pgstore.New(pool, p),
		Pass: func(t *testing.T, by time.Duration) {
			t.Helper()
			for _, statement := range tasktest.Pass("$1::bigint * interval '1 millisecond'") {
				exec(t, statement, by.Milliseconds())
			}
		},
		Events: func(t *testing.T) (events []outbox.Event) {
			t.Helper()
			if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
				events, err = outbox.TakePostgres(t.Context(), tx, 1000)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return events
		},
		Count: func(t *testing.T, table string) (n int) {
			t.Helper()
			if err := pool.QueryRow(t.Context(), "select count(*) from "+table).Scan(&n); err != nil {
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
