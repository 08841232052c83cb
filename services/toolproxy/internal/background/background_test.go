package background_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/background"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

const plain = `{"command":"run","task_toolsets":[{"name":"jobs","submit_tool":"start","status_tool":"status","cancel_tool":"stop"}]}`

// TASK-052: a background call runs in the session that background_scope names; thread is that of the submit.
func TestCallsRunInTheSessionOfTheirScope(t *testing.T) {
	for scope, want := range map[serverconfig.Scope]string{
		serverconfig.ScopeThread: "[ann t1]", serverconfig.ScopeUser: "[ann ]", serverconfig.ScopeShared: "[ ]",
	} {
		with(t, 8, func(t *testing.T, f *fixture) {
			f.publish(map[string]string{"s": plain})
			bound := f.bind(plain, scope)
			submitted, err := f.call(bound, "t1")
			if err != nil {
				t.Fatal(err)
			}
			f.mustPoll(bound, "task-1", 0)
			held := []string{}
			for _, i := range f.pool.List() {
				if !i.HeldUntil.IsZero() {
					held = append(held, i.Key.UserID, i.Key.ThreadID)
				}
				if same := i.Session.ID() == submitted; same != (i.Calls > 1 || i.HeldUntil.IsZero()) {
					t.Errorf("%s: session %v carried %d calls", scope, i.Key, i.Calls)
				}
			}
			if fmt.Sprint(held) != want {
				t.Errorf("%s: the task holds %v, want %s", scope, held, want)
			}
			if want := []string{`status {"task_id":"remote-1234"}`}; !slices.Equal(f.sent, want) {
				t.Errorf("%s: sent %q", scope, f.sent)
			}
		})
	}
	// A session that more callers share anyway is not split.
	with(t, 8, func(t *testing.T, f *fixture) {
		const shared = `{"command":"run","session_scope":"shared"}`
		f.publish(map[string]string{"s": shared})
		f.mustPoll(f.bind(shared, serverconfig.ScopeThread), "task-1", 0)
		if list := f.pool.List(); len(list) != 1 || list[0].Key.UserID+list[0].Key.ThreadID != "" {
			t.Errorf("sessions are %+v", list)
		}
	})
}

func TestTheSnapshotComesBack(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		f.publish(map[string]string{"s": plain})
		bound := f.bind(plain, serverconfig.ScopeThread)
		f.always(running(`,"poll_after_seconds":7,"progress":{"current":1},"status_message":"half"`))
		s := f.mustPoll(bound, "task-1", 0)
		if s.GetStatus() != corev1.TaskStatus_TASK_STATUS_WORKING || s.GetPollAfter().AsDuration() != 7*time.Second || s.GetStatusMessage() != "half" {
			t.Errorf("snapshot is %v", s)
		}
		f.always(running(`,"poll_after_seconds":"soon"`))
		f.mustPoll(bound, "task-1", 0)
		f.mustPoll(bound, "task-1", 0)
		families, err := f.metrics.Gather()
		if err != nil || len(families) != 1 || families[0].GetName() != "toolherd_task_bad_poll_hints_total" ||
			families[0].GetMetric()[0].GetCounter().GetValue() != 2 {
			t.Errorf("metrics are %v, %v", families, err)
		}
	})
}

