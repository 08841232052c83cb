package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/outbox"
)

// tx is a transaction of either engine.
type tx struct {
	add  func(...outbox.Event) error
	take func(limit int) ([]outbox.Event, error)
	exec func(statement string) error
}

// inTx runs fn in a transaction, which commits if it returns nil.
func inTx(ctx context.Context, d *db.DB, fn func(tx) error) error {
	if d.Engine() == db.SQLite {
		return d.WriteTx(ctx, func(t *sql.Tx) error {
			return fn(tx{
				add:  func(e ...outbox.Event) error { return outbox.AppendSQLite(ctx, t, e...) },
				take: func(limit int) ([]outbox.Event, error) { return outbox.TakeSQLite(ctx, t, limit) },
				exec: func(s string) error { _, err := t.ExecContext(ctx, s); return err },
			})
		})
	}
	return pgx.BeginFunc(ctx, d.Pool(), func(t pgx.Tx) error {
		return fn(tx{
			add:  func(e ...outbox.Event) error { return outbox.AppendPostgres(ctx, t, e...) },
			take: func(limit int) ([]outbox.Event, error) { return outbox.TakePostgres(ctx, t, limit) },
			exec: func(s string) error { _, err := t.Exec(ctx, s); return err },
		})
	})
}

func event(task string, version int64) outbox.Event {
	return outbox.Event{TaskID: task, Version: version, Body: []byte("{}")}
}

func add(t *testing.T, d *db.DB, events ...outbox.Event) {
	t.Helper()
	if err := inTx(t.Context(), d, func(tx tx) error { return tx.add(events...) }); err != nil {
		t.Fatal(err)
	}
}

func take(t *testing.T, d *db.DB, limit int) []outbox.Event {
	t.Helper()
	var events []outbox.Event
	err := inTx(t.Context(), d, func(tx tx) (err error) {
		events, err = tx.take(limit)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func ids(events []outbox.Event) []string {
	var out []string
	for _, e := range events {
		out = append(out, fmt.Sprint(e.TaskID, ":", e.Version))
	}
	return out
}

func TestEveryFieldSurvives(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		began := time.Now().Add(-time.Minute)
		want := []outbox.Event{
			{
				TaskID: "task_1", Version: 9007199254740993, Scope: authn.Scope{UserID: "ünï", ThreadID: "t 1"}, Sink: "ops", TaskName: "a <b>",
				Body:  []byte(`{"z":"nul \u0000, half a pair \ud800, ünïcode <&>",  "a":[1.10, 1e400, 9007199254740993]}`),
				RunID: "run_7", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			},
			{TaskID: "task_2", Version: 1, Body: []byte("{}")},
		}
		add(t, d, want...)
		got := take(t, d, 10)
		for i, e := range got {
			if e.Created.Before(began) || e.Created.After(time.Now().Add(time.Minute)) || e.Created.Location() != time.UTC {
				t.Errorf("event %d was created at %v", i, e.Created)
			}
			got[i].Created = time.Time{}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestTakeIsInOrderUpToTheLimitAndOnce(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		add(t, d)
		add(t, d, event("a", 1), event("b", 1))
		add(t, d, event("a", 2))
		for _, tt := range []struct {
			limit int
			want  []string
		}{{0, nil}, {-1, nil}, {2, []string{"a:1", "b:1"}}, {2, []string{"a:2"}}, {2, nil}} {
			if got := ids(take(t, d, tt.limit)); !slices.Equal(got, tt.want) {
				t.Errorf("took %v, want %v", got, tt.want)
			}
		}
		add(t, d, event("c", 1)) // ids may begin again in an empty table
		if got := ids(take(t, d, 2)); !slices.Equal(got, []string{"c:1"}) {
			t.Errorf("took %v, want c:1", got)
		}
	})
}

func TestAppendRollsBackWithItsTransaction(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		if err := inTx(t.Context(), d, func(tx tx) error { return tx.exec("create table task (version bigint)") }); err != nil {
			t.Fatal(err)
		}
		failed := errors.New("the task's change failed")
		change := func(fail error) error {
			return inTx(t.Context(), d, func(tx tx) error {
				return errors.Join(tx.exec("insert into task values (1)"), tx.add(event("a", 1)), fail)
			})
		}
		if err := change(failed); !errors.Is(err, failed) {
			t.Fatal(err)
		}
		if got := take(t, d, 10); len(got) != 0 {
			t.Errorf("took %v of a transaction that rolled back", ids(got))
		}
		if err := change(nil); err != nil {
			t.Fatal(err)
		}
		if got := take(t, d, 10); len(got) != 1 {
			t.Errorf("took %v of a transaction that committed, want one", ids(got))
		}
	})
}

func TestTakeRollsBackWithItsTransaction(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		add(t, d, event("a", 1), event("b", 1))
		crash := errors.New("crash")
		err := inTx(t.Context(), d, func(tx tx) error {
			events, err := tx.take(10)
			if len(events) != 2 {
				t.Errorf("took %v", ids(events))
			}
			return errors.Join(err, crash)
		})
		if !errors.Is(err, crash) {
			t.Fatal(err)
		}
		if got := ids(take(t, d, 10)); !slices.Equal(got, []string{"a:1", "b:1"}) {
			t.Errorf("took %v after a crash, want both", got)
		}
	})
}

