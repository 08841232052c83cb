package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/partners"
)

// remote is a toolproxy that does nothing: every remote task is where the row wants it.
type remote struct {
	toolproxyv1.UnimplementedBackgroundToolServiceServer
	asked  atomic.Int64
	answer atomic.Pointer[toolproxyv1.RemoteTaskSnapshot]
	// hang, while set, keeps the calls that come, and gets each.
	hang atomic.Pointer[chan time.Time]
}

// GetRemoteTask implements the contract.
func (r *remote) GetRemoteTask(ctx context.Context, _ *toolproxyv1.GetRemoteTaskRequest) (*toolproxyv1.GetRemoteTaskResponse, error) {
	r.asked.Add(1)
	if seen := r.hang.Load(); seen != nil {
		*seen <- time.Now()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &toolproxyv1.GetRemoteTaskResponse{Snapshot: r.answer.Load()}, nil
}

// working makes every answer "still running, ask again after d".
func (r *remote) working(d time.Duration) {
	r.answer.Store(&toolproxyv1.RemoteTaskSnapshot{Status: corev1.TaskStatus_TASK_STATUS_WORKING, PollAfter: durationpb.New(d)})
}

func (r *remote) completed() {
	r.answer.Store(&toolproxyv1.RemoteTaskSnapshot{Status: corev1.TaskStatus_TASK_STATUS_COMPLETED, ResultJson: `{"ok":true}`})
}

// startRemote serves a remote in this process, which is otherwise idle, and returns its address.
func startRemote(t *testing.T) (r *remote, addr string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r = &remote{}
	server := grpc.NewServer()
	toolproxyv1.RegisterBackgroundToolServiceServer(server, r)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return r, listener.Addr().String()
}

// crew is what taskworkers need to run on a database of their own.
type crew struct {
	dsn    string
	remote *remote
	args   []string // of every service
	token  string   // of a toolproxy, for intake
	taken  atomic.Int64
}

func newCrew(t *testing.T, options ...string) *crew {
	t.Helper()
	dir := t.TempDir()
	token, sum := authn.NewToken()
	tokens, peer, file := filepath.Join(dir, "tokens.yaml"), filepath.Join(dir, "peer.token"), filepath.Join(dir, "toolherd.yaml")
	for path, content := range map[string]string{
		tokens: "- {name: bench, sha256: " + sum + ", roles: [toolproxy, worker, operator]}\n",
		peer:   token + "\n",
		file:   strings.Join(options, "\n") + "\n",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := &crew{dsn: dbtest.DSN(t), token: token}
	var addr string
	c.remote, addr = startRemote(t)
	c.args = []string{"--postgres", c.dsn, "--tokens-file", tokens, "--peer-token-file", peer, "--toolproxy", addr, "--config", file, "--log-level", "warn"}
	return c
}

func (c *crew) worker(t *testing.T) *partners.Process {
	t.Helper()
	return partners.StartService(t, "taskworker", c.args...)
}

// conn connects to one of the crew's services, with its token.
func (c *crew) conn(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return call(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token), method, req, reply, cc, opts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// seed takes in so many tasks.
func (c *crew) seed(t *testing.T, count int) {
	t.Helper()
	t.Run("seed", func(t *testing.T) {
		intake := taskv1.NewTaskIntakeServiceClient(c.conn(t, c.worker(t).URL))
		var left atomic.Int64
		left.Store(int64(count))
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for left.Add(-1) >= 0 && t.Context().Err() == nil {
					if err := c.take(t.Context(), intake); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
	if t.Failed() {
		t.FailNow()
	}
}

// take reserves and commits one task.
func (c *crew) take(ctx context.Context, intake taskv1.TaskIntakeServiceClient) error {
	n := c.taken.Add(1)
	binding := []byte(`{"bench":true}`)
	sum := sha256.Sum256(binding)
	reserved, err := intake.ReserveTask(ctx, &taskv1.ReserveTaskRequest{
		Principal: "bench", Scope: &corev1.Scope{UserId: "bench", ThreadId: "bench"}, RequestHash: hex.EncodeToString(sum[:]),
		Binding: binding, BindingFingerprint: hex.EncodeToString(sum[:]), TaskName: "job", Server: "bench",
		SubmitTimeout: durationpb.New(10 * time.Second), CallerRoles: []corev1.Role{corev1.Role_ROLE_AGENT},
	})
	if err != nil {
		return fmt.Errorf("reserve: %w", err)
	}
	_, err = intake.CommitTask(ctx, &taskv1.CommitTaskRequest{
		TaskId: reserved.GetTaskId(), Fence: reserved.GetFence(), Handle: fmt.Appendf(nil, "%d", n), RemoteTaskId: fmt.Sprintf("job-%d", n),
		Status: corev1.TaskStatus_TASK_STATUS_WORKING,
	})
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// count is how many of something a row needs: all for a table, few to see that the code works.
func count(full int) int {
	if *roundCount == 1 {
		return full / 50
	}
	return full
}

// rowWorkerPolls compares polls of one worker with jobs of one River client, on the same Postgres, each doing nothing.
func rowWorkerPolls(t *testing.T, rep *report) {
	const pollAfter = 250 * time.Millisecond // the shortest that is honoured
	c := newCrew(t, "tasks: { concurrency: 100 }")
	c.remote.working(pollAfter)
	c.seed(t, count(10_000))
	got := map[string][]float64{}
	for range min(*roundCount, 5) {
		t.Run("worker", func(t *testing.T) {
			c.worker(t)
			await(t, "the first poll", func(before int64) bool { return c.remote.asked.Load() > before+100 }, c.remote.asked.Load())
			before, start := c.remote.asked.Load(), time.Now()
			pause(t, *perRound)
			got["worker"] = append(got["worker"], float64(c.remote.asked.Load()-before)/time.Since(start).Seconds())
		})
		for name, cooldown := range map[string]time.Duration{"default": 0, "1 ms": time.Millisecond} {
			got[name] = append(got[name], riverJobs(t, cooldown))
		}
	}
	fastest := "default"
	if median(got["1 ms"]) > median(got["default"]) {
		fastest = "1 ms"
	}
	rep.add(row{what: "  River, no-op jobs, 100 workers, default cooldown", baseline: perSecondText(median(got["default"]))})
	rep.add(row{
		what:     "polls of one worker, no-op toolproxy, concurrency 100, over River's no-op jobs (cooldown " + fastest + ")",
		measured: perSecondText(median(got["worker"])), baseline: perSecondText(median(got[fastest])),
		ratio: fmt.Sprintf("%.2f x", ratio(t, len(got["worker"]), func(i int) float64 { return got["worker"][i] / got[fastest][i] })),
		goal:  ">= 1 x",
	})
}

// rowTakeover kills a worker in the middle of a call and waits for another one to make it.
func rowTakeover(t *testing.T, rep *report) {
	const lease = 5 * time.Second
	c := newCrew(t, "tasks: { lease: "+lease.String()+" }")
	c.remote.working(time.Second)
	var took []time.Duration
	for range min(*roundCount, 3) {
		t.Run("round", func(t *testing.T) {
			calls := make(chan time.Time, 16)
			c.remote.hang.Store(&calls)
			first := c.worker(t)
			if err := c.take(t.Context(), taskv1.NewTaskIntakeServiceClient(c.conn(t, first.URL))); err != nil {
				t.Fatal(err)
			}
			<-calls
			c.worker(t)
			if err := first.Kill(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			killed := time.Now()
			took = append(took, (<-calls).Sub(killed))
			c.remote.hang.Store(nil)
			c.remote.completed()
			asked := c.remote.asked.Load()
			await(t, "the end of the task", func(before int64) bool { return c.remote.asked.Load() > before }, asked)
		})
	}
	rep.add(row{
		what: "lease takeover after kill -9 of a worker in a call, over its lease", measured: ms(median(took)), baseline: ms(lease),
		ratio: fmt.Sprintf("%+.1f s", (median(took) - lease).Seconds()), goal: "<= +2 s",
	})
}

// rowIdle reads what a worker spends on tasks that are not due.
func rowIdle(t *testing.T, rep *report) {
	c := newCrew(t)
	c.remote.working(time.Hour)
	waiting := count(10_000)
	c.seed(t, waiting)
	p := c.worker(t)
	await(t, "the first poll of each task", func(int64) bool { return c.remote.asked.Load() >= int64(waiting) }, 0)
	pause(t, time.Second)
	window := max(4**perRound, time.Second)
	before, start := cpuTime(t, p.PID), time.Now()
	pause(t, window)
	rep.add(row{
		what:     fmt.Sprintf("one worker, %d waiting tasks, next poll in an hour, share of a core", waiting),
		measured: fmt.Sprintf("%.2f %%", 100*(cpuTime(t, p.PID)-before).Seconds()/time.Since(start).Seconds()), goal: "<= 1 %",
	})
}

// await polls until ok holds.
func await(t *testing.T, what string, ok func(before int64) bool, before int64) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(before); pause(t, 5*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
