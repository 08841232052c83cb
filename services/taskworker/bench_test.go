package taskworker_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// counter is a remote that does nothing but tell of every thousandth poll.
type counter struct {
	toolproxyv1.BackgroundToolServiceClient
	n        atomic.Int64
	answer   *toolproxyv1.GetRemoteTaskResponse
	thousand chan struct{}
}

func (c *counter) GetRemoteTask(context.Context, *toolproxyv1.GetRemoteTaskRequest, ...grpc.CallOption) (*toolproxyv1.GetRemoteTaskResponse, error) {
	if c.n.Add(1)%1000 == 0 {
		select {
		case c.thousand <- struct{}{}:
		default:
		}
	}
	return c.answer, nil
}

// fill takes tasks in that are due soon.
func fill(b *testing.B, d *db.DB, tasks int, due time.Duration) {
	b.Helper()
	intake := storeOf(d, quick()).(task.Reservations)
	var wg sync.WaitGroup
	const writers = 8
	for g := range writers {
		wg.Go(func() {
			for i := range tasks / writers {
				id := fmt.Sprintf("%d-%d", g, i)
				_, err := intake.Commit(b.Context(), task.Commitment{
					Unasked: &task.Intent{
						Principal: "p", Scope: authn.Scope{UserID: "u", ThreadID: "t"}, Binding: make([]byte, 500), Fingerprint: "f",
						TaskName: "n", Server: "s",
					},
					Handle: []byte(id), RemoteID: id, Status: task.Working, PollAfter: due,
				})
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkPolls is a worker with more due tasks than it can poll, and a remote that costs nothing: ns/op is for 1000 polls.
func BenchmarkPolls(b *testing.B) {
	for name, open := range map[string]func() *db.DB{
		"postgres": func() *db.DB { return dbtest.Postgres(b) },
		"sqlite":   func() *db.DB { return dbtest.SQLite(b) },
	} {
		b.Run(name, func(b *testing.B) {
			d := open()
			fill(b, d, 16_000, time.Millisecond)
			r := &counter{
				thousand: make(chan struct{}, 1000),
				answer:   &toolproxyv1.GetRemoteTaskResponse{Snapshot: busy(250 * time.Millisecond)},
			}
			cfg := quick()
			cfg.Lease, cfg.Concurrency = 30*time.Second, 100
			n := start(b, d, options{cfg: cfg, remote: r, log: slog.New(slog.DiscardHandler)})
			<-r.thousand
			began, before := time.Now(), r.n.Load()
			for b.Loop() {
				<-r.thousand
			}
			b.ReportMetric(float64(r.n.Load()-before)/time.Since(began).Seconds(), "polls/s")
			b.StopTimer()
			n.stop()
		})
	}
}
