package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

func TestAThousandCallersGetTheirOwnAnswers(t *testing.T) {
	const callers = 1000
	var (
		mu      sync.Mutex
		waiting []jsonrpc.Message
	)
	w := newWire(func(w *memWire, m jsonrpc.Message) {
		mu.Lock()
		defer mu.Unlock()
		waiting = append(waiting, m)
		if len(waiting) < callers {
			return
		}
		// All of them wait: answer in any order.
		rand.Shuffle(callers, func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
		for _, m := range waiting {
			w.say(answer(m, string(m.Params)))
		}
	})
	l := start(t, w, Options{})
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			// Every caller uses the same id in its own world; the link gives each its own.
			params := fmt.Sprintf(`{"id":1,"caller":%d}`, i)
			got, err := l.Call(t.Context(), "tools/call", json.RawMessage(params))
			if err != nil || string(got) != params {
				t.Errorf("caller %d got %s, %v", i, got, err)
			}
		})
	}
	wg.Wait()
	if s := l.Stats(); s.InFlight != 0 || s.Calls != callers || s.Late != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestParamsAndResultsGoTokenForToken(t *testing.T) {
	const odd = `{"id":9007199254740993,"amt":1.10,"big":1e400,"exp":1E5,"s":"<&> \u00e9\/","k":1,"k":2, "deep":[ { } ]}`
	w := newWire(func(w *memWire, m jsonrpc.Message) { w.say(answer(m, string(m.Params))) })
	l := start(t, w, Options{})
	got, err := l.Call(t.Context(), "tools/call", json.RawMessage(odd))
	if err != nil || string(got) != odd {
		t.Errorf("got %s, %v\nwant %s", got, err, odd)
	}
}

func TestAnErrorOfTheServerIsTheCallersError(t *testing.T) {
	w := newWire(func(w *memWire, m jsonrpc.Message) {
		w.say(string(jsonrpc.AppendError(nil, m.ID, &jsonrpc.Error{Code: -32005, Message: "no <such> tool", Data: json.RawMessage(`{"n":1.0}`)})))
	})
	l := start(t, w, Options{})
	_, err := l.Call(t.Context(), "tools/call", nil)
	e, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		t.Fatalf("error %v is no *jsonrpc.Error", err)
	}
	if diff := cmp.Diff(&jsonrpc.Error{Code: -32005, Message: "no <such> tool", Data: json.RawMessage(`{"n":1.0}`)}, e); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// CALL-011, between link and wire; stdio proves it with a process.
