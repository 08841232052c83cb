package call_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/call"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	*call.Caller

	server   *wiretest.Server
	upstream *upstream.Server
	store    *catalog.Store
	pool     *pool.Pool
	suspects []string
	stale    func() // called, if set, when a call is about to look for its session
}

// with runs test inside a bubble with a caller over one server, `s`, whose tool is `s_echo`.
func with(t *testing.T, server *wiretest.Server, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{server: server, store: &catalog.Store{}, upstream: &upstream.Server{
			Name: "s", Fingerprint: "1", Transport: serverconfig.Stdio,
			CallTimeout:    upstream.Limit{Duration: 300 * time.Second, Source: "default.tool_call_timeout"},
			CallMaxTimeout: upstream.Limit{Duration: time.Hour, Source: "default.tool_call_max_timeout"},
		}}
		log := slog.New(slog.DiscardHandler)
		f.pool = pool.New(pool.Options{
			Open: func(ctx context.Context, _ pool.Request) (*session.Session, error) {
				return session.Open(ctx, session.Options{Dial: server.Dial, Era: session.Auto, ProbeTimeout: time.Second, Log: log, Link: link.Options{Server: "s"}})
			},
			MaxSessions: 8, MaxRemote: 8, IdleTimeout: 100 * time.Hour, CloseTimeout: time.Second, Log: log,
		})
		f.Caller = call.New(call.Options{
			Store: f.store, Pool: f.pool, Suspect: func(s string) { f.suspects = append(f.suspects, s) },
			Redact: func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") },
			Tracer: tracer{Tracer: noop.NewTracerProvider().Tracer(""), f: f}, Log: log,
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.pool.Run(ctx) }()
		synctest.Wait()
		f.publish(1, f.source(corev1.ServerStatus_SERVER_STATUS_OK))
		test(t, f)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("pool: %v", err)
		}
	})
}

func (f *fixture) source(status corev1.ServerStatus) catalog.Source {
	return catalog.Source{
		Name: "s", Prefix: true, Status: status, Listed: status == corev1.ServerStatus_SERVER_STATUS_OK, Upstream: f.upstream,
		Tools: catalog.Contribute(catalog.Rules{Server: "s", Prefix: true, MaxLength: 64}, []catalog.Definition{{Name: "echo"}}),
	}
}

func (f *fixture) publish(revision int64, sources ...catalog.Source) {
	f.store.Publish(catalog.Build("snap_1", revision, sources))
}

func as(ctx context.Context) context.Context { return authn.NewContext(ctx, new(authn.Anonymous())) }

func echo(change ...func(*toolproxyv1.CallToolRequest)) *toolproxyv1.CallToolRequest {
	r := &toolproxyv1.CallToolRequest{Name: "s_echo", Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: `{"a":1}`}}
	for _, c := range change {
		c(r)
	}
	return r
}

func timeout(d time.Duration) func(*toolproxyv1.CallToolRequest) {
	return func(r *toolproxyv1.CallToolRequest) { r.Timeout = durationpb.New(d) }
}

// onCall makes a server that handles tools/call with f.
func onCall(f func(p *wiretest.Process, m jsonrpc.Message)) *wiretest.Server {
	return &wiretest.Server{Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method == "tools/call" {
			f(p, m)
		}
		return m.Method == "tools/call"
	}}
}

