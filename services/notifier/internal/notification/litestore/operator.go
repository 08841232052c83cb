package litestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

const attemptsSQL = `
    select attempt_number, event_version, end_time, outcome, sink_status, excerpt
      from notification_attempt
     where notification_id = ?
     order by attempt_number desc`

// Get implements notification.Store.
func (s *Store) Get(ctx context.Context, id string) (*notification.Notification, error) {
	d, err := get(ctx, s.db.Read(), id)
	if err != nil {
		return nil, fmt.Errorf("get notification: %w", err)
	}
	if d == nil {
		return nil, notification.ErrNotFound
	}
	n := d.Notification()
	rows, err := s.db.Read().QueryContext(ctx, attemptsSQL, id)
	if err == nil {
		n.Attempts, err = collect(rows, func(rows *sql.Rows) (a notification.Attempt, err error) {
			var ended int64
			err = rows.Scan(&a.Number, &a.EventVersion, &ended, &a.Outcome, &a.Status, &a.Excerpt)
			a.Time = utc(ended)
			return a, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("get attempts: %w", err)
	}
	return n, nil
}

// What a filter chooses; its parameters are ?1 to ?4.
const chosen = `
           (?1 = '[]' or d.status in (select value from json_each(?1)))
       and (?2 = '' or d.sink = ?2)
       and (?3 = '' or d.task_id = ?3)
       and d.event_time >= ?4`

func filterArgs(f notification.Filter) []any {
	since := int64(0)
	if !f.Since.IsZero() {
		since = f.Since.Add(time.Millisecond - 1).UnixMilli() // not before it
	}
	return []any{list(f.Statuses), f.Sink, f.TaskID, since}
}

const listSQL = `
    select` + bareColumns + `
      from notification_delivery d
     where` + chosen + `
       and (?5 = '' or (d.event_time, d.notification_id) < (?6, ?5))
     order by d.event_time desc, d.notification_id desc
     limit ?7`

// List implements notification.Store.
func (s *Store) List(ctx context.Context, f notification.Filter) (notification.Page, error) {
	var after notification.Position
	if f.After != "" {
		var err error
		if after, err = notification.ParseToken(f.After); err != nil {
			return notification.Page{}, err
		}
	}
	args := append(filterArgs(f), after.ID, after.Created.UnixMilli(), f.Limit+1)
	found, err := find(ctx, s.db.Read(), listSQL, args...)
	if err != nil {
		return notification.Page{}, fmt.Errorf("list notifications: %w", err)
	}
	return notification.NewPage(found, f.Limit), nil
}

const (
	countSQL = `select count(*) from notification_delivery d where` + chosen

	chosenSQL = `
    select` + columns + `
      from notification_delivery d
     where` + chosen + ` and d.notification_id > ?5
     order by d.notification_id
     limit ?6`

	redriveBatch = 500
)

// Redrive implements notification.Store.
func (s *Store) Redrive(ctx context.Context, r notification.Redrive) (int64, error) {
	n, err := s.redrive(ctx, r)
	if err != nil && !errors.Is(err, notification.ErrNotFound) {
		err = fmt.Errorf("redrive: %w", err)
	}
	return n, err
}

func (s *Store) redrive(ctx context.Context, r notification.Redrive) (int64, error) {
	var count int64
	switch {
	case r.ID != "" && r.DryRun:
		d, err := get(ctx, s.db.Read(), r.ID)
		if err == nil && d == nil {
			err = notification.ErrNotFound
		}
		if err != nil || !d.Redrive(r.Actor, now()) {
			return 0, err
		}
		return 1, nil
	case r.ID != "":
		err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
			d, err := get(ctx, tx, r.ID)
			if err == nil && d == nil {
				err = notification.ErrNotFound
			}
			if err != nil {
				return err
			}
			count, err = again(ctx, tx, r.Actor, d)
			return err
		})
		return count, err
	case r.DryRun:
		err := s.db.Read().QueryRowContext(ctx, countSQL, filterArgs(r.Filter)...).Scan(&count)
		return count, err
	}
	// Many small transactions, so that other writers come to their turn.
	for after, more := "", true; more; {
		var n int64
		err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
			found, err := find(ctx, tx, chosenSQL, append(filterArgs(r.Filter), after, redriveBatch)...)
			if err != nil {
				return err
			}
			if more = len(found) == redriveBatch; more {
				after = found[len(found)-1].ID
			}
			n, err = again(ctx, tx, r.Actor, found...)
			return err
		})
		if err != nil {
			return count, err
		}
		count += n
	}
	return count, nil
}

func again(ctx context.Context, tx *sql.Tx, actor string, deliveries ...*notification.Delivery) (int64, error) {
	var n int64
	for _, d := range deliveries {
		if !d.Redrive(actor, now()) {
			continue
		}
		if err := renumber(ctx, tx, d); err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

const pruneSQL = `
    delete from notification_delivery
     where notification_id in (
           select notification_id
             from notification_delivery
            where due_time is null and event_time < ?
            order by event_time
            limit ?)`

// Prune implements notification.Store.
func (s *Store) Prune(ctx context.Context, retention time.Duration, limit int) (int, error) {
	result, err := s.db.SQL().ExecContext(ctx, pruneSQL, now().Add(-retention).UnixMilli(), limit)
	if err != nil {
		return 0, fmt.Errorf("prune: %w", err)
	}
	n, err := result.RowsAffected()
	return int(n), err
}

const (
	statesSQL = `
    select s.value, coalesce(k.paused, 0), coalesce(k.pause_reason, ''),
           (select count(*) from notification_delivery d where d.sink = s.value and d.due_time is not null),
           (select count(*) from notification_delivery d where d.sink = s.value and d.status = 'dead_letter')
      from json_each(?) s
      left join notification_sink k on k.sink = s.value`

	pauseSQL = `
    insert into notification_sink (sink, paused, pause_reason, update_time)
    values (?, ?, ?, ?)
        on conflict (sink) do update
       set paused = excluded.paused, pause_reason = excluded.pause_reason, update_time = excluded.update_time`

	resumeSQL = `
    update notification_delivery
       set due_time = ?1
     where sink = ?2 and due_time > ?1 and status in ('pending', 'retry')`
)

// SinkStates implements notification.Store.
func (s *Store) SinkStates(ctx context.Context, sinks []string) (map[string]notification.SinkState, error) {
	states := map[string]notification.SinkState{}
	rows, err := s.db.Read().QueryContext(ctx, statesSQL, list(sinks))
	if err == nil {
		_, err = collect(rows, func(rows *sql.Rows) (sink string, err error) {
			var state notification.SinkState
			err = rows.Scan(&sink, &state.Paused, &state.PauseReason, &state.Pending, &state.DeadLetters)
			states[sink] = state
			return sink, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("sink states: %w", err)
	}
	return states, nil
}

// SetPaused implements notification.Store.
func (s *Store) SetPaused(ctx context.Context, sink string, paused bool, why string) error {
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		at := now().UnixMilli()
		if !paused {
			why = ""
		}
		if _, err := tx.ExecContext(ctx, pauseSQL, sink, paused, why, at); err != nil || paused {
			return err
		}
		_, err := tx.ExecContext(ctx, resumeSQL, at, sink)
		return err
	})
	if err != nil {
		return fmt.Errorf("set paused: %w", err)
	}
	return nil
}
