package call_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/binding"
	"github.com/toolherd/toolherd/services/toolproxy/internal/call"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake/intaketest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

// TASK-007, the part of toolproxy: the intent is on record, whole, before the server hears of it.
// TASK-035, the part of the call: the arguments go to the raw tool token for token.
// TASK-045, the part of the submit: what a task keeps is the entry as the snapshot has it.
func TestASubmitIsReservedFirst(t *testing.T) {
	var reservedBefore int
	taskworker := &intaketest.Server{}
	j := newJobs(nil)
	j.submit = func(p *wiretest.Process, m jsonrpc.Message) {
		reservedBefore = len(taskworker.All())
		p.Reply(m.ID, started("remote-1"))
	}
	withJobs(t, j, taskworker, func(t *testing.T, f *submits) {
		const raw = `{ "n":1.10,"big":12345678901234567890,"a":"\u00e9" }`
		r, err := f.submit(t.Context(), arguments(raw), requestID("req-1"), func(r *toolproxyv1.CallToolRequest) {
			r.RunId, r.ToolCallId, r.NotifySink, r.TaskTtl, r.Timeout = "run", "tc", "ops", durationpb.New(time.Hour), durationpb.New(time.Minute)
		})
		if err != nil {
			t.Fatal(err)
		}
		if reservedBefore != 1 {
			t.Errorf("%d reservations were there when the server was called", reservedBefore)
		}
		if diff := cmp.Diff([]string{"start " + raw}, j.called()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		got := f.reservation(t)
		h, i := r.GetTask(), r.GetInfo()
		if h.GetTaskId() != got.ID() || h.GetTaskName() != "job" || h.GetStatus() != corev1.TaskStatus_TASK_STATUS_SUBMITTED || h.GetMessage() == "" {
			t.Errorf("handle is %v", h)
		}
		if i.GetServer() != "s" || i.GetOriginalName() != "start" || i.GetSnapshotId() != "snap_1" || i.GetSessionId() == "" || i.GetAttempt() != 1 ||
			i.GetDeadlineSource() != "request.timeout" || strings.Contains(r.String(), "remote-1") {
			t.Errorf("response is %v", r)
		}
		q := got.Intent
		if q.GetPrincipal() != "runtime" || q.GetScope().GetUserId() != "ann" || q.GetScope().GetThreadId() != "t1" || q.GetRequestId() != "req-1" ||
			q.GetTaskName() != "job" || q.GetServer() != "s" || q.GetRunId() != "run" || q.GetToolCallId() != "tc" || q.GetNotifySink() != "ops" ||
			q.GetTaskTtl().AsDuration() != time.Hour || q.GetSubmitTimeout().AsDuration() != time.Minute ||
			!slices.Equal(q.GetCallerRoles(), []corev1.Role{corev1.Role_ROLE_AGENT}) || len(q.GetRequestHash()) != 64 {
			t.Errorf("intent is %v", q)
		}
		b, err := binding.Decode(q.GetBinding())
		if err != nil {
			t.Fatal(err)
		}
		if b.Server != "s" || string(b.Public) != `{"args":["1"],"command":"jobs"}` || b.SourceClass != "user" || b.SnapshotID != "snap_1" ||
			b.Toolset.CancelTool != "stop" || b.Fingerprint() != q.GetBindingFingerprint() {
			t.Errorf("binding is %+v", b)
		}
		c := got.Commit
		if c.GetRemoteTaskId() != "remote-1" || len(c.GetHandle()) == 0 || c.GetStatus() != corev1.TaskStatus_TASK_STATUS_SUBMITTED {
			t.Errorf("commit is %v", c)
		}
		if diff := cmp.Diff([]string{"reserve", "commit"}, f.intake.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		if held := f.pool.List()[0].HeldUntil; time.Until(held) < time.Minute {
			t.Errorf("the session is held until %v", held)
		}
	})
}

// TASK-007, the part of toolproxy: who submits the same again gets the same handle, and the server hears nothing.
func TestTheSameRequestIsSubmittedOnce(t *testing.T) {
	j := newJobs(nil)
	withJobs(t, j, &intaketest.Server{}, func(t *testing.T, f *submits) {
		first, err := f.submit(t.Context(), requestID("r"), arguments(`{"a":1,"b":{"c":2,"d":[3]}}`))
		if err != nil {
			t.Fatal(err)
		}
		// White space and the order of keys do not make it another request, and a server that is away does not matter.
		j.DialError = errors.New("away")
		f.pool.Reset(func(upstream.Key) bool { return true })
		again, err := f.submit(t.Context(), requestID("r"), arguments(`{"b": {"d": [3], "c": 2}, "a": 1}`))
		if err != nil || again.GetTask().GetTaskId() != first.GetTask().GetTaskId() || again.GetInfo().GetServer() != "s" {
			t.Fatalf("again: %v, %v", again, err)
		}
		if n := len(j.called()); n != 1 {
			t.Errorf("the server was called %d times", n)
		}
		if _, err := f.submit(t.Context(), requestID("r"), arguments(`{"a":1.0,"b":{"c":2,"d":[3]}}`)); !fault.Is(err, fault.RequestIDConflict) {
			t.Errorf("other arguments: %v", err)
		}
	})
}

func TestARequestThatStillRunsIsInProgress(t *testing.T) {
	withJobs(t, newJobs(after(19*time.Second)), &intaketest.Server{}, func(t *testing.T, f *submits) {
		done := make(chan error, 1)
		go func() {
			_, err := f.submit(t.Context(), requestID("r"))
			done <- err
		}()
		time.Sleep(18 * time.Second)
		_, err := f.submit(t.Context(), requestID("r"))
		e, ok := errors.AsType[*fault.Error](err)
		if !ok || e.Reason() != fault.RequestInProgress || e.RetryDelay() <= 0 {
			t.Errorf("meanwhile: %v", err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		// TASK-008: it took longer than a reservation holds by itself.
		if diff := cmp.Diff([]string{"reserve", "renew", "renew", "renew", "commit"}, f.intake.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
	})
}

// TASK-010: what the tool itself refuses is the agent's to see, and no task.
func TestAToolThatRefusesMakesNoTask(t *testing.T) {
	const refusal = `{"content":[{"type":"text","text":"no capacity"}],"isError":true}`
	withJobs(t, newJobs(answers(refusal)), &intaketest.Server{}, func(t *testing.T, f *submits) {
		r, err := f.submit(t.Context())
		if err != nil || !r.GetResult().GetIsError() || r.GetResult().GetContent()[0].GetText().GetText() != "no capacity" {
			t.Errorf("answer is %v, %v", r, err)
		}
		if diff := cmp.Diff([]string{"reserve", "abandon NOT_EXECUTED"}, f.intake.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		time.Sleep(time.Minute)
		if got := f.reservation(t); got.Failed != "" || got.Commit != nil {
			t.Errorf("a task came of it: %+v", got)
		}
	})
	withJobs(t, newJobs(answers(`{"resultType":"input_required","inputRequests":{"q":{}}}`)), &intaketest.Server{}, func(t *testing.T, f *submits) {
		_, err := f.submit(t.Context())
		if err == nil || !strings.Contains(err.Error(), "asks for input") {
			t.Errorf("answer is %v", err)
		}
		if diff := cmp.Diff([]string{"reserve", "abandon NOT_EXECUTED"}, f.intake.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
	})
}

// TASK-014: an answer that makes no sense is UPSTREAM_PROTOCOL, and its outcome is unknown.
func TestAnAnswerThatMakesNoSenseIsAnUnknownOutcome(t *testing.T) {
	for name, result := range map[string]string{
		"no structured content": `{"content":[{"type":"text","text":"{\"task_id\":\"x\",\"status\":\"running\"}"}]}`,
		"no id":                 `{"structuredContent":{"status":"running"}}`,
		"an empty id":           `{"structuredContent":{"task_id":"","status":"running"}}`,
		"another status":        `{"structuredContent":{"task_id":"x","status":"completed"}}`,
		"no object":             `7`,
	} {
		t.Run(name, func(t *testing.T) {
			withJobs(t, newJobs(answers(result)), &intaketest.Server{}, func(t *testing.T, f *submits) {
				_, err := f.submit(t.Context())
				got := f.reservation(t)
				if !fault.Is(err, fault.UpstreamProtocol) || metadataOf(err)["task_id"] != got.ID() || !strings.Contains(err.Error(), got.ID()) ||
					!strings.Contains(err.Error(), "unknown") || metadataOf(err)["server"] != "s" {
					t.Errorf("error is %v, %v", err, metadataOf(err))
				}
				if got.Failed == "" {
					t.Errorf("no failed task: %+v", got)
				}
				if diff := cmp.Diff([]string{"reserve", "abandon UNKNOWN"}, f.intake.Steps()); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TASK-014: a handle that cannot be stored is refused with the handle in hand, so that the server is asked to stop.
func TestAHandleThatCannotBeStoredIsCancelled(t *testing.T) {
	long := strings.Repeat("x", 256)
	j := newJobs(answers(started(long)))
	withJobs(t, j, &intaketest.Server{}, func(t *testing.T, f *submits) {
		_, err := f.submit(t.Context())
		if !fault.Is(err, fault.UpstreamProtocol) || metadataOf(err)["task_id"] != f.reservation(t).ID() || strings.Contains(err.Error(), long) {
			t.Errorf("error is %v", err)
		}
		if diff := cmp.Diff([]string{`start {"n":1}`, `stop {"task_id":"` + long + `"}`}, j.called()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"reserve", "abandon UNKNOWN"}, f.intake.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
	})
}

// What provably did nothing leaves nothing behind; of all else there is a record. A submit is sent once, but where the
// server refused it before executing.
func TestWhatIsKnownOfASubmitThatFailed(t *testing.T) {
	exit := func(p *wiretest.Process, _ jsonrpc.Message) { p.Exit(errors.New("exit status 9")) }
	refuse := func(code int64) func(*wiretest.Process, jsonrpc.Message) {
		return func(p *wiretest.Process, m jsonrpc.Message) { p.Refuse(m.ID, code, "no hunter2") }
	}
	for name, tt := range map[string]struct {
		submit func(*wiretest.Process, jsonrpc.Message)
		dial   error
		reason fault.Reason
		left   string
	}{
		"the server does not start":    {dial: errors.New("no such file"), reason: fault.ServerError, left: "abandon NOT_EXECUTED"},
		"the arguments are refused":    {submit: refuse(-32602), reason: fault.UpstreamError, left: "abandon NOT_EXECUTED"},
		"the tool is unknown":          {submit: refuse(-32601), reason: fault.UpstreamError, left: "abandon NOT_EXECUTED"},
		"the server failed inside":     {submit: refuse(-32603), reason: fault.UpstreamError, left: "abandon UNKNOWN"},
		"an error of the server's own": {submit: refuse(-32000), reason: fault.UpstreamError, left: "abandon UNKNOWN"},
		"the server ended meanwhile":   {submit: exit, reason: fault.SessionClosed, left: "abandon UNKNOWN"},
		"the server never answers":     {submit: func(*wiretest.Process, jsonrpc.Message) {}, reason: fault.Timeout, left: "abandon UNKNOWN"},
		"the answer breaks the envelope": {submit: func(p *wiretest.Process, m jsonrpc.Message) {
			p.Emit(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":1,"error":{}}`, m.ID))
		}, reason: fault.UpstreamProtocol, left: "abandon UNKNOWN"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJobs(tt.submit)
			j.DialError = tt.dial
			withJobs(t, j, &intaketest.Server{}, func(t *testing.T, f *submits) {
				_, err := f.submit(t.Context(), timeout(40*time.Second))
				if !fault.Is(err, tt.reason) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("error is %v", err)
				}
				got := f.reservation(t)
				steps := f.intake.Steps()
				if last := steps[len(steps)-1]; last != tt.left {
					t.Errorf("steps are %v, want %s at the end", steps, tt.left)
				}
				unknown := tt.left == "abandon UNKNOWN"
				if unknown != (metadataOf(err)["task_id"] == got.ID()) || unknown != strings.Contains(err.Error(), got.ID()) || unknown != (got.Failed != "") ||
					strings.Contains(got.Failed, got.ID()) {
					t.Errorf("error is %v, %v, the record %q", err, metadataOf(err), got.Failed)
				}
				if tt.reason == fault.Timeout && metadataOf(err)["deadline_source"] != "request.timeout" {
					t.Errorf("metadata is %v", metadataOf(err))
				}
				if n := len(j.called()); n > 1 {
					t.Errorf("the server was called %d times", n)
				}
			})
		})
	}
}

// A submit is sent again only where the server refused it before executing, and then under the same reservation.
func TestASubmitIsSentAgainOnlyIfItDidNotRun(t *testing.T) {
	for name, tt := range map[string]struct {
		err      error
		reason   fault.Reason
		sessions int
		steps    []string
	}{
		"the session was unknown": {
			&exchange.SessionLostError{Server: "s", What: "tools/call", Code: 404, Untouched: true}, "", 2, []string{"reserve", "commit"},
		},
		"the session was lost": {
			&exchange.SessionLostError{Server: "s", What: "tools/call", Code: 404}, fault.SessionClosed, 1, []string{"reserve", "abandon UNKNOWN"},
		},
		"a login is wanted": {
			&exchange.StatusError{Server: "s", What: "tools/call", Code: 401}, fault.UpstreamUnauthenticated, 1, []string{"reserve", "abandon NOT_EXECUTED"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJobs(nil)
			j.SendError = func(p *wiretest.Process, m jsonrpc.Message) error {
				if m.Method == "tools/call" && p.Number == 1 {
					return tt.err
				}
				return nil
			}
			withJobs(t, j, &intaketest.Server{}, func(t *testing.T, f *submits) {
				r, err := f.submit(t.Context())
				if fault.ReasonOf(err) != tt.reason || err == nil && r.GetInfo().GetAttempt() != 2 {
					t.Errorf("%v, %v", r, err)
				}
				if n := len(j.Processes()); n != tt.sessions {
					t.Errorf("%d sessions were started", n)
				}
				if diff := cmp.Diff(tt.steps, f.intake.Steps()); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Without intake nothing is submitted, and the error says so.
func TestNothingIsSubmittedWithoutIntake(t *testing.T) {
	for name, tt := range map[string]struct {
		err  *fault.Error
		want fault.Reason
		says string
	}{
		"unreachable": {fault.New(fault.NotReady, "taskworker cannot be reached"), fault.NotReady, "nothing was submitted"},
		"off":         {fault.New(fault.TasksUnavailable, "durable tasks are switched off"), fault.TasksUnavailable, "switched off"},
	} {
		t.Run(name, func(t *testing.T) {
			taskworker := &intaketest.Server{Before: func(context.Context, string, int) error { return tt.err }}
			j := newJobs(nil)
			withJobs(t, j, taskworker, func(t *testing.T, f *submits) {
				for range 2 { // the second time it is known
					if _, err := f.submit(t.Context()); !fault.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
						t.Errorf("error is %v", err)
					}
				}
				if n := len(j.Processes()); n != 0 {
					t.Errorf("%d sessions were started", n)
				}
				// Ordinary calls go on as ever.
				r := echo()
				if _, err := f.Call(as(t.Context()), r, call.Listener{}); err != nil {
					t.Errorf("an ordinary call: %v", err)
				}
			})
		})
	}
}

// A configuration that changes between the look-up and the submit is looked up again: nothing was submitted.
func TestASubmitFollowsAConfigurationThatChanged(t *testing.T) {
	j := newJobs(nil)
	var f *submits
	taskworker := &intaketest.Server{After: only("reserve", func(_ context.Context, n int) error {
		if n == 0 {
			f.publish("2")
		}
		return nil
	})}
	withJobs(t, j, taskworker, func(t *testing.T, fx *submits) {
		f = fx
		r, err := f.submit(t.Context(), requestID("r"))
		if err != nil || r.GetInfo().GetSnapshotId() != "snap_2" {
			t.Fatalf("%v, %v", r, err)
		}
		if diff := cmp.Diff([]string{"reserve", "abandon NOT_EXECUTED", "reserve", "commit"}, f.intake.Steps()); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		b, err := binding.Decode(f.intake.All()[1].Intent.GetBinding())
		if err != nil || string(b.Public) != `{"args":["2"],"command":"jobs"}` {
			t.Errorf("the task is bound to %s, %v", b.Public, err)
		}
		if n := len(j.called()); n != 1 {
			t.Errorf("the server was called %d times", n)
		}
	})
}

func TestASubmitChecksItsOwnFields(t *testing.T) {
	j := newJobs(nil)
	withJobs(t, j, &intaketest.Server{}, func(t *testing.T, f *submits) {
		for _, d := range []time.Duration{0, -time.Second} {
			_, err := f.submit(t.Context(), func(r *toolproxyv1.CallToolRequest) { r.TaskTtl = durationpb.New(d) })
			if !fault.Is(err, fault.InvalidArguments) || !strings.Contains(err.Error(), "task_ttl") {
				t.Errorf("task_ttl %v: %v", d, err)
			}
		}
		user := authn.Principal{Name: "u", Roles: []authn.Role{authn.Agent}, UserID: "bob"}
		if _, err := f.Call(authn.NewContext(t.Context(), &user), start(), call.Listener{}); !fault.Is(err, fault.Forbidden) {
			t.Errorf("another user: %v", err)
		}
		if n := len(f.intake.All()); n != 0 {
			t.Errorf("%d reservations", n)
		}
	})
}

// TASK-039: what follows tasks is no tool of the agent's.
func TestToolsThatFollowTasksCannotBeCalled(t *testing.T) {
	j := newJobs(nil)
	withJobs(t, j, &intaketest.Server{}, func(t *testing.T, f *submits) {
		for _, name := range []string{"s_status", "s_stop"} {
			if _, err := f.submit(t.Context(), func(r *toolproxyv1.CallToolRequest) { r.Name = name }); !fault.Is(err, fault.ToolNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
		synctest.Wait()
		if n := len(j.called()); n != 0 {
			t.Errorf("%d calls", n)
		}
	})
}
