package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

const (
	lease = `
    update notification_offer o
       set lease_owner = $7, lease_expire_time = now() + $8::bigint * interval '1 microsecond'
      from next
      join notification_delivery d on d.notification_id = next.notification_id
     where o.notification_id = next.notification_id and o.group_name = $2
 returning` + columns

	// What nobody of the group was ever given comes whatever was seen: a reader that met it locked has gone on after it.
	unread = `
              and (lease_expire_time <= now() or lease_owner is null or lease_owner = '' and event_sequence > $5)
            order by event_sequence
            limit $6::bigint
              for no key update skip locked)`

	// An offer goes when its delivery's event changes, so the event that is read fits the offer that is locked.
	nextSQL = `
      with next as materialized (
           select notification_id
             from notification_offer
            where sink = $1 and group_name = $2 and $3::text in ('', user_id) and $4::text in ('', thread_id)` + unread + lease

	// It serves a reader of one scope, whose part of the sink may be small.
	nextInScopeSQL = `
      with next as materialized (
           select notification_id
             from notification_offer
            where sink = $1 and group_name = $2 and user_id = $3 and thread_id = $4` + unread + lease
)

// Next implements notification.Streams.
func (s *Store) Next(ctx context.Context, r notification.StreamRequest) ([]notification.StreamEvent, error) {
	if err := s.join(ctx, r); err != nil {
		return nil, fmt.Errorf("join group: %w", err)
	}
	query := nextSQL
	if r.Scope.UserID != "" && r.Scope.ThreadID != "" {
		query = nextInScopeSQL
	}
	rows, err := s.pool.Query(ctx, query, r.Sink, r.Group, r.Scope.UserID, r.Scope.ThreadID, r.After, max(r.Limit, 0),
		r.Consumer, r.Lease.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("next: %w", err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (notification.StreamEvent, error) {
		d, err := scan(row)
		if err != nil {
			return notification.StreamEvent{}, err
		}
		return notification.StreamEvent{Sequence: d.Sequence, Event: d.Event}, nil
	})
	if err != nil {
		return nil, fmt.Errorf("next: %w", err)
	}
	slices.SortFunc(events, func(a, b notification.StreamEvent) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return events, nil
}

const (
	seenSQL = `
    select seen_time > now() - interval '1 hour'
      from notification_group
     where sink = $1 and user_id = $2 and thread_id = $3 and group_name = $4`

	joinSQL = `
    insert into notification_group (sink, user_id, thread_id, group_name, seen_time)
    values ($1, $2, $3, $4, now())
        on conflict on constraint notification_group_pk do update set seen_time = excluded.seen_time`

	backlogSQL = `
    insert into notification_offer (notification_id, group_name, sink, user_id, thread_id, event_sequence)
    select d.notification_id, $4::text, d.sink, d.user_id, d.thread_id, d.event_sequence
      from notification_delivery d
     where d.sink = $1::text and d.due_time is not null and d.status = 'pending'
       and $2::text in ('', d.user_id) and $3::text in ('', d.thread_id)
        on conflict on constraint notification_offer_pk do nothing`
)

// join makes the group known for a scope, and offers it what waits there, when it first asks.
func (s *Store) join(ctx context.Context, r notification.StreamRequest) error {
	key := []any{r.Sink, r.Scope.UserID, r.Scope.ThreadID, r.Group}
	var recent bool
	err := s.pool.QueryRow(ctx, seenSQL, key...).Scan(&recent)
	switch {
	case err == nil && recent:
		return nil
	case err == nil:
		_, err = s.pool.Exec(ctx, joinSQL, key...)
		return err
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := lockSequence(ctx, tx); err != nil { // what is recorded from here on sees the group
			return err
		}
		if _, err := tx.Exec(ctx, joinSQL, key...); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, backlogSQL, key...)
		return err
	})
}

const (
	lockForTaskSQL = `
    select` + columns + `
      from notification_delivery d
     where d.task_id = $1 and d.sink = $2
       for no key update`

	acknowledgeSQL = `delete from notification_offer where notification_id = $1 and group_name = $2`
)

// Ack implements notification.Streams.
func (s *Store) Ack(ctx context.Context, sink, group, eventID string, scope authn.Scope) error {
	taskID, version, ok := notification.ParseEventID(eventID)
	if !ok {
		return notification.ErrNotFound
	}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		found, now, err := lock(ctx, tx, lockForTaskSQL, taskID, sink)
		if err != nil {
			return err
		}
		if len(found) == 0 || !notification.Admits(scope, found[0].Event.Scope) || version > found[0].Event.Version {
			return notification.ErrNotFound
		}
		d := found[0]
		if version < d.Event.Version {
			return nil
		}
		var w write
		w.Queue(acknowledgeSQL, d.ID, group)
		was := holds(d)
		if attempt, first := d.Acknowledge(version, group, now); first {
			w.save(d, was)
			w.attempt(d.ID, attempt)
		}
		return w.send(ctx, tx)
	})
	if err != nil && !errors.Is(err, notification.ErrNotFound) {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return err
}

// The lease loses its owner and keeps its end, when the event comes again to those who went on after it.
//
// An offer that is locked is acknowledged or withdrawn at this moment. To wait for it could be to wait in a circle.
const releaseSQL = `
      with mine as materialized (
           select notification_id
             from notification_offer
            where sink = $1 and group_name = $2 and lease_owner = $3
              for no key update skip locked)
    update notification_offer o
       set lease_owner = ''
      from mine
     where o.notification_id = mine.notification_id and o.group_name = $2`

// Release implements notification.Streams.
func (s *Store) Release(ctx context.Context, sink, group, consumer string) (int, error) {
	tag, err := s.pool.Exec(ctx, releaseSQL, sink, group, consumer)
	if err != nil {
		return 0, fmt.Errorf("release: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

const (
	forgetSQL = `
    delete from notification_delivery
     where notification_id in (
           select notification_id
             from notification_delivery
            where event_time < now() - $1::bigint * interval '1 microsecond'
              and status = 'pending' and sink <> all($2::text[])
            order by event_time
            limit $3::bigint
              for update skip locked)`

	forgetGroupsSQL = `delete from notification_group where seen_time < now() - $1::bigint * interval '1 microsecond'`

	forgetOffersSQL = `
    delete from notification_offer o
     where not exists (
           select
             from notification_group g
            where g.sink = o.sink and g.group_name = o.group_name
              and g.user_id in ('', o.user_id) and g.thread_id in ('', o.thread_id))`
)

// Forget implements notification.Streams.
func (s *Store) Forget(ctx context.Context, pushed []string, retention time.Duration, limit int) (int, error) {
	tag, err := s.pool.Exec(ctx, forgetSQL, retention.Microseconds(), texts(pushed), limit)
	if err != nil {
		return 0, fmt.Errorf("forget: %w", err)
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := lockSequence(ctx, tx); err != nil { // no group joins meanwhile
			return err
		}
		groups, err := tx.Exec(ctx, forgetGroupsSQL, retention.Microseconds())
		if err != nil || groups.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, forgetOffersSQL)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget groups: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
