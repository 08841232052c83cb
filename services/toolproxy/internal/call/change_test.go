package call_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/call"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

// tracer tells the fixture when a call has found its tool and is about to look for a session.
type tracer struct {
	trace.Tracer

	f *fixture
}

func (t tracer) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t.f.stale != nil {
		t.f.stale()
	}
	return t.Tracer.Start(ctx, name, o...)
}

// recorded is a caller's span that is recorded: the call gets one of its own.
type recorded struct{ noop.Span }

func (recorded) IsRecording() bool { return true }

// The longest a call may take counts from its beginning, the wait for a server's first start included.
func TestRequestTimeoutBoundsTheWaitForTheFirstStart(t *testing.T) {
	with(t, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		starting := f.source(corev1.ServerStatus_SERVER_STATUS_STARTING)
		starting.Tools, starting.Upstream = catalog.Contribution{}, nil
		f.publish(2, starting)
		ctx, cancel := context.WithTimeout(as(t.Context()), time.Hour)
		defer cancel()
		begin := time.Now()
		_, err := f.Call(ctx, echo(timeout(3*time.Second)), call.Listener{})
		e, ok := errors.AsType[*fault.Error](err)
		if !ok || e.Reason() != fault.Timeout || e.Metadata()["deadline_source"] != "request.timeout" || time.Since(begin) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if !strings.Contains(err.Error(), `"s_echo"`) || !strings.Contains(err.Error(), "ListServers") {
			t.Errorf("message %q does not name the tool and the next step", err)
		}
	})
}

// A name that stands for another tool by the time of the call calls that tool.
func TestNameIsLookedUpAgainAsAWhole(t *testing.T) {
	var called []string
	server := onCall(func(p *wiretest.Process, m jsonrpc.Message) {
		name, _ := jsonrpc.String(jsonrpc.Member(m.Params, "name"))
		called = append(called, name)
		p.Reply(m.ID, `{"content":[]}`)
	})
	with(t, server, func(t *testing.T, f *fixture) {
		source := func(server, fingerprint, original string) catalog.Source {
			s := f.source(corev1.ServerStatus_SERVER_STATUS_OK)
			s.Name = server
			s.Upstream = &upstream.Server{Name: server, Fingerprint: fingerprint, Transport: serverconfig.Stdio}
			s.Tools = catalog.Contribute(catalog.Rules{Server: server, Prefix: true, MaxLength: 64}, []catalog.Definition{{Name: original}})
			return s
		}
		f.publish(2, source("s", "1", "a_b"))
		f.stale = func() { // the configuration changes between the look at the catalog and the session
			f.stale = nil
			f.publish(3, source("s_a", "2", "b"))
			f.pool.SetActive(map[string]string{"s_a": "2"})
		}
		request := echo()
		request.Name = "s_a_b"
		r, err := f.Call(trace.ContextWithSpan(as(t.Context()), recorded{}), request, call.Listener{})
		if err != nil || r.GetInfo().GetServer() != "s_a" || r.GetInfo().GetOriginalName() != "b" || fmt.Sprint(called) != "[b]" {
			t.Errorf("called %q, %v, %v", called, r.GetInfo(), err)
		}
	})
}

// A server that lost its sessions was started anew, and may have other tools.
func TestLostSessionIsACauseOfACheck(t *testing.T) {
	server := &wiretest.Server{SendError: func(p *wiretest.Process, m jsonrpc.Message) error {
		if m.Method == "tools/call" && p.Number == 1 {
			return &exchange.SessionLostError{Server: "s", What: m.Method, Code: 404, Untouched: true}
		}
		return nil
	}}
	with(t, server, func(t *testing.T, f *fixture) {
		r, err := f.Call(as(t.Context()), echo(), call.Listener{})
		if err != nil || r.GetInfo().GetAttempt() != 2 || fmt.Sprint(f.suspects) != "[s]" {
			t.Errorf("%v, %v, suspects %v", r.GetInfo(), err, f.suspects)
		}
	})
}

func TestLoginThatIsWantedInACallSaysHowAndIsLookedInto(t *testing.T) {
	server := &wiretest.Server{SendError: func(_ *wiretest.Process, m jsonrpc.Message) error {
		if m.Method == "tools/call" {
			return &exchange.StatusError{Server: "s", What: m.Method, Code: 401, Body: "no"}
		}
		return nil
	}}
	with(t, server, func(t *testing.T, f *fixture) {
		_, err := f.Call(as(t.Context()), echo(), call.Listener{})
		if !fault.Is(err, fault.UpstreamUnauthenticated) || !strings.Contains(err.Error(), "toolherd login s") || fmt.Sprint(f.suspects) != "[s]" {
			t.Errorf("%v, suspects %v", err, f.suspects)
		}
	})
}

// A connection that breaks during the handshake leaves nothing unknown about the call, which was not made.
func TestLossDuringTheHandshakeIsAFailedStart(t *testing.T) {
	server := &wiretest.Server{SendError: func(_ *wiretest.Process, m jsonrpc.Message) error {
		return fault.New(fault.SessionClosed, "the connection was lost before %s was answered, so its outcome is unknown", m.Method)
	}}
	with(t, server, func(t *testing.T, f *fixture) {
		_, err := f.Call(as(t.Context()), echo(), call.Listener{})
		if !fault.Is(err, fault.ServerError) || !strings.Contains(err.Error(), `server "s" could not be started`) || fmt.Sprint(f.suspects) != "[s]" {
			t.Errorf("%v, suspects %v", err, f.suspects)
		}
	})
}