func TestAppendRefusesWhatNoSinkCouldBeTold(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		for name, change := range map[string]func(*outbox.Event){
			"no task":              func(e *outbox.Event) { e.TaskID = "" },
			"a long task id":       func(e *outbox.Event) { e.TaskID = strings.Repeat("x", 129) },
			"a long sink":          func(e *outbox.Event) { e.Sink = strings.Repeat("x", 129) },
			"version 0":            func(e *outbox.Event) { e.Version = 0 },
			"a negative version":   func(e *outbox.Event) { e.Version = -1 },
			"no body":              func(e *outbox.Event) { e.Body = nil },
			"half a body":          func(e *outbox.Event) { e.Body = []byte(`{"a":`) },
			"a body in Latin-1":    func(e *outbox.Event) { e.Body = []byte("\"\xe9\"") },
			"a name with a NUL":    func(e *outbox.Event) { e.TaskName = "a\x00b" },
			"a user in Latin-1":    func(e *outbox.Event) { e.Scope.UserID = "\xe9" },
			"a thread with a NUL":  func(e *outbox.Event) { e.Scope.ThreadID = "\x00" },
			"a run id in Latin-1":  func(e *outbox.Event) { e.RunID = "\xe9" },
			"a traceparent of NUL": func(e *outbox.Event) { e.Traceparent = "\x00" },
		} {
			bad := event("bad", 1)
			change(&bad)
			if err := inTx(t.Context(), d, func(tx tx) error { return tx.add(event("good", 1), bad) }); err == nil {
				t.Errorf("%s was appended", name)
			}
		}
		if got := take(t, d, 100); len(got) != 0 {
			t.Errorf("took %v", ids(got))
		}
	})
}

func TestTheTableHoldsItsKeys(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		for name, values := range map[string]string{
			"no task":   "'', 1, ''",
			"version 0": "'a', 0, ''",
			"long sink": "'a', 1, '" + strings.Repeat("x", 129) + "'",
		} {
			err := inTx(t.Context(), d, func(tx tx) error {
				return tx.exec(`insert into outbox (task_id, event_version, sink, user_id, thread_id, task_name, body, run_id, traceparent, create_time)
					select k.*, '', '', '', '{}', '', '', ` + now(d) + ` from (select ` + values + `) k`)
			})
			if err == nil || !strings.Contains(err.Error(), "outbox_") {
				t.Errorf("%s: %v, want a constraint of the outbox", name, err)
			}
		}
	})
}

func now(d *db.DB) string {
	if d.Engine() == db.Postgres {
		return "now()"
	}
	return "0"
}
