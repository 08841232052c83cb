package litestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

const (
	withdrawSQL = `delete from notification_offer where notification_id = ?`

	// A group that reads the event's scope by several names gets it once.
	offerSQL = `
    insert into notification_offer (notification_id, group_name, sink, user_id, thread_id, event_sequence)
    select distinct ?1, g.group_name, g.sink, ?3, ?4, ?5
      from notification_group g
     where g.sink = ?2 and g.user_id in ('', ?3) and g.thread_id in ('', ?4)`
)

// offer makes d's event known to the groups that read its sink, in place of what they were offered for it before.
func offer(ctx context.Context, tx *sql.Tx, d *notification.Delivery) error {
	if _, err := tx.ExecContext(ctx, withdrawSQL, d.ID); err != nil {
		return fmt.Errorf("withdraw offers: %w", err)
	}
	if d.Status != notification.Pending {
		return nil
	}
	scope := d.Event.Scope
	if _, err := tx.ExecContext(ctx, offerSQL, d.ID, d.Sink, scope.UserID, scope.ThreadID, d.Sequence); err != nil {
		return fmt.Errorf("offer: %w", err)
	}
	return nil
}

const (
	seenSQL = `
    select seen_time
      from notification_group
     where sink = ? and user_id = ? and thread_id = ? and group_name = ?`

	joinSQL = `
    insert into notification_group (sink, user_id, thread_id, group_name, seen_time)
    values (?, ?, ?, ?, ?)
        on conflict (sink, user_id, thread_id, group_name) do update set seen_time = excluded.seen_time`

	backlogSQL = `
    insert into notification_offer (notification_id, group_name, sink, user_id, thread_id, event_sequence)
    select d.notification_id, ?4, d.sink, d.user_id, d.thread_id, d.event_sequence
      from notification_delivery d
     where d.sink = ?1 and d.due_time is not null and d.status = 'pending'
       and ?2 in ('', d.user_id) and ?3 in ('', d.thread_id)
        on conflict (notification_id, group_name) do nothing`

	// The second form serves a reader of one scope, whose part may be small.
	offeredSQL = `
    select notification_id, event_sequence
      from notification_offer
     where sink = ?1 and group_name = ?2 and ?3 in ('', user_id) and ?4 in ('', thread_id)
       and (lease_expire_time <= ?5 or lease_owner is null or lease_owner = '' and event_sequence > ?6)
     order by event_sequence
     limit ?7`

	offeredInScopeSQL = `
    select notification_id, event_sequence
      from notification_offer
     where sink = ?1 and group_name = ?2 and user_id = ?3 and thread_id = ?4
       and (lease_expire_time <= ?5 or lease_owner is null or lease_owner = '' and event_sequence > ?6)
     order by event_sequence
     limit ?7`

	leaseOfferSQL = `
    update notification_offer
       set lease_owner = ?, lease_expire_time = ?
     where notification_id = ? and group_name = ?`
)

// touchInterval is how old the record that a group was seen may be.
const touchInterval = time.Hour

// Next implements notification.Streams.
func (s *Store) Next(ctx context.Context, r notification.StreamRequest) ([]notification.StreamEvent, error) {
	if err := s.join(ctx, r); err != nil {
		return nil, fmt.Errorf("join group: %w", err)
	}
	// A look without the write lock: most of the time there is nothing.
	if some, err := s.offered(ctx, s.db.Read(), r, 1); err != nil || len(some) == 0 {
		return nil, err
	}
	var events []notification.StreamEvent
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		offers, err := s.offered(ctx, tx, r, r.Limit)
		if err != nil {
			return err
		}
		until := now().Add(r.Lease).UnixMilli()
		for _, o := range offers {
			if _, err := tx.ExecContext(ctx, leaseOfferSQL, r.Consumer, until, o.id, r.Group); err != nil {
				return err
			}
			d, err := get(ctx, tx, o.id)
			if err != nil {
				return err
			}
			events = append(events, notification.StreamEvent{Sequence: o.sequence, Event: d.Event})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("next: %w", err)
	}
	return events, nil
}

