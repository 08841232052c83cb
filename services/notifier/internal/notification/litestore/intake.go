package litestore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

const (
	forTaskSQL = `
    select` + columns + `
      from notification_delivery d
     where d.task_id = ? and d.sink = ?`

	nextSequenceSQL = `
       update notification_sequence
          set last_sequence = last_sequence + 1
        where sequence_name = 'event'
    returning last_sequence`
)

// Intake implements notification.Store.
func (s *Store) Intake(ctx context.Context, sink string, limit int) (int, error) {
	taken := 0
	// Write transactions come one after another, so sequence numbers are visible in their order.
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		events, err := outbox.TakeSQLite(ctx, tx, limit)
		if err != nil {
			return err
		}
		taken = len(events)
		for _, a := range notification.Address(events, sink) {
			if err := record(ctx, tx, a); err != nil {
				return fmt.Errorf("event %s: %w", a.Event.ID, err)
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("intake: %w", err)
	}
	return taken, nil
}

func record(ctx context.Context, tx *sql.Tx, a notification.Addressed) error {
	found, err := find(ctx, tx, forTaskSQL, a.Event.TaskID, a.Sink)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		d := notification.NewDelivery(a.Sink, a.Event, now())
		if err := number(ctx, tx, d); err != nil {
			return err
		}
		if err := write(ctx, tx, insertSQL, d); err != nil {
			return err
		}
		return offer(ctx, tx, d)
	}
	d := found[0]
	if !d.Record(a.Event, now()) {
		return nil
	}
	return renumber(ctx, tx, d)
}

// renumber saves d, whose event has changed or is to come again, under the next sequence number.
func renumber(ctx context.Context, tx *sql.Tx, d *notification.Delivery) error {
	if err := number(ctx, tx, d); err != nil {
		return err
	}
	if err := write(ctx, tx, saveSQL, d); err != nil {
		return err
	}
	return offer(ctx, tx, d)
}

func number(ctx context.Context, tx *sql.Tx, d *notification.Delivery) error {
	return tx.QueryRowContext(ctx, nextSequenceSQL).Scan(&d.Sequence)
}