// CALL-009: tool_call_timeout counts from the last progress, tool_call_max_timeout in all.
// CALL-010: TIMEOUT names where the deadline came from.
func TestDeadlines(t *testing.T) {
	for _, tc := range []struct {
		name     string
		request  *toolproxyv1.CallToolRequest
		caller   time.Duration
		progress time.Duration // the server reports so often
		after    time.Duration
		source   string
	}{
		{"the server's silence", echo(), 0, 0, 300 * time.Second, "default.tool_call_timeout"},
		{"progress extends, but not for ever", echo(), 0, time.Minute, time.Hour, "default.tool_call_max_timeout"},
		{"progress that stops", echo(timeout(2 * time.Hour)), 0, 301 * time.Second, 300 * time.Second, "default.tool_call_timeout"},
		{"the request's timeout", echo(timeout(5 * time.Second)), 0, time.Second, 5 * time.Second, "request.timeout"},
		{"the caller's deadline", echo(timeout(time.Minute)), 4 * time.Second, time.Second, 4 * time.Second, "caller"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := onCall(func(p *wiretest.Process, m jsonrpc.Message) {
				if tc.progress == 0 {
					return
				}
				token := jsonrpc.Member(jsonrpc.Member(m.Params, "_meta"), "progressToken")
				go func() {
					tick := time.NewTicker(tc.progress)
					defer tick.Stop()
					for {
						select {
						case <-tick.C:
							p.Notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":1}`, token))
						case <-p.Done():
							return
						}
					}
				}()
			})
			with(t, server, func(t *testing.T, f *fixture) {
				ctx := as(t.Context())
				if tc.caller > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.caller)
					defer cancel()
				}
				start := time.Now()
				_, err := f.Call(ctx, tc.request, call.Listener{})
				e, ok := errors.AsType[*fault.Error](err)
				if !ok || e.Reason() != fault.Timeout || e.Metadata()["deadline_source"] != tc.source {
					t.Fatalf("error is %v %v", err, e.Metadata())
				}
				if took := time.Since(start); took != tc.after {
					t.Errorf("it took %v, want %v", took, tc.after)
				}
				if tc.source != "caller" && !strings.Contains(err.Error(), tc.source) || !strings.Contains(err.Error(), `"s"`) {
					t.Errorf("message %q does not name server and source", err)
				}
			})
		})
	}
}

func TestDeadlineSourceOfAnAnsweredCall(t *testing.T) {
	with(t, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		r, err := f.Call(as(t.Context()), echo(), call.Listener{})
		if err != nil || r.GetInfo().GetDeadlineSource() != "default.tool_call_timeout" {
			t.Errorf("%v, %v", r.GetInfo(), err)
		}
		f.upstream = &upstream.Server{Name: "s", Fingerprint: "1", Transport: serverconfig.Stdio}
		f.publish(2, f.source(corev1.ServerStatus_SERVER_STATUS_OK))
		if r, err = f.Call(as(t.Context()), echo(), call.Listener{}); err != nil || r.GetInfo().GetDeadlineSource() != "" {
			t.Errorf("without any limit: %v, %v", r.GetInfo(), err)
		}
	})
}

// CALL-011: a caller's cancel and deadline reach the server at once and leave the session usable.
func TestCancelReachesTheServer(t *testing.T) {
	server := &wiretest.Server{}
	server.Handle = func(p *wiretest.Process, m jsonrpc.Message) bool {
		return m.Method == "tools/call" && !slices.Contains(p.Seen(), "notifications/cancelled")
	}
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancel": context.WithCancel,
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := &wiretest.Server{Handle: server.Handle}
			with(t, server, func(t *testing.T, f *fixture) {
				ctx, cancel := end(as(t.Context()))
				defer cancel()
				failed := make(chan error, 1)
				go func() {
					_, err := f.Call(ctx, echo(), call.Listener{})
					failed <- err
				}()
				synctest.Wait()
				if name == "cancel" {
					cancel()
				}
				err := <-failed
				if name == "cancel" && fault.KindOf(err) != fault.Canceled || name == "deadline" && !fault.Is(err, fault.Timeout) {
					t.Errorf("error is %v", err)
				}
				synctest.Wait()
				p := server.Processes()[0]
				if !slices.Contains(p.Seen(), "notifications/cancelled") {
					t.Errorf("the server heard %q", p.Seen())
				}
				r, err := f.Call(as(t.Context()), echo(), call.Listener{})
				if err != nil || len(server.Processes()) != 1 {
					t.Errorf("next call: %v, %v, %d processes", r, err, len(server.Processes()))
				}
			})
		})
	}
}

