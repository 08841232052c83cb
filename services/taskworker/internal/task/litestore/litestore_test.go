package litestore_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/litestore"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/tasktest"
)

// TASK-001 TASK-032
func TestConformance(t *testing.T) { tasktest.Run(t, open) }

func TestInterleavings(t *testing.T) { tasktest.Interleave(t, open(t, tasktest.Policy())) }

func open(t *testing.T, p task.Policy) tasktest.Bench {
	d := dbtest.SQLite(t)
	exec := func(t *testing.T, statement string, args ...any) {
		t.Helper()
		if _, err := d.SQL().ExecContext(t.Context(), statement, args...); err != nil {
			t.Fatal(err)
		}
	}
	return tasktest.Bench{
		Store: litestore.New(d, p),
		Pass: func(t *testing.T, by time.Duration) {
			t.Helper()
			for _, statement := range tasktest.Pass("?1") {
				exec(t, statement, by.Milliseconds())
			}
		},
		Events: func(t *testing.T) (events []outbox.Event) {
			t.Helper()
			if err := d.WriteTx(t.Context(), func(tx *sql.Tx) (err error) {
				events, err = outbox.TakeSQLite(t.Context(), tx, 1000)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return events
		},
		Count: func(t *testing.T, table string) (n int) {
			t.Helper()
			if err := d.Read().QueryRowContext(t.Context(), "select count(*) from "+table).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
		Exec: func(t *testing.T, statement string) { t.Helper(); exec(t, statement) },
		Refuse: func(t *testing.T, worker string) {
			t.Helper()
			exec(t, "create trigger refuse before insert on task_attempt when new.worker = '"+worker+"' begin select raise(abort, 'refused'); end")
		},
	}
}
