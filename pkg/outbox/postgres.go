package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const appendPostgresSQL = `
    insert into outbox (task_id, event_version, user_id, thread_id, sink, task_name, body, run_id, traceparent, create_time)
    select e.task_id, e.event_version, e.user_id, e.thread_id, e.sink, e.task_name, e.body, e.run_id, e.traceparent, now()
      from unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[])
      with ordinality
        as e (task_id, event_version, user_id, thread_id, sink, task_name, body, run_id, traceparent, position)
     order by e.position`

// AppendPostgres adds events in tx, in one statement. It waits for no lock. It fails, and with it tx, for an event
// without a task or version or with a body that is not JSON.
func AppendPostgres(ctx context.Context, tx pgx.Tx, events ...Event) error {
	if len(events) == 0 {
		return nil
	}
	if err := checkAll(events); err != nil {
		return err
	}
	versions := make([]int64, len(events))
	var columns [8][]string
	for i, e := range events {
		versions[i] = e.Version
		for c, text := range []string{e.TaskID, e.Scope.UserID, e.Scope.ThreadID, e.Sink, e.TaskName, string(e.Body), e.RunID, e.Traceparent} {
			columns[c] = append(columns[c], text)
		}
	}
	_, err := tx.Exec(ctx, appendPostgresSQL, columns[0], versions,
		columns[1], columns[2], columns[3], columns[4], columns[5], columns[6], columns[7])
	if err != nil {
		return fmt.Errorf("append to outbox: %w", err)
	}
	return nil
}

// A row that another transaction is taking is skipped; one whose own transaction has not committed is not there yet,
// and is found later by whoever looks then, however low its id is.
const takePostgresSQL = `
      with next as materialized (
           select outbox_id
             from outbox
            order by outbox_id
            limit $1::bigint
              for update skip locked),
           taken as (
    delete from outbox
     where outbox_id in (select outbox_id from next)
 returning outbox_id, task_id, event_version, user_id, thread_id, sink, task_name, body, run_id, traceparent, create_time)
    select task_id, event_version, user_id, thread_id, sink, task_name, body, run_id, traceparent, create_time
      from taken
     order by outbox_id`

// TakePostgres removes up to limit events in tx, the earliest appended first, and returns them. They are gone with the
// commit of tx and back with its rollback. Takers run side by side: none waits and none takes what another has.
//
// Two takers may commit in either order, so an older event of a task may be recorded after a newer one: compare versions.
func TakePostgres(ctx context.Context, tx pgx.Tx, limit int) ([]Event, error) {
	if limit <= 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, takePostgresSQL, limit)
	if err != nil {
		return nil, fmt.Errorf("take from outbox: %w", err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Event, error) {
		var e Event
		var body string
		err := row.Scan(&e.TaskID, &e.Version, &e.Scope.UserID, &e.Scope.ThreadID, &e.Sink, &e.TaskName, &body,
			&e.RunID, &e.Traceparent, &e.Created)
		e.Body, e.Created = []byte(body), e.Created.UTC()
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("take from outbox: %w", err)
	}
	return events, nil
}
