package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

const liveColumns = `
           t.task_id, t.task_name, t.server, t.user_id, t.thread_id, t.run_id, t.tool_call_id, t.notify_sink, t.traceparent,
           t.status, t.status_message, t.progress_current, t.progress_total, t.version, t.event_version, t.event_fingerprint,
           t.input_round, t.input_required_json, t.tracking_degraded, t.cancel_requested_time, t.create_time, t.update_time,
           t.expire_time, t.expire_limit_time, l.fence, l.due_time, l.lease_kind, l.poll_time, l.cancel_time, l.last_poll_time,
           l.last_poll_error, l.error_count, l.unchanged_count, l.cancel_failure_count, l.attempt_count`

func scanLive(row pgx.CollectableRow) (*task.Live, error) {
	var l task.Live
	var current, total *float64
	var input []byte
	var lease *string
	var cancelled, expires, limit, poll, cancel, lastPoll pgtype.Timestamptz
	err := row.Scan(&l.ID, &l.Name, &l.Server, &l.Scope.UserID, &l.Scope.ThreadID, &l.RunID, &l.ToolCallID, &l.NotifySink, &l.Traceparent,
		&l.Status, &l.StatusMessage, &current, &total, &l.Version, &l.EventVersion, &l.EventFingerprint,
		&l.InputRound, &input, &l.TrackingDegraded, &cancelled, &l.Created, &l.Updated,
		&expires, &limit, &l.Fence, &l.Due, &lease, &poll, &cancel, &lastPoll,
		&l.LastPollError, &l.Errors, &l.Unchanged, &l.CancelFailures, &l.AttemptCount)
	if err != nil {
		return nil, err
	}
	if current != nil {
		l.Progress = &task.Progress{Current: *current, Total: total}
	}
	if lease != nil {
		l.Lease = task.Lease(*lease)
	}
	l.InputRequired = input
	l.Created, l.Updated, l.Due = l.Created.UTC(), l.Updated.UTC(), l.Due.UTC()
	l.CancelRequested, l.Expires, l.ExpireLimit = utc(cancelled), utc(expires), utc(limit)
	l.Poll, l.Cancel, l.LastPoll = utc(poll), utc(cancel), utc(lastPoll)
	l.NextPoll = task.NextCall(l.Poll, l.Cancel)
	return &l, nil
}

const (
	// What is locked, and not skipped, is read in a statement that follows: its snapshot is younger than the locks.
	lockSQL = `
    select task_id
      from task_live
     where task_id = any($1::text[])
     order by task_id
       for update`

	lockFreeSQL = lockSQL + ` skip locked`

	liveSQL = `
    select ` + liveColumns + `
      from task_live l
      join task_task t on t.task_id = l.task_id
     where l.task_id = any($1::text[])`
)

// lives are tasks that are not final.
type lives struct {
	locked map[string]*task.Live
	others []string // those that are locked by someone else
	now    time.Time
}

// lockWaitSQL bounds how long a row is waited for that someone else has locked. The setting ends with the transaction.
const lockWaitSQL = `select set_config('lock_timeout', '3s', true)`

// lock locks those of the tasks that are not final, waiting for each or skipping it, by sql.
func lock(ctx context.Context, tx pgx.Tx, sql string, ids []string) (lives, error) {
	out := lives{locked: map[string]*task.Live{}}
	var got []string
	var found []*task.Live
	var b pgx.Batch
	if sql == lockSQL {
		b.Queue(lockWaitSQL)
	}
	ask(&b, &got, pgx.RowTo[string], sql, ids)
	ask(&b, &found, scanLive, liveSQL, ids)
	askTime(&b, &out.now)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return out, fmt.Errorf("lock: %w", err)
	}
	mine := make(map[string]bool, len(got))
	for _, id := range got {
		mine[id] = true
	}
	for _, l := range found {
		if mine[l.ID] {
			out.locked[l.ID] = l
		} else {
			out.others = append(out.others, l.ID)
		}
	}
	return out, nil
}

// birth is what a row of a task holds beside what the rules know.
type birth struct {
	task.Intent
	fence     int64
	unasked   bool
	handle    []byte
	remoteID  string
	committed time.Time
}