func TestACancelledCallReturnsAtOnceAndTellsTheServer(t *testing.T) {
	for _, c := range []struct{ name, method, want string }{
		{"a call", "tools/call", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"the deadline passed"}}`},
		{"initialize, which must not be cancelled", "initialize", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var late jsonrpc.Message
				w := newWire(func(w *memWire, m jsonrpc.Message) {
					switch m.Method {
					case c.method:
						late = m // never answered in time
					case "echo":
						w.say(answer(m, `{}`))
					}
				})
				l := start(t, w, Options{})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				_, err := l.Call(ctx, c.method, nil)
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNotSent) || time.Since(began) != time.Second {
					t.Errorf("error %v after %v", err, time.Since(began))
				}
				synctest.Wait()
				sent := w.lines()[1:]
				if c.want == "" && len(sent) != 0 || c.want != "" && (len(sent) != 1 || sent[0] != c.want) {
					t.Errorf("sent %q, want %q", sent, c.want)
				}

				w.say(answer(late, `{"too":"late"}`))
				if got, err := l.Call(t.Context(), "echo", nil); err != nil || string(got) != `{}` {
					t.Errorf("the session is not usable: %s, %v", got, err)
				}
				if s := l.Stats(); s.Late != 1 || s.InFlight != 0 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

func TestACallWhoseContextHasEndedIsNotSent(t *testing.T) {
	w := newWire(nil)
	l := start(t, w, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Call(ctx, "tools/call", nil)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrNotSent) || len(w.lines()) != 0 {
		t.Errorf("error %v, sent %q", err, w.lines())
	}
}

// deathError is a wire's reason with the last words of its server.
type deathError struct{}

func (deathError) Error() string     { return "the process exited with code 3" }
func (deathError) LastWords() string { return "panic: boom" }

func TestTheEndOfTheWireFailsEveryCallWithItsReason(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%t", shared), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(nil)
				l := start(t, w, Options{Shared: shared})
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						_, err := l.Call(t.Context(), "tools/call", nil)
						checkClosed(t, err, shared)
						if errors.Is(err, ErrNotSent) {
							t.Errorf("%v claims that the call was not sent", err)
						}
					})
				}
				synctest.Wait()
				w.end(deathError{})
				wg.Wait()
				<-l.Done()
				if !errors.Is(l.Err(), deathError{}) {
					t.Errorf("Err() = %v", l.Err())
				}
				_, err := l.Call(t.Context(), "tools/call", nil)
				checkClosed(t, err, shared)
				if !errors.Is(err, ErrNotSent) {
					t.Errorf("%v does not say that the call was not sent", err)
				}
				checkClosed(t, l.Notify(t.Context(), "notifications/x", nil), shared)
			})
		})
	}
}

func checkClosed(t *testing.T, err error, shared bool) {
	t.Helper()
	if !fault.Is(err, fault.SessionClosed) || !errors.Is(err, deathError{}) {
		t.Errorf("error %v, want SESSION_CLOSED because of the process", err)
		return
	}
	if !strings.Contains(err.Error(), `"demo"`) || !strings.Contains(err.Error(), "exited with code 3") {
		t.Errorf("error %q names neither server nor reason", err)
	}
	if strings.Contains(err.Error(), "boom") == shared {
		t.Errorf("error %q of a link with Shared=%t", err, shared)
	}
}

func TestASendErrorFailsThatCallAlone(t *testing.T) {
	w := newWire(func(w *memWire, m jsonrpc.Message) { w.say(answer(m, `{}`)) })
	bad := errors.New("413 from the server")
	l := start(t, w, Options{})
	l.wire = failingWire{w, bad}
	if _, err := l.Call(t.Context(), "bad", nil); !errors.Is(err, bad) || errors.Is(err, ErrNotSent) {
		t.Errorf("error %v, want the wire's", err)
	}
	if _, err := l.Call(t.Context(), "good", nil); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if n := l.Stats().InFlight; n != 0 {
		t.Errorf("%d calls in flight", n)
	}
}

func TestAMessageThatAWireAboutToEndRefusesWasNotSent(t *testing.T) {
	w := newWire(nil)
	l := start(t, w, Options{})
	l.wire = failingWire{w, fmt.Errorf("write: %w", ErrEnded)}
	w.end(deathError{})
	_, err := l.Call(t.Context(), "bad", nil)
	checkClosed(t, err, false)
	if !errors.Is(err, ErrNotSent) {
		t.Errorf("%v does not say that the call was not sent", err)
	}
}

// failingWire refuses the method "bad".
type failingWire struct {
	*memWire
	err error
}

func (w failingWire) Send(ctx context.Context, msg []byte) error {
	if m, _ := jsonrpc.Parse(msg); m.Method == "bad" {
		return w.err
	}
	return w.memWire.Send(ctx, msg)
}

func TestWhatWouldBreakTheSessionIsNotSent(t *testing.T) {
	w := newWire(nil)
	l := start(t, w, Options{MaxMessageBytes: 1000})
	for params, reason := range map[string]fault.Reason{
		`{"a":`:          fault.InvalidArguments,
		`{}{}`:           fault.InvalidArguments,
		`[1]`:            fault.InvalidArguments,
		`{"a":1},"id":5`: fault.InvalidArguments,
		"{\"a\":\"\n\"}": fault.InvalidArguments,
		`{"a":"` + strings.Repeat("x", 1000) + `"}`: fault.PayloadTooLarge,
	} {
		if _, err := l.Call(t.Context(), "tools/call", json.RawMessage(params)); !fault.Is(err, reason) {
			t.Errorf("Call with %.20q: %v, want %s", params, err, reason)
		}
		if err := l.Notify(t.Context(), "n", json.RawMessage(params)); !fault.Is(err, reason) {
			t.Errorf("Notify with %.20q: %v, want %s", params, err, reason)
		}
	}
	if len(w.lines()) != 0 {
		t.Errorf("sent %q", w.lines())
	}
}

func TestBrokenAnswersFailTheirCallAndNoiseIsSkipped(t *testing.T) {
	w := newWire(func(w *memWire, m jsonrpc.Message) {
		id := string(m.ID)
		w.say(`Server listening on port 8080`)
		w.say(`{"level":"info","id":` + id + `,"msg":"got a call"}`)
		w.say(`{"level":"error","id":` + id + `,"error":"it failed"}`)
		w.say(`[{"jsonrpc":"2.0","id":` + id + `,"result":{"from":"a batch"}}]`)
		w.say(`{"jsonrpc":"2.0","id":"` + id + `","result":{"from":"a string id"}}`)
		w.say(strings.ReplaceAll(m.Method, "ID", id))
	})
	l := start(t, w, Options{})
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":ID}`,
		`{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":""}}`,
		`{"id":ID,"result":{}}`,
		`{"jsonrpc":"2.0","result":{"x":NaN},"id":ID}`,
		`{"jsonrpc":"2.0","id":ID,"error":"just text"}`,
		`{"jsonrpc":"2.0","id":ID,"error":{"message":"no code"}}`,
		`{"jsonrpc":"2.0","id":ID,"result":{},"result":{}}`,
	} {
		if got, err := l.Call(t.Context(), line, nil); !fault.Is(err, fault.UpstreamProtocol) {
			t.Errorf("%s: %s, %v; want UPSTREAM_PROTOCOL", line, got, err)
		}
	}
	if s := l.Stats(); s.Skipped != 7*4 || s.Late != 7 || s.InFlight != 0 {
		t.Errorf("stats %+v, want 28 skipped and 7 late", s)
	}
}

