package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

const (
	// Held until the commit, so that sequence numbers become visible in their order, and so that nobody else adds a
	// delivery, or a group of readers, between a look and a write.
	lockSequenceSQL = `select last_sequence from notification_sequence where sequence_name = 'event' for no key update`

	// Who stops in the middle with the lock, such as a host that lost its power, must not stop everyone. The setting ends
	// with the transaction.
	limitIdleSQL = `select set_config('idle_in_transaction_session_timeout', '30s', true)`

	saveSequenceSQL = `update notification_sequence set last_sequence = $1 where sequence_name = 'event'`

	lockForTasksSQL = `
    select` + columns + `
      from notification_delivery d
      join unnest($1::text[], $2::text[]) as r (task_id, sink)
        on d.task_id = r.task_id and d.sink = r.sink
     order by d.notification_id
       for no key update of d`
)

// Intake implements notification.Store.
func (s *Store) Intake(ctx context.Context, sink string, limit int) (int, error) {
	taken := 0
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		events, err := outbox.TakePostgres(ctx, tx, limit)
		taken = len(events)
		if err != nil || taken == 0 {
			return err
		}
		return record(ctx, tx, notification.Address(events, sink))
	})
	if err != nil {
		return 0, fmt.Errorf("intake: %w", err)
	}
	return taken, nil
}

func record(ctx context.Context, tx pgx.Tx, addressed []notification.Addressed) error {
	next, err := lockSequence(ctx, tx)
	if err != nil {
		return err
	}
	var tasks, sinks []string
	for _, a := range addressed {
		tasks, sinks = append(tasks, a.Event.TaskID), append(sinks, a.Sink)
	}
	found, now, err := lock(ctx, tx, lockForTasksSQL, tasks, sinks)
	if err != nil {
		return fmt.Errorf("lock deliveries: %w", err)
	}
	known := map[[2]string]*notification.Delivery{}
	for _, d := range found {
		known[[2]string{d.Event.TaskID, d.Sink}] = d
	}
	for _, a := range addressed {
		next.record(known[[2]string{a.Event.TaskID, a.Sink}], a, now)
	}
	return next.send(ctx, tx)
}

// numbered is a batch of deliveries that get the next sequence numbers.
type numbered struct {
	write
	last int64
	ids  []string
}

func lockSequence(ctx context.Context, tx pgx.Tx) (*numbered, error) {
	var n numbered
	var batch pgx.Batch
	batch.Queue(limitIdleSQL)
	batch.Queue(lockSequenceSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&n.last) })
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("lock sequence: %w", err)
	}
	return &n, nil
}

// record records an event; d is nil if the task has no delivery to the sink.
func (n *numbered) record(d *notification.Delivery, a notification.Addressed, now time.Time) {
	if d == nil {
		d = notification.NewDelivery(a.Sink, a.Event, now)
		n.number(d)
		n.insert(d)
		return
	}
	if was := holds(d); d.Record(a.Event, now) {
		n.number(d)
		n.save(d, was)
	}
}

func (n *numbered) number(d *notification.Delivery) {
	n.last++
	d.Sequence = n.last
	n.ids = append(n.ids, d.ID)
}

const (
	withdrawSQL = `delete from notification_offer where notification_id = any($1::text[])`

	// A group that reads the event's scope by several names gets it once.
	offerSQL = `
    insert into notification_offer (notification_id, group_name, sink, user_id, thread_id, event_sequence)
    select distinct d.notification_id, g.group_name, d.sink, d.user_id, d.thread_id, d.event_sequence
      from notification_delivery d
     cross join lateral (values ('', ''), (d.user_id, ''), ('', d.thread_id), (d.user_id, d.thread_id)) as asked (user_id, thread_id)
      join notification_group g
        on g.sink = d.sink and g.user_id = asked.user_id and g.thread_id = asked.thread_id
     where d.notification_id = any($1::text[]) and d.status = 'pending'`
)

// send writes the batch and makes its events known to the groups that read their sinks, in place of what they were
// offered before.
func (n *numbered) send(ctx context.Context, tx pgx.Tx) error {
	if len(n.ids) == 0 {
		return nil
	}
	n.queueSaves()
	n.Queue(withdrawSQL, n.ids)
	n.Queue(offerSQL, n.ids)
	n.Queue(saveSequenceSQL, n.last)
	return n.write.send(ctx, tx)
}
