// Package litestore keeps durable tasks in SQLite. See task.Store, task.Reservations and task.Workers for the contract.
//
// Whatever decides and writes does so in one write transaction, which SQLite gives to one caller at a time: no row
// needs a lock of its own. Time is that of the database, in milliseconds.
package litestore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Store implements task.Store, task.Reservations and task.Workers.
type Store struct {
	db     *db.DB
	policy task.Policy
}

var (
	_ task.Store        = (*Store)(nil)
	_ task.Reservations = (*Store)(nil)
	_ task.Workers      = (*Store)(nil)
)

// New returns a store on the SQLite database d, whose schema must be current.
func New(d *db.DB, policy task.Policy) *Store { return &Store{db: d, policy: policy} }

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

const nowSQL = `select cast(unixepoch('subsec') * 1000 as integer)`

// clock returns the database's time.
func clock(ctx context.Context, q querier) (time.Time, error) {
	var now moment
	if err := q.QueryRowContext(ctx, nowSQL).Scan(&now); err != nil {
		return time.Time{}, fmt.Errorf("clock: %w", err)
	}
	return now.Time, nil
}

// write runs fn in a write transaction that began at now.
func (s *Store) write(ctx context.Context, fn func(tx *transaction, now time.Time) error) error {
	return s.db.WriteTx(ctx, func(t *sql.Tx) error {
		tx := &transaction{Tx: t, prepared: map[string]*sql.Stmt{}}
		now, err := clock(ctx, tx)
		if err != nil {
			return err
		}
		return fn(tx, now)
	})
}

// transaction prepares each statement once: to parse one costs more than to run it.
type transaction struct {
	*sql.Tx
	prepared map[string]*sql.Stmt
}

func (t *transaction) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if stmt := t.prepared[query]; stmt != nil {
		return stmt, nil
	}
	stmt, err := t.PrepareContext(ctx, query) // closed with the transaction
	if err != nil {
		return nil, err
	}
	t.prepared[query] = stmt
	return stmt, nil
}

// ExecContext runs a statement.
func (t *transaction) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	stmt, err := t.prepare(ctx, query) //nolint:sqlclosecheck // it lives as long as its transaction, which closes it
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(ctx, args...)
}

// QueryContext runs a query.
func (t *transaction) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, err := t.prepare(ctx, query) //nolint:sqlclosecheck // it lives as long as its transaction, which closes it
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

// moment reads a column of milliseconds; null is the zero time.
type moment struct{ time.Time }

// Scan implements sql.Scanner.
func (m *moment) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		m.Time = time.Time{}
	case int64:
		m.Time = time.UnixMilli(v).UTC()
	default:
		return fmt.Errorf("a time is %T, want an integer", v)
	}
	return nil
}

// stamp is what a column holds for t.
func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// nullable is what a column holds for JSON, or for bytes as text.
func nullable(raw []byte) any {
	if raw == nil {
		return nil
	}
	return string(raw)
}

// collect reads rows to their end and closes them.
func collect[T any](rows *sql.Rows, scan func(*sql.Rows) (T, error)) ([]T, error) {
	defer rows.Close() // rows.Err has what matters
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

func scanID(rows *sql.Rows) (id string, err error) { return id, rows.Scan(&id) }
