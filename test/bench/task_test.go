package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/partners"
)

// withJobs is the entry of an echo server with its jobs as a toolset.
func withJobs(c partners.Command) map[string]any {
	entry := c.Entry()
	entry["task_toolsets"] = []any{map[string]any{
		"name": "job", "submit_tool": "start_job", "status_tool": "job_status", "cancel_tool": "cancel_job",
	}}
	return entry
}

// rowSubmit compares a durable submit, four hops and two transactions, with the remote call it contains.
func rowSubmit(t *testing.T, rep *report, b bed, engine string, args ...string) {
	h := upWith(t, map[string]any{"jobs": withJobs(b.echo)}, 4, args...)
	session := b.direct(t, "stdio")
	got := rounds(t, []subject{
		{"direct", func(ctx context.Context) error {
			res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "start_job"})
			if err == nil && res.IsError {
				err = fmt.Errorf("wrong answer %v", res.Content)
			}
			return err
		}},
		{"herd", h.submit},
	}, 1)
	extra := ratio(t, *roundCount, func(i int) float64 { return float64(got["herd"][i].p50-got["direct"][i].p50) / 1e6 })
	rep.add(row{
		what:     "submit of a durable task, " + engine + ", p50 at 1, over the remote submit alone",
		measured: ms(median(column(got["herd"], p50))), baseline: ms(median(column(got["direct"], p50))),
		ratio: fmt.Sprintf("%+.2f ms", extra), goal: "<= +2 ms",
	})
}

// submit starts a job as a durable task.
func (h *herd) submit(ctx context.Context) error {
	res, err := h.proxy.CallTool(ctx, &toolproxyv1.CallToolRequest{
		Name: "jobs_start_job", Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: `{}`},
	})
	if err == nil && res.GetTask().GetTaskId() == "" {
		err = fmt.Errorf("wrong answer %v", res)
	}
	return err
}

// rowPolls compares what workers ask a stdio server, through toolproxy, with direct status calls.
func rowPolls(t *testing.T, rep *report, b bed) {
	const concurrency = 16
	server := partners.Command{Path: b.echo.Path, Args: []string{"-poll-after", "0.25"}}
	h := upWith(t, map[string]any{"jobs": withJobs(server)}, 4, "--postgres", dbtest.DSN(t, dbtest.Unmigrated()))
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(count(4_000)))
	for range concurrency {
		wg.Go(func() {
			for left.Add(-1) >= 0 && !t.Failed() {
				if err := h.submit(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	direct := partners.Direct(t, server, "")
	status := subject{"direct", func(ctx context.Context) error {
		_, err := direct.CallTool(ctx, &mcp.CallToolParams{Name: "job_status", Arguments: map[string]any{"task_id": "job-1"}})
		return err
	}}
	var polls, calls []float64
	for range *roundCount {
		// The workers cannot be stopped without stopping the herd: the process group stands still meanwhile.
		frozen(t, h.process, func() { calls = append(calls, load(t, status, concurrency, *perRound).perSecond) })
		pause(t, *perRound/4)
		before, start := h.asked(t), time.Now()
		pause(t, *perRound)
		polls = append(polls, float64(h.asked(t)-before)/time.Since(start).Seconds())
	}
	rep.add(row{
		what:     "polls through toolproxy and stdio, all-in-one on Postgres, over direct status calls at 16",
		measured: perSecondText(median(polls)), baseline: perSecondText(median(calls)),
		ratio: fmt.Sprintf("%.2f x", ratio(t, *roundCount, func(i int) float64 { return polls[i] / calls[i] })), goal: ">= 0.6 x",
	})
}

// frozen runs f while a process group stands still.
func frozen(t *testing.T, p *partners.Process, f func()) {
	t.Helper()
	if err := p.Kill(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Kill(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}()
	f()
}

// asked returns how often the server behind a herd was asked for a status.
func (h *herd) asked(t *testing.T) int64 {
	t.Helper()
	res, err := h.proxy.CallTool(t.Context(), &toolproxyv1.CallToolRequest{Name: "jobs_asked"})
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(res.GetResult().GetContent()[0].GetText().GetText(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
