package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

const (
	// The ids are locked in the order in which they come, one look into the index for each however many rows the planner
	// expects. A row is given as it is once it is locked.
	lockHead = `
    select l.ctid::text, l.task_id, l.fence, l.due_time, l.lease_kind, l.poll_time, l.cancel_time, l.last_poll_time, l.last_poll_error,
           l.error_count, l.unchanged_count, l.cancel_failure_count, l.attempt_count
      from unnest($1::text[]) as u (task_id)
     cross join lateral (select ctid, * from task_live where task_live.task_id = u.task_id for update`

	lockSQL     = lockHead + `) l`
	lockFreeSQL = lockHead + ` skip locked) l`

	// The rest is read after that, in a statement whose snapshot is younger than the locks. The ids go through a subquery,
	// of which the planner expects few rows: else it might read the table from end to end.
	restSQL = `
    select task_id, task_name, server, user_id, thread_id, run_id, tool_call_id, notify_sink, traceparent,
           status, status_message, progress_current, progress_total, version, event_version, event_fingerprint,
           input_round, input_required_json, tracking_degraded, cancel_requested_time, create_time, update_time,
           expire_time, expire_limit_time, clock_timestamp()
      from task_task
     where task_id = any(array(select unnest($1::text[]))) and end_time is null`

	// lockWaitSQL bounds how long a row is waited for that someone else has locked. The setting ends with the transaction.
	lockWaitSQL = `select set_config('lock_timeout', '3s', true)`
)

// row is a task that is not final, as it is stored.
type row struct {
	task.Live
	at string // where its row of task_live is; nobody moves it while it is locked
}

// scanLock reads a row of task_live.
func scanLock(from pgx.CollectableRow) (*row, error) {
	var r row
	var lease *string
	var poll, cancel, lastPoll pgtype.Timestamptz
	err := from.Scan(&r.at, &r.ID, &r.Fence, &r.Due, &lease, &poll, &cancel, &lastPoll, &r.LastPollError,
		&r.Errors, &r.Unchanged, &r.CancelFailures, &r.AttemptCount)
	if lease != nil {
		r.Lease = task.Lease(*lease)
	}
	r.Due, r.Poll, r.Cancel, r.LastPoll = r.Due.UTC(), utc(poll), utc(cancel), utc(lastPoll)
	r.NextPoll = task.NextCall(r.Poll, r.Cancel)
	return &r, err
}

// lives are tasks that are not final.
type lives struct {
	locked map[string]*row
	others []string // those that are locked by someone else
	now    time.Time
}

// scanRest reads a row of task_task into the one that is locked.
func (s *lives) scanRest(from pgx.CollectableRow) (struct{}, error) {
	var l task.Live
	var current, total *float64
	var input []byte
	var cancelled, expires, limit pgtype.Timestamptz
	err := from.Scan(&l.ID, &l.Name, &l.Server, &l.Scope.UserID, &l.Scope.ThreadID, &l.RunID, &l.ToolCallID, &l.NotifySink, &l.Traceparent,
		&l.Status, &l.StatusMessage, &current, &total, &l.Version, &l.EventVersion, &l.EventFingerprint,
		&l.InputRound, &input, &l.TrackingDegraded, &cancelled, &l.Created, &l.Updated,
		&expires, &limit, &s.now)
	if err != nil {
		return struct{}{}, err
	}
	s.now = s.now.UTC()
	r := s.locked[l.ID]
	if r == nil {
		s.others = append(s.others, l.ID)
		return struct{}{}, nil
	}
	if current != nil {
		l.Progress = &task.Progress{Current: *current, Total: total}
	}
	l.InputRequired = input
	l.Created, l.Updated = l.Created.UTC(), l.Updated.UTC()
	l.CancelRequested, l.Expires, l.ExpireLimit = utc(cancelled), utc(expires), utc(limit)
	l.LastPoll, l.LastPollError, l.NextPoll = r.LastPoll, r.LastPollError, r.NextPoll
	l.Fence, l.Lease, l.Due, l.Poll, l.Cancel = r.Fence, r.Lease, r.Due, r.Poll, r.Cancel
	l.Errors, l.Unchanged, l.CancelFailures, l.AttemptCount = r.Errors, r.Unchanged, r.CancelFailures, r.AttemptCount
	r.Live = l
	return struct{}{}, nil
}

// lock locks those of the tasks that are not final, waiting for each or skipping it, by sql.
func lock(ctx context.Context, tx pgx.Tx, sql string, ids []string) (lives, error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	out := lives{locked: make(map[string]*row, len(ids))}
	var b pgx.Batch
	if sql == lockSQL {
		b.Queue(lockWaitSQL)
	}
	b.Queue(sql, ids).Query(func(rows pgx.Rows) error {
		got, err := pgx.CollectRows(rows, scanLock)
		for _, r := range got {
			out.locked[r.ID] = r
		}
		return err
	})
	b.Queue(restSQL, ids).Query(func(rows pgx.Rows) error {
		_, err := pgx.CollectRows(rows, out.scanRest)
		return err
	})
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return out, fmt.Errorf("lock: %w", err)
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
     where l.task_id = u.task_id and l.ctid = any(array(select unnest($13::text[])::tid))`

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
	id, at                                []string
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
func (w *writes) save(r *row, step task.Step) {
	l := &r.Live
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
		m.id, m.at, m.fence, m.due = append(m.id, l.ID), append(m.at, r.at), append(m.fence, l.Fence), append(m.due, l.Due)
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
		w.batch.Queue(moveSQL, m.id, m.fence, m.due, m.lease, m.poll, m.cancel, m.lastPoll, m.lastError, m.errorCount, m.unchanged, m.cancelFailures, m.attempts, m.at)
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
