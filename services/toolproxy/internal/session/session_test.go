package session_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options(s *wiretest.Server) session.Options {
	return session.Options{
		Dial: s.Dial, ProbeTimeout: 3 * time.Second, Client: session.Client{Name: "toolherd", Version: "9"},
		Log: slog.New(slog.DiscardHandler),
	}
}

func open(t *testing.T, o session.Options) *session.Session {
	t.Helper()
	s, err := session.Open(t.Context(), o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { closeSession(t, s) })
	return s
}

func closeSession(t *testing.T, s *session.Session) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// CALL-015: auto speaks 2026-07-28 where it is offered, else what the server agrees on; pins are kept.
func TestEras(t *testing.T) {
	for _, tc := range []struct {
		name   string
		server *wiretest.Server
		era    session.Era
		want   string
		seen   []string
	}{
		{"auto meets modern", &wiretest.Server{Modern: true}, session.Auto, "2026-07-28", []string{"server/discover"}},
		{"auto meets 2025-11-25", &wiretest.Server{}, session.Auto, "2025-11-25", []string{"server/discover", "initialize", "notifications/initialized"}},
		{"auto meets 2025-06-18", &wiretest.Server{Version: "2025-06-18"}, "", "2025-06-18", []string{"server/discover", "initialize", "notifications/initialized"}},
		{"auto meets 2024-11-05", &wiretest.Server{Version: "2024-11-05"}, session.Auto, "2024-11-05", []string{"server/discover", "initialize", "notifications/initialized"}},
		{"legacy is pinned", &wiretest.Server{Version: "2025-03-26"}, session.Legacy, "2025-03-26", []string{"initialize", "notifications/initialized"}},
		{"modern is pinned", &wiretest.Server{Modern: true}, session.Modern, "2026-07-28", []string{"server/discover"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := options(tc.server)
			o.Era = tc.era
			s := open(t, o)
			if s.Version() != tc.want {
				t.Errorf("version is %q, want %q", s.Version(), tc.want)
			}
			if n := len(tc.server.Processes()); n != 1 {
				t.Errorf("%d processes were started, want 1", n)
			}
			if diff := cmp.Diff(tc.seen, tc.server.Processes()[0].Seen()); diff != "" {
				t.Errorf("messages: %s", diff)
			}
		})
	}
}

func TestRefusedVersions(t *testing.T) {
	for name, o := range map[string]session.Options{
		"an unknown version":    options(&wiretest.Server{Version: "1999-01-01"}),
		"modern pinned, legacy": func() session.Options { o := options(&wiretest.Server{}); o.Era = session.Modern; return o }(),
	} {
		s, err := session.Open(t.Context(), o)
		if err == nil {
			closeSession(t, s)
		}
		if !fault.Is(err, fault.UpstreamProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// CALL-016: a server that exits, hangs or breaks on an unexpected first message is started again and spoken to as legacy,
// within the bound of the probe.
func TestEraDetectionSurvivesServersThatDoNotExpectIt(t *testing.T) {
	for name, react := range map[string]func(p *wiretest.Process, m jsonrpc.Message){
		"exits": func(p *wiretest.Process, _ jsonrpc.Message) { p.Exit(errors.New("exit status 1")) },
		"hangs": func(*wiretest.Process, jsonrpc.Message) {},
		"noise": func(p *wiretest.Process, _ jsonrpc.Message) {
			p.Emit("thread 'main' panicked")
			p.Exit(errors.New("eof"))
		},
		"breaks its answer": func(p *wiretest.Process, m jsonrpc.Message) {
			p.Emit(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":`, m.ID))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &wiretest.Server{Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
					if m.Method != "initialize" && len(p.Seen()) == 1 {
						react(p, m)
						return true
					}
					return len(p.Seen()) > 1 && p.Seen()[0] != "initialize" // its state is lost
				}}
				start := time.Now()
				s := open(t, options(server))
				if s.Version() != "2025-11-25" {
					t.Errorf("version is %q", s.Version())
				}
				if took := time.Since(start); took > 4*time.Second {
					t.Errorf("detection took %v", took)
				}
				processes := server.Processes()
				if len(processes) != 2 || !processes[0].Ended() {
					t.Errorf("%d processes were started, the first ended: %v", len(processes), processes[0].Ended())
				}
				if _, err := s.CallTool(t.Context(), session.Call{Name: "echo"}); err != nil {
					t.Errorf("call: %v", err)
				}
				closeSession(t, s)
			})
		})
	}
}

