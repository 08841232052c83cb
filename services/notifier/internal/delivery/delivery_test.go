package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolherd/toolherd/services/notifier/internal/delivery"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/sink"
)

// NOTE-009: the waits are those between the end of an attempt and the begin of the next.
func TestBackOffIsExponentialWithFullJitterFromTheEndOfTheAttempt(t *testing.T) {
	for name, limit := range map[string]time.Duration{"agent runtime": 300 * time.Second, "webhook": 8 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const tasks, attempts, takes = 20, 9, 7 * time.Second
				var mu sync.Mutex
				ended := map[string]time.Time{}
				waits := map[int][]time.Duration{} // by failures before
				f := newFixture(t, func(_ context.Context, c notification.Claim) sink.Result {
					mu.Lock()
					if at, ok := ended[c.Event.TaskID]; ok {
						waits[c.AttemptCount] = append(waits[c.AttemptCount], time.Since(at))
					}
					mu.Unlock()
					time.Sleep(takes)
					mu.Lock()
					ended[c.Event.TaskID] = time.Now()
					mu.Unlock()
					return sink.Result{Verdict: notification.Failed}
				})
				s := &f.options.Sinks[0]
				s.MaxAttempts, s.Base, s.Cap = attempts, 5*time.Second, limit
				f.options.Poll, f.look = time.Minute, time.Minute
				for i := range tasks {
					f.record(fmt.Sprint("task-", i))
				}
				stop := f.run()
				f.all(notification.DeadLetter)
				stop()
				for failures := 1; failures < attempts; failures++ {
					bound := min(5*time.Second<<(failures-1), limit)
					got := waits[failures]
					if len(got) != tasks {
						t.Errorf("%d attempts after %d failures, want %d", len(got), failures, tasks)
						continue
					}
					const slack = 100 * time.Millisecond // for the claim
					if longest := slices.Max(got); longest > bound+slack || longest < bound/2 {
						t.Errorf("after %d failures the longest wait is %v, want at most %v and not much less", failures, longest, bound)
					}
					if shortest := slices.Min(got); shortest > bound/2 {
						t.Errorf("after %d failures the shortest wait is %v of %v: the jitter is not full", failures, shortest, bound)
					}
				}
			})
		})
	}
}

func TestALongAttemptKeepsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		f := newFixture(t, func(ctx context.Context, _ notification.Claim) sink.Result {
			sent.Add(1)
			select {
			case <-ctx.Done():
				return sink.Result{Verdict: notification.Failed, Error: context.Cause(ctx).Error()}
			case <-time.After(5 * time.Minute):
				return sink.Result{Verdict: notification.Done}
			}
		})
		f.look, f.options.Poll = time.Second, time.Second
		f.record("a")
		stop := f.run()
		f.options.Notifier = "two"
		stopOther := f.run()
		f.all(notification.Delivered)
		stop()
		stopOther()
		if sent.Load() != 1 {
			t.Errorf("%d attempts, want one that lasted ten leases", sent.Load())
		}
	})
}

func TestALostLeaseEndsTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var causes []string
		f := newFixture(t, func(ctx context.Context, c notification.Claim) sink.Result {
			if !c.Redriven {
				<-ctx.Done()
				causes = append(causes, context.Cause(ctx).Error())
				return sink.Result{Verdict: notification.Failed}
			}
			return sink.Result{Verdict: notification.Done}
		})
		f.look, f.options.Poll = time.Second, time.Second
		f.record("a")
		stop := f.run()
		synctest.Wait()
		if n, err := f.store.Redrive(t.Context(), notification.Redrive{ID: f.list()[0].ID, Actor: "me"}); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		f.all(notification.Delivered)
		time.Sleep(time.Minute) // the renewal finds the first attempt out
		stop()
		if len(causes) != 1 || !strings.Contains(causes[0], "lease") {
			t.Errorf("the first attempt ended with %v", causes)
		}
		if got := f.list()[0]; got.Status != notification.Delivered || got.AttemptCount != 0 {
			t.Errorf("the lost attempt changed %+v", got)
		}
		if f.count("abandoned") != 1 {
			t.Errorf("%v attempts were given up", f.count("abandoned"))
		}
	})
}

func TestAPanicIsAFailureAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(_ context.Context, c notification.Claim) sink.Result {
			if c.Event.TaskID == "bad" {
				panic("out of range")
			}
			return sink.Result{Verdict: notification.Done}
		})
		f.record("bad")
		stop := f.run()
		got := f.all(notification.DeadLetter)[0]
		f.record("good")
		for f.count("delivered") == 0 {
			time.Sleep(time.Second)
		}
		stop()
		if got.AttemptCount != 5 || !strings.Contains(got.LastError, "internal error") || !strings.Contains(f.log.String(), "out of range") {
			t.Errorf("dead letter %+v", got)
		}
		if f.count("failed") != 5 || f.count("dead_letter") != 1 {
			t.Errorf("%v failed, %v dead", f.count("failed"), f.count("dead_letter"))
		}
	})
}

func TestAnOutcomeIsWrittenWhenTheDatabaseIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent, asked atomic.Int32
		f := newFixture(t, func(context.Context, notification.Claim) sink.Result {
			sent.Add(1)
			return sink.Result{Verdict: notification.Done}
		})
		begun := time.Now()
		f.look, f.options.Poll = time.Second, time.Second
		away := func() error {
			if asked.Add(1); time.Since(begun) < 10*time.Second {
				return errors.New("connection refused")
			}
			return nil
		}
		f.store.settle = func(notification.Outcome) error { return away() }
		f.record("a")
		stop := f.run()
		f.all(notification.Delivered)
		if sent.Load() != 1 || asked.Load() > 100 {
			t.Errorf("%d attempts, %d tries to write", sent.Load(), asked.Load())
		}
		stop()

		begun = time.Now()
		asked.Store(0)
		f.store.settle, f.store.ask = nil, away
		f.record("b")
		stop = f.run()
		f.all(notification.Delivered)
		stop()
		if asked.Load() > 100 {
			t.Errorf("the database was asked %d times in 10 s while it was away", asked.Load())
		}
		if n := strings.Count(f.log.String(), "works again"); n != 2 { // claims and outcomes
			t.Errorf("the log says %d times that it works again:\n%s", n, f.log.String())
		}
	})
}

// With the database away for longer than the lease the attempt is made again; nothing ends up twice in the records.
func TestAnOutcomeThatCannotBeWrittenInTimeIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		f := newFixture(t, func(context.Context, notification.Claim) sink.Result {
			sent.Add(1)
			return sink.Result{Verdict: notification.Done}
		})
		f.store.settle = func(notification.Outcome) error {
			if sent.Load() == 1 {
				return errors.New("connection refused")
			}
			return nil
		}
		f.store.Store = forgetful{f.store.Store, &sent}
		f.look, f.options.Poll = time.Second, time.Second
		f.record("a")
		stop := f.run()
		f.all(notification.Delivered)
		stop()
		if sent.Load() != 2 || f.count("abandoned") != 1 || f.count("delivered") != 1 {
			t.Errorf("%d attempts, %v given up, %v delivered", sent.Load(), f.count("abandoned"), f.count("delivered"))
		}
	})
}

// forgetful is a store that renews no lease while one attempt was made.
type forgetful struct {
	notification.Store
	sent *atomic.Int32
}

func (f forgetful) Renew(ctx context.Context, claims []notification.Claim, lease time.Duration) ([]string, error) {
	if f.sent.Load() == 1 {
		return nil, errors.New("connection refused")
	}
	return f.Store.Renew(ctx, claims, lease)
}

func TestAnAttemptThatOutlivesTheDrainIsCancelledAndMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := true
		f := newFixture(t, func(ctx context.Context, _ notification.Claim) sink.Result {
			if hang {
				<-ctx.Done()
				return sink.Result{Verdict: notification.Failed, Error: "cancelled"}
			}
			return sink.Result{Verdict: notification.Done}
		})
		f.record("a")
		stop := f.run()
		synctest.Wait()
		begun := time.Now()
		stop()
		if took := time.Since(begun); took != delivery.DefaultDrain {
			t.Errorf("the shutdown took %v, want %v", took, delivery.DefaultDrain)
		}
		if got := f.list()[0]; got.Status != notification.Claimed || got.AttemptCount != 0 {
			t.Errorf("the cancelled attempt changed %+v", got)
		}
		hang = false
		f.look, f.options.Poll = time.Second, time.Second
		f.options.Notifier = "two"
		begun = time.Now()
		stop = f.run()
		f.all(notification.Delivered)
		stop()
		if took := time.Since(begun); took > delivery.DefaultLease+time.Second {
			t.Errorf("it was delivered after %v, want when the lease has run out", took)
		}
	})
}

