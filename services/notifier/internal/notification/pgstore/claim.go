package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

const (
	unpaused = `
           select s.sink
             from unnest($1::text[]) as s (sink)
            where not exists (select from notification_sink k where k.sink = s.sink and k.paused)`

	// Sink by sink, so that what waits for a sink that is not asked for costs nothing. The rows are read where they are
	// locked: read elsewhere they might be older than the lock.
	dueSQL = `
      with due as materialized (
           select d.*
             from (` + unpaused + `) as s,
          lateral (
                  select` + columns + `
                    from notification_delivery d
                   where d.sink = s.sink and d.due_time <= now()
                   order by d.due_time, d.notification_id
                   limit $3::bigint
                     for no key update skip locked) as d),
           redriven as materialized (
           select` + columns + `
             from notification_delivery d
            where d.redriven and d.due_time <= now() and d.sink = any($2::text[])
            order by d.due_time, d.notification_id
            limit $3::bigint
              for no key update skip locked)
    select` + columns + `
      from (select * from due union all select * from redriven) d`
)

// Claim implements notification.Store.
func (s *Store) Claim(ctx context.Context, r notification.ClaimRequest) ([]notification.Claim, error) {
	if r.Limit <= 0 {
		return nil, nil
	}
	var claims []notification.Claim
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		due, now, err := lock(ctx, tx, dueSQL, texts(r.Sinks), texts(r.Known), r.Limit)
		if err != nil {
			return fmt.Errorf("find due: %w", err)
		}
		slices.SortFunc(due, func(a, b *notification.Delivery) int { return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID)) })
		due = slices.CompactFunc(due, func(a, b *notification.Delivery) bool { return a.ID == b.ID })
		var w write
		for _, d := range due[:min(len(due), r.Limit)] {
			was := holds(d)
			c, ok := d.Claim(r.Notifier, now, r.Lease)
			if ok {
				claims = append(claims, c)
			}
			w.save(d, was)
		}
		return w.send(ctx, tx)
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	return claims, nil
}

const lockBareSQL = `
    select` + bareColumns + `
      from notification_delivery d
     where d.notification_id = any($1::text[])
     order by d.notification_id
       for no key update`

// Renew implements notification.Store.
func (s *Store) Renew(ctx context.Context, claims []notification.Claim, lease time.Duration) ([]string, error) {
	var lost []string
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		ids := make([]string, len(claims))
		for i, c := range claims {
			ids[i] = c.ID
		}
		found, now, err := lock(ctx, tx, lockBareSQL, ids)
		if err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		byID := map[string]*notification.Delivery{}
		for _, d := range found {
			byID[d.ID] = d
		}
		var w write
		for _, c := range claims {
			d := byID[c.ID]
			if d == nil || !d.Held(c, now) {
				lost = append(lost, c.ID)
				continue
			}
			d.Due = now.Add(lease)
			w.save(d, holds(d))
		}
		return w.send(ctx, tx)
	})
	if err != nil {
		return nil, fmt.Errorf("renew: %w", err)
	}
	return lost, nil
}

// Settle implements notification.Store.
func (s *Store) Settle(ctx context.Context, o notification.Outcome) (bool, error) {
	settled, err := s.SettleAll(ctx, []notification.Outcome{o})
	if err != nil {
		return false, err
	}
	return settled[0], nil
}

// The event's own body stays as it is and is not read.
const lockAllSQL = `
    select` + stateColumns + `, ''::text as body, d.waiting_body
      from notification_delivery d
     where d.notification_id = any($1::text[])
     order by d.notification_id
       for no key update`

// SettleAll implements notification.Store.
func (s *Store) SettleAll(ctx context.Context, outcomes []notification.Outcome) ([]bool, error) {
	settled := make([]bool, len(outcomes))
	ids := make([]string, len(outcomes))
	for i, o := range outcomes {
		ids[i] = o.Claim.ID
	}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		found, now, err := lock(ctx, tx, lockAllSQL, ids)
		if err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		byID := map[string]*notification.Delivery{}
		for _, d := range found {
			byID[d.ID] = d
		}
		var w write
		for i, o := range outcomes {
			d := byID[o.Claim.ID]
			if d == nil {
				continue
			}
			was := holds(d)
			attempt, ok := d.Settle(o, now)
			if !ok {
				continue
			}
			settled[i] = true
			w.save(d, was)
			w.attempt(d.ID, attempt)
		}
		return w.send(ctx, tx)
	})
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	return settled, nil
}

const nextDueSQL = `
      with due (due_time) as (
           select d.due_time
             from (` + unpaused + `) as s,
          lateral (
                  select d.due_time
                    from notification_delivery d
                   where d.sink = s.sink and d.due_time is not null
                   order by d.due_time
                   limit 1) as d
            union all
           select min(d.due_time)
             from notification_delivery d
            where d.redriven and d.due_time is not null and d.sink = any($1::text[]))
    select (extract(epoch from min(due_time) - now()) * 1000000)::bigint
      from due`

// NextDue implements notification.Store.
func (s *Store) NextDue(ctx context.Context, sinks []string) (time.Duration, bool, error) {
	var micros *int64
	if err := s.pool.QueryRow(ctx, nextDueSQL, texts(sinks)).Scan(&micros); err != nil {
		return 0, false, fmt.Errorf("next due: %w", err)
	}
	if micros == nil {
		return 0, false, nil
	}
	return time.Duration(*micros) * time.Microsecond, true, nil
}
