package taskworker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/wake"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	"github.com/toolherd/toolherd/services/taskworker"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/litestore"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/pgstore"
)

// storeOf returns what a worker of the database d would work with.
func storeOf(d *db.DB, c taskworker.Config) task.Store {
	p := task.Policy{
		PollInterval: c.PollInterval, Lease: c.Lease, MaxPollBackoff: c.MaxPollBackoff, InputRequiredPollInterval: c.InputRequiredPollInterval,
		MaxAge: time.Hour, Retention: time.Hour, TrackingDegradedAfterErrors: 3, MaxResultBytes: 65536, ResultPreviewMaxChars: 2000,
	}
	if d.Engine() == db.Postgres {
		return pgstore.New(d.Pool(), p)
	}
	return litestore.New(d, p)
}

// TASK-020
func TestTheTasksOfADeadWorkerAreTakenOverWhenTheirLeasesHaveRunOut(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		cfg := quick()
		cfg.Lease = 700 * time.Millisecond
		store := storeOf(d, cfg)
		idle := start(t, d, options{cfg: cfg, idle: true})
		id := idle.submit(t, alice, "x").GetTaskId()
		var dead []task.Claim
		eventually(t, func() (err error) {
			if dead, err = store.Claim(t.Context(), "dead", 10); err == nil && len(dead) == 0 {
				err = fmt.Errorf("nothing is due")
			}
			return err
		})
		died := time.Now()

		r := newRemote()
		r.onPoll("x", says(done(`"alive"`)))
		n := start(t, d, options{cfg: cfg, remote: r, wake: wake.None()})
		got := n.ended(t, id)
		if took := r.calls("poll", "x")[0].at.Sub(died); took < cfg.Lease/2 || took > cfg.Lease+2*time.Second {
			t.Errorf("taken over after %v, the lease is %v", took, cfg.Lease)
		}
		// The dead one speaks up.
		s, err := task.NewSnapshot(task.Report{Status: string(task.Failed), Error: "late"})
		if err != nil {
			t.Fatal(err)
		}
		settled, err := store.Settle(t.Context(), []task.Outcome{{Claim: dead[0], Worker: "dead", Snapshot: &s}})
		if err != nil || !settled[0].Dropped {
			t.Errorf("the late write: %v, %v", settled, err)
		}
		if after := n.get(t, id); after.GetVersion() != got.GetVersion() || after.GetResultJson() != `"alive"` {
			t.Errorf("got %v after the late write, want %v", after, got)
		}
	})
}

// TASK-018: a call that outlasts its lease; another worker finishes before it returns.
func TestWhatACallBringsAfterItsLeaseIsNotWritten(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		cfg := quick()
		cfg.Lease = time.Second
		slow, fast := newRemote(), newRemote()
		first, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		slow.onPoll("x", func(context.Context, asked) (*remoteSnapshot, error) {
			once.Do(func() { close(first) })
			<-release // whatever its context says
			return &remoteSnapshot{Status: failed, Error: "late"}, nil
		})
		fast.onPoll("x", says(done(`"first"`)))
		cfg.Concurrency = 1 // the one caller that hangs is all there is of this worker
		a := start(t, d, options{cfg: cfg, remote: slow})
		id := a.submit(t, alice, "x").GetTaskId()
		<-first
		// It is stopped, as it would be by a kill: nothing renews its lease.
		stopped := make(chan struct{})
		go func() { defer close(stopped); a.stop() }()
		b := start(t, d, options{cfg: cfg, remote: fast})
		eventually(t, func() error {
			if got := b.get(t, id); got.GetStatus() == completed {
				return nil
			}
			return fmt.Errorf("not taken over yet: %d calls", len(fast.calls("poll", "x")))
		})
		got := b.get(t, id)
		close(release)
		<-stopped
		if after := b.get(t, id); after.GetVersion() != got.GetVersion() || after.GetStatus() != completed || after.GetResultJson() != `"first"` {
			t.Errorf("got %v, want %v", after, got)
		}
		if n := a.metric(t, "toolherd_task_dropped_total"); n != 1 {
			t.Errorf("%v outcomes dropped, want 1", n)
		}
	})
}