// SESS-012: every background call renews the hold until the next poll and a margin, and the end of the task ends it.
func TestCallsRenewTheHold(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		f.publish(map[string]string{"s": plain})
		bound := f.bind(plain, serverconfig.ScopeThread)
		until := func() time.Duration { return time.Until(f.pool.List()[0].HeldUntil) }
		for _, tc := range []struct {
			answer string
			hold   time.Duration
			want   time.Duration
		}{
			{running(""), 0, background.HoldMargin},
			{running(""), time.Hour, time.Hour + background.HoldMargin},
			{running(`,"poll_after_seconds":10800`), time.Hour, 3*time.Hour + background.HoldMargin},
			{`{"isError":true}`, 4 * time.Hour, 4*time.Hour + background.HoldMargin},
			{running(`,"poll_after_seconds":1e9`), 1000 * time.Hour, background.MaxHold},
		} {
			f.always(tc.answer)
			_, _ = f.poll(bound, "task-1", tc.hold)
			if got := until(); got != tc.want {
				t.Errorf("%s with %v: held for %v, want %v", tc.answer, tc.hold, got, tc.want)
			}
		}
		f.always(running(""))
		f.mustPoll(bound, "task-2", 0)
		id := f.pool.List()[0].Session.ID()
		f.publish(map[string]string{"s": `{"command":"run","args":["other"]}`})
		time.Sleep(23 * time.Hour) // idle for longer than a session may be
		f.always(ended("completed"))
		if f.mustPoll(bound, "task-1", 0); len(f.pool.List()) != 0 { // the hold of task-2 ran out
			t.Errorf("sessions are %+v, of which %s is spent", f.pool.List(), id)
		}
		if n := len(f.opened); n != 1 {
			t.Errorf("%d sessions were opened", n)
		}
	})
}

// TASK-045, SESS-012: tasks in the memory of a process outlive idle time, pressure, a change, a switch and a removal of the
// server.
func TestATaskInMemoryGoesToItsEnd(t *testing.T) {
	with(t, 2, func(t *testing.T, f *fixture) {
		f.publish(map[string]string{"s": plain, "other": plain})
		bound := f.bind(plain, serverconfig.ScopeThread)
		home := 0 // the process that has the task
		f.mu.Lock()
		f.answer = func(p *wiretest.Process, tool string) string {
			if home == 0 {
				home = p.Number
			}
			if p.Number != home {
				return `{"content":[],"structuredContent":{"task_id":"` + remoteID + `","status":"failed","error_code":"task_not_found"}}`
			}
			if tool == "stop" {
				return ended("cancelled")
			}
			return running(`,"poll_after_seconds":18000`)
		}
		f.mu.Unlock()
		alive := func(when string) {
			t.Helper()
			if s := f.mustPoll(bound, "task-1", 0); s.GetStatus() != corev1.TaskStatus_TASK_STATUS_WORKING {
				t.Fatalf("%s: %v", when, s)
			}
		}
		alive("at first")
		for i := range 5 {
			other, err := f.call(f.bind(plain, serverconfig.ScopeThread), fmt.Sprint("thread-", i))
			if err != nil || other == "" {
				t.Fatalf("another session: %v", err)
			}
		}
		alive("after pressure")
		time.Sleep(5 * time.Hour)
		alive("after idle time")
		f.publish(map[string]string{"s": `{"command":"run","args":["x"],"env":{"A":"literal-new"}}`})
		alive("after a change")
		f.publish(map[string]string{"s": plain}, func(e *registryv1.ServerEntry) { e.State = registryv1.EntryState_ENTRY_STATE_DISABLED })
		alive("switched off")
		f.publish(nil)
		alive("removed")
		time.Sleep(5 * time.Hour)
		alive("removed long ago")
		r, err := f.CancelRemoteTask(t.Context(), &toolproxyv1.CancelRemoteTaskRequest{Ref: ref(bound, "task-1", "t1")})
		if err != nil || r.GetSnapshot().GetStatus() != corev1.TaskStatus_TASK_STATUS_CANCELLED {
			t.Fatalf("cancel: %v, %v", r, err)
		}
		synctest.Wait()
		if len(f.pool.List()) != 0 {
			t.Errorf("sessions of a server that is gone: %+v", f.pool.List())
		}
	})
}

