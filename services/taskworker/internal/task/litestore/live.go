package litestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

const (
	liveColumns = `
           t.task_id, t.task_name, t.server, t.user_id, t.thread_id, t.run_id, t.tool_call_id, t.notify_sink, t.traceparent,
           t.status, t.status_message, t.progress_current, t.progress_total, t.version, t.event_version, t.event_fingerprint,
           t.input_round, t.input_required_json, t.tracking_degraded, t.cancel_requested_time, t.create_time, t.update_time,
           t.expire_time, t.expire_limit_time, l.fence, l.due_time, l.lease_kind, l.poll_time, l.cancel_time, l.last_poll_time,
           l.last_poll_error, l.error_count, l.unchanged_count, l.cancel_failure_count, l.attempt_count`

	liveSQL = `
    select ` + liveColumns + `
      from task_live l
      join task_task t on t.task_id = l.task_id
     where l.task_id = ?`
)

func scanLive(rows *sql.Rows) (*task.Live, error) {
	var l task.Live
	var current, total *float64
	var input []byte
	var lease *string
	var cancelled, created, updated, expires, limit, due, poll, cancel, lastPoll moment
	err := rows.Scan(&l.ID, &l.Name, &l.Server, &l.Scope.UserID, &l.Scope.ThreadID, &l.RunID, &l.ToolCallID, &l.NotifySink, &l.Traceparent,
		&l.Status, &l.StatusMessage, &current, &total, &l.Version, &l.EventVersion, &l.EventFingerprint,
		&l.InputRound, &input, &l.TrackingDegraded, &cancelled, &created, &updated,
		&expires, &limit, &l.Fence, &due, &lease, &poll, &cancel, &lastPoll,
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
	l.CancelRequested, l.Created, l.Updated, l.Expires, l.ExpireLimit = cancelled.Time, created.Time, updated.Time, expires.Time, limit.Time
	l.Due, l.Poll, l.Cancel, l.LastPoll = due.Time, poll.Time, cancel.Time, lastPoll.Time
	l.NextPoll = task.NextCall(l.Poll, l.Cancel)
	return &l, nil
}

// alive returns a task that is not final, nil if there is none of that id.
func alive(ctx context.Context, tx *transaction, id string) (*task.Live, error) {
	rows, err := tx.QueryContext(ctx, liveSQL, id)
	if err != nil {
		return nil, fmt.Errorf("find live task: %w", err)
	}
	found, err := collect(rows, scanLive)
	if err != nil {
		return nil, fmt.Errorf("find live task: %w", err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	return found[0], nil
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
    values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?, 0, false, ?, ?, '', false, false, false, '', ?, ?, ?, ?, ?, ?)`

	addLiveSQL = `
    insert into task_live (
           task_id, fence, due_time, poll_time, last_poll_error, error_count, unchanged_count, cancel_failure_count, attempt_count)
    values (?, ?, ?, ?, '', 0, 0, 0, 0)`
)

// add writes a task that is born, with its event if it is final.
func add(ctx context.Context, tx *transaction, l *task.Live, step task.Step, n birth) error {
	var remoteID any
	if n.remoteID != "" {
		remoteID = n.remoteID
	}
	_, err := tx.ExecContext(ctx, addTaskSQL,
		l.ID, n.fence, n.Principal, l.Scope.UserID, l.Scope.ThreadID, n.RequestID, n.RequestHash, n.Fingerprint, l.Server, l.Name,
		l.RunID, l.ToolCallID, l.NotifySink, l.Traceparent, n.unasked, n.handle, remoteID, l.Status,
		l.Version, l.EventVersion, l.EventFingerprint, l.FailureReason, l.Error,
		stamp(l.Created), stamp(n.committed), stamp(l.Updated), stamp(l.Ended), stamp(l.Expires), stamp(l.ExpireLimit))
	if err != nil {
		return fmt.Errorf("add task: %w", err)
	}
	if !l.Status.Terminal() {
		if _, err := tx.ExecContext(ctx, addLiveSQL, l.ID, l.Fence, stamp(l.Due), stamp(l.Poll)); err != nil {
			return fmt.Errorf("add schedule: %w", err)
		}
	}
	return announce(ctx, tx, step)
}

func announce(ctx context.Context, tx *transaction, step task.Step) error {
	if step.Event == nil {
		return nil
	}
	return outbox.AppendSQLite(ctx, tx.Tx, *step.Event)
}

const (
	moveSQL = `
    update task_live
       set fence = ?, due_time = ?, lease_kind = ?, poll_time = ?, cancel_time = ?, last_poll_time = ?, last_poll_error = ?,
           error_count = ?, unchanged_count = ?, cancel_failure_count = ?, attempt_count = ?
     where task_id = ?`

	dropLiveSQL = `delete from task_live where task_id = ?`

	changeSQL = `
    update task_task
       set status = ?, status_message = ?, progress_current = ?, progress_total = ?, version = ?, event_version = ?,
           event_fingerprint = ?, input_round = ?, is_error = ?, failure_reason = ?, error = ?, result_json = ?, result_preview = ?,
           result_stored = ?, result_truncated = ?, result_artifact_json = ?, input_required_json = ?, tracking_degraded = ?,
           cancel_requested_time = ?, last_poll_time = ?, last_poll_error = ?, update_time = ?, end_time = ?, expire_time = ?
     where task_id = ?`

	addResultSQL = `insert into task_result (task_id, result) values (?, ?)`

	// The oldest attempt makes room for the newest.
	addAttemptSQL = `
    insert into task_attempt (task_id, slot, number, kind, end_time, worker, outcome, next_due_time)
    values (?, ?, ?, ?, ?, ?, ?, ?)
        on conflict (task_id, slot) do update
       set number = excluded.number, kind = excluded.kind, end_time = excluded.end_time, worker = excluded.worker,
           outcome = excluded.outcome, next_due_time = excluded.next_due_time`
)

// save writes what a step of the rules did to a task.
func save(ctx context.Context, tx *transaction, l *task.Live, step task.Step) error {
	if a := step.Attempt; a != nil {
		_, err := tx.ExecContext(ctx, addAttemptSQL,
			l.ID, l.AttemptCount%task.AttemptsKept, l.AttemptCount, a.Kind, stamp(a.Time), a.Worker, a.Outcome, stamp(a.NextDue))
		if err != nil {
			return fmt.Errorf("add attempt: %w", err)
		}
	}
	if step.Changed || step.Event != nil {
		if err := change(ctx, tx, l, step.Beside); err != nil {
			return err
		}
	}
	switch {
	case !step.Moved:
	case l.Status.Terminal():
		if _, err := tx.ExecContext(ctx, dropLiveSQL, l.ID); err != nil {
			return fmt.Errorf("drop schedule: %w", err)
		}
	default:
		_, err := tx.ExecContext(ctx, moveSQL,
			l.Fence, stamp(l.Due), leaseOf(l), stamp(l.Poll), stamp(l.Cancel), stamp(l.LastPoll), l.LastPollError,
			l.Errors, l.Unchanged, l.CancelFailures, l.AttemptCount, l.ID)
		if err != nil {
			return fmt.Errorf("move schedule: %w", err)
		}
	}
	return announce(ctx, tx, step)
}

func leaseOf(l *task.Live) any {
	if l.Lease == "" {
		return nil
	}
	return string(l.Lease)
}

func change(ctx context.Context, tx *transaction, l *task.Live, beside json.RawMessage) error {
	var current, total *float64
	if l.Progress != nil {
		current, total = &l.Progress.Current, l.Progress.Total
	}
	_, err := tx.ExecContext(ctx, changeSQL,
		l.Status, l.StatusMessage, current, total, l.Version, l.EventVersion,
		l.EventFingerprint, l.InputRound, l.IsError, l.FailureReason, l.Error, nullable(l.Result), l.ResultPreview,
		l.ResultStored, l.ResultTruncated, nullable(l.ResultArtifact), nullable(l.InputRequired), l.TrackingDegraded,
		stamp(l.CancelRequested), stamp(l.LastPoll), l.LastPollError, stamp(l.Updated), stamp(l.Ended), stamp(l.Expires), l.ID)
	if err != nil {
		return fmt.Errorf("change task: %w", err)
	}
	if beside == nil {
		return nil
	}
	if _, err := tx.ExecContext(ctx, addResultSQL, l.ID, string(beside)); err != nil {
		return fmt.Errorf("add result: %w", err)
	}
	return nil
}
