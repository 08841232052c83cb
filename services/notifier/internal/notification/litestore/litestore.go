// Package litestore keeps notifications in SQLite. See notification.Store and notification.Streams for the contract.
//
// Time is that of the process, which is the database's only one.
package litestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

// Store implements notification.Store and notification.Streams.
type Store struct{ db *db.DB }

var (
	_ notification.Store   = (*Store)(nil)
	_ notification.Streams = (*Store)(nil)
)

// New returns a store on the SQLite database d, whose schema must be current.
func New(d *db.DB) *Store { return &Store{d} }

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

const (
	// Every statement that reads deliveries calls them d.
	stateColumns = `
           d.notification_id, d.task_id, d.sink, d.user_id, d.thread_id, d.task_name, d.run_id, d.traceparent,
           d.event_version, d.event_time, d.event_sequence, d.waiting_version, d.waiting_time,
           d.status, d.due_time, d.lease_owner, d.fence, d.dispatch_attempt, d.dispatch_run_id, d.failure_count,
           d.attempt_number, d.last_error, d.deliver_time, d.redriven, d.redrive_time, d.redrive_actor`

	bareColumns = stateColumns + `, '', null`
	columns     = stateColumns + `, d.body, d.waiting_body`
)

func scan(rows *sql.Rows) (*notification.Delivery, error) {
	var (
		d                                              notification.Delivery
		e                                              = &d.Event
		waiting, waitingTime, due, delivered, redriven sql.NullInt64
		lessee, waitingBody                            sql.NullString
		created                                        int64
		body                                           string
	)
	err := rows.Scan(&d.ID, &e.TaskID, &d.Sink, &e.Scope.UserID, &e.Scope.ThreadID, &e.TaskName, &e.RunID, &e.Traceparent,
		&e.Version, &created, &d.Sequence, &waiting, &waitingTime,
		&d.Status, &due, &lessee, &d.Fence, &d.DispatchAttempt, &d.RunID, &d.Failures,
		&d.AttemptNumber, &d.LastError, &delivered, &d.Redriven, &redriven, &d.RedriveActor, &body, &waitingBody)
	if err != nil {
		return nil, err
	}
	e.ID, e.Body, e.Created = notification.EventID(e.TaskID, e.Version), json.RawMessage(body), utc(created)
	if waiting.Valid {
		w := *e
		w.Version, w.Body, w.Created = waiting.Int64, json.RawMessage(waitingBody.String), utc(waitingTime.Int64)
		w.ID = notification.EventID(w.TaskID, w.Version)
		d.Waiting = &w
	}
	d.Due, d.Delivered, d.RedriveTime, d.Lessee = optional(due), optional(delivered), optional(redriven), lessee.String
	return &d, nil
}

// find returns the deliveries that a statement which selects columns or bareColumns finds.
func find(ctx context.Context, q querier, query string, args ...any) ([]*notification.Delivery, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return collect(rows, scan)
}

const getSQL = `
    select` + columns + `
      from notification_delivery d
     where d.notification_id = ?`

// get returns nil if there is no such delivery.
func get(ctx context.Context, q querier, id string) (*notification.Delivery, error) {
	found, err := find(ctx, q, getSQL, id)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

const (
	insertSQL = `
    insert into notification_delivery (task_id, sink, user_id, thread_id, task_name, run_id, traceparent,
           event_version, body, event_time, event_sequence, waiting_version, waiting_body, waiting_time,
           status, due_time, lease_owner, fence, dispatch_attempt, dispatch_run_id, failure_count,
           attempt_number, last_error, deliver_time, redriven, redrive_time, redrive_actor, notification_id)
    values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

	saveSQL = `
    update notification_delivery
       set task_id = ?, sink = ?, user_id = ?, thread_id = ?, task_name = ?, run_id = ?, traceparent = ?,
           event_version = ?, body = ?, event_time = ?, event_sequence = ?,
           waiting_version = ?, waiting_body = ?, waiting_time = ?,
           status = ?, due_time = ?, lease_owner = ?, fence = ?, dispatch_attempt = ?, dispatch_run_id = ?,
           failure_count = ?, attempt_number = ?, last_error = ?, deliver_time = ?,
           redriven = ?, redrive_time = ?, redrive_actor = ?
     where notification_id = ?`
)

// write runs insertSQL or saveSQL for d.
func write(ctx context.Context, tx *sql.Tx, query string, d *notification.Delivery) error {
	e := d.Event
	var waiting, waitingBody, waitingTime any
	if w := d.Waiting; w != nil {
		waiting, waitingBody, waitingTime = w.Version, string(w.Body), w.Created.UnixMilli()
	}
	_, err := tx.ExecContext(ctx, query,
		e.TaskID, d.Sink, e.Scope.UserID, e.Scope.ThreadID, e.TaskName, e.RunID, e.Traceparent,
		e.Version, string(e.Body), e.Created.UnixMilli(), d.Sequence, waiting, waitingBody, waitingTime,
		string(d.Status), millis(d.Due), sql.NullString{String: d.Lessee, Valid: d.Lessee != ""}, d.Fence, d.DispatchAttempt, d.RunID,
		d.Failures, d.AttemptNumber, d.LastError, millis(d.Delivered), d.Redriven, millis(d.RedriveTime), d.RedriveActor, d.ID)
	return err
}

const (
	addAttemptSQL = `
    insert into notification_attempt (notification_id, attempt_number, event_version, end_time, outcome, sink_status, excerpt)
    values (?, ?, ?, ?, ?, ?, ?)`

	thinAttemptsSQL = `delete from notification_attempt where notification_id = ? and attempt_number <= ?`
)

func addAttempt(ctx context.Context, tx *sql.Tx, id string, a *notification.Attempt) error {
	if a == nil {
		return nil
	}
	_, err := tx.ExecContext(ctx, addAttemptSQL, id, a.Number, a.EventVersion, a.Time.UnixMilli(), a.Outcome, a.Status, a.Excerpt)
	if excess := a.Number - notification.MaxAttempts; err == nil && excess > 0 {
		_, err = tx.ExecContext(ctx, thinAttemptsSQL, id, excess)
	}
	if err != nil {
		return fmt.Errorf("add attempt: %w", err)
	}
	return nil
}

// list returns values as a JSON array, for json_each.
func list[T ~string](values []T) string {
	if len(values) == 0 {
		return "[]"
	}
	text, _ := json.Marshal(values) // strings always marshal
	return string(text)
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

// now has the precision of the database, so that what is written is what is read.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func utc(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func optional(ms sql.NullInt64) time.Time {
	if !ms.Valid {
		return time.Time{}
	}
	return utc(ms.Int64)
}

func millis(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMilli(), Valid: !t.IsZero()}
}