// SESS-015: a connection lost in flight is SESSION_CLOSED and the call is not repeated; the next one starts anew.
func TestLostCallsAreNotRepeated(t *testing.T) {
	server := &wiretest.Server{}
	server.Handle = func(p *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method == "tools/call" && p.Number == 1 {
			p.Exit(errors.New("exit status 9"))
			return true
		}
		return false
	}
	with(t, server, func(t *testing.T, f *fixture) {
		_, err := f.Call(as(t.Context()), echo(), call.Listener{})
		if !fault.Is(err, fault.SessionClosed) || !strings.Contains(err.Error(), "exit status 9") {
			t.Errorf("error is %v", err)
		}
		if n := len(server.Processes()); n != 1 {
			t.Errorf("%d processes were started", n)
		}
		r, err := f.Call(as(t.Context()), echo(), call.Listener{})
		if err != nil || len(server.Processes()) != 2 || r.GetInfo().GetAttempt() != 1 {
			t.Errorf("next call: %v, %v", r, err)
		}
	})
}

// CALL-008: a JSON-RPC error keeps code and message; what breaks the protocol is UPSTREAM_PROTOCOL.
// CALL-006: messages name the server and hold no credential.
func TestErrorsOfServers(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(p *wiretest.Process, m jsonrpc.Message)
		reason fault.Reason
		says   []string
	}{
		"refused": {
			func(p *wiretest.Process, m jsonrpc.Message) { p.Refuse(m.ID, -32602, "bad hunter2") },
			fault.UpstreamError, []string{"-32602", "bad ***"},
		},
		"no object": {func(p *wiretest.Process, m jsonrpc.Message) { p.Reply(m.ID, `[]`) }, fault.UpstreamProtocol, []string{"not an object"}},
		"a task": {
			func(p *wiretest.Process, m jsonrpc.Message) { p.Reply(m.ID, `{"task":{"taskId":"x"}}`) },
			fault.UpstreamProtocol, []string{"task", "not supported yet"},
		},
		"broken": {
			func(p *wiretest.Process, m jsonrpc.Message) {
				p.Emit(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":1,"error":{}}`, m.ID))
			},
			fault.UpstreamProtocol, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			with(t, onCall(tc.answer), func(t *testing.T, f *fixture) {
				_, err := f.Call(as(t.Context()), echo(), call.Listener{})
				e, ok := errors.AsType[*fault.Error](err)
				if !ok || e.Reason() != tc.reason || e.Metadata()["server"] != "s" {
					t.Fatalf("error is %v", err)
				}
				for _, part := range append(tc.says, `"s"`) {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("message %q lacks %q", err, part)
					}
				}
				if strings.Contains(err.Error(), "hunter2") {
					t.Errorf("message %q shows a secret", err)
				}
				if name == "refused" && e.Metadata()["jsonrpc_code"] != "-32602" {
					t.Errorf("metadata is %v", e.Metadata())
				}
				if n := f.server.Alive(); n != 1 {
					t.Errorf("%d sessions are left", n)
				}
			})
		})
	}
}

// CALL-007: unknown names and servers that cannot be called.
func TestNamesThatCannotBeCalled(t *testing.T) {
	with(t, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		_, err := f.Call(as(t.Context()), echo(func(r *toolproxyv1.CallToolRequest) { r.Name = "s_eco" }), call.Listener{})
		if !fault.Is(err, fault.ToolNotFound) || !strings.Contains(err.Error(), "s_echo") {
			t.Errorf("unknown name: %v", err)
		}
		for status, want := range map[corev1.ServerStatus]fault.Reason{
			corev1.ServerStatus_SERVER_STATUS_DISABLED:        fault.ServerDisabled,
			corev1.ServerStatus_SERVER_STATUS_UNTRUSTED:       fault.ServerUntrusted,
			corev1.ServerStatus_SERVER_STATUS_ERROR:           fault.ServerError,
			corev1.ServerStatus_SERVER_STATUS_UNAUTHENTICATED: fault.UpstreamUnauthenticated,
		} {
			src := f.source(status)
			src.Reason, src.FixCommand = "because of that", "toolherd mend it"
			f.publish(2, src)
			for _, name := range []string{"s_echo", "s_never_listed"} {
				_, err := f.Call(as(t.Context()), echo(func(r *toolproxyv1.CallToolRequest) { r.Name = name }), call.Listener{})
				if !fault.Is(err, want) || !strings.Contains(err.Error(), "toolherd mend it") || !strings.Contains(err.Error(), `"s"`) {
					t.Errorf("%v, %s: %v", status, name, err)
				}
				failed := want == fault.ServerError || want == fault.UpstreamUnauthenticated
				if failed && !strings.Contains(err.Error(), "because of that") {
					t.Errorf("%v: %v", status, err)
				}
			}
		}
		if n := len(f.server.Processes()); n != 0 {
			t.Errorf("%d processes were started", n)
		}
	})
}

