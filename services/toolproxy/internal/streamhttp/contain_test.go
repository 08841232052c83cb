package streamhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange/exchangetest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/streamhttp"
)

// CALL-024
func TestAStatusForOneCallerFailsThatCallAlone(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 405, 413, 415, 429, 500, 502, 503, 504} {
		for _, sessions := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d, session %t", status, sessions), func(t *testing.T) {
				release := make(chan struct{})
				srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
					switch {
					case r.Header.Get("Authorization") == "Bearer bad":
						fail(w, status, "text/plain", "go away")
					case tool(m) == "slow":
						<-release
						answer(w, m, `{}`)
					default:
						answer(w, m, `{}`)
					}
				})
				p := exchangetest.Start(t, newWire(t, srv.URL))
				if sessions {
					p.MustInitialize()
				}
				running := make(chan error, 1)
				go func() {
					_, err := p.Call(t.Context(), "tools/call", call("slow"))
					running <- err
				}()
				exchangetest.Eventually(t, "the other call is under way", func() bool {
					return len(srv.Requests(http.MethodPost)) == map[bool]int{true: 3, false: 1}[sessions]
				})

				bad := streamhttp.WithHeader(t.Context(), http.Header{"Authorization": {"Bearer bad"}})
				_, err := p.Call(bad, "tools/call", call("echo"))
				if status == 404 && sessions {
					if !errors.Is(err, streamhttp.ErrSessionLost) || !exchange.NotRun(err) {
						t.Errorf("%v", err)
					}
				} else if e, ok := errors.AsType[*streamhttp.StatusError](err); !ok || e.Code != status || e.Body != "go away" {
					t.Errorf("%v", err)
				}
				if got := exchange.NotRun(err); got != (status == 401 || status == 404 && sessions) {
					t.Errorf("NotRun is %t", got)
				}
				if _, err := p.Call(t.Context(), "tools/call", call("echo")); err != nil {
					t.Errorf("the next call: %v", err)
				}
				close(release)
				if err := <-running; err != nil {
					t.Errorf("the running call: %v", err)
				}
			})
		}
	}
}

