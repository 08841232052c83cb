package intake_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake/intaketest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func client(s *intaketest.Server, changed func()) *intake.Client {
	return intake.New(intake.Options{Intake: intaketest.Intake{Server: s}, Changed: changed, Log: slog.New(slog.DiscardHandler)})
}

func reserve(t *testing.T, c *intake.Client) *intake.Reservation {
	t.Helper()
	r, committed, err := c.Reserve(t.Context(), &taskv1.ReserveTaskRequest{Scope: &corev1.Scope{}, RequestHash: "h"})
	if err != nil || committed != nil {
		t.Fatalf("reserve: %v, %v", committed, err)
	}
	return r
}

func unreachable() error { return fault.New(fault.NotReady, "taskworker cannot be reached") }

// failing makes the named steps fail until the pointer is nil.
func failing(err *atomic.Pointer[fault.Error], steps ...string) func(context.Context, string, int) error {
	return func(_ context.Context, step string, _ int) error {
		for _, s := range steps {
			if e := err.Load(); s == step && e != nil {
				return e
			}
		}
		return nil
	}
}

// It is known without asking whether tasks run: a client asks on its own, and learns from every answer.
func TestAClientKnowsWhetherTasksRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err, store atomic.Pointer[fault.Error]
		s := &intaketest.Server{Before: func(ctx context.Context, step string, n int) error {
			return errors.Join(failing(&err, "ask", "reserve")(ctx, step, n), failing(&store, "probe")(ctx, step, n))
		}}
		var changes atomic.Int64
		c := client(s, func() { changes.Add(1) })
		if c.Running() || c.Off() != nil {
			t.Errorf("before it asked: running %v, off %v", c.Running(), c.Off())
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		check := func(what string, running bool, off fault.Reason, changed int64) {
			t.Helper()
			synctest.Wait()
			if c.Running() != running || fault.ReasonOf(c.Off()) != off || changes.Load() != changed {
				t.Errorf("%s: running %v, off %v, %d changes", what, c.Running(), c.Off(), changes.Load())
			}
		}
		check("at first", true, "", 0)
		err.Store(fault.New(fault.NotReady, "no taskworker"))
		time.Sleep(10 * time.Second)
		check("while it is away", false, "", 0)
		err.Store(nil)
		time.Sleep(2 * time.Second)
		check("back again", true, "", 0)
		err.Store(fault.New(fault.TasksUnavailable, "tasks are switched off"))
		if _, _, err := c.Reserve(ctx, &taskv1.ReserveTaskRequest{Scope: &corev1.Scope{}}); !fault.Is(err, fault.TasksUnavailable) {
			t.Errorf("reserve: %v", err)
		}
		check("switched off", false, fault.TasksUnavailable, 1)
		err.Store(nil)
		time.Sleep(10 * time.Second)
		check("switched on", true, "", 2)
		store.Store(fault.New(fault.NotReady, "no database"))
		time.Sleep(10 * time.Second)
		check("without a store", false, "", 2)
		store.Store(nil)
		time.Sleep(2 * time.Second)
		check("with one again", true, "", 2)

		before := s.Tries("ask")
		time.Sleep(time.Hour)
		if n := s.Tries("ask") - before; n > 361 {
			t.Errorf("it asked %d times in an hour", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWithoutIntakeThereAreNoTasks(t *testing.T) {
	c := intake.New(intake.Options{Off: "there is no taskworker", Log: slog.New(slog.DiscardHandler)})
	if err := c.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if c.Running() || !fault.Is(c.Off(), fault.TasksUnavailable) {
		t.Errorf("running %v, off %v", c.Running(), c.Off())
	}
	if _, _, err := c.Reserve(t.Context(), &taskv1.ReserveTaskRequest{Scope: &corev1.Scope{}}); !fault.Is(err, fault.TasksUnavailable) {
		t.Errorf("reserve: %v", err)
	}
}

func TestWhatIsNotAboutTheRequestIsNotReady(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want fault.Reason
	}{
		"unreachable":     {unreachable(), fault.NotReady},
		"lost on the way": {fault.Of(fault.Unknown, "the connection was lost"), fault.NotReady},
		"a mistake":       {errors.New("boom"), fault.NotReady},
		"too slow":        {fault.New(fault.Timeout, "no answer"), fault.NotReady},
		"an unknown sink": {fault.New(fault.SinkUnknown, "no sink"), fault.SinkUnknown},
		"a closed sink":   {fault.New(fault.Forbidden, "not for agents"), fault.Forbidden},
		"a conflict":      {fault.New(fault.RequestIDConflict, "other arguments"), fault.RequestIDConflict},
		"in progress":     {fault.New(fault.RequestInProgress, "running").RetryIn(time.Second), fault.RequestInProgress},
		"a wrong request": {fault.New(fault.InvalidArguments, "task_name"), fault.InvalidArguments},
		"no tasks":        {fault.New(fault.TasksUnavailable, "off"), fault.TasksUnavailable},
	} {
		s := &intaketest.Server{Before: func(context.Context, string, int) error { return tt.err }}
		if _, _, err := client(s, nil).Reserve(t.Context(), &taskv1.ReserveTaskRequest{Scope: &corev1.Scope{}}); !fault.Is(err, tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}

// TASK-008, toolproxy's part: renewed every 5 s for as long as the submit runs, and no longer.
func TestAReservationIsRenewedEveryFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &intaketest.Server{}
		r := reserve(t, client(s, nil))
		ctx, stop := r.Keep(t.Context())
		time.Sleep(62 * time.Second)
		if ctx.Err() != nil {
			t.Errorf("the submit was ended: %v", context.Cause(ctx))
		}
		stop()
		if n := s.Tries("renew"); n != 12 {
			t.Errorf("%d renewals in 62 s", n)
		}
		if left := time.Until(r.Until()); left != 13*time.Second {
			t.Errorf("it holds for another %v", left)
		}
		time.Sleep(time.Minute)
		if n := s.Tries("renew"); n != 12 {
			t.Errorf("it is renewed after the end: %d times", n)
		}
	})
}

// TASK-008: whatever keeps renewals from arriving, the submit ends while the reservation still holds.
func TestASubmitEndsBeforeItsReservationCould(t *testing.T) {
	for name, hook := range map[string]func(ctx context.Context, step string, n int) error{
		"from the first on": func(_ context.Context, step string, n int) error {
			if step == "renew" {
				return unreachable()
			}
			return nil
		},
		"from the third on": func(_ context.Context, step string, n int) error {
			if step == "renew" && n >= 2 {
				return unreachable()
			}
			return nil
		},
		"never answered": func(ctx context.Context, step string, n int) error {
			if step == "renew" && n >= 2 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &intaketest.Server{Before: hook}
				r := reserve(t, client(s, nil))
				ctx, stop := r.Keep(t.Context())
				defer stop()
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), intake.ErrLost) {
					t.Errorf("the cause is %v", context.Cause(ctx))
				}
				if left := time.Until(r.Until()); left < 2*time.Second {
					t.Errorf("only %v are left", left)
				}
				// It holds at the other side, too.
				if _, err := r.Commit(t.Context(), &taskv1.CommitTaskRequest{RemoteTaskId: "x"}, nil); err != nil {
					t.Errorf("commit: %v", err)
				}
			})
		})
	}
}

func TestARenewalThatFailsIsTriedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &intaketest.Server{Before: func(_ context.Context, step string, n int) error {
			if step == "renew" && n%3 != 2 { // two of three
				return unreachable()
			}
			return nil
		}}
		r := reserve(t, client(s, nil))
		ctx, stop := r.Keep(t.Context())
		time.Sleep(10 * time.Minute)
		if ctx.Err() != nil {
			t.Errorf("lost after all: %v", context.Cause(ctx))
		}
		stop()
	})
}

func TestALostReservationEndsTheSubmitAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &intaketest.Server{Before: func(_ context.Context, step string, _ int) error {
			if step == "renew" {
				return fault.New(fault.ReservationExpired, "it is gone")
			}
			return nil
		}}
		r := reserve(t, client(s, nil))
		start := time.Now()
		ctx, stop := r.Keep(t.Context())
		defer stop()
		<-ctx.Done()
		if took := time.Since(start); took != 5*time.Second || !errors.Is(context.Cause(ctx), intake.ErrLost) {
			t.Errorf("after %v: %v", took, context.Cause(ctx))
		}
	})
}

// TASK-012, the attempts: until the reservation expires, with the same fence, and more slowly after that.
func TestACommitWithoutAVerdictIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err atomic.Pointer[fault.Error]
		s := &intaketest.Server{Before: failing(&err, "commit")}
		r := reserve(t, client(s, nil))
		err.Store(fault.New(fault.NotReady, "away"))
		start := time.Now()
		var late time.Duration
		go func() {
			time.Sleep(2 * time.Minute)
			err.Store(nil)
		}()
		_, commitErr := r.Commit(t.Context(), &taskv1.CommitTaskRequest{RemoteTaskId: "x"}, func(error) { late = time.Since(start) })
		if !fault.Is(commitErr, fault.ReservationExpired) {
			t.Errorf("commit: %v", commitErr)
		}
		if late < 15*time.Second || late > 16*time.Second {
			t.Errorf("it was called late after %v", late)
		}
		if n := s.Tries("commit"); n < 20 || n > 60 {
			t.Errorf("%d attempts", n)
		}
		if all := s.All(); all[0].Late.GetRemoteTaskId() != "x" {
			t.Errorf("the late commit is %v", all[0].Late)
		}
	})
}