const (
	addTaskSQL = `
    insert into task_task (
           task_id, reserve_fence, principal, user_id, thread_id, request_id, request_hash, fingerprint, server, task_name,
           run_id, tool_call_id, notify_sink, traceparent, unasked, handle, remote_id, status, status_message,
           version, event_version, event_fingerprint, input_round, is_error, failure_reason, error,
           result_preview, result_stored, result_truncated, tracking_degraded, last_poll_error,
           create_time, commit_time, update_time, end_time, expire_time, expire_limit_time)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, '',
           $19, $20, $21, 0, false, $22, $23, '', false, false, false, '', $24, $25, $26, $27, $28, $29)`

	addLiveSQL = `
    insert into task_live (
           task_id, fence, due_time, poll_time, last_poll_error, error_count, unchanged_count, cancel_failure_count, attempt_count)
    values ($1, $2, $3, $4, '', 0, 0, 0, 0)`

	// A task of which only the schedule changes costs a row here and nothing else.
	moveSQL = `
    update task_live l
       set fence = u.fence, due_time = u.due_time, lease_kind = u.lease_kind, poll_time = u.poll_time, cancel_time = u.cancel_time,
           last_poll_time = u.last_poll_time, last_poll_error = u.last_poll_error, error_count = u.error_count,
           unchanged_count = u.unchanged_count, cancel_failure_count = u.cancel_failure_count, attempt_count = u.attempt_count
      from unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
                  $8::text[], $9::integer[], $10::integer[], $11::integer[], $12::bigint[])
        as u (task_id, fence, due_time, lease_kind, poll_time, cancel_time, last_poll_time, last_poll_error, error_count,
              unchanged_count, cancel_failure_count, attempt_count)
     where l.task_id = u.task_id`

	dropLiveSQL = `delete from task_live where task_id = any($1::text[])`

	changeSQL = `
    update task_task
       set status = $2, status_message = $3, progress_current = $4, progress_total = $5, version = $6, event_version = $7,
           event_fingerprint = $8, input_round = $9, is_error = $10, failure_reason = $11, error = $12, result_json = $13,
           result_preview = $14, result_stored = $15, result_truncated = $16, result_artifact_json = $17, input_required_json = $18,
           tracking_degraded = $19, cancel_requested_time = $20, last_poll_time = $21, last_poll_error = $22, update_time = $23,
           end_time = $24, expire_time = $25
     where task_id = $1`

	addResultSQL = `insert into task_result (task_id, result) values ($1, $2)`

	// The oldest attempt makes room for the newest.
	addAttemptsSQL = `
    insert into task_attempt (task_id, slot, number, kind, end_time, worker, outcome, next_due_time)
    select task_id, number % $8, number, kind, end_time, worker, outcome, next_due_time
      from unnest($1::text[], $2::bigint[], $3::text[], $4::timestamptz[], $5::text[], $6::text[], $7::timestamptz[])
        as u (task_id, number, kind, end_time, worker, outcome, next_due_time)
        on conflict (task_id, slot) do update
       set number = excluded.number, kind = excluded.kind, end_time = excluded.end_time, worker = excluded.worker,
           outcome = excluded.outcome, next_due_time = excluded.next_due_time`
)

// writes collects what steps of the rules have to write, in few statements.
type writes struct {
	batch    pgx.Batch
	moved    moves
	dropped  []string
	attempts attempts
	events   []outbox.Event
}

// moves are the columns of moveSQL.
type moves struct {
	id                                    []string
	fence                                 []int64
	due                                   []time.Time
	lease                                 []*string
	poll, cancel, lastPoll                []*time.Time
	lastError                             []string
	errorCount, unchanged, cancelFailures []int32
	attempts                              []int64
}

// attempts are the columns of addAttemptsSQL.
type attempts struct {
	id      []string
	number  []int64
	kind    []string
	end     []time.Time
	worker  []string
	outcome []string
	next    []*time.Time
}

