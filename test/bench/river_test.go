package bench

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
)

const riverVariable = "TOOLHERD_BENCH_RIVER"

// riverJobs works no-op jobs for a while in a process of its own and returns how many a second. Cooldown is River's
// FetchCooldown; 0 is its default.
func riverJobs(t *testing.T, cooldown time.Duration) float64 {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var perSecond float64
	t.Run("river", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), riverVariable+"="+dbtest.DSN(t, dbtest.Unmigrated()),
			fmt.Sprintf("TOOLHERD_BENCH_COOLDOWN=%v", cooldown), fmt.Sprintf("TOOLHERD_BENCH_PER=%v", *perRound))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("river: %v\n%s", err, out)
		}
		for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
			if _, err := fmt.Sscanf(lines.Text(), "jobs %f", &perSecond); err == nil {
				return
			}
		}
		t.Fatalf("river printed no result: %s", out)
	})
	return perSecond
}

type noopJob struct{}

// Kind names the job.
func (noopJob) Kind() string { return "noop" }

type noopWorker struct {
	river.WorkerDefaults[noopJob]
	done *atomic.Int64
}

// Work does nothing.
func (w noopWorker) Work(context.Context, *river.Job[noopJob]) error {
	w.done.Add(1)
	return nil
}

// workRiver is the process of [riverJobs].
func workRiver(dsn string) error {
	ctx := context.Background()
	per, err := time.ParseDuration(os.Getenv("TOOLHERD_BENCH_PER"))
	if err != nil {
		return err
	}
	cooldown, err := time.ParseDuration(os.Getenv("TOOLHERD_BENCH_COOLDOWN"))
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	worker := noopWorker{done: new(atomic.Int64)}
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	config := &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}}, Workers: workers, Logger: slog.New(slog.DiscardHandler),
	}
	if cooldown > 0 {
		config.FetchCooldown, config.FetchPollInterval = cooldown, cooldown
	}
	client, err := river.NewClient(driver, config)
	if err != nil {
		return err
	}
	if err := fillRiver(ctx, client, int(per.Seconds()*25_000)+1_000); err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	for worker.done.Load() < 100 {
		<-time.After(time.Millisecond)
	}
	before, start := worker.done.Load(), time.Now()
	<-time.After(per)
	fmt.Printf("jobs %f\n", float64(worker.done.Load()-before)/time.Since(start).Seconds())
	return client.StopAndCancel(ctx)
}

func fillRiver(ctx context.Context, client *river.Client[pgx.Tx], count int) error {
	jobs := make([]river.InsertManyParams, count)
	for i := range jobs {
		jobs[i].Args = noopJob{}
	}
	for len(jobs) > 0 {
		n := min(len(jobs), 5_000)
		if _, err := client.InsertManyFast(ctx, jobs[:n]); err != nil {
			return err
		}
		jobs = jobs[n:]
	}
	return nil
}