func TestKnownLegacyServersAreNotProbedUntilTheyRefuse(t *testing.T) {
	legacy := &wiretest.Server{}
	o := options(legacy)
	o.Known = session.Version20250618
	open(t, o)
	if got := legacy.Processes()[0].Seen()[0]; got != "initialize" {
		t.Errorf("a known legacy server got %q first", got)
	}
	modern := &wiretest.Server{Modern: true}
	o = options(modern)
	o.Known = session.Version20250618
	if s := open(t, o); s.Version() != session.Version20260728 {
		t.Errorf("a server that has moved on is spoken to in %q", s.Version())
	}
}

func TestSlowModernServerIsRecognised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &wiretest.Server{Modern: true}
		server.Handle = func(p *wiretest.Process, m jsonrpc.Message) bool {
			return m.Method == "server/discover" && p.Number == 1 // still starting
		}
		s := open(t, options(server))
		if s.Version() != session.Version20260728 {
			t.Errorf("version is %q", s.Version())
		}
		closeSession(t, s)
	})
}

func TestRefusedLoginIsNoEvidenceOfAnEra(t *testing.T) {
	server := &wiretest.Server{DialError: fault.New(fault.UpstreamUnauthenticated, "HTTP 401")}
	_, err := session.Open(t.Context(), options(server))
	if !fault.Is(err, fault.UpstreamUnauthenticated) {
		t.Errorf("error is %v", err)
	}
}

func TestFailedHandshakeTellsWhyTheProcessEndedAndLeavesNothing(t *testing.T) {
	reason := errors.New("exit status 3")
	server := &wiretest.Server{Handle: func(p *wiretest.Process, _ jsonrpc.Message) bool { p.Exit(reason); return true }}
	_, err := session.Open(t.Context(), options(server))
	if !errors.Is(err, reason) {
		t.Errorf("error is %v", err)
	}
	if n := server.Alive(); n != 0 {
		t.Errorf("%d processes are alive", n)
	}
}

func TestHandshakeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &wiretest.Server{Handle: func(*wiretest.Process, jsonrpc.Message) bool { return true }}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		_, err := session.Open(ctx, options(server))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 11*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if n := server.Alive(); n != 0 {
			t.Errorf("%d processes are alive", n)
		}
	})
}

// Toolherd introduces itself with its own name and version, and declares no capability.
func TestIntroduction(t *testing.T) {
	var params string
	server := &wiretest.Server{Handle: func(_ *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method == "initialize" {
			params = string(m.Params)
		}
		return false
	}}
	open(t, options(server))
	want := `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"toolherd","version":"9"}}`
	if params != want {
		t.Errorf("initialize got %s", params)
	}
}

// Requests of the server other than ping are refused with -32601.
func TestServerRequestsAreRefused(t *testing.T) {
	answers := make(chan string, 2)
	server := &wiretest.Server{Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
		switch {
		case m.Method == "tools/call":
			p.Emit(`{"jsonrpc":"2.0","id":"s1","method":"sampling/createMessage","params":{}}`)
		case m.Kind == jsonrpc.Failure:
			answers <- string(m.Error)
		}
		return false
	}}
	s := open(t, options(server))
	if _, err := s.CallTool(t.Context(), session.Call{Name: "echo"}); err != nil {
		t.Fatal(err)
	}
	if got := <-answers; !strings.Contains(got, "-32601") || !strings.Contains(got, "sampling/createMessage") {
		t.Errorf("the server got %s", got)
	}
}

func TestCallsCarryWhatTheVersionAsksFor(t *testing.T) {
	for _, tc := range []struct {
		modern bool
		call   session.Call
		want   string
	}{
		{false, session.Call{Name: "a\"b"}, `{"name":"a\"b","arguments":{}}`},
		{false, session.Call{Name: "t", Arguments: []byte(`{"n":1.10}`), Meta: `"traceparent":"x"`}, `{"name":"t","arguments":{"n":1.10},"_meta":{"traceparent":"x"}}`},
		{true, session.Call{Name: "t", Meta: `"traceparent":"x"`}, `{"name":"t","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientInfo":{"name":"toolherd","version":"9"},"io.modelcontextprotocol/clientCapabilities":{},"traceparent":"x"}}`},
	} {
		var got string
		server := &wiretest.Server{Modern: tc.modern, Handle: func(_ *wiretest.Process, m jsonrpc.Message) bool {
			if m.Method == "tools/call" {
				got = string(m.Params)
			}
			return false
		}}
		if _, err := open(t, options(server)).CallTool(t.Context(), tc.call); err != nil {
			t.Fatal(err)
		}
		if got != tc.want {
			t.Errorf("modern %v: params are %s, want %s", tc.modern, got, tc.want)
		}
	}
}