func TestAStatusErrorSaysWhatACallerNeedsAndNoCredential(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="https://as.example/x"`)
		w.Header().Set("Retry-After", "7")
		w.Header().Set("Set-Cookie", "a=b")
		fail(w, map[string]int{"401": 401, "403": 403, "429": 429, "413": 413, "500": 500}[tool(m)], "text/html",
			"<p>token "+strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")+" and "+r.Header.Get("X-Key")+"\r\n is\x00 bad</p> password=hunter22 "+strings.Repeat("x", 100_000))
	})
	p := exchangetest.Start(t, newWire(t, srv.URL, func(o *streamhttp.Options) { o.Header = http.Header{"x-key": {"k-123456"}} }))
	ctx := streamhttp.WithHeader(t.Context(), http.Header{"authorization": {"Bearer opaque-value"}})
	for name, reason := range map[string]fault.Reason{
		"401": fault.UpstreamUnauthenticated, "403": fault.UpstreamUnauthenticated, "413": fault.PayloadTooLarge,
		"429": fault.RateLimited, "500": fault.UpstreamProtocol,
	} {
		_, err := p.Call(ctx, "tools/call", call(name))
		e, ok := errors.AsType[*streamhttp.StatusError](err)
		if !ok || fault.ReasonOf(err) != reason {
			t.Fatalf("%s: %v, reason %s", name, err, fault.ReasonOf(err))
		}
		f, _ := errors.AsType[*fault.Error](err)
		if f.RetryDelay() != 7*time.Second || e.Header.Get("Www-Authenticate") == "" || e.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: retry in %v, headers %v", name, f.RetryDelay(), e.Header)
		}
		for _, s := range []string{"opaque-value", "k-123456", "hunter22", "\n", "\x00"} {
			if strings.Contains(err.Error(), s) || strings.Contains(f.Error(), s) {
				t.Errorf("%s: %q is in %q", name, s, err)
			}
		}
		if !strings.Contains(err.Error(), `server "srv" answered tools/call with HTTP `+name) || len(e.Body) > 1300 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAJSONRPCErrorBodyIsAnAnswerWhateverTheStatus(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
		id := m.ID
		if strings.HasPrefix(tool(m), "null") {
			id = nil
		}
		var status int
		_, _ = fmt.Sscanf(strings.TrimPrefix(tool(m), "null-"), "%d", &status)
		fail(w, status, "application/json", string(jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: -32022, Message: "unsupported version"})))
	})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	for _, name := range []string{"400", "404", "403", "413", "500", "null-400", "null-503"} {
		m, err := p.Call(t.Context(), "tools/call", call(name))
		if err != nil || m.Kind != jsonrpc.Failure || !strings.Contains(string(m.Error), "-32022") {
			t.Errorf("%s: %s, %v", name, m.Error, err)
		}
	}
	if _, err := p.Call(t.Context(), "tools/call", call("401")); !fault.Is(err, fault.UpstreamUnauthenticated) {
		t.Errorf("401 asks for a login whatever its body: %v", err)
	}
}

func TestTheFamilyOfLostSessionsIsRecognised(t *testing.T) {
	const own = "own" // stands for the request's id
	for _, tt := range []struct {
		name    string
		status  int
		id      string // of a JSON-RPC error; "" for plain text
		code    int64
		text    string
		lost    bool
		notRun  bool
		session bool
	}{
		{"404", 404, "", 0, "nothing here", true, true, true},
		{"404 without a session", 404, "", 0, "session not found", false, false, false},
		{"404 and -32001 of no id", 404, "null", -32001, "Session not found", true, true, true},
		{"404 and an id of the server's own", 404, `"server-error"`, -32600, "Session has been terminated", true, true, true},
		{"404 and -32600 of our id", 404, own, -32600, "Session not found", true, true, true},
		{"404 for an unknown method", 404, own, -32601, "method not found", false, false, true},
		{"400 with session wording", 400, "", 0, "Bad Request: No valid session ID provided", true, true, true},
		{"400 of a server that restarted", 400, "null", -32000, "Bad Request: Server not initialized", true, true, true},
		{"400 for something else", 400, "", 0, "bad argument", false, false, true},
		{"400 for an argument called session", 400, own, -32602, "invalid session argument", false, false, true},
		{"400 with wording, without a session", 400, "", 0, "No valid session ID provided", false, false, false},
		{"503 with session wording", 503, "", 0, "session expired on backend", true, false, true},
		{"503 for something else", 503, "", 0, "overloaded", false, false, true},
		{"200 and -32001", 200, own, -32001, "Session not found", true, false, true},
		{"200 and -32001 of a tool", 200, own, -32001, "browser session not found in pool", false, false, true},
		{"200 and -32001 without a session", 200, own, -32001, "Session not found", false, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := fake(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
				body, contentType := tt.text, "text/plain"
				if tt.id != "" {
					id := jsonrpc.ID(tt.id)
					switch tt.id {
					case own:
						id = m.ID
					case "null":
						id = nil
					}
					body, contentType = string(jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: tt.code, Message: tt.text})), "application/json"
				}
				fail(w, tt.status, contentType, body)
			})
			p := exchangetest.Start(t, newWire(t, srv.URL))
			if tt.session {
				p.MustInitialize()
			}
			_, err := p.Call(t.Context(), "tools/call", call("x"))
			if errors.Is(err, streamhttp.ErrSessionLost) != tt.lost || exchange.NotRun(err) != tt.notRun {
				t.Errorf("lost %t, not run %t: %v", errors.Is(err, streamhttp.ErrSessionLost), exchange.NotRun(err), err)
			}
			if tt.lost && !fault.Is(err, fault.SessionClosed) {
				t.Errorf("reason %s", fault.ReasonOf(err))
			}
		})
	}
}

func TestAnswersThatBreakTheProtocolFailTheirCallAtOnce(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
		switch tool(m) {
		case "accepted":
			w.WriteHeader(http.StatusAccepted)
		case "no content":
			w.WriteHeader(http.StatusNoContent)
		case "html":
			fail(w, 200, "text/html", "<html>")
		case "no type":
			w.Header()["Content-Type"] = nil
			_, _ = w.Write([]byte("{}"))
		case "empty":
			fail(w, 200, "application/json", "")
		case "other id":
			fail(w, 200, "application/json", `{"jsonrpc":"2.0","id":999999,"result":{}}`)
		case "batch":
			fail(w, 200, "application/json", `[{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{}}]`)
		case "not JSON":
			fail(w, 200, "application/json", `oops`)
		case "cut stream":
			events(w)
			send(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n", m.ID) // no blank line
		case "empty stream":
			events(w)
		case "cut body":
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,`))
		case "cut chunks":
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,`))
			flush(w)
			panic(http.ErrAbortHandler)
		case "hang up":
			panic(http.ErrAbortHandler)
		default:
			answer(w, m, `{}`)
		}
	})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	p.MustInitialize()
	for name, reason := range map[string]fault.Reason{
		"accepted": fault.UpstreamProtocol, "no content": fault.UpstreamProtocol, "html": fault.UpstreamProtocol,
		"no type": fault.UpstreamProtocol, "empty": fault.UpstreamProtocol, "other id": fault.UpstreamProtocol,
		"batch": fault.UpstreamProtocol, "not JSON": fault.UpstreamProtocol,
		"cut stream": fault.SessionClosed, "empty stream": fault.SessionClosed, "cut body": fault.SessionClosed,
		"cut chunks": fault.SessionClosed, "hang up": fault.SessionClosed,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), exchangetest.Patience)
		_, err := p.Call(ctx, "tools/call", call(name))
		cancel()
		if fault.ReasonOf(err) != reason || exchange.NotRun(err) || !strings.Contains(err.Error(), "tools/call") || !strings.Contains(err.Error(), `"srv"`) {
			t.Errorf("%s: reason %q: %v", name, fault.ReasonOf(err), err)
		}
		if reason == fault.SessionClosed && (!strings.Contains(err.Error(), "unknown") || errors.Is(err, streamhttp.ErrSessionLost)) {
			t.Errorf("%s: the error does not say that the outcome is unknown: %v", name, err)
		}
		if _, err := p.Call(t.Context(), "tools/call", call("ok")); err != nil {
			t.Errorf("the call after %s: %v", name, err)
		}
	}
}

func TestNothingIsSentWhereTheServerCannotBeReached(t *testing.T) {
	closed := exchangetest.Serve(t, http.NotFoundHandler())
	closed.Close()
	p := exchangetest.Start(t, newWire(t, closed.URL))
	_, err := p.Call(t.Context(), "tools/call", call("x"))
	if !fault.Is(err, fault.ServerError) || !errors.Is(err, link.ErrNotSent) || !exchange.NotRun(err) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}

	p = exchangetest.Start(t, newWire(t, closed.URL, func(o *streamhttp.Options) { o.Transport = publicOnly(t) }))
	_, err = p.Call(t.Context(), "tools/call", call("x"))
	if !fault.Is(err, fault.ServerError) || !errors.Is(err, link.ErrNotSent) || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("%v", err)
	}
}

func TestTwoCallersOfWhomOneIsRefusedManyTimes(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
		if r.Header.Get("Authorization") == "Bearer bad" {
			fail(w, 401, "application/json", `{"error":"invalid_token"}`)
			return
		}
		events(w)
		send(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", m.ID)
	})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	p.MustInitialize()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			ctx := t.Context()
			if i%2 == 0 {
				ctx = streamhttp.WithHeader(ctx, http.Header{"Authorization": {"Bearer bad"}})
			}
			for range 50 {
				_, err := p.Call(ctx, "tools/call", call("x"))
				if i%2 == 0 && !fault.Is(err, fault.UpstreamUnauthenticated) || i%2 == 1 && err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
}