// STAT-006: NOT_READY before the first snapshot; a name of a server in its first start waits within the deadline.
func TestWaitingForTheFirstStart(t *testing.T) {
	with(t, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		starting := f.source(corev1.ServerStatus_SERVER_STATUS_STARTING)
		starting.Tools, starting.Upstream = catalog.Contribution{}, nil
		f.publish(2, starting)

		ctx, cancel := context.WithTimeout(as(t.Context()), 5*time.Second)
		defer cancel()
		begin := time.Now()
		if _, err := f.Call(ctx, echo(), call.Listener{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		_, err := f.Call(as(t.Context()), echo(func(r *toolproxyv1.CallToolRequest) { r.Name = "other_tool" }), call.Listener{})
		if !fault.Is(err, fault.ToolNotFound) {
			t.Errorf("another server's name: %v", err)
		}
		got := make(chan error, 1)
		go func() {
			_, err := f.Call(as(t.Context()), echo(), call.Listener{})
			got <- err
		}()
		synctest.Wait()
		f.publish(2, f.source(corev1.ServerStatus_SERVER_STATUS_OK))
		if err := <-got; err != nil {
			t.Errorf("after the start: %v", err)
		}
		*f.store = catalog.Store{}
		if _, err := f.Call(as(t.Context()), echo(), call.Listener{}); !fault.Is(err, fault.NotReady) {
			t.Errorf("without a snapshot: %v", err)
		}
	})
}

func TestMinRevisionIsWaitedFor(t *testing.T) {
	with(t, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		atLeast := func(n int64) func(*toolproxyv1.CallToolRequest) {
			return func(r *toolproxyv1.CallToolRequest) { r.MinRevision = n }
		}
		if _, err := f.Call(as(t.Context()), echo(atLeast(9)), call.Listener{}); !fault.Is(err, fault.NotReady) {
			t.Errorf("a revision that does not come: %v", err)
		}
		time.AfterFunc(time.Second, func() { f.publish(9, f.source(corev1.ServerStatus_SERVER_STATUS_OK)) })
		if _, err := f.Call(as(t.Context()), echo(atLeast(9)), call.Listener{}); err != nil {
			t.Errorf("a revision that comes: %v", err)
		}
	})
}

func TestStaleTargetIsLookedUpAgain(t *testing.T) {
	with(t, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		old := f.source(corev1.ServerStatus_SERVER_STATUS_OK)
		f.pool.SetActive(map[string]string{"s": "2"})
		f.publish(1, old)
		if _, err := f.Call(as(t.Context()), echo(), call.Listener{}); !pool.Retired(err) {
			t.Errorf("a configuration that stays stale: %v", err)
		}
		f.upstream = &upstream.Server{Name: "s", Fingerprint: "2", Transport: serverconfig.Stdio}
		f.publish(2, f.source(corev1.ServerStatus_SERVER_STATUS_OK))
		if _, err := f.Call(as(t.Context()), echo(), call.Listener{}); err != nil {
			t.Errorf("after the change: %v", err)
		}
	})
}

