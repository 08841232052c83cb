package streamhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange/exchangetest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/streamhttp"
)

func TestAStreamThatBreaksIsResumedBehindItsLastEvent(t *testing.T) {
	var pending atomic.Pointer[jsonrpc.Message]
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
		if r.Method == http.MethodGet {
			switch r.Header.Get("Last-Event-ID") {
			case "a_1":
				events(w)
				send(w, "id: a_2\nretry: 10\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\n")
			case "a_2":
				events(w)
				send(w, "id: a_3\ndata: %s\n\n", jsonrpc.AppendResult(nil, pending.Load().ID, []byte(`{"ok":1}`)))
			}
			return
		}
		pending.Store(&m)
		events(w)
		send(w, "id: a_1\nretry: 10\ndata:\n\n")
		send(w, "id: a_9\ndata: cut") // an event that is not complete does not count
	})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	p.MustInitialize()
	ctx := streamhttp.WithHeader(t.Context(), http.Header{"Authorization": {"Bearer mine"}})
	m, err := p.Call(ctx, "tools/call", call("x"))
	if err != nil || string(m.Result) != `{"ok":1}` {
		t.Fatalf("%s, %v", m.Result, err)
	}
	if n := <-p.Others; n.Method != "notifications/progress" {
		t.Errorf("got %s", n.Method)
	}
	gets := srv.Requests(http.MethodGet)
	if h := gets[0].Header; len(gets) != 2 || h.Get("Authorization") != "Bearer mine" || h.Get("Mcp-Session-Id") != "sess-1" || h.Get("Accept") != "text/event-stream" {
		t.Errorf("%d GETs, the first with %v", len(gets), h)
	}
}

func TestResumingIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name    string
		stream  string // what the POST's stream brings
		resume  func(w http.ResponseWriter)
		gets    int
		modern  bool
		options func(*streamhttp.Options)
	}{
		{name: "no ids", stream: ": x\n\n"},
		{name: "modern", stream: "id: 1\nretry: 1\ndata:\n\n", modern: true},
		{name: "never", stream: "id: 1\nretry: 1\ndata:\n\n", options: func(o *streamhttp.Options) { o.MaxResumes = -1 }},
		{name: "ends at once each time", stream: "id: 1\nretry: 1\ndata:\n\n", resume: events, gets: 3},
		{name: "repeats its last event", stream: "id: 1\nretry: 1\ndata:\n\n", gets: 3, resume: func(w http.ResponseWriter) { events(w); send(w, "id: 1\ndata:\n\n") }},
		{name: "fails", stream: "id: 1\nretry: 1\ndata:\n\n", gets: 3, resume: func(w http.ResponseWriter) { w.WriteHeader(503) }},
		{name: "is not offered", stream: "id: 1\nretry: 1\ndata:\n\n", gets: 1, resume: func(w http.ResponseWriter) { w.WriteHeader(405) }},
		{name: "is something else", stream: "id: 1\nretry: 1\ndata:\n\n", gets: 1, resume: func(w http.ResponseWriter) { fail(w, 200, "text/html", "x") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := fake(t, func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
				if r.Method == http.MethodGet {
					tt.resume(w)
					return
				}
				events(w)
				send(w, "%s", tt.stream)
			})
			var change []func(*streamhttp.Options)
			if tt.options != nil {
				change = append(change, tt.options)
			}
			p := exchangetest.Start(t, newWire(t, srv.URL, change...))
			params := call("x")
			if tt.modern {
				params = `{"name":"x",` + modernMeta + `}`
			} else {
				p.MustInitialize()
			}
			_, err := p.Call(t.Context(), "tools/call", params)
			if !fault.Is(err, fault.SessionClosed) || exchange.NotRun(err) {
				t.Errorf("%v", err)
			}
			if n := len(srv.Requests(http.MethodGet)); n != tt.gets {
				t.Errorf("%d GETs, want %d", n, tt.gets)
			}
		})
	}
}

