package litestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

const (
	taskColumns = `
           t.task_id, t.task_name, t.server, t.user_id, t.thread_id, t.status, t.status_message, t.progress_current, t.progress_total,
           t.version, t.event_version, t.is_error, t.failure_reason, t.error, t.result_preview, t.result_stored, t.result_truncated,
           t.result_artifact_json, t.input_required_json, t.tracking_degraded, t.cancel_requested_time, t.create_time, t.update_time,
           t.end_time, t.expire_time, t.run_id, t.tool_call_id, t.notify_sink, t.last_poll_time, t.last_poll_error,
           l.poll_time, l.cancel_time, l.last_poll_time, l.last_poll_error`

	getSQL = `
    select ` + taskColumns + `, t.result_json
      from task_task t
      left join task_live l on l.task_id = t.task_id
     where t.task_id = ?`

	attemptsSQL = `
    select kind, end_time, worker, outcome, next_due_time
      from task_attempt
     where task_id = ?
     order by number desc`
)

// Get implements task.Store.
func (s *Store) Get(ctx context.Context, id string) (*task.Task, error) {
	t, err := find(ctx, s.db.Read(), id)
	if err != nil {
		return nil, err
	}
	rows, err := s.db.Read().QueryContext(ctx, attemptsSQL, id)
	if err != nil {
		return nil, fmt.Errorf("get attempts: %w", err)
	}
	t.Attempts, err = collect(rows, func(rows *sql.Rows) (a task.Attempt, err error) {
		var end, next moment
		err = rows.Scan(&a.Kind, &end, &a.Worker, &a.Outcome, &next)
		a.Time, a.NextDue = end.Time, next.Time
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("get attempts: %w", err)
	}
	return t, nil
}

// find returns a task without its attempts.
func find(ctx context.Context, q querier, id string) (*task.Task, error) {
	rows, err := q.QueryContext(ctx, getSQL, id)
	if err != nil {
		return nil, fmt.Errorf("get task: %w", err)
	}
	found, err := collect(rows, func(rows *sql.Rows) (*task.Task, error) {
		var result []byte
		t, err := scanTask(rows, &result)
		if result != nil {
			t.Result = result
		}
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("get task: %w", err)
	}
	if len(found) == 0 {
		return nil, task.NotFound(id)
	}
	return found[0], nil
}

// scanTask reads taskColumns, and what follows them into more.
func scanTask(rows *sql.Rows, more ...any) (*task.Task, error) {
	var t task.Task
	var current, total *float64
	var artifact, input []byte
	var liveError *string
	var cancel, created, updated, ended, expires, lastPoll, poll, nextCancel, livePoll moment
	err := rows.Scan(append([]any{
		&t.ID, &t.Name, &t.Server, &t.Scope.UserID, &t.Scope.ThreadID, &t.Status, &t.StatusMessage, &current, &total,
		&t.Version, &t.EventVersion, &t.IsError, &t.FailureReason, &t.Error, &t.ResultPreview, &t.ResultStored, &t.ResultTruncated,
		&artifact, &input, &t.TrackingDegraded, &cancel, &created, &updated,
		&ended, &expires, &t.RunID, &t.ToolCallID, &t.NotifySink, &lastPoll, &t.LastPollError,
		&poll, &nextCancel, &livePoll, &liveError,
	}, more...)...)
	if current != nil {
		t.Progress = &task.Progress{Current: *current, Total: total}
	}
	t.ResultArtifact, t.InputRequired = artifact, input
	t.CancelRequested, t.Created, t.Updated, t.Ended, t.Expires = cancel.Time, created.Time, updated.Time, ended.Time, expires.Time
	t.LastPoll = lastPoll.Time
	if liveError != nil {
		t.LastPoll, t.LastPollError = livePoll.Time, *liveError
		t.NextPoll = task.NextCall(poll.Time, nextCancel.Time)
	}
	return &t, err
}

// List implements task.Store.
func (s *Store) List(ctx context.Context, f task.Filter) (task.Page, error) {
	query, args, err := listSQL(f)
	if err != nil {
		return task.Page{}, err
	}
	rows, err := s.db.Read().QueryContext(ctx, query, args...)
	if err != nil {
		return task.Page{}, fmt.Errorf("list tasks: %w", err)
	}
	tasks, err := collect(rows, func(rows *sql.Rows) (*task.Task, error) { return scanTask(rows) })
	if err != nil {
		return task.Page{}, fmt.Errorf("list tasks: %w", err)
	}
	return task.PageOf(tasks, f.Size()), nil
}

// listSQL returns the statement for a page and one task more. Conditions that do not apply are left out, so that each
// form can use its index.
func listSQL(f task.Filter) (string, []any, error) {
	after, err := task.ParseCursor(f.After)
	if err != nil {
		return "", nil, err
	}
	query := strings.Builder{}
	query.WriteString(`
    select ` + taskColumns + `
      from task_task t
      left join task_live l on l.task_id = t.task_id
     where true`)
	var args []any
	if f.Scope.UserID != "" {
		query.WriteString(` and t.user_id = ?`)
		args = append(args, f.Scope.UserID)
	}
	if f.Scope.ThreadID != "" {
		query.WriteString(` and t.thread_id = ?`)
		args = append(args, f.Scope.ThreadID)
	}
	if f.Server != "" {
		query.WriteString(` and t.server = ?`)
		args = append(args, f.Server)
	}
	if len(f.Statuses) > 0 {
		query.WriteString(` and t.status in (select value from json_each(?))`)
		args = append(args, list(f.Statuses))
	}
	if !after.Created.IsZero() {
		query.WriteString(` and (t.create_time, t.task_id) < (?, ?)`)
		args = append(args, stamp(after.Created), after.ID)
	}
	query.WriteString(`
     order by t.create_time desc, t.task_id desc
     limit ?`)
	return query.String(), append(args, f.Size()+1), nil
}

// list is a parameter of json_each.
func list[T any](values []T) string {
	text, err := json.Marshal(values)
	if err != nil {
		panic("litestore: " + err.Error()) // strings and numbers are JSON
	}
	return string(text)
}

const resultSQL = `
    select coalesce(t.result_json, r.result)
      from task_task t
      left join task_result r on r.task_id = t.task_id
     where t.task_id = ?`

// Result implements task.Store.
func (s *Store) Result(ctx context.Context, id string) (json.RawMessage, error) {
	var result []byte
	err := s.db.Read().QueryRowContext(ctx, resultSQL, id).Scan(&result)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, task.NotFound(id)
	}
	if err != nil {
		return nil, fmt.Errorf("get result: %w", err)
	}
	return result, nil
}

const versionsSQL = `
    select task_id, version
      from task_task
     where task_id in (select value from json_each(?))`

// Versions implements task.Store.
func (s *Store) Versions(ctx context.Context, ids []string) (map[string]int64, error) {
	rows, err := s.db.Read().QueryContext(ctx, versionsSQL, list(ids))
	if err != nil {
		return nil, fmt.Errorf("get versions: %w", err)
	}
	out := map[string]int64{}
	if _, err = collect(rows, func(rows *sql.Rows) (struct{}, error) {
		var id string
		var version int64
		err := rows.Scan(&id, &version)
		out[id] = version
		return struct{}{}, err
	}); err != nil {
		return nil, fmt.Errorf("get versions: %w", err)
	}
	return out, nil
}
