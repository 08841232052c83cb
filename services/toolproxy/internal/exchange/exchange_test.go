package exchange_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/safehttp"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

func TestAnswersTellsTheAnswerFromEverythingElse(t *testing.T) {
	for _, tt := range []struct {
		msg  string
		want bool
	}{
		{`{"jsonrpc":"2.0","id":7,"result":{}}`, true},
		{`{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"x"}}`, true},
		{`{"result":{"a":[1]},"jsonrpc":"2.0","id":7}`, true},
		{`{"jsonrpc":"2.0","result":{},"id":7}`, true},
		{`{"error":{"code":1,"message":"x"},"jsonrpc":"2.0","id":7}`, true},
		{` { "id" : 7 , "result" : 1 , "jsonrpc" : "2.0" } `, true},
		{`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}`, true},
		{`{"id":7,"result":{}}`, true}, // broken, but its caller must hear of it
		{`{"jsonrpc":"2.0","id":70,"result":{}}`, false},
		{`{"jsonrpc":"2.0","id":"7","result":{}}`, false},
		{`{"result":{"id":7},"jsonrpc":"2.0","id":17}`, false},
		{`{"jsonrpc":"2.0","id":7,"method":"ping"}`, false},
		{`{"jsonrpc":"2.0","method":"x","params":{"id":7}}`, false},
		{`{"jsonrpc":"2.0","method":"x","id":7}`, false},
		{`[{"jsonrpc":"2.0","id":7,"result":{}}]`, false},
		{`{}`, false}, {``, false}, {`x`, false},
	} {
		if got := exchange.Answers([]byte(tt.msg), jsonrpc.ID("7")); got != tt.want {
			t.Errorf("Answers(%s) = %t", tt.msg, got)
		}
	}
}

// The short cuts of Answers must agree with reading the whole message, for every message that can be read.
func FuzzAnswersAgreesWithParse(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":7,"result":{}}`, `{"result":{"id":7},"jsonrpc":"2.0","id":7}`, `{"jsonrpc":"2.0","error":{},"id":7}`,
		`{"jsonrpc":"2.0","method":"x","id":7}`, `{"result":1,"id":7}`, `{"error":{},"x":[{"id":7}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		id := jsonrpc.ID("7")
		m, err := jsonrpc.Parse(msg)
		if err != nil {
			exchange.Answers(msg, id)
			return
		}
		want := m.Kind == jsonrpc.Response && string(m.ID) == "7" || m.Kind == jsonrpc.Failure && (m.ID == nil || string(m.ID) == "7")
		if got := exchange.Answers(msg, id); got != want {
			t.Errorf("Answers(%q) = %t, reading it says %t", msg, got, want)
		}
	})
}

func TestMediaTypesAreParsed(t *testing.T) {
	for in, want := range map[string]string{
		"application/json": "application/json", "Application/JSON; Charset=UTF-8": "application/json", "application/json;charset=utf-8": "application/json",
		"text/event-stream; charset=": "text/event-stream", "": "", "nonsense/": "",
	} {
		if got := exchange.MediaType(&http.Response{Header: http.Header{"Content-Type": {in}}}); got != want {
			t.Errorf("MediaType(%q) = %q", in, got)
		}
	}
}

func TestNotRunNeedsProof(t *testing.T) {
	status := func(code int) error { return &exchange.StatusError{Code: code, Header: http.Header{}} }
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {errors.New("x"), false}, {context.Canceled, false},
		{fmt.Errorf("a: %w", link.ErrNotSent), true}, {errors.Join(errors.New("x"), link.ErrEnded), true},
		{status(401), true}, {fmt.Errorf("a: %w", status(401)), true}, {status(403), false}, {status(503), false},
		{&exchange.SessionLostError{Untouched: true}, true}, {&exchange.SessionLostError{}, false},
		{fault.New(fault.SessionClosed, "x"), false},
	} {
		if got := exchange.NotRun(tt.err); got != tt.want {
			t.Errorf("NotRun(%v) = %t", tt.err, got)
		}
	}
}

func TestRetryAfterIsBounded(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, " 3 ": 3 * time.Second, "-1": 0, "1e9": 0, "4000000000": 24 * time.Hour,
		"99999999999999999999": 0, "Wed, 21 Oct 2026 07:28:00 GMT": 0,
	} {
		err := error(&exchange.StatusError{Code: 503, Header: http.Header{"Retry-After": {in}}})
		f, _ := errors.AsType[*fault.Error](err)
		if f == nil || f.RetryDelay() != want {
			t.Errorf("Retry-After %q: %v", in, f.RetryDelay())
		}
	}
}

func TestAnUnknownCertificateIsAConfigurationErrorBeforeAnythingIsSent(t *testing.T) {
	reached := false
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer srv.Close()
	tr := safehttp.NewTransport(safehttp.Options{AllowPrivate: safehttp.AnyHost})
	defer tr.CloseIdleConnections()
	c, err := exchange.New(exchange.Options{Server: "srv", URL: srv.URL, Transport: tr})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Do(t.Context(), &exchange.Request{Method: http.MethodPost, What: "x", Body: []byte("{}")})
	if !fault.Is(err, fault.ServerError) || !exchange.NotRun(err) || !strings.Contains(err.Error(), "certificate") || reached {
		t.Errorf("%v", err)
	}
}

// A lost connection is told to agents and kept with tasks, neither of which may hold the server's address.
func TestALostConnectionIsToldWithoutAddresses(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // a reset
			t.Error(err)
		}
		conn.Close()
	}))
	defer srv.Close()
	tr := safehttp.NewTransport(safehttp.Options{AllowPrivate: safehttp.AnyHost})
	defer tr.CloseIdleConnections()
	c, err := exchange.New(exchange.Options{Server: "far", URL: srv.URL, Transport: tr})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Do(t.Context(), &exchange.Request{Method: http.MethodPost, What: "tools/call", Body: []byte("{}")})
	if !fault.Is(err, fault.SessionClosed) || strings.Contains(err.Error(), "127.0.0.1") || !strings.Contains(err.Error(), "reset") {
		t.Errorf("the error is %v", err)
	}
}