// An outcome that the database refuses holds up no other.
func TestAnOutcomeThatCannotBeWrittenHarmsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(context.Context, notification.Claim) sink.Result {
			time.Sleep(time.Millisecond) // so that all come together
			return sink.Result{Verdict: notification.Done}
		})
		f.store.settle = func(o notification.Outcome) error {
			if o.Claim.Event.TaskID == "bad" {
				return errors.New("check constraint")
			}
			return nil
		}
		f.record("a", "bad", "b", "c")
		stop := f.run()
		time.Sleep(3 * time.Second)
		stop()
		got := map[notification.Status]int{}
		for _, n := range f.list() {
			got[n.Status]++
		}
		if got[notification.Delivered] != 3 || got[notification.Claimed] != 1 || f.count("abandoned") != 1 {
			t.Errorf("states %v, %v given up", got, f.count("abandoned"))
		}
	})
}

// What was claimed before the sink was paused is not sent after it.
func TestAPausedSinkGetsNothingOfWhatWasClaimedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		f := newFixture(t, func(context.Context, notification.Claim) sink.Result {
			sent.Add(1)
			time.Sleep(time.Second)
			return sink.Result{Verdict: notification.Dead, Error: "gone", Pause: "gone"}
		})
		f.options.Sinks[0].Concurrency = 1
		f.record("a", "b", "c", "d")
		stop := f.run()
		time.Sleep(time.Minute)
		stop()
		got := map[notification.Status]int{}
		for _, n := range f.list() {
			got[n.Status]++
			if n.AttemptCount != 0 {
				t.Errorf("a pause counted as a failure of %s", n.TaskID)
			}
		}
		if sent.Load() != 1 || got[notification.DeadLetter] != 1 || got[notification.Pending] != 3 {
			t.Errorf("%d were sent, states %v", sent.Load(), got)
		}
	})
}

// No more attempts at once than the sink has senders, and a free one is used at once.
func TestSendersAreBoundedAndKeptBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		f := newFixture(t, func(context.Context, notification.Claim) sink.Result {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(time.Second)
			return sink.Result{Verdict: notification.Done}
		})
		f.options.Sinks[0].Concurrency = 4
		f.look, f.options.Poll = time.Second, time.Second
		f.options.Poll = time.Hour // a sender that ends, not the interval, makes room
		var tasks []string
		for i := range 40 {
			tasks = append(tasks, fmt.Sprint("task-", i))
		}
		f.record(tasks...)
		begun := time.Now()
		stop := f.run()
		f.all(notification.Delivered)
		stop()
		if took := time.Since(begun); most.Load() != 4 || took > 12*time.Second {
			t.Errorf("%d at once, 40 seconds of work in %v", most.Load(), took)
		}
	})
}

func TestAttemptsLinkToTheSubmitOfTheirTask(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	f := newFixture(t, func(ctx context.Context, _ notification.Claim) sink.Result {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			t.Error("the attempt is in no span")
		}
		return sink.Result{Verdict: notification.Done}
	})
	f.options.Tracer = provider.Tracer("test")
	f.record("a")
	stop := f.run()
	f.all(notification.Delivered)
	stop()
	spans := recorder.Ended()
	if len(spans) != 1 || spans[0].Parent().IsValid() || len(spans[0].Links()) != 1 {
		t.Fatalf("spans %v", spans)
	}
	if got := spans[0].Links()[0].SpanContext.TraceID().String(); got != "4bf92f3577b34da6a3ce929d0e0e4736" {
		t.Errorf("linked to trace %s", got)
	}
}

func TestTextsOfSinksAreRedactedBeforeTheyAreCut(t *testing.T) {
	f := newFixture(t, func(_ context.Context, c notification.Claim) sink.Result {
		long := strings.Repeat("x", 1020) + "hunter2"
		return sink.Result{Verdict: notification.Failed, Error: long, Excerpt: long, Status: "500"}
	})
	f.options.Redact = func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") }
	f.options.Sinks[0].MaxAttempts = 1
	f.record("a")
	stop := f.run()
	id := f.all(notification.DeadLetter)[0].ID
	stop()
	got, err := f.store.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{got.LastError, got.Attempts[len(got.Attempts)-1].Excerpt} {
		if strings.Contains(text, "hunt") || len(text) > 1<<10 {
			t.Errorf("text of %d bytes: …%s", len(text), text[max(0, len(text)-40):])
		}
	}
	if strings.Contains(f.log.String(), "hunter2") {
		t.Error("the log shows it")
	}
}