type offered struct {
	id       string
	sequence int64
}

func (s *Store) offered(ctx context.Context, q querier, r notification.StreamRequest, limit int) ([]offered, error) {
	query := offeredSQL
	if r.Scope.UserID != "" && r.Scope.ThreadID != "" {
		query = offeredInScopeSQL
	}
	rows, err := q.QueryContext(ctx, query, r.Sink, r.Group, r.Scope.UserID, r.Scope.ThreadID, now().UnixMilli(), r.After, max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("find offers: %w", err)
	}
	return collect(rows, func(rows *sql.Rows) (o offered, err error) { return o, rows.Scan(&o.id, &o.sequence) })
}

// join makes the group known for a scope, and offers it what waits there, when it first asks.
func (s *Store) join(ctx context.Context, r notification.StreamRequest) error {
	key := []any{r.Sink, r.Scope.UserID, r.Scope.ThreadID, r.Group}
	var seen int64
	err := s.db.Read().QueryRowContext(ctx, seenSQL, key...).Scan(&seen)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	known := err == nil
	at := now()
	if known && at.Sub(utc(seen)) < touchInterval {
		return nil
	}
	return s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, joinSQL, append(key, at.UnixMilli())...); err != nil || known {
			return err
		}
		_, err := tx.ExecContext(ctx, backlogSQL, key...)
		return err
	})
}

const acknowledgeSQL = `delete from notification_offer where notification_id = ? and group_name = ?`

// Ack implements notification.Streams.
func (s *Store) Ack(ctx context.Context, sink, group, eventID string, scope authn.Scope) error {
	taskID, version, ok := notification.ParseEventID(eventID)
	if !ok {
		return notification.ErrNotFound
	}
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		found, err := find(ctx, tx, forTaskSQL, taskID, sink)
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
		if _, err := tx.ExecContext(ctx, acknowledgeSQL, d.ID, group); err != nil {
			return err
		}
		attempt, first := d.Acknowledge(version, group, now())
		if !first {
			return nil
		}
		if err := write(ctx, tx, saveSQL, d); err != nil {
			return err
		}
		return addAttempt(ctx, tx, d.ID, attempt)
	})
	if err != nil && !errors.Is(err, notification.ErrNotFound) {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return err
}

// The lease loses its owner and keeps its end, when the event comes again to those who went on after it.
const releaseSQL = `
    update notification_offer
       set lease_owner = ''
     where sink = ? and group_name = ? and lease_owner = ?`

// Release implements notification.Streams.
func (s *Store) Release(ctx context.Context, sink, group, consumer string) (int, error) {
	n, err := affected(s.db.SQL().ExecContext(ctx, releaseSQL, sink, group, consumer))
	if err != nil {
		return 0, fmt.Errorf("release: %w", err)
	}
	return int(n), nil
}

const (
	forgetSQL = `
    delete from notification_delivery
     where notification_id in (
           select notification_id
             from notification_delivery
            where event_time < ?1 and status = 'pending' and sink not in (select value from json_each(?2))
            order by event_time
            limit ?3)`

	forgetGroupsSQL = `delete from notification_group where seen_time < ?`

	forgetOffersSQL = `
    delete from notification_offer as o
     where not exists (
           select 1
             from notification_group g
            where g.sink = o.sink and g.group_name = o.group_name
              and g.user_id in ('', o.user_id) and g.thread_id in ('', o.thread_id))`
)

// Forget implements notification.Streams.
func (s *Store) Forget(ctx context.Context, pushed []string, retention time.Duration, limit int) (int, error) {
	var forgotten int64
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		before := now().Add(-retention).UnixMilli()
		n, err := affected(tx.ExecContext(ctx, forgetSQL, before, list(pushed), limit))
		if err != nil {
			return fmt.Errorf("deliveries: %w", err)
		}
		forgotten = n
		if n, err = affected(tx.ExecContext(ctx, forgetGroupsSQL, before)); err != nil || n == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, forgetOffersSQL)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget: %w", err)
	}
	return int(forgotten), nil
}

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
