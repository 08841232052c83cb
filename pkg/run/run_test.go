package run_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestAllReturnsTheFirstErrorAfterAllHaveStopped(t *testing.T) {
	broken := errors.New("disk full")
	var stopped atomic.Bool
	err := run.All(t.Context(),
		run.Task{Name: "writer", Run: func(context.Context) error { return broken }},
		run.Task{Name: "reader", Run: func(ctx context.Context) error {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), broken) {
				t.Errorf("cause of the stop is %v, want the writer's error", context.Cause(ctx))
			}
			stopped.Store(true)
			return ctx.Err()
		}},
	)
	if !errors.Is(err, broken) || err.Error() != "writer: disk full" {
		t.Errorf("All returned %v, want the writer's error under its name", err)
	}
	if !stopped.Load() {
		t.Error("All returned before the reader had stopped")
	}
}

func TestAllJoinsErrorsOfStoppingTasks(t *testing.T) {
	first, second := errors.New("disk full"), errors.New("flush lost")
	err := run.All(t.Context(),
		run.Task{Name: "writer", Run: func(context.Context) error { return first }},
		run.Task{Name: "flusher", Run: func(ctx context.Context) error {
			<-ctx.Done()
			return second
		}},
	)
	if !errors.Is(err, first) || !errors.Is(err, second) {
		t.Errorf("All returned %v, want both errors", err)
	}
}

func TestAllTreatsACancelledParentAsASuccess(t *testing.T) {
	for name, cause := range map[string]error{"plain": nil, "with a cause": errors.New("interrupt received")} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(cause)
			err := run.All(ctx,
				run.Task{Name: "returns ctx.Err", Run: untilDone},
				run.Task{Name: "returns the cause", Run: func(ctx context.Context) error {
					<-ctx.Done()
					return context.Cause(ctx)
				}},
				run.Task{Name: "returns nil", Run: func(context.Context) error { return nil }},
			)
			if err != nil {
				t.Errorf("All returned %v after an ordinary stop, want nil", err)
			}
		})
	}
}

func TestAllReportsAPassedDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := run.All(ctx, run.Task{Name: "loop", Run: untilDone})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("All returned %v, want the deadline error", err)
		}
	})
}

func TestAllLetsOthersRunWhenOneTaskIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- run.All(ctx,
				run.Task{Name: "once", Run: func(context.Context) error { return nil }},
				run.Task{Name: "loop", Run: untilDone},
			)
		}()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("All ended with %v while a task was running", err)
		default:
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestAllTurnsAPanicIntoAnErrorWithAStack(t *testing.T) {
	err := run.All(t.Context(),
		run.Task{Name: "loop", Run: untilDone},
		run.Task{Name: "buggy", Run: func(context.Context) error { panic("index out of range") }},
	)
	p, ok := errors.AsType[*run.PanicError](err)
	if !ok {
		t.Fatalf("All returned %v, want a PanicError", err)
	}
	if p.Value != "index out of range" || !strings.Contains(err.Error(), "run_test.go") {
		t.Errorf("error %v lacks the value or the stack", err)
	}
}

func TestAllTurnsGoexitIntoAnError(t *testing.T) {
	err := run.All(t.Context(), run.Task{Name: "quitter", Run: func(context.Context) error {
		runtime.Goexit()
		return nil
	}})
	if err == nil || !strings.Contains(err.Error(), "runtime.Goexit") {
		t.Errorf("All returned %v, want an error that names runtime.Goexit", err)
	}
}

func TestGroupWaitsForItsGoroutinesAndRefusesMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := run.NewGroup(t.Context(), slog.New(slog.DiscardHandler))
		var ended atomic.Int32
		for range 10 {
			if !g.Go("session", func(ctx context.Context) {
				<-ctx.Done()
				ended.Add(1)
			}) {
				t.Fatal("Go refused while the group was open")
			}
		}
		if g.Len() != 10 {
			t.Errorf("Len is %d, want 10", g.Len())
		}
		waited := make(chan error, 1)
		go func() { waited <- g.Wait() }()
		synctest.Wait()
		if g.Go("late", func(context.Context) { t.Error("a late function ran") }) {
			t.Error("Go accepted work after Wait")
		}
		g.Stop(errors.New("shutting down"))
		if err := <-waited; err != nil {
			t.Error(err)
		}
		if ended.Load() != 10 {
			t.Errorf("Wait returned when %d of 10 had ended", ended.Load())
		}
		if err := g.Wait(); err != nil {
			t.Errorf("second Wait: %v", err)
		}
	})
}

func TestGroupRefusesWorkOnceItsContextEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	g := run.NewGroup(ctx, slog.New(slog.DiscardHandler))
	cancel()
	if g.Go("late", func(context.Context) { t.Error("a late function ran") }) {
		t.Error("Go accepted work after the context ended")
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestGroupContainsAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		g := run.NewGroup(t.Context(), slog.New(slog.NewTextHandler(&out, nil)))
		g.Go("buggy", func(context.Context) { panic("boom") })
		synctest.Wait()
		survived := g.Go("healthy", func(context.Context) {})
		err := g.Wait()
		if !survived {
			t.Error("one panic closed the whole group")
		}
		if _, ok := errors.AsType[*run.PanicError](err); !ok {
			t.Errorf("Wait returned %v, want the panic", err)
		}
		if strings.Count(out.String(), "level=ERROR") != 1 || !strings.Contains(out.String(), "name=buggy") {
			t.Errorf("the log does not name the goroutine once at ERROR:\n%s", out.String())
		}
	})
}