func TestCancelIsAcknowledgedOrFinal(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		f.publish(map[string]string{"s": plain})
		bound := f.bind(plain, serverconfig.ScopeThread)
		cancel := func() (*toolproxyv1.CancelRemoteTaskResponse, error) {
			return f.CancelRemoteTask(t.Context(), &toolproxyv1.CancelRemoteTaskRequest{Ref: ref(bound, "task-1", "t1")})
		}
		if r, err := cancel(); err != nil || r.GetSnapshot() != nil {
			t.Errorf("a task that still runs: %v, %v", r, err)
		}
		if f.pool.List()[0].HeldUntil.IsZero() {
			t.Error("the session is let go though the task runs")
		}
		f.always(`{"content":[{"type":"text","text":"done"}]}`)
		if _, err := cancel(); !fault.Is(err, fault.UpstreamError) {
			t.Errorf("an answer in words ends the task: %v", err)
		}
		f.always(ended("completed"))
		if r, err := cancel(); err != nil || r.GetSnapshot().GetStatus() != corev1.TaskStatus_TASK_STATUS_COMPLETED {
			t.Errorf("a task that had ended: %v, %v", r, err)
		}
		if !f.pool.List()[0].HeldUntil.IsZero() {
			t.Error("the session is held for a task that has ended")
		}
		if want := `stop {"task_id":"remote-1234"}`; len(f.sent) != 3 || f.sent[0] != want {
			t.Errorf("sent %q", f.sent)
		}
	})
}

// TASK-038 (time-outs and errors of the wire; the driver's tests have isError): all but a verdict on the answer may heal.
func TestErrorsThatMayHeal(t *testing.T) {
	const limited = `{"command":"run","tool_call_timeout":5,"env":{"K":"literal-secret"}}`
	for name, tc := range map[string]struct {
		answer string
		want   fault.Reason
		text   string
	}{
		"a JSON-RPC error":           {"!no literal-secret here", fault.UpstreamError, `server "s" refused tool "status" with JSON-RPC error -32050: no *** here`},
		"a long JSON-RPC error":      {"!" + strings.Repeat("é", 600), fault.UpstreamError, "éé…"},
		"no answer":                  {"", fault.Timeout, `tool "status" of server "s" gave no answer within 5s (server.tool_call_timeout)`},
		"a message that is not JSON": {`?{"structuredContent":{"task_id":"remote-1234","status":"running","poll_after_seconds":NaN}}`, fault.UpstreamError, "breaks the protocol"},
		"an error of the tool":       {`{"isError":true,"content":[{"type":"text","text":"lost literal-secret"}]}`, fault.UpstreamError, `tool "status" reported an error: lost ***`},
	} {
		with(t, 8, func(t *testing.T, f *fixture) {
			f.publish(map[string]string{"s": limited})
			f.always(tc.answer)
			_, err := f.poll(f.bind(limited, serverconfig.ScopeThread), "task-1", 0)
			if !fault.Is(err, tc.want) || !strings.Contains(fmt.Sprint(err), tc.text) || len([]rune(fmt.Sprint(err))) > 550 {
				t.Errorf("%s: %v", name, err)
			}
			if f.pool.List()[0].HeldUntil.IsZero() {
				t.Errorf("%s: the task lost its session", name)
			}
		})
	}
}

func TestErrorsThatAreFinalLetTheSessionGo(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		f.publish(map[string]string{"s": plain})
		bound := f.bind(plain, serverconfig.ScopeThread)
		f.mustPoll(bound, "task-1", 0)
		f.always(`{"content":[{"type":"text","text":"running"}]}`)
		if _, err := f.poll(bound, "task-1", 0); !fault.Is(err, fault.UpstreamProtocol) {
			t.Errorf("an answer in words: %v", err)
		}
		if !f.pool.List()[0].HeldUntil.IsZero() {
			t.Error("the session is held for a task that fails")
		}
	})
}

func TestNoRoomForATaskIsSessionLimit(t *testing.T) {
	with(t, 1, func(t *testing.T, f *fixture) {
		f.publish(map[string]string{"s": plain})
		bound := f.bind(plain, serverconfig.ScopeThread)
		f.mustPoll(bound, "task-1", 0)
		r := &toolproxyv1.GetRemoteTaskRequest{Ref: ref(bound, "task-2", "t2")}
		if _, err := f.GetRemoteTask(t.Context(), r); !fault.Is(err, fault.SessionLimit) {
			t.Errorf("a second thread's task: %v", err)
		}
	})
}

