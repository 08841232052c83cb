// Package pgstore keeps notifications in Postgres. See notification.Store and notification.Streams for the contract.
//
// Nothing belongs to a session, so PgBouncer may pool transactions. Whoever locks more than one thing does it in this
// order, so that nobody waits in a circle: the sequence, deliveries by id, offers. Claims never wait for a lock.
package pgstore

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

// Store implements notification.Store and notification.Streams.
type Store struct{ pool *pgxpool.Pool }

var (
	_ notification.Store   = (*Store)(nil)
	_ notification.Streams = (*Store)(nil)
)

// New returns a store on pool, whose schema must be current.
func New(pool *pgxpool.Pool) *Store { return &Store{pool} }

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const (
	// Every statement that reads deliveries calls them d.
	stateColumns = `
           d.notification_id, d.task_id, d.sink, d.user_id, d.thread_id, d.task_name, d.run_id, d.traceparent,
           d.event_version, d.event_time, d.event_sequence, d.waiting_version, d.waiting_time,
           d.status, d.due_time, d.lease_owner, d.fence, d.dispatch_attempt, d.dispatch_run_id, d.failure_count,
           d.attempt_number, d.last_error, d.deliver_time, d.redriven, d.redrive_time, d.redrive_actor`

	bareColumns = stateColumns + `, ''::text as body, null::text as waiting_body`
	columns     = stateColumns + `, d.body, d.waiting_body`
)

func scan(row pgx.CollectableRow) (*notification.Delivery, error) {
	var (
		d                                     notification.Delivery
		e                                     = &d.Event
		waiting                               *int64
		waitingTime, due, delivered, redriven *time.Time
		lessee, waitingBody                   *string
		body, status                          string
	)
	err := row.Scan(&d.ID, &e.TaskID, &d.Sink, &e.Scope.UserID, &e.Scope.ThreadID, &e.TaskName, &e.RunID, &e.Traceparent,
		&e.Version, &e.Created, &d.Sequence, &waiting, &waitingTime,
		&status, &due, &lessee, &d.Fence, &d.DispatchAttempt, &d.RunID, &d.Failures,
		&d.AttemptNumber, &d.LastError, &delivered, &d.Redriven, &redriven, &d.RedriveActor, &body, &waitingBody)
	if err != nil {
		return nil, err
	}
	e.ID, e.Body, e.Created = notification.EventID(e.TaskID, e.Version), json.RawMessage(body), e.Created.UTC()
	if waiting != nil {
		w := *e
		w.Version, w.Body, w.Created = *waiting, nil, optional(waitingTime)
		if waitingBody != nil {
			w.Body = json.RawMessage(*waitingBody)
		}
		w.ID = notification.EventID(w.TaskID, w.Version)
		d.Waiting = &w
	}
	if lessee != nil {
		d.Lessee = *lessee
	}
	d.Status = notification.Status(status)
	d.Due, d.Delivered, d.RedriveTime = optional(due), optional(delivered), optional(redriven)
	return &d, nil
}

// find returns the deliveries that a statement which selects columns or bareColumns finds.
func find(ctx context.Context, q querier, query string, args ...any) ([]*notification.Delivery, error) {
	rows, err := q.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

const clockSQL = `select clock_timestamp()`

// lock runs a statement that locks deliveries and returns them, and the time after it has got the locks.
func lock(ctx context.Context, tx pgx.Tx, query string, args ...any) (found []*notification.Delivery, now time.Time, err error) {
	var batch pgx.Batch
	batch.Queue(query, args...).Query(func(rows pgx.Rows) error {
		found, err = pgx.CollectRows(rows, scan)
		return err
	})
	batch.Queue(clockSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, time.Time{}, err
	}
	return found, now.UTC(), nil
}

const (
	getSQL = `
    select` + columns + `
      from notification_delivery d
     where d.notification_id = $1`

	lockOneSQL = getSQL + ` for no key update`
)

// get returns nil if there is no such delivery.
func get(ctx context.Context, q querier, id string) (*notification.Delivery, error) {
	found, err := find(ctx, q, getSQL, id)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

func optional(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

func null(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// texts returns values as a text[]; no values are an empty one, not null.
func texts[T ~string](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}
