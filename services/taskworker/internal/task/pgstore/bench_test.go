package pgstore_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/pgstore"
)

var manyRows = flag.Int("rows", 20_000, "how many running tasks the larger table of BenchmarkClaim has")

const (
	fewRows   = 10_000
	claimSize = 100
	claims    = 30 // of each table, interleaved
)

// running stores $1 running tasks, none of them due.
const running = `
    with binding as (insert into task_binding values ('fp', 'x', now())),
         tasks as (
         insert into task_task (
                task_id, reserve_fence, principal, user_id, thread_id, request_id, request_hash, fingerprint, server, task_name, run_id,
                tool_call_id, notify_sink, traceparent, unasked, handle, remote_id, status, status_message, version, event_version,
                event_fingerprint, input_round, is_error, failure_reason, error, result_preview, result_stored, result_truncated,
                tracking_degraded, last_poll_error, create_time, update_time, expire_time)
         select 'mcp-task-' || md5(n::text), 1, 'p', 'user' || n %% 100, 'thread' || n %% 10, '', '', 'fp', 's', 'n', '', '', '', '', false,
                'h', n::text, 'working', '', 1, 0, '', 0, false, '', '', '', false, false, false, '', now(), now(), now() + interval '1 day'
           from generate_series(1, %[1]d) n)
    insert into task_live (task_id, fence, due_time, poll_time, last_poll_error, error_count, unchanged_count, cancel_failure_count, attempt_count)
    select 'mcp-task-' || md5(n::text), 1, now() + interval '1 hour', now() + interval '1 hour', '', 0, 0, 0, 0
      from generate_series(1, %[1]d) n`

// due makes what a claim takes due, anywhere in the table.
const due = `
    update task_live set due_time = now() - interval '1 second', poll_time = now() - interval '1 second', lease_kind = null
     where task_id in (select 'mcp-task-' || md5((n * %[2]d)::text) from generate_series(1, %[1]d) n)`

// churn moves every row once, as a poll does.
const churn = `update task_live set due_time = due_time + interval '1 second', fence = fence + 1`

// BenchmarkClaim prints how the claim of 100 due tasks fares on a large table, and on it after each row was updated twice,
// beside the same on a small one. See docs/benchmarks.md.
func BenchmarkClaim(b *testing.B) {
	small, large := dbtest.Postgres(b).Pool(), dbtest.Postgres(b).Pool()
	prepare(b, small, fewRows)
	prepare(b, large, *manyRows)
	for range b.N {
		line(b, fmt.Sprintf("%d rows", *manyRows), small, large)
		for range 2 {
			execute(b, large, churn)
		}
		line(b, fmt.Sprintf("%d rows after %d updates", *manyRows, 2**manyRows), small, large)
	}
}

func prepare(b *testing.B, pool *pgxpool.Pool, rows int) {
	b.Helper()
	execute(b, pool, fmt.Sprintf(running, rows))
	execute(b, pool, `vacuum analyze task_live`)
	execute(b, pool, `analyze task_task`)
}

func execute(b *testing.B, pool *pgxpool.Pool, sql string) {
	b.Helper()
	if _, err := pool.Exec(b.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		b.Fatal(err)
	}
}

// line measures both tables, a claim at a time, and prints the medians.
func line(b *testing.B, what string, small, large *pgxpool.Pool) {
	b.Helper()
	policy := task.Policy{Lease: time.Minute, PollInterval: 5 * time.Second, MaxPollBackoff: time.Minute, InputRequiredPollInterval: time.Minute}
	var took [2][]time.Duration
	stores := [2]*pgstore.Store{pgstore.New(small, policy), pgstore.New(large, policy)}
	for range claims {
		for i, pool := range []*pgxpool.Pool{small, large} {
			rows := fewRows
			if i == 1 {
				rows = *manyRows
			}
			execute(b, pool, fmt.Sprintf(due, claimSize, rows/claimSize))
			took[i] = append(took[i], claimOnce(b.Context(), b, stores[i]))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	few, many := took[0][claims/2], took[1][claims/2]
	fmt.Printf("claim of %d due tasks, %s, p50 over the same with %d  %.3f ms  %.3f ms  %.2f x  <= 1.5 x\n",
		claimSize, what, fewRows, float64(many)/1e6, float64(few)/1e6, float64(many)/float64(few))
}

func claimOnce(ctx context.Context, b *testing.B, s *pgstore.Store) time.Duration {
	b.Helper()
	start := time.Now()
	got, err := s.Claim(ctx, "bench", claimSize)
	took := time.Since(start)
	if err != nil || len(got) != claimSize {
		b.Fatalf("claimed %d of %d: %v", len(got), claimSize, err)
	}
	return took
}