func TestTheWorkersDeadlineAndCancelAreNotTheServersFault(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		f.publish(map[string]string{"s": plain})
		f.always("")
		r := &toolproxyv1.GetRemoteTaskRequest{Ref: ref(f.bind(plain, serverconfig.ScopeThread), "task-1", "t1")}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.GetRemoteTask(ctx, r); !fault.Is(err, fault.Timeout) {
			t.Errorf("after the deadline: %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := f.GetRemoteTask(ctx, r); fault.KindOf(err) != fault.Canceled {
			t.Errorf("after the cancel: %v", err)
		}
		synctest.Wait()
		if seen := f.server.Processes()[0].Seen(); seen[len(seen)-1] != "notifications/cancelled" {
			t.Errorf("the server was not told: %q", seen)
		}
	})
}

func TestALostSessionIsStartedAnew(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		f.publish(map[string]string{"s": plain})
		bound := f.bind(plain, serverconfig.ScopeThread)
		f.mustPoll(bound, "task-1", 0)
		f.mu.Lock()
		f.answer = func(p *wiretest.Process, _ string) string {
			p.Exit(context.DeadlineExceeded)
			return ""
		}
		f.mu.Unlock()
		if _, err := f.poll(bound, "task-1", 0); !fault.Is(err, fault.SessionClosed) {
			t.Errorf("while the server died: %v", err)
		}
		f.always(running(""))
		f.mustPoll(bound, "task-1", 0)
		if n := len(f.server.Processes()); n != 2 {
			t.Errorf("%d processes", n)
		}
	})
}

func TestUnusableReferences(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		bound := f.bind(plain, serverconfig.ScopeThread)
		if _, err := f.poll(bound, "task-1", 0); !fault.Is(err, fault.NotReady) {
			t.Errorf("before the first snapshot: %v", err)
		}
		f.publish(nil)
		for name, raw := range map[string]string{
			"nothing": "", "another thing": "[]", "a newer version": strings.Replace(string(bound), `"v":1`, `"v":2`, 1),
			"another driver": strings.Replace(string(bound), `"driver":"ordinary"`, `"driver":"mcptasks"`, 1),
		} {
			if _, err := f.poll([]byte(raw), "task-1", 0); err == nil || fault.Is(err, fault.UpstreamProtocol) || fault.Is(err, fault.ServerUntrusted) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if len(f.opened) != 0 {
			t.Error("a session was opened")
		}
	})
}

// spans records what a span is started with.
type spans struct {
	noop.Tracer
	links []trace.Link
}

func (s *spans) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	config := trace.NewSpanStartConfig(o...)
	s.links = append(s.links, config.Links()...)
	return s.Tracer.Start(ctx, name, o...)
}

// recording is a span that is recorded.
type recording struct{ noop.Span }

func (recording) IsRecording() bool { return true }

func TestSpansLinkToTheSubmit(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		own := &spans{}
		f.tracer = own
		f.publish(map[string]string{"s": plain})
		r := &toolproxyv1.GetRemoteTaskRequest{Ref: ref(f.bind(plain, serverconfig.ScopeThread), "task-1", "t1")}
		traced := trace.ContextWithSpan(t.Context(), recording{})
		for traceparent, want := range map[string]int{"": 0, "nonsense": 0, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": 1} {
			own.links = nil
			r.Ref.Traceparent = traceparent
			if _, err := f.GetRemoteTask(traced, r); err != nil {
				t.Fatal(err)
			}
			if len(own.links) != want || want == 1 && own.links[0].SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
				t.Errorf("%q: links %v", traceparent, own.links)
			}
		}
		f.tracer = nil // nobody records: no span
		if _, err := f.GetRemoteTask(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	})
}
