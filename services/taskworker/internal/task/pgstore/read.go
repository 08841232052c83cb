package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

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
     where t.task_id = $1`

	attemptsSQL = `
    select kind, end_time, worker, outcome, next_due_time
      from task_attempt
     where task_id = $1
     order by number desc`
)

// Get implements task.Store.
func (s *Store) Get(ctx context.Context, id string) (*task.Task, error) {
	t, err := find(ctx, s.pool, id)
	if err != nil {
		return nil, err
	}
	rows, err := s.pool.Query(ctx, attemptsSQL, id)
	if err != nil {
		return nil, fmt.Errorf("get attempts: %w", err)
	}
	t.Attempts, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a task.Attempt, err error) {
		var next pgtype.Timestamptz
		err = row.Scan(&a.Kind, &a.Time, &a.Worker, &a.Outcome, &next)
		a.Time, a.NextDue = a.Time.UTC(), utc(next)
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("get attempts: %w", err)
	}
	return t, nil
}

// find returns a task without its attempts.
func find(ctx context.Context, q querier, id string) (*task.Task, error) {
	if strings.ContainsRune(id, 0) {
		return nil, task.NotFound(id) // Postgres does not take the question
	}
	rows, err := q.Query(ctx, getSQL, id)
	if err != nil {
		return nil, fmt.Errorf("get task: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*task.Task, error) {
		var result []byte
		t, err := scanTask(row, &result)
		t.Result = result
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
func scanTask(row pgx.CollectableRow, more ...any) (*task.Task, error) {
	var t task.Task
	var current, total *float64
	var artifact, input []byte
	var liveError *string
	var cancel, ended, expires, lastPoll, poll, nextCancel, livePoll pgtype.Timestamptz
	err := row.Scan(append([]any{
		&t.ID, &t.Name, &t.Server, &t.Scope.UserID, &t.Scope.ThreadID, &t.Status, &t.StatusMessage, &current, &total,
		&t.Version, &t.EventVersion, &t.IsError, &t.FailureReason, &t.Error, &t.ResultPreview, &t.ResultStored, &t.ResultTruncated,
		&artifact, &input, &t.TrackingDegraded, &cancel, &t.Created, &t.Updated,
		&ended, &expires, &t.RunID, &t.ToolCallID, &t.NotifySink, &lastPoll, &t.LastPollError,
		&poll, &nextCancel, &livePoll, &liveError,
	}, more...)...)
	if current != nil {
		t.Progress = &task.Progress{Current: *current, Total: total}
	}
	t.ResultArtifact, t.InputRequired = artifact, input
	t.Created, t.Updated = t.Created.UTC(), t.Updated.UTC()
	t.CancelRequested, t.Ended, t.Expires, t.LastPoll = utc(cancel), utc(ended), utc(expires), utc(lastPoll)
	if liveError != nil {
		t.LastPoll, t.LastPollError = utc(livePoll), *liveError
		t.NextPoll = task.NextCall(utc(poll), utc(nextCancel))
	}
	return &t, err
}

// List implements task.Store.
func (s *Store) List(ctx context.Context, f task.Filter) (task.Page, error) {
	query, args, err := listSQL(f)
	if err != nil {
		return task.Page{}, err
	}
	rows, err := s.pool.Query(ctx, query, args...)
	if err != nil {
		return task.Page{}, fmt.Errorf("list tasks: %w", err)
	}
	tasks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*task.Task, error) { return scanTask(row) })
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
	var query strings.Builder
	var args []any
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	query.WriteString(`
    select ` + taskColumns + `
      from task_task t
      left join task_live l on l.task_id = t.task_id
     where true`)
	if f.Scope.UserID != "" {
		query.WriteString(` and t.user_id = ` + arg(f.Scope.UserID))
	}
	if f.Scope.ThreadID != "" {
		query.WriteString(` and t.thread_id = ` + arg(f.Scope.ThreadID))
	}
	if f.Server != "" {
		query.WriteString(` and t.server = ` + arg(f.Server))
	}
	if len(f.Statuses) > 0 {
		statuses := make([]string, len(f.Statuses))
		for i, s := range f.Statuses {
			statuses[i] = string(s)
		}
		query.WriteString(` and t.status = any(` + arg(statuses) + `::text[])`)
	}
	if !after.Created.IsZero() {
		query.WriteString(` and (t.create_time, t.task_id) < (` + arg(after.Created) + `::timestamptz, ` + arg(after.ID) + `)`)
	}
	query.WriteString(`
     order by t.create_time desc, t.task_id desc
     limit ` + arg(f.Size()+1))
	return query.String(), args, nil
}

const resultSQL = `
    select coalesce(t.result_json, r.result)
      from task_task t
      left join task_result r on r.task_id = t.task_id
     where t.task_id = $1`

// Result implements task.Store.
func (s *Store) Result(ctx context.Context, id string) (json.RawMessage, error) {
	var result []byte
	gone, err := none(s.pool.QueryRow(ctx, resultSQL, id).Scan(&result))
	if gone {
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
     where task_id = any($1::text[])`

// Versions implements task.Store.
func (s *Store) Versions(ctx context.Context, ids []string) (map[string]int64, error) {
	// Postgres does not take the question while one of them has NUL, which no task's id has.
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return strings.ContainsRune(id, 0) })
	rows, err := s.pool.Query(ctx, versionsSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("get versions: %w", err)
	}
	out := make(map[string]int64, len(ids))
	var id string
	var version int64
	if _, err = pgx.ForEachRow(rows, []any{&id, &version}, func() error {
		out[id] = version
		return nil
	}); err != nil {
		return nil, fmt.Errorf("get versions: %w", err)
	}
	return out, nil
}