// STAT-010: list_changed is acted on though the server did not declare it; modern servers are subscribed to.
func TestListChangedIsHeard(t *testing.T) {
	for _, modern := range []bool{false, true} {
		server := &wiretest.Server{Modern: modern, Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
			switch m.Method {
			case "notifications/initialized", "subscriptions/listen":
				p.Notify("notifications/tools/list_changed", "{}")
				return true
			}
			return false
		}}
		o := options(server)
		heard := make(chan struct{}, 1)
		o.OnListChanged = func() { heard <- struct{}{} }
		o.Subscribe = true
		open(t, o)
		<-heard
	}
}

func TestToolsOfAllPages(t *testing.T) {
	server := &wiretest.Server{Handle: pages(
		`{"tools":[{"name":"a"},null,{"name":"b"}],"nextCursor":"2"}`,
		`{"tools":[],"nextCursor":"3","ttlMs":60000}`,
		`{"tools":[7,{"name":"c","x":1e400}],"nextCursor":""}`,
	)}
	list, err := open(t, options(server)).ListTools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, raw := range list.Tools {
		got = append(got, string(raw))
	}
	if diff := cmp.Diff([]string{`{"name":"a"}`, `{"name":"b"}`, `{"name":"c","x":1e400}`}, got); diff != "" {
		t.Error(diff)
	}
	if len(list.Skipped) != 2 || list.TTL != time.Minute {
		t.Errorf("skipped %q, ttl %v", list.Skipped, list.TTL)
	}
}

// STAT-015: a repeated cursor, more than 1000 pages or a null list is an error.
func TestBrokenLists(t *testing.T) {
	for name, handle := range map[string]func(*wiretest.Process, jsonrpc.Message) bool{
		"null":            pages(`{"tools":null}`),
		"missing":         pages(`{}`),
		"no array":        pages(`{"tools":{}}`),
		"no object":       pages(`[]`),
		"odd cursor":      pages(`{"tools":[],"nextCursor":7}`),
		"repeated cursor": pages(`{"tools":[],"nextCursor":"x"}`, `{"tools":[],"nextCursor":"x"}`),
		"interim":         pages(`{"tools":[],"resultType":"input_required"}`),
		"endless": func(p *wiretest.Process, m jsonrpc.Message) bool {
			if m.Method == "tools/list" {
				p.Reply(m.ID, fmt.Sprintf(`{"tools":[],"nextCursor":"after %s"}`, m.ID))
			}
			return m.Method == "tools/list"
		},
		"too many": pages(`{"tools":[` + strings.Repeat(`{},`, 10_000) + `{}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			server := &wiretest.Server{Handle: handle}
			list, err := open(t, options(server)).ListTools(t.Context())
			if !fault.Is(err, fault.UpstreamProtocol) {
				t.Errorf("list of %d tools, %v", len(list.Tools), err)
			}
			if n := len(server.Processes()[0].Seen()); n > 1010 {
				t.Errorf("%d messages were sent", n)
			}
		})
	}
}

// pages answers tools/list with these results, one after the other, the last for ever.
func pages(results ...string) func(*wiretest.Process, jsonrpc.Message) bool {
	return func(p *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method != "tools/list" {
			return false
		}
		n := 0
		for _, method := range p.Seen() {
			if method == "tools/list" {
				n++
			}
		}
		p.Reply(m.ID, results[min(n, len(results))-1])
		return true
	}
}

func TestServerWithoutToolsHasAnEmptyList(t *testing.T) {
	server := &wiretest.Server{Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
		switch m.Method {
		case "initialize":
			p.Reply(m.ID, `{"protocolVersion":"2025-11-25","capabilities":{}}`)
		case "tools/list":
			p.Refuse(m.ID, -32601, "method not found")
		}
		return slices.Contains([]string{"initialize", "tools/list"}, m.Method)
	}}
	list, err := open(t, options(server)).ListTools(t.Context())
	if err != nil || len(list.Tools) != 0 {
		t.Errorf("%d tools, %v", len(list.Tools), err)
	}
}
