package litestore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

const (
	pausedSQL = `select sink from notification_sink where paused`

	dueSQL = `
    select` + columns + `
      from notification_delivery d
     where d.sink = ? and d.due_time <= ?
     order by d.due_time, d.notification_id
     limit ?`

	redrivenDueSQL = `
    select` + columns + `
      from notification_delivery d
     where d.redriven and d.due_time <= ? and d.sink in (select value from json_each(?))
     order by d.due_time, d.notification_id
     limit ?`
)

// Claim implements notification.Store.
func (s *Store) Claim(ctx context.Context, r notification.ClaimRequest) ([]notification.Claim, error) {
	var claims []notification.Claim
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		at := now()
		due, err := due(ctx, tx, r, at)
		if err != nil {
			return fmt.Errorf("find due: %w", err)
		}
		for _, d := range due {
			c, ok := d.Claim(r.Notifier, at, r.Lease)
			if ok {
				claims = append(claims, c)
			}
			if err := write(ctx, tx, saveSQL, d); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	return claims, nil
}

// due returns what may be claimed, by due time, then id.
func due(ctx context.Context, tx *sql.Tx, r notification.ClaimRequest, at time.Time) ([]*notification.Delivery, error) {
	if r.Limit <= 0 {
		return nil, nil
	}
	sinks, err := open(ctx, tx, r.Sinks)
	if err != nil {
		return nil, err
	}
	all, err := find(ctx, tx, redrivenDueSQL, at.UnixMilli(), list(r.Known), r.Limit)
	if err != nil {
		return nil, err
	}
	for _, sink := range sinks {
		more, err := find(ctx, tx, dueSQL, sink, at.UnixMilli(), r.Limit)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	slices.SortFunc(all, func(a, b *notification.Delivery) int { return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID)) })
	all = slices.CompactFunc(all, func(a, b *notification.Delivery) bool { return a.ID == b.ID })
	return all[:min(len(all), r.Limit)], nil
}

// open returns those of sinks that are not paused, each once.
func open(ctx context.Context, q querier, sinks []string) ([]string, error) {
	rows, err := q.QueryContext(ctx, pausedSQL)
	if err != nil {
		return nil, err
	}
	paused, err := collect(rows, func(rows *sql.Rows) (sink string, err error) { return sink, rows.Scan(&sink) })
	if err != nil {
		return nil, err
	}
	sinks = slices.DeleteFunc(slices.Clone(sinks), func(sink string) bool { return slices.Contains(paused, sink) })
	slices.Sort(sinks)
	return slices.Compact(sinks), nil
}

// Renew implements notification.Store.
func (s *Store) Renew(ctx context.Context, claims []notification.Claim, lease time.Duration) ([]string, error) {
	var lost []string
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		at := now()
		for _, c := range claims {
			d, err := get(ctx, tx, c.ID)
			if err != nil {
				return err
			}
			if d == nil || !d.Held(c, at) {
				lost = append(lost, c.ID)
				continue
			}
			d.Due = at.Add(lease)
			if err := write(ctx, tx, saveSQL, d); err != nil {
				return err
			}
		}
		return nil
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

// SettleAll implements notification.Store.
func (s *Store) SettleAll(ctx context.Context, outcomes []notification.Outcome) ([]bool, error) {
	settled := make([]bool, len(outcomes))
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		for i, o := range outcomes {
			d, err := get(ctx, tx, o.Claim.ID)
			if err != nil {
				return err
			}
			if d == nil {
				continue
			}
			attempt, ok := d.Settle(o, now())
			if !ok {
				continue
			}
			settled[i] = true
			if err := write(ctx, tx, saveSQL, d); err != nil {
				return err
			}
			if err := addAttempt(ctx, tx, d.ID, attempt); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	return settled, nil
}

const (
	firstDueSQL = `select min(due_time) from notification_delivery where sink = ? and due_time is not null`

	firstRedrivenSQL = `
    select min(due_time)
      from notification_delivery
     where redriven and due_time is not null and sink in (select value from json_each(?))`
)

// NextDue implements notification.Store.
func (s *Store) NextDue(ctx context.Context, sinks []string) (time.Duration, bool, error) {
	first, err := s.firstDue(ctx, sinks)
	if err != nil {
		return 0, false, fmt.Errorf("next due: %w", err)
	}
	if first.IsZero() {
		return 0, false, nil
	}
	return first.Sub(now()), true, nil
}

func (s *Store) firstDue(ctx context.Context, sinks []string) (time.Time, error) {
	unpaused, err := open(ctx, s.db.Read(), sinks)
	if err != nil {
		return time.Time{}, err
	}
	var first sql.NullInt64
	if err := s.db.Read().QueryRowContext(ctx, firstRedrivenSQL, list(sinks)).Scan(&first); err != nil {
		return time.Time{}, err
	}
	for _, sink := range unpaused {
		var t sql.NullInt64
		if err := s.db.Read().QueryRowContext(ctx, firstDueSQL, sink).Scan(&t); err != nil {
			return time.Time{}, err
		}
		if t.Valid && (!first.Valid || t.Int64 < first.Int64) {
			first = t
		}
	}
	return optional(first), nil
}
