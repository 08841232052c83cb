package call_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/call"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake/intaketest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

func away() error { return fault.New(fault.NotReady, "taskworker cannot be reached") }

// TASK-011: there is no handle before the commit, and a commit whose answer is lost gives the same one.
func TestAHandleIsGivenOutAfterTheCommit(t *testing.T) {
	taskworker := &intaketest.Server{After: only("commit", func(_ context.Context, n int) error {
		if n < 2 {
			return fault.Of(fault.Unknown, "the connection was lost")
		}
		return nil
	})}
	withJobs(t, newJobs(nil), taskworker, func(t *testing.T, f *submits) {
		release := make(chan struct{})
		taskworker.Before = only("commit", func(ctx context.Context, n int) error {
			if n > 0 {
				return nil
			}
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		answer := make(chan *toolproxyv1.CallToolResponse, 1)
		go func() {
			r, err := f.submit(t.Context())
			if err != nil {
				t.Error(err)
			}
			answer <- r
		}()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		select {
		case r := <-answer:
			t.Fatalf("before the commit the agent has %v", r)
		default:
		}
		release <- struct{}{}
		r := <-answer
		if got := f.reservation(t); r.GetTask().GetTaskId() != got.ID() || got.Commit == nil {
			t.Errorf("the agent has %v", r.GetTask())
		}
		if n := taskworker.Tries("commit"); n != 3 {
			t.Errorf("%d attempts", n)
		}
		if diff := cmp.Diff([]string{`start {"n":1}`}, f.jobs.called()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// TASK-012: while nobody knows whether the task is stored nothing is cancelled, and the agent is told where to look. Once
// it is known that it came too late, the server is asked to stop, once.
func TestACommitThatNobodyConfirms(t *testing.T) {
	var err atomic.Pointer[fault.Error]
	taskworker := &intaketest.Server{Before: only("commit", func(context.Context, int) error {
		if e := err.Load(); e != nil {
			return e
		}
		return nil
	})}
	err.Store(fault.New(fault.NotReady, "away"))
	withJobs(t, newJobs(nil), taskworker, func(t *testing.T, f *submits) {
		begin := time.Now()
		_, submitErr := f.submit(t.Context())
		if took := time.Since(begin); took < 15*time.Second || took > 17*time.Second {
			t.Errorf("the agent was told after %v", took)
		}
		got := f.reservation(t)
		if fault.KindOf(submitErr) != fault.Unknown || metadataOf(submitErr)["task_id"] != got.ID() || !strings.Contains(submitErr.Error(), "GetTask") {
			t.Errorf("error is %v", submitErr)
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{`start {"n":1}`}, f.jobs.called()); diff != "" {
			t.Errorf("calls while nobody knows (-want +got):\n%s", diff)
		}
		err.Store(nil)
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{`start {"n":1}`, `stop {"task_id":"remote-1"}`}, f.jobs.called()); diff != "" {
			t.Errorf("calls in the end (-want +got):\n%s", diff)
		}
		if got = f.reservation(t); got.Failed == "" || got.Late.GetRemoteTaskId() != "remote-1" {
			t.Errorf("the record is %+v", got)
		}
	})
}

// TASK-012: a commit that is refused as expired causes one remote cancel, and the agent learns which task says so.
func TestACommitThatComesTooLateIsUndone(t *testing.T) {
	taskworker := &intaketest.Server{Before: only("commit", func(context.Context, int) error {
		return fault.New(fault.ReservationExpired, "it has run out")
	})}
	withJobs(t, newJobs(nil), taskworker, func(t *testing.T, f *submits) {
		_, err := f.submit(t.Context())
		if !fault.Is(err, fault.ReservationExpired) || metadataOf(err)["task_id"] != f.reservation(t).ID() || strings.Contains(err.Error(), "remote-1") {
			t.Errorf("error is %v", err)
		}
		if diff := cmp.Diff([]string{`start {"n":1}`, `stop {"task_id":"remote-1"}`}, f.jobs.called()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if until := f.pool.List()[0].HeldUntil; !until.IsZero() {
			t.Errorf("the session is still held, until %v", until)
		}
	})
}

// TASK-012: the remote cancel is tried once, whatever comes of it.
func TestAnUndoThatFailsIsNotRepeated(t *testing.T) {
	j := newJobs(nil)
	handle := j.Handle
	stops := 0
	j.Handle = func(p *wiretest.Process, m jsonrpc.Message) bool {
		if name, _ := jsonrpc.String(jsonrpc.Member(m.Params, "name")); name == "stop" {
			stops++
			return true // and no answer
		}
		return handle(p, m)
	}
	taskworker := &intaketest.Server{Before: only("commit", func(context.Context, int) error {
		return fault.New(fault.ReservationExpired, "it has run out")
	})}
	withJobs(t, j, taskworker, func(t *testing.T, f *submits) {
		begin := time.Now()
		if _, err := f.submit(t.Context()); !fault.Is(err, fault.ReservationExpired) || time.Since(begin) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		time.Sleep(time.Hour)
		if stops != 1 {
			t.Errorf("%d cancels", stops)
		}
	})
}

// TASK-013: an id that the server gave out before is surfaced, and the task that has it goes on.
func TestADuplicateIsNotCancelled(t *testing.T) {
	withJobs(t, newJobs(answers(started("remote-same"))), &intaketest.Server{}, func(t *testing.T, f *submits) {
		if _, err := f.submit(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := f.submit(t.Context())
		if !fault.Is(err, fault.DuplicateRemoteTask) || strings.Contains(err.Error(), "remote-same") {
			t.Errorf("error is %v", err)
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{`start {"n":1}`, `start {"n":1}`}, f.jobs.called()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"reserve", "commit", "reserve", "abandon NOT_EXECUTED"}, f.intake.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
	})
}

// TASK-008: a submit of which intake cannot be told any more ends while its reservation holds; nobody knows its outcome.
func TestASubmitThatCannotBeRenewedIsEnded(t *testing.T) {
	taskworker := &intaketest.Server{Before: only("renew", func(context.Context, int) error { return away() })}
	withJobs(t, newJobs(after(time.Hour)), taskworker, func(t *testing.T, f *submits) {
		begin := time.Now()
		_, err := f.submit(t.Context())
		got := f.reservation(t)
		if !fault.Is(err, fault.ReservationExpired) || metadataOf(err)["task_id"] != got.ID() {
			t.Errorf("error is %v", err)
		}
		if took := time.Since(begin); took >= 15*time.Second {
			t.Errorf("it was ended after %v", took)
		}
		if diff := cmp.Diff([]string{"reserve", "abandon UNKNOWN"}, f.intake.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		synctest.Wait()
		if seen := f.jobs.Processes()[0].Seen(); seen[len(seen)-1] != "notifications/cancelled" {
			t.Errorf("the server heard %q", seen)
		}
	})
}

// TASK-015: a caller that cancels in mid-submit does not stop the books, and the task that comes of it is cancelled for the
// principal it was submitted for.
func TestACallerThatGoesAwayInMidSubmit(t *testing.T) {
	for name, tt := range map[string]struct {
		server *intaketest.Server
		steps  []string
	}{
		"while the server works": {&intaketest.Server{}, []string{"reserve", "renew", "commit", "cancel"}},
		"and no worker lives at first": {&intaketest.Server{Before: only("cancel", func(_ context.Context, n int) error {
			if n < 5 {
				return fault.New(fault.NoWorker, "no worker")
			}
			return nil
		})}, []string{"reserve", "renew", "commit", "cancel"}},
		"and the commit's answer is lost": {&intaketest.Server{After: only("commit", func(_ context.Context, n int) error {
			if n < 2 {
				return away()
			}
			return nil
		})}, []string{"reserve", "renew", "commit", "cancel"}},
	} {
		t.Run(name, func(t *testing.T) {
			withJobs(t, newJobs(after(8*time.Second)), tt.server, func(t *testing.T, f *submits) {
				ctx, cancel := context.WithCancel(t.Context())
				failed := make(chan error, 1)
				go func() {
					_, err := f.submit(ctx)
					failed <- err
				}()
				time.Sleep(2 * time.Second)
				cancel()
				synctest.Wait()
				select {
				case err := <-failed:
					if fault.KindOf(err) != fault.Canceled {
						t.Errorf("error is %v", err)
					}
				default:
					t.Fatal("the caller still waits")
				}
				time.Sleep(2 * time.Minute)
				got := f.reservation(t)
				if diff := cmp.Diff(tt.steps, f.intake.Steps()); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
				if who := got.CancelledBy(); len(who) != 1 || who[0].Name != "runtime" {
					t.Errorf("it was cancelled by %+v", who)
				}
				// It is the worker that tells the server.
				if diff := cmp.Diff([]string{`start {"n":1}`}, f.jobs.called()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TASK-015: the same while the commit is under way, and before anything was submitted.
func TestACallerThatGoesAwayAtOtherTimes(t *testing.T) {
	for step, want := range map[string]struct{ steps, calls []string }{
		"reserve": {[]string{"reserve", "abandon NOT_EXECUTED"}, nil},
		"commit":  {[]string{"reserve", "commit", "cancel"}, []string{`start {"n":1}`}},
	} {
		t.Run(step, func(t *testing.T) {
			withJobs(t, newJobs(nil), &intaketest.Server{}, func(t *testing.T, f *submits) {
				reached, release := make(chan struct{}), make(chan struct{})
				f.intake.Before = only(step, func(_ context.Context, n int) error {
					if n > 0 {
						return nil
					}
					close(reached)
					<-release
					return nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				failed := make(chan error, 1)
				go func() {
					_, err := f.submit(ctx)
					failed <- err
				}()
				<-reached
				cancel()
				if err := <-failed; fault.KindOf(err) != fault.Canceled {
					t.Errorf("error is %v", err)
				}
				close(release)
				time.Sleep(time.Minute)
				if diff := cmp.Diff(want.steps, f.intake.Steps()); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(want.calls, f.jobs.called()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A caller's deadline is a limit of the submit like any other.
func TestACallersDeadlineEndsTheSubmit(t *testing.T) {
	withJobs(t, newJobs(after(time.Hour)), &intaketest.Server{}, func(t *testing.T, f *submits) {
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		if _, err := f.submit(ctx); !fault.Is(err, fault.Timeout) || metadataOf(err)["deadline_source"] != "caller" {
			t.Errorf("error is %v", err)
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{"reserve", "renew", "abandon UNKNOWN"}, f.intake.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		if f.reservation(t).Failed == "" {
			t.Error("nothing says that the outcome is unknown")
		}
	})
}

// What is under way when Run ends comes to an end within seconds.
func TestAShutdownWaitsForSubmits(t *testing.T) {
	for name, tt := range map[string]struct {
		takes time.Duration
		steps []string
		most  time.Duration
	}{
		"one that is about to end": {3 * time.Second, []string{"reserve", "commit"}, 3 * time.Second},
		"one that hangs":           {time.Hour, []string{"reserve", "renew", "abandon UNKNOWN"}, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			withJobs(t, newJobs(after(tt.takes)), &intaketest.Server{}, func(t *testing.T, f *submits) {
				done := make(chan error, 1)
				go func() {
					_, err := f.submit(t.Context())
					done <- err
				}()
				time.Sleep(time.Second)
				begin := time.Now()
				if err := f.stop(); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took > tt.most {
					t.Errorf("Run ended after %v", took)
				}
				if err := <-done; (err == nil) != (tt.takes < time.Minute) {
					t.Errorf("the submit: %v", err)
				}
				if diff := cmp.Diff(tt.steps, f.intake.Steps()); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
				if _, err := f.submit(t.Context()); !fault.Is(err, fault.NotReady) {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

// StreamCallTool submits as CallTool does, and hears of progress until then.
func TestAStreamedSubmit(t *testing.T) {
	j := newJobs(func(p *wiretest.Process, m jsonrpc.Message) {
		token := jsonrpc.Member(jsonrpc.Member(m.Params, "_meta"), "progressToken")
		p.Notify("notifications/progress", `{"progressToken":`+string(token)+`,"progress":1}`)
		p.Reply(m.ID, started("remote-1"))
	})
	withJobs(t, j, &intaketest.Server{}, func(t *testing.T, f *submits) {
		agent := authn.Anonymous()
		progress, outcome := 0, &toolproxyv1.CallToolResponse{}
		err := f.Stream(authn.NewContext(t.Context(), &agent), start(), func(r *toolproxyv1.StreamCallToolResponse) error {
			if r.GetProgress() != nil {
				progress++
			}
			if o := r.GetOutcome(); o != nil {
				return proto.Unmarshal(o.GetData(), outcome)
			}
			return nil
		})
		if err != nil || progress != 1 || outcome.GetTask().GetTaskId() != f.reservation(t).ID() {
			t.Errorf("%v, %d progress, %v", err, progress, outcome)
		}
	})
	withJobs(t, newJobs(after(time.Minute)), &intaketest.Server{}, func(t *testing.T, f *submits) {
		agent := authn.Anonymous()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		err := f.Stream(authn.NewContext(ctx, &agent), start(), func(*toolproxyv1.StreamCallToolResponse) error { return nil })
		if fault.KindOf(err) != fault.Canceled {
			t.Errorf("a stream that is cancelled: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if got := f.reservation(t); got.Commit == nil || len(got.CancelledBy()) != 1 {
			t.Errorf("what came of it: %+v", got)
		}
	})
}

// A Caller that does not run submits nothing.
func TestNothingIsSubmittedOutsideOfRun(t *testing.T) {
	j := newJobs(nil)
	withJobs(t, j, &intaketest.Server{}, func(t *testing.T, f *submits) {
		if err := f.stop(); err != nil {
			t.Fatal(err)
		}
		agent := authn.Anonymous()
		_, err := f.Call(authn.NewContext(t.Context(), &agent), start(), call.Listener{})
		if !fault.Is(err, fault.NotReady) || len(f.intake.All()) != 0 {
			t.Errorf("%v, %d reservations", err, len(f.intake.All()))
		}
	})
}