func TestStreamsBeginWithNoiseAndAskQuestions(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
		if m.Kind != jsonrpc.Request {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		events(w)
		send(w, "\ufeffdata:\n\n: ping\n\n")
		// A question of the server's own with the id of our request, in both orders of keys, is no answer.
		send(w, "event: message\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"ping\"}\r\n\r\n", m.ID)
		send(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"params\":{\"result\":1},\"id\":%s}\n\n", m.ID)
		send(w, "event: other\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":\"of another type\"}\n\n", m.ID)
		// Keys in the order of the TypeScript SDK, over two data lines.
		send(w, "event: message\ndata: {\"result\":{\"ok\":1},\ndata: \"jsonrpc\":\"2.0\",\"id\":%s}\n\n", m.ID)
	})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	p.MustInitialize()
	m, err := p.Call(t.Context(), "tools/call", call("x"))
	if err != nil || string(m.Result) != `{"ok":1}` {
		t.Fatalf("%s, %v", m.Result, err)
	}
	for range 2 {
		if q := <-p.Others; q.Kind != jsonrpc.Request || q.Method != "ping" {
			t.Errorf("got %+v", q)
		}
	}
}

func TestTheStandingStreamBacksOffUntilEventsCome(t *testing.T) {
	var times [2]atomic.Int64
	var gets atomic.Int64
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
		if r.Method == http.MethodGet {
			if n := gets.Add(1); n <= 2 {
				times[n-1].Store(time.Now().UnixNano())
			}
			events(w) // and ends at once
			return
		}
		w.WriteHeader(http.StatusOK)
	})
	exchangetest.Start(t, newWire(t, srv.URL, func(o *streamhttp.Options) { o.StandingGET = true })).MustInitialize()
	exchangetest.Eventually(t, "a second GET", func() bool { return gets.Load() >= 2 })
	if d := time.Duration(times[1].Load() - times[0].Load()); d < 400*time.Millisecond {
		t.Errorf("asked again after %v", d)
	}
}

func TestAMessageAboveTheLimitOnTheStandingStreamIsReported(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
		if r.Method != http.MethodGet {
			w.WriteHeader(http.StatusOK)
			return
		}
		events(w)
		send(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{\"a\":\"%s\"}}\n\n", strings.Repeat("a", 10_000))
		send(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"after\"}\n\n")
		<-r.Context().Done()
	})
	p := exchangetest.Start(t, newWire(t, srv.URL, func(o *streamhttp.Options) { o.StandingGET, o.MaxMessageBytes = true, 1000 }))
	p.MustInitialize()
	if m := <-p.Others; m.Method != "after" {
		t.Errorf("got %s", m.Method)
	}
	if err := <-p.Dropped; !fault.Is(err, fault.PayloadTooLarge) {
		t.Error(err)
	}
}