func TestAWireReportsWhatItHadToDrop(t *testing.T) {
	tooLarge := fault.New(fault.PayloadTooLarge, "20 MB")
	w := newWire(func(w *memWire, m jsonrpc.Message) {
		var h jsonrpc.Head
		switch m.Method {
		case "large":
			h.Write([]byte(`{"jsonrpc":"2.0","result":"…","id":` + string(m.ID) + `}`))
			w.theSink().Drop(&h, tooLarge)
		case "asks":
			h.Write([]byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"method":"sampling/createMessage"}`))
			w.theSink().Drop(&h, tooLarge)
			w.say(answer(m, `{}`))
		}
	})
	l := start(t, w, Options{})
	if _, err := l.Call(t.Context(), "large", nil); !fault.Is(err, fault.PayloadTooLarge) {
		t.Errorf("error %v, want PAYLOAD_TOO_LARGE", err)
	}
	// A request of the server may have the same id as one of ours.
	if got, err := l.Call(t.Context(), "asks", nil); err != nil || string(got) != `{}` {
		t.Errorf("got %s, %v", got, err)
	}
	waitFor(t, "the answer to the server's request", func() bool { return len(w.lines()) == 3 })
	if last := w.lines()[2]; !strings.Contains(last, `"id":2,"error":{"code":-32600`) {
		t.Errorf("the server was told %s", last)
	}
}

func TestCloseRefusesCallsAndEndsTheWire(t *testing.T) {
	w := newWire(nil)
	l := start(t, w, Options{})
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Call(t.Context(), "tools/call", nil); !fault.Is(err, fault.SessionClosed) || !errors.Is(err, ErrNotSent) {
		t.Errorf("error %v, want SESSION_CLOSED, not sent", err)
	}

	never := New(newWire(nil), Options{})
	if err := never.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := never.Call(t.Context(), "tools/call", nil); !fault.Is(err, fault.SessionClosed) {
		t.Errorf("error %v, want SESSION_CLOSED", err)
	}
}

// waitFor polls until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 10 s for %s", what)
		}
		<-time.After(time.Millisecond)
	}
}