// TASK-053
func TestAShutdownDrainsReleasesWhatWasNotBegunAndCancelsWhatHangs(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		cfg := quick()
		cfg.Lease = time.Minute
		n := start(t, d, options{cfg: cfg, remote: r})
		ends := make(chan struct{})
		r.onPoll("drains", func(ctx context.Context, _ asked) (*remoteSnapshot, error) {
			select {
			case <-ends:
				return done(`"drained"`), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		r.onPoll("breaks", func(context.Context, asked) (*remoteSnapshot, error) { <-ends; return nil, context.Canceled })
		drains, breaks := n.submit(t, alice, "drains").GetTaskId(), n.submit(t, alice, "breaks").GetTaskId()
		r.awaitCalls(t, "poll", "drains", 1)
		r.awaitCalls(t, "poll", "breaks", 1)

		idle := start(t, d, options{cfg: cfg, idle: true})
		stopped := make(chan struct{})
		go func() { defer close(stopped); n.stop() }()
		eventually(t, func() error { // it leaves at once: nobody would see to a cancel
			if _, err := idle.CancelTask(t.Context(), &taskv1.CancelTaskRequest{TaskId: "none"}); err == nil {
				return fmt.Errorf("a task that does not exist was cancelled")
			}
			alive, err := storeOf(d, cfg).(task.Workers).Alive(t.Context())
			if err == nil && alive {
				err = fmt.Errorf("the worker has not left")
			}
			return err
		})
		later := idle.submit(t, alice, "later").GetTaskId()
		close(ends)
		<-stopped
		if got := idle.get(t, drains); got.GetStatus() != completed {
			t.Errorf("the call that drained was not written: %v", got)
		}
		if got := idle.get(t, breaks); got.GetEndTime() != nil || len(got.GetAttempts()) != 0 {
			t.Errorf("a failure while draining was held against the task: %v", got)
		}
		if len(r.calls("poll", "later")) != 0 {
			t.Error("a task was claimed after the end")
		}
		// What was not begun, or given up, is due at once, whatever the lease.
		after := newRemote()
		for handle := range map[string]string{"breaks": breaks, "later": later} {
			after.onPoll(handle, says(done(`1`)))
		}
		m := start(t, d, options{cfg: cfg, remote: after})
		m.ended(t, breaks)
		m.ended(t, later)
	})
}

// TASK-053
func TestACallThatHangsIsCancelledAfterTenSecondsAndItsLeaseRunsOut(t *testing.T) {
	d := dbtest.SQLite(t)
	r := newRemote()
	cfg := quick()
	cfg.Lease = 14 * time.Second
	n := start(t, d, options{cfg: cfg, remote: r})
	r.onPoll("x", hangs)
	id := n.submit(t, alice, "x").GetTaskId()
	r.awaitCalls(t, "poll", "x", 1)
	began := time.Now()
	n.stop()
	if took := time.Since(began); took < 9*time.Second || took > 13*time.Second {
		t.Errorf("the shutdown took %v", took)
	}
	r.onPoll("x", says(done(`1`)))
	m := start(t, d, options{cfg: cfg, remote: r})
	if got := m.get(t, id); len(got.GetAttempts()) != 0 {
		t.Errorf("the cancelled call was written: %v", got)
	}
	m.ended(t, id)
	second := r.calls("poll", "x")[1]
	if gap := second.at.Sub(began); gap < cfg.Lease/3 {
		t.Errorf("asked again after %v: the lease had not run out", gap)
	}
}

// syncBuffer is a log.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestAWorkerOutlivesItsDatabaseAndSaysSoOnce(t *testing.T) {
	cluster := dbtest.NewCluster(t)
	d := cluster.Open(t)
	r := newRemote()
	log := &syncBuffer{}
	n := start(t, d, options{cfg: quick(), remote: r, log: slog.New(slog.NewTextHandler(log, nil))})
	before := n.submit(t, alice, "before")
	r.awaitCalls(t, "poll", "before", 2)
	watched := n.watch(t, before.GetTaskId(), 0)
	if _, err := watched.Recv(); err != nil {
		t.Fatal(err)
	}

	cluster.Stop()
	eventually(t, func() error {
		if err := n.service.Ready(t.Context()); err == nil {
			return fmt.Errorf("ready without a database")
		}
		if strings.Count(log.String(), "failing, trying again") < 4 {
			return fmt.Errorf("the loops have not noticed:\n%s", log)
		}
		return nil
	})
	r.onPoll("before", says(done(`"survived"`)))
	cluster.Start()
	for {
		resp, err := watched.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetTask().GetStatus() == completed {
			break
		}
	}
	r.onPoll("after", says(done(`1`)))
	n.ended(t, n.submit(t, alice, "after").GetTaskId())
	if err := n.service.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, func() error {
		text := log.String()
		if fails, heals := strings.Count(text, "failing, trying again"), strings.Count(text, "works again"); fails != heals {
			return fmt.Errorf("%d loops failed, %d work again:\n%s", fails, heals, text)
		}
		return nil
	})
	for line := range strings.Lines(log.String()) {
		if _, loop, ok := strings.Cut(line, "loop="); ok && strings.Contains(line, "failing") {
			loop, _, _ = strings.Cut(loop, " err=")
			if n := strings.Count(log.String(), `failing, trying again until it works" service=taskworker loop=`+loop); n != 1 {
				t.Errorf("%s said %d times that it fails:\n%s", loop, n, log)
			}
		}
	}

	// Nor does a database that is away hold up the end.
	r.onPoll("last", hangs)
	n.submit(t, alice, "last")
	r.awaitCalls(t, "poll", "last", 1)
	r.onPoll("last", fails(context.DeadlineExceeded))
	cluster.Stop()
	began := time.Now()
	n.stop()
	if took := time.Since(began); took > 18*time.Second {
		t.Errorf("the shutdown took %v", took)
	}
}