func TestCloseReadsAnswersBeforeItDeletesTheSession(t *testing.T) {
	release := make(chan struct{})
	var deletedEarly atomic.Bool
	var answered atomic.Bool
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
		if r.Method == http.MethodDelete {
			deletedEarly.Store(!answered.Load())
			return
		}
		events(w)
		<-release
		answered.Store(true)
		send(w, "data: %s\n\n", jsonrpc.AppendResult(nil, m.ID, []byte(`{}`)))
	})
	w := newWire(t, srv.URL)
	p := exchangetest.Start(t, w)
	p.MustInitialize()
	result := make(chan error, 1)
	go func() {
		_, err := p.Call(t.Context(), "tools/call", call("x"))
		result <- err
	}()
	exchangetest.Eventually(t, "the call is under way", func() bool { return len(srv.Requests(http.MethodPost)) == 3 })
	closed := make(chan error, 1)
	go func() { closed <- w.Close(t.Context()) }()
	exchangetest.Eventually(t, "no more is sent", func() bool {
		return errors.Is(w.Send(t.Context(), []byte(`{"jsonrpc":"2.0","method":"x"}`)), link.ErrEnded)
	})
	close(release)
	if err := <-result; err != nil {
		t.Errorf("the call: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
	_ = p.Wait()
	if deletedEarly.Load() || len(srv.Requests(http.MethodDelete)) != 1 {
		t.Errorf("deleted early: %t, %d DELETEs", deletedEarly.Load(), len(srv.Requests(http.MethodDelete)))
	}
	if h := srv.Requests(http.MethodDelete)[0].Header; h.Get("Mcp-Session-Id") != "sess-1" || h.Get("Mcp-Protocol-Version") != "2025-06-18" {
		t.Errorf("DELETE carries %v", h)
	}
}

func TestCloseIsBoundedWhateverTheServerDoes(t *testing.T) {
	srv := fake(t, func(_ http.ResponseWriter, r *http.Request, _ jsonrpc.Message) { <-r.Context().Done() })
	w := newWire(t, srv.URL)
	p := exchangetest.Start(t, w)
	p.MustInitialize()
	result := make(chan error, 1)
	go func() {
		_, err := p.Call(t.Context(), "tools/call", call("x"))
		result <- err
	}()
	exchangetest.Eventually(t, "the call is under way", func() bool { return len(srv.Requests(http.MethodPost)) == 3 })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := w.Close(ctx); err == nil {
		t.Error("the session cannot have been deleted")
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
	if err := <-result; !fault.Is(err, fault.SessionClosed) || exchange.NotRun(err) || !strings.Contains(err.Error(), "session was closed") {
		t.Errorf("the call: %v", err)
	}
	_ = p.Wait()
	if err := w.Close(t.Context()); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if _, err := p.Call(t.Context(), "tools/call", call("x")); !errors.Is(err, link.ErrEnded) || !exchange.NotRun(err) {
		t.Errorf("a call after it: %v", err)
	}
}

func TestTheEndOfRunsContextClosesTheWire(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) { w.WriteHeader(http.StatusNoContent) })
	w := newWire(t, srv.URL)
	ctx, cancel := context.WithCancelCause(t.Context())
	end := make(chan error, 1)
	go func() { end <- w.Run(ctx, func([]byte) {}) }()
	init := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`
	if err := w.Send(t.Context(), []byte(init)); err != nil {
		t.Fatal(err)
	}
	reason := errors.New("enough")
	cancel(reason)
	if err := <-end; !errors.Is(err, reason) {
		t.Errorf("Run: %v", err)
	}
	if n := len(srv.Requests(http.MethodDelete)); n != 1 {
		t.Errorf("%d DELETEs", n)
	}
}

func TestSendWaitsForRun(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) { answer(w, m, `{}`) })
	w := newWire(t, srv.URL)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.Send(ctx, []byte(`{"jsonrpc":"2.0","id":1,"method":"x"}`)); !errors.Is(err, link.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.Send(t.Context(), []byte(`{"jsonrpc":"2.0","id":1,"method":"x"}`)); !errors.Is(err, link.ErrEnded) {
		t.Errorf("%v", err)
	}
	if err := w.Run(t.Context(), func([]byte) {}); err == nil || len(srv.Requests("")) != 0 {
		t.Errorf("%v", err)
	}
}

func TestPlainReceiversGetTheIDOfAnErrorWithoutOne(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
		fail(w, 400, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}`)
	})
	w := newWire(t, srv.URL)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan string, 1)
	end := make(chan error, 1)
	go func() { end <- w.Run(ctx, func(msg []byte) { got <- string(msg) }) }()
	if err := w.Send(t.Context(), []byte(`{"jsonrpc":"2.0","id":42,"method":"x"}`)); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != `{"jsonrpc":"2.0","id":42,"error":{"code":-32700,"message":"what?"}}` {
		t.Error(s)
	}
	cancel()
	<-end
}

func TestAWrongMessageIsNotSent(t *testing.T) {
	srv := fake(t, func(http.ResponseWriter, *http.Request, jsonrpc.Message) {})
	w := newWire(t, srv.URL)
	exchangetest.Start(t, w)
	for _, msg := range []string{"", "x", "[]", `{"jsonrpc":"2.0"}`} {
		if err := w.Send(t.Context(), []byte(msg)); !errors.Is(err, link.ErrNotSent) {
			t.Errorf("%q: %v", msg, err)
		}
	}
	if n := len(srv.Requests("")); n != 0 {
		t.Error(fmt.Sprint(n, " requests"))
	}
}
