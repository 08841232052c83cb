// Package pgstore keeps durable tasks in Postgres. See task.Store, task.Reservations and task.Workers for the contract.
//
// The row of task_live guards its task: whoever changes a task that is not final locks that row first, and reads the
// rest in a statement that follows, whose snapshot has all that the holder before wrote. Those who lock several rows do
// so in the order of their ids, or skip what is locked, so that none waits for another in a circle. Time is that of the
// database.
//
// Nothing here needs a session: it works through PgBouncer in transaction mode, with default_query_exec_mode=exec or
// simple_protocol in the DSN.
package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Store implements task.Store, task.Reservations and task.Workers.
type Store struct {
	pool   *pgxpool.Pool
	policy task.Policy
	floor  floor
}

var (
	_ task.Store        = (*Store)(nil)
	_ task.Reservations = (*Store)(nil)
	_ task.Workers      = (*Store)(nil)
)

// New returns a store on pool, whose schema must be current.
func New(pool *pgxpool.Pool, policy task.Policy) *Store { return &Store{pool: pool, policy: policy} }

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// The time of now() is that of the transaction's begin, before it waited for its locks.
const clockSQL = `select clock_timestamp()`

// ask queues a query whose rows are read by scan into out.
func ask[T any](b *pgx.Batch, out *[]T, scan pgx.RowToFunc[T], sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		*out, err = pgx.CollectRows(rows, scan)
		return err
	})
}

// askTime queues a look at the clock.
func askTime(b *pgx.Batch, now *time.Time) {
	b.Queue(clockSQL).QueryRow(func(row pgx.Row) error {
		err := row.Scan(now)
		*now = now.UTC()
		return err
	})
}

func utc(t pgtype.Timestamptz) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return t.Time.UTC()
}

// stamp is what a column holds for t.
func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// nullable is what a column holds for a text that may be missing.
func nullable[T ~string | ~[]byte](s T) *string {
	if len(s) == 0 {
		return nil
	}
	return new(string(s))
}

func micros(d time.Duration) int64 { return d.Microseconds() }

// violates reports whether err is a breach of the named constraint.
func violates(err error, constraint string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.ConstraintName == constraint
}

// refused reports whether the server refused a statement, which another row's statement may not suffer.
func refused(err error) bool {
	_, ok := errors.AsType[*pgconn.PgError](err)
	return ok
}

// jitter spreads polls.
func jitter() float64 { return rand.Float64() }

// none turns the absence of a row into false.
func none(err error) (bool, error) {
	if errors.Is(err, pgx.ErrNoRows) {
		return true, nil
	}
	return false, err
}

// send runs a batch to its end.
func send(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error {
	if b.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