func TestFailedStartOfACallIsServerErrorAndASuspicion(t *testing.T) {
	with(t, &wiretest.Server{DialError: errors.New("exit status 1 because of hunter2")}, func(t *testing.T, f *fixture) {
		_, err := f.Call(as(t.Context()), echo(), call.Listener{})
		if !fault.Is(err, fault.ServerError) || !strings.Contains(err.Error(), "exit status 1 because of ***") {
			t.Errorf("error is %v", err)
		}
		if fmt.Sprint(f.suspects) != "[s]" {
			t.Errorf("suspects are %v", f.suspects)
		}
	})
}

func TestRequestsThatAreRefused(t *testing.T) {
	with(t, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		for name, change := range map[string]func(*toolproxyv1.CallToolRequest){
			"no name":      func(r *toolproxyv1.CallToolRequest) { r.Name = "" },
			"request_id":   func(r *toolproxyv1.CallToolRequest) { r.RequestId = strings.Repeat("x", 129) },
			"run_id":       func(r *toolproxyv1.CallToolRequest) { r.RunId = strings.Repeat("x", 65) },
			"tool_call_id": func(r *toolproxyv1.CallToolRequest) { r.ToolCallId = strings.Repeat("x", 129) },
			"timeout":      timeout(0),
			"less":         timeout(-time.Second),
			"view":         func(r *toolproxyv1.CallToolRequest) { r.View = 99 },
			"control":      func(r *toolproxyv1.CallToolRequest) { r.Scope = &corev1.Scope{UserId: "a\nb"} },
			"long":         func(r *toolproxyv1.CallToolRequest) { r.Scope = &corev1.Scope{ThreadId: strings.Repeat("x", 129)} },
			"bad arguments": func(r *toolproxyv1.CallToolRequest) {
				r.Args = &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: "[]"}
			},
		} {
			if _, err := f.Call(as(t.Context()), echo(change), call.Listener{}); !fault.Is(err, fault.InvalidArguments) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := f.Call(t.Context(), echo(), call.Listener{}); fault.KindOf(err) != fault.Unauthenticated {
			t.Errorf("nobody: %v", err)
		}
	})
}

func TestTraceContextGoesToTheServer(t *testing.T) {
	var params string
	server := &wiretest.Server{Handle: func(_ *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method == "tools/call" {
			params = string(m.Params)
		}
		return false
	}}
	with(t, server, func(t *testing.T, f *fixture) {
		sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, TraceFlags: trace.FlagsSampled})
		if _, err := f.Call(trace.ContextWithSpanContext(as(t.Context()), sc), echo(), call.Listener{}); err != nil {
			t.Fatal(err)
		}
		if want := `"traceparent":"00-01020000000000000000000000000000-0300000000000000-01"`; !strings.Contains(params, want) {
			t.Errorf("params are %s", params)
		}
	})
}

func TestConcurrentCallsGetTheirOwnAnswers(t *testing.T) {
	with(t, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				arguments := fmt.Sprintf(`{"i":%d}`, i)
				r, err := f.Call(as(t.Context()), echo(func(r *toolproxyv1.CallToolRequest) {
					r.Args = &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: arguments}
				}), call.Listener{})
				if err != nil || r.GetResult().GetContent()[0].GetText().GetText() != arguments {
					t.Errorf("%s got %v, %v", arguments, r, err)
				}
			})
		}
		wg.Wait()
	})
}

// A secret that a cut would divide is removed before the cut: half of one is not recognised.
func TestErrorsOfServersAreRedactedBeforeTheyAreCut(t *testing.T) {
	server := onCall(func(p *wiretest.Process, m jsonrpc.Message) {
		p.Refuse(m.ID, -32000, strings.Repeat("x", 196)+"hunter2")
	})
	with(t, server, func(t *testing.T, f *fixture) {
		_, err := f.Call(as(t.Context()), echo(), call.Listener{})
		if !fault.Is(err, fault.UpstreamError) || strings.Contains(err.Error(), "hunt") {
			t.Errorf("%v", err)
		}
	})
}
