package pgstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

const (
	insertSQL = `
    insert into notification_delivery (notification_id, sink, event_sequence,
           status, due_time, lease_owner, fence, dispatch_attempt, dispatch_run_id, failure_count,
           attempt_number, last_error, deliver_time, redriven, redrive_time, redrive_actor,
           task_id, user_id, thread_id, task_name, run_id, traceparent,
           event_version, body, event_time, waiting_version, waiting_body, waiting_time)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
           $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28)`

	// One statement for all of a batch: what loops write costs little more than what they are about.
	saveStatesSQL = `
    update notification_delivery d
       set event_sequence = u.event_sequence, status = u.status, due_time = u.due_time, lease_owner = u.lease_owner, fence = u.fence,
           dispatch_attempt = u.dispatch_attempt, dispatch_run_id = u.dispatch_run_id, failure_count = u.failure_count,
           attempt_number = u.attempt_number, last_error = u.last_error, deliver_time = u.deliver_time,
           redriven = u.redriven, redrive_time = u.redrive_time, redrive_actor = u.redrive_actor
      from unnest($1::text[], $2::bigint[], $3::text[], $4::timestamptz[], $5::text[], $6::bigint[],
                  $7::integer[], $8::text[], $9::integer[], $10::bigint[], $11::text[], $12::timestamptz[],
                  $13::boolean[], $14::timestamptz[], $15::text[])
        as u (notification_id, event_sequence, status, due_time, lease_owner, fence,
              dispatch_attempt, dispatch_run_id, failure_count, attempt_number, last_error, deliver_time,
              redriven, redrive_time, redrive_actor)
     where d.notification_id = u.notification_id`

	saveSQL = `
    update notification_delivery
       set sink = $2, event_sequence = $3, status = $4, due_time = $5, lease_owner = $6, fence = $7,
           dispatch_attempt = $8, dispatch_run_id = $9, failure_count = $10,
           attempt_number = $11, last_error = $12, deliver_time = $13,
           redriven = $14, redrive_time = $15, redrive_actor = $16,
           task_id = $17, user_id = $18, thread_id = $19, task_name = $20, run_id = $21, traceparent = $22,
           event_version = $23, body = $24, event_time = $25, waiting_version = $26, waiting_body = $27, waiting_time = $28
     where notification_id = $1`
)

// write is a batch of changes. Those of states alone, and new attempts, become one statement each when it is sent.
type write struct {
	pgx.Batch
	states   []*notification.Delivery
	whole    []*notification.Delivery
	attempts []attemptRow
}

type attemptRow struct {
	id string
	*notification.Attempt
}

func stateArgs(d *notification.Delivery) []any {
	return []any{d.ID, d.Sink, d.Sequence, string(d.Status), null(d.Due), lessee(d), d.Fence, d.DispatchAttempt, d.RunID, d.Failures,
		d.AttemptNumber, d.LastError, null(d.Delivered), d.Redriven, null(d.RedriveTime), d.RedriveActor}
}

func eventArgs(d *notification.Delivery) []any {
	e := d.Event
	args := []any{e.TaskID, e.Scope.UserID, e.Scope.ThreadID, e.TaskName, e.RunID, e.Traceparent, e.Version, string(e.Body), e.Created}
	if w := d.Waiting; w != nil {
		return append(args, w.Version, string(w.Body), w.Created)
	}
	return append(args, nil, nil, nil)
}

func (w *write) insert(d *notification.Delivery) {
	w.Queue(insertSQL, append(stateArgs(d), eventArgs(d)...)...)
}

// save writes d as it is when the batch is sent, and its events only where they are not those of was: they are large.
func (w *write) save(d *notification.Delivery, was held) {
	list := &w.states
	if holds(d) != was {
		list = &w.whole
	}
	if !slices.Contains(*list, d) {
		*list = append(*list, d)
	}
}