// TASK-011: an answer that is lost is asked for again, and is the same.
func TestACommitWhoseAnswerIsLostIsStillOneTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &intaketest.Server{After: func(_ context.Context, step string, n int) error {
			if step == "commit" && n < 3 {
				return fault.Of(fault.Unknown, "the connection was lost")
			}
			return nil
		}}
		r := reserve(t, client(s, nil))
		task, err := r.Commit(t.Context(), &taskv1.CommitTaskRequest{RemoteTaskId: "x"}, nil)
		if err != nil || task.GetTaskId() != r.TaskID() {
			t.Fatalf("commit: %v, %v", task, err)
		}
		if diff := cmp.Diff([]string{"reserve", "commit"}, s.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		if n := s.Tries("commit"); n != 4 {
			t.Errorf("%d attempts", n)
		}
	})
}

// A message beyond the limit of peers never gets a verdict.
func TestAHandleBeyondAllBoundsIsRefusedAtOnce(t *testing.T) {
	s := &intaketest.Server{}
	r := reserve(t, client(s, nil))
	_, err := r.Commit(t.Context(), &taskv1.CommitTaskRequest{RemoteTaskId: "x", Handle: make([]byte, 2<<20)}, nil)
	if !fault.Is(err, fault.InvalidArguments) || s.Tries("commit") != 0 {
		t.Errorf("commit: %v, after %d attempts", err, s.Tries("commit"))
	}
}

func TestACommitEndsWithItsContextAndItsPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &intaketest.Server{Before: func(_ context.Context, step string, _ int) error {
			if step == "commit" {
				return unreachable()
			}
			return nil
		}}
		r := reserve(t, client(s, nil))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		called := 0
		if _, err := r.Commit(ctx, &taskv1.CommitTaskRequest{}, func(error) { called++ }); err == nil || called != 1 {
			t.Errorf("commit: %v, called late %d times", err, called)
		}
		start := time.Now()
		if _, err := r.Commit(t.Context(), &taskv1.CommitTaskRequest{}, nil); !fault.Is(err, fault.NotReady) {
			t.Errorf("commit: %v", err)
		}
		if took := time.Since(start); took < 10*time.Minute || took > 11*time.Minute {
			t.Errorf("it was tried for %v", took)
		}
	})
}

func TestAnAbandonedReservationIsTriedUntilItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err atomic.Pointer[fault.Error]
		s := &intaketest.Server{Before: failing(&err, "abandon")}
		c := client(s, nil)
		r := reserve(t, c)
		err.Store(fault.New(fault.NotReady, "away"))
		start := time.Now()
		var first time.Duration = -1
		go func() {
			time.Sleep(4 * time.Second)
			err.Store(nil)
		}()
		abandonErr := r.Abandon(t.Context(), taskv1.AbandonOutcome_ABANDON_OUTCOME_NOT_EXECUTED, "why", func() { first = time.Since(start) })
		if abandonErr != nil || first != 0 {
			t.Errorf("abandon: %v, the first attempt ended after %v", abandonErr, first)
		}
		if diff := cmp.Diff([]string{"reserve", "abandon NOT_EXECUTED"}, s.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}

		r = reserve(t, c)
		err.Store(fault.New(fault.NotReady, "away"))
		start = time.Now()
		if err := r.Abandon(t.Context(), taskv1.AbandonOutcome_ABANDON_OUTCOME_UNKNOWN, "why", nil); err == nil {
			t.Error("it was given up without anybody hearing of it")
		}
		if took := time.Since(start); took < 15*time.Second || took > 17*time.Second {
			t.Errorf("it was tried for %v", took)
		}
	})
}