// add writes a task that is born.
func (w *writes) add(l *task.Live, step task.Step, n birth) {
	w.batch.Queue(addTaskSQL,
		l.ID, n.fence, n.Principal, l.Scope.UserID, l.Scope.ThreadID, n.RequestID, n.RequestHash, n.Fingerprint, l.Server, l.Name,
		l.RunID, l.ToolCallID, l.NotifySink, l.Traceparent, n.unasked, n.handle, nullable(n.remoteID), string(l.Status),
		l.Version, l.EventVersion, l.EventFingerprint, l.FailureReason, l.Error,
		l.Created, stamp(n.committed), l.Updated, stamp(l.Ended), stamp(l.Expires), stamp(l.ExpireLimit))
	if !l.Status.Terminal() {
		w.batch.Queue(addLiveSQL, l.ID, l.Fence, l.Due, stamp(l.Poll))
	}
	w.announce(step)
}

func (w *writes) announce(step task.Step) {
	if step.Event != nil {
		w.events = append(w.events, *step.Event)
	}
}

// save writes what a step did to a task.
func (w *writes) save(l *task.Live, step task.Step) {
	if a := step.Attempt; a != nil {
		t := &w.attempts
		t.id, t.number = append(t.id, l.ID), append(t.number, l.AttemptCount)
		t.kind, t.end = append(t.kind, string(a.Kind)), append(t.end, a.Time)
		t.worker, t.outcome, t.next = append(t.worker, a.Worker), append(t.outcome, a.Outcome), append(t.next, stamp(a.NextDue))
	}
	if step.Changed || step.Event != nil {
		w.change(l, step.Beside)
	}
	switch {
	case !step.Moved:
	case l.Status.Terminal():
		w.dropped = append(w.dropped, l.ID)
	default:
		m := &w.moved
		m.id, m.fence, m.due = append(m.id, l.ID), append(m.fence, l.Fence), append(m.due, l.Due)
		m.lease, m.lastError = append(m.lease, nullable(l.Lease)), append(m.lastError, l.LastPollError)
		m.poll, m.cancel, m.lastPoll = append(m.poll, stamp(l.Poll)), append(m.cancel, stamp(l.Cancel)), append(m.lastPoll, stamp(l.LastPoll))
		m.errorCount, m.unchanged = append(m.errorCount, int32(l.Errors)), append(m.unchanged, int32(l.Unchanged))
		m.cancelFailures, m.attempts = append(m.cancelFailures, int32(l.CancelFailures)), append(m.attempts, l.AttemptCount)
	}
	w.announce(step)
}

func (w *writes) change(l *task.Live, beside json.RawMessage) {
	var current, total *float64
	if l.Progress != nil {
		current, total = &l.Progress.Current, l.Progress.Total
	}
	w.batch.Queue(changeSQL,
		l.ID, string(l.Status), l.StatusMessage, current, total, l.Version, l.EventVersion,
		l.EventFingerprint, l.InputRound, l.IsError, l.FailureReason, l.Error, nullable(l.Result),
		l.ResultPreview, l.ResultStored, l.ResultTruncated, nullable(l.ResultArtifact), nullable(l.InputRequired),
		l.TrackingDegraded, stamp(l.CancelRequested), stamp(l.LastPoll), l.LastPollError, l.Updated, stamp(l.Ended), stamp(l.Expires))
	if beside != nil {
		w.batch.Queue(addResultSQL, l.ID, string(beside))
	}
}

// send writes everything in one round trip, and events in another.
func (w *writes) send(ctx context.Context, tx pgx.Tx) error {
	if m := w.moved; len(m.id) > 0 {
		w.batch.Queue(moveSQL, m.id, m.fence, m.due, m.lease, m.poll, m.cancel, m.lastPoll, m.lastError, m.errorCount, m.unchanged, m.cancelFailures, m.attempts)
	}
	if len(w.dropped) > 0 {
		w.batch.Queue(dropLiveSQL, w.dropped)
	}
	if t := w.attempts; len(t.id) > 0 {
		w.batch.Queue(addAttemptsSQL, t.id, t.number, t.kind, t.end, t.worker, t.outcome, t.next, task.AttemptsKept)
	}
	if err := send(ctx, tx, &w.batch); err != nil {
		return err
	}
	if len(w.events) == 0 {
		return nil
	}
	return outbox.AppendPostgres(ctx, tx, w.events...)
}
