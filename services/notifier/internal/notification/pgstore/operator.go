package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

const attemptsSQL = `
    select attempt_number, event_version, end_time, outcome, sink_status, excerpt
      from notification_attempt
     where notification_id = $1
     order by attempt_number desc`

// Get implements notification.Store.
func (s *Store) Get(ctx context.Context, id string) (*notification.Notification, error) {
	d, err := get(ctx, s.pool, id)
	if err != nil {
		return nil, fmt.Errorf("get notification: %w", err)
	}
	if d == nil {
		return nil, notification.ErrNotFound
	}
	n := d.Notification()
	rows, err := s.pool.Query(ctx, attemptsSQL, id)
	if err == nil {
		var a notification.Attempt
		_, err = pgx.ForEachRow(rows, []any{&a.Number, &a.EventVersion, &a.Time, &a.Outcome, &a.Status, &a.Excerpt}, func() error {
			a.Time = a.Time.UTC()
			n.Attempts = append(n.Attempts, a)
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("get attempts: %w", err)
	}
	return n, nil
}

// What a filter chooses; its parameters are $1 to $4.
const chosen = `
           (cardinality($1::text[]) = 0 or d.status = any($1::text[]))
       and ($2::text = '' or d.sink = $2::text)
       and ($3::text = '' or d.task_id = $3::text)
       and ($4::timestamptz is null or d.event_time >= $4::timestamptz)`

func filterArgs(f notification.Filter) []any {
	return []any{texts(f.Statuses), f.Sink, f.TaskID, null(f.Since)}
}

const listSQL = `
    select` + bareColumns + `
      from notification_delivery d
     where` + chosen + `
       and ($5::text = '' or (d.event_time, d.notification_id) < ($6::timestamptz, $5::text))
     order by d.event_time desc, d.notification_id desc
     limit $7::bigint`

// List implements notification.Store.
func (s *Store) List(ctx context.Context, f notification.Filter) (notification.Page, error) {
	var after notification.Position
	if f.After != "" {
		var err error
		if after, err = notification.ParseToken(f.After); err != nil {
			return notification.Page{}, err
		}
	}
	args := append(filterArgs(f), after.ID, null(after.Created), f.Limit+1)
	found, err := find(ctx, s.pool, listSQL, args...)
	if err != nil {
		return notification.Page{}, fmt.Errorf("list notifications: %w", err)
	}
	return notification.NewPage(found, f.Limit), nil
}

const (
	countSQL = `select count(*) from notification_delivery d where` + chosen

	lockChosenSQL = `
    select` + columns + `
      from notification_delivery d
     where` + chosen + ` and d.notification_id > $5::text
     order by d.notification_id
     limit $6::bigint
       for no key update`

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
		d, err := get(ctx, s.pool, r.ID)
		if err == nil && d == nil {
			err = notification.ErrNotFound
		}
		if err != nil || !d.Redrive(r.Actor, time.Time{}) {
			return 0, err
		}
		return 1, nil
	case r.ID != "":
		n, found, err := s.again(ctx, r.Actor, lockOneSQL, r.ID)
		if err == nil && len(found) == 0 {
			err = notification.ErrNotFound
		}
		return n, err
	case r.DryRun:
		err := s.pool.QueryRow(ctx, countSQL, filterArgs(r.Filter)...).Scan(&count)
		return count, err
	}
	// Many small transactions, so that others come to their turn.
	for after := ""; ; {
		n, found, err := s.again(ctx, r.Actor, lockChosenSQL, append(filterArgs(r.Filter), after, redriveBatch)...)
		count += n
		if err != nil || len(found) < redriveBatch {
			return count, err
		}
		after = found[len(found)-1].ID
	}
}

// again redrives what a locking statement finds.
func (s *Store) again(ctx context.Context, actor, query string, args ...any) (n int64, found []*notification.Delivery, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		next, err := lockSequence(ctx, tx)
		if err != nil {
			return err
		}
		var now time.Time
		if found, now, err = lock(ctx, tx, query, args...); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		for _, d := range found {
			if was := holds(d); d.Redrive(actor, now) {
				next.number(d)
				next.save(d, was)
				n++
			}
		}
		return next.send(ctx, tx)
	})
	if err != nil {
		return 0, nil, err
	}
	return n, found, nil
}

const pruneSQL = `
    delete from notification_delivery
     where notification_id in (
           select notification_id
             from notification_delivery
            where due_time is null and event_time < now() - $1::bigint * interval '1 microsecond'
            order by event_time
            limit $2::bigint
              for update skip locked)`

// Prune implements notification.Store.
func (s *Store) Prune(ctx context.Context, retention time.Duration, limit int) (int, error) {
	tag, err := s.pool.Exec(ctx, pruneSQL, retention.Microseconds(), limit)
	if err != nil {
		return 0, fmt.Errorf("prune: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

const (
	statesSQL = `
    select s.sink, coalesce(k.paused, false), coalesce(k.pause_reason, ''),
           (select count(*) from notification_delivery d where d.sink = s.sink and d.due_time is not null),
           (select count(*) from notification_delivery d where d.sink = s.sink and d.status = 'dead_letter')
      from unnest($1::text[]) as s (sink)
      left join notification_sink k on k.sink = s.sink`

	pauseSQL = `
    insert into notification_sink (sink, paused, pause_reason, update_time)
    values ($1, $2, $3, now())
        on conflict on constraint notification_sink_pk do update
       set paused = excluded.paused, pause_reason = excluded.pause_reason, update_time = excluded.update_time`

	resumeSQL = `
      with waiting as materialized (
           select notification_id
             from notification_delivery
            where sink = $1 and due_time > now() and status in ('pending', 'retry')
            order by notification_id
              for no key update)
    update notification_delivery
       set due_time = now()
     where notification_id in (select notification_id from waiting)`
)

// SinkStates implements notification.Store.
func (s *Store) SinkStates(ctx context.Context, sinks []string) (map[string]notification.SinkState, error) {
	states := map[string]notification.SinkState{}
	rows, err := s.pool.Query(ctx, statesSQL, texts(sinks))
	if err == nil {
		var sink string
		var state notification.SinkState
		_, err = pgx.ForEachRow(rows, []any{&sink, &state.Paused, &state.PauseReason, &state.Pending, &state.DeadLetters}, func() error {
			states[sink] = state
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("sink states: %w", err)
	}
	return states, nil
}

// SetPaused implements notification.Store.
func (s *Store) SetPaused(ctx context.Context, sink string, paused bool, why string) error {
	if !paused {
		why = ""
	}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, pauseSQL, sink, paused, why); err != nil || paused {
			return err
		}
		_, err := tx.Exec(ctx, resumeSQL, sink)
		return err
	})
	if err != nil {
		return fmt.Errorf("set paused: %w", err)
	}
	return nil
}
