package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

const appendSQLiteSQL = `
    insert into outbox (task_id, event_version, user_id, thread_id, sink, task_name, body, run_id, traceparent, create_time)
    values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// AppendSQLite adds events in tx. It fails, and leaves it to the caller to roll back, for an event without a task or
// version or with a body that is not JSON.
func AppendSQLite(ctx context.Context, tx *sql.Tx, events ...Event) error {
	if err := checkAll(events); err != nil {
		return err
	}
	now := time.Now().UnixMilli()
	for _, e := range events {
		_, err := tx.ExecContext(ctx, appendSQLiteSQL, e.TaskID, e.Version, e.Scope.UserID, e.Scope.ThreadID, e.Sink,
			e.TaskName, string(e.Body), e.RunID, e.Traceparent, now)
		if err != nil {
			return fmt.Errorf("append to outbox: %w", err)
		}
	}
	return nil
}

const (
	nextSQLiteSQL = `
    select outbox_id, task_id, event_version, user_id, thread_id, sink, task_name, body, run_id, traceparent, create_time
      from outbox
     order by outbox_id
     limit ?`

	dropSQLiteSQL = `delete from outbox where outbox_id <= ?`
)

// TakeSQLite removes up to limit events in tx, the earliest appended first, and returns them. They are gone with the
// commit of tx and back with its rollback. tx must be a write transaction of pkg/db, which are one at a time.
func TakeSQLite(ctx context.Context, tx *sql.Tx, limit int) ([]Event, error) {
	if limit <= 0 {
		return nil, nil
	}
	events, last, err := nextSQLite(ctx, tx, limit)
	if err == nil && len(events) > 0 {
		_, err = tx.ExecContext(ctx, dropSQLiteSQL, last)
	}
	if err != nil {
		return nil, fmt.Errorf("take from outbox: %w", err)
	}
	return events, nil
}

func nextSQLite(ctx context.Context, tx *sql.Tx, limit int) (events []Event, last int64, err error) {
	rows, err := tx.QueryContext(ctx, nextSQLiteSQL, limit)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close() // rows.Err has what matters
	for rows.Next() {
		var e Event
		var body string
		var created int64
		err := rows.Scan(&last, &e.TaskID, &e.Version, &e.Scope.UserID, &e.Scope.ThreadID, &e.Sink, &e.TaskName, &body,
			&e.RunID, &e.Traceparent, &created)
		if err != nil {
			return nil, 0, err
		}
		e.Body, e.Created = []byte(body), time.UnixMilli(created).UTC()
		events = append(events, e)
	}
	return events, last, rows.Err()
}
