package pgstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/pgstore"
)

// fill stores many tasks, of which most are final, many wait, some are leased and some are due.
const fill = `
    insert into task_binding values ('fp', 'x', now());

    insert into task_task (
           task_id, reserve_fence, principal, user_id, thread_id, request_id, request_hash, fingerprint, server, task_name, run_id,
           tool_call_id, notify_sink, traceparent, unasked, handle, remote_id, status, status_message, version, event_version,
           event_fingerprint, input_round, is_error, failure_reason, error, result_preview, result_stored, result_truncated,
           tracking_degraded, last_poll_error, create_time, update_time, end_time, expire_time)
    select 'mcp-task-' || md5(n::text), 1, 'p', 'user' || n % 100, 'thread' || n % 10, '', '', 'fp', 's', 'n', '', '', '', '', false, 'h', n::text,
           case when n % 10 < 8 then 'completed' else 'working' end, '', 1, 0, '', 0, false, '', '', '', false, false, false, '',
           now() - n * interval '1 second', now(), case when n % 10 < 8 then now() - n * interval '1 second' end, now() + interval '1 day'
      from generate_series(1, 10000) n;

    insert into task_live (task_id, fence, due_time, lease_kind, poll_time, last_poll_error, error_count, unchanged_count, cancel_failure_count, attempt_count)
    select task_id, 1, case when n % 3 = 0 then now() - interval '1 minute' else now() + interval '1 minute' end, case when n % 3 = 1 then 'poll' end,
           now() - interval '1 minute', '', 0, 0, 0, 0
      from (select task_id, row_number() over () n from task_task where end_time is null) t;

    insert into task_reservation
    select 'r' || n, 1, 'p', 'u', 't', '', '', 'fp', 's', 'n', '', '', '', 0, '', now(), now() + n * interval '1 second'
      from generate_series(1, 3000) n;

    analyze`

// What loops and watchers ask again and again costs no more when many tasks have ended, wait or are leased.
//
// TASK-017
func TestLoopsReadFromIndexes(t *testing.T) {
	pool := dbtest.Postgres(t).Pool()
	if _, err := pool.Exec(t.Context(), fill, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	ids := []string{"mcp-task-" + strings.Repeat("0", 32), "mcp-task-" + strings.Repeat("1", 32)}
	after := task.Cursor{Created: time.Now().Add(-time.Hour), ID: ids[0]}.Token()
	scopeList, scopeArgs, err := pgstore.ListSQL(task.Filter{Scope: authn.Scope{UserID: "user7", ThreadID: "thread7"}, After: after})
	if err != nil {
		t.Fatal(err)
	}
	list, listArgs, err := pgstore.ListSQL(task.Filter{After: after})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, sql string
		args      []any
		uses      []string
	}{
		{"claim", pgstore.ClaimSQL, []any{int64(30e6), 100, time.Unix(0, 0)}, []string{"task_live_due_time_ix", "Tid Scan", "task_task_pk"}},
		{"next due", pgstore.NextDueSQL, nil, []string{"task_live_due_time_ix"}},
		{"renew", pgstore.RenewSQL, []any{ids, []int64{1, 2}, int64(30e6)}, []string{"task_live_pk"}},
		{"lock", pgstore.LockFreeSQL, []any{ids}, []string{"task_live_pk"}},
		{"read locked", pgstore.RestSQL, []any{ids}, []string{"task_task_pk"}},
		{"versions", pgstore.VersionsSQL, []any{ids}, []string{"task_task_pk"}},
		{"expire", pgstore.ExpirableSQL, []any{100}, []string{"task_task_expire_time_ix", "task_live_pk"}},
		{"reap", pgstore.ExpiredSQL, []any{100}, []string{"task_reservation_expire_time_ix"}},
		{"prune", pgstore.PrunableSQL, []any{int64(720 * time.Hour / time.Microsecond), 100}, []string{"task_task_end_time_ix"}},
		{"list of a thread", scopeList, scopeArgs, []string{"task_task_scope_ix"}},
		{"list of all", list, listArgs, []string{"task_task_create_time_ix"}},
	} {
		plan := explain(t, pool, c.sql, c.args)
		for _, index := range c.uses {
			if !strings.Contains(plan, index) {
				t.Errorf("%s does not use %s:\n%s", c.name, index, plan)
			}
		}
		// A CTE may be scanned, and so may the one row of task_binding; tasks may not.
		for _, table := range []string{"task_task", "task_live", "task_reservation"} {
			if strings.Contains(plan, "Seq Scan on "+table) {
				t.Errorf("%s scans %s:\n%s", c.name, table, plan)
			}
		}
		if c.name == "list of all" && strings.Contains(plan, "Sort") {
			t.Errorf("%s sorts:\n%s", c.name, plan)
		}
	}
}

func explain(t *testing.T, pool *pgxpool.Pool, sql string, args []any) string {
	t.Helper()
	rows, err := pool.Query(t.Context(), "explain "+sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// A claim looks at the rows it takes, and not at those before them that are leased or after them that wait.
func TestClaimTouchesOnlyWhatIsDue(t *testing.T) {
	pool := dbtest.Postgres(t).Pool()
	if _, err := pool.Exec(t.Context(), fill, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), "explain (analyze, timing off, costs off) "+pgstore.ClaimSQL, int64(30e6), 20, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if strings.Contains(line, "task_live_due_time_ix") && !strings.Contains(line, "rows=20") {
			t.Errorf("for 20 claims the index gave: %s", line)
		}
		if strings.Contains(line, "Removed by Filter") {
			t.Errorf("rows were read in vain: %s", line)
		}
	}
}