// queueSaves queues what was saved so far, for statements after it that look at it.
func (w *write) queueSaves() {
	for _, d := range w.whole {
		w.Queue(saveSQL, append(stateArgs(d), eventArgs(d)...)...)
	}
	var c columnsOf
	for _, d := range w.states {
		if !slices.Contains(w.whole, d) {
			c.add(d)
		}
	}
	if len(c.ids) > 0 {
		w.Queue(saveStatesSQL, c.ids, c.sequences, c.statuses, c.due, c.lessees, c.fences, c.dispatchAttempts, c.runIDs, c.failures,
			c.attemptNumbers, c.errors, c.delivered, c.redriven, c.redriveTimes, c.redriveActors)
	}
	w.whole, w.states = nil, nil
}

// columnsOf are the states of deliveries, column by column.
type columnsOf struct {
	ids, statuses, runIDs, errors, redriveActors []string
	sequences, fences, attemptNumbers            []int64
	dispatchAttempts, failures                   []int32
	lessees                                      []*string
	due, delivered, redriveTimes                 []*time.Time
	redriven                                     []bool
}

func (c *columnsOf) add(d *notification.Delivery) {
	c.ids = append(c.ids, d.ID)
	c.sequences = append(c.sequences, d.Sequence)
	c.statuses = append(c.statuses, string(d.Status))
	c.due = append(c.due, null(d.Due))
	c.lessees = append(c.lessees, lessee(d))
	c.fences = append(c.fences, d.Fence)
	c.dispatchAttempts = append(c.dispatchAttempts, int32(d.DispatchAttempt))
	c.runIDs = append(c.runIDs, d.RunID)
	c.failures = append(c.failures, int32(d.Failures))
	c.attemptNumbers = append(c.attemptNumbers, d.AttemptNumber)
	c.errors = append(c.errors, d.LastError)
	c.delivered = append(c.delivered, null(d.Delivered))
	c.redriven = append(c.redriven, d.Redriven)
	c.redriveTimes = append(c.redriveTimes, null(d.RedriveTime))
	c.redriveActors = append(c.redriveActors, d.RedriveActor)
}

func lessee(d *notification.Delivery) *string {
	if d.Lessee == "" {
		return nil
	}
	return &d.Lessee
}

// held are the versions of the events that a delivery holds.
type held struct{ event, waiting int64 }

func holds(d *notification.Delivery) held {
	h := held{event: d.Event.Version}
	if d.Waiting != nil {
		h.waiting = d.Waiting.Version
	}
	return h
}

const (
	addAttemptsSQL = `
    insert into notification_attempt (notification_id, attempt_number, event_version, end_time, outcome, sink_status, excerpt)
    select notification_id, attempt_number, event_version, end_time, outcome, sink_status, excerpt
      from unnest($1::text[], $2::bigint[], $3::bigint[], $4::timestamptz[], $5::text[], $6::text[], $7::text[])
        as u (notification_id, attempt_number, event_version, end_time, outcome, sink_status, excerpt)`

	thinAttemptsSQL = `delete from notification_attempt where notification_id = $1 and attempt_number <= $2`
)

func (w *write) attempt(id string, a *notification.Attempt) {
	if a != nil {
		w.attempts = append(w.attempts, attemptRow{id, a})
	}
}

func (w *write) queueAttempts() {
	if len(w.attempts) == 0 {
		return
	}
	var (
		ids, outcomes, statuses, excerpts []string
		numbers, versions                 []int64
		times                             []time.Time
	)
	for _, a := range w.attempts {
		ids, numbers, versions, times = append(ids, a.id), append(numbers, a.Number), append(versions, a.EventVersion), append(times, a.Time)
		outcomes, statuses, excerpts = append(outcomes, a.Outcome), append(statuses, a.Status), append(excerpts, a.Excerpt)
		if excess := a.Number - notification.MaxAttempts; excess > 0 {
			w.Queue(thinAttemptsSQL, a.id, excess)
		}
	}
	w.Queue(addAttemptsSQL, ids, numbers, versions, times, outcomes, statuses, excerpts)
}

func (w *write) send(ctx context.Context, tx pgx.Tx) error {
	w.queueSaves()
	w.queueAttempts()
	if w.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, &w.Batch).Close(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
