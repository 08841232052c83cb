package link

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

func progress(token json.RawMessage, n int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, token, n)
}

func tokenOf(m jsonrpc.Message) json.RawMessage {
	return jsonrpc.Member(jsonrpc.Member(m.Params, "_meta"), "progressToken")
}

func TestProgressReachesTheCallThatAskedInOrderAndBeforeTheAnswer(t *testing.T) {
	w := newWire(func(w *memWire, m jsonrpc.Message) {
		for n := range 3 {
			w.say(progress(tokenOf(m), n))
			w.say(progress(json.RawMessage(`"unknown"`), n))
		}
		w.say(answer(m, `{}`))
	})
	l := start(t, w, Options{OnNotification: func(method string, _ json.RawMessage) { t.Errorf("%s was not routed", method) }})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			var got []string
			active := 0
			_, err := l.CallWith(t.Context(), "tools/call", json.RawMessage(`{"name":"x","_meta":{"a":1}}`), CallOptions{
				OnProgress: func(p json.RawMessage) { got = append(got, string(jsonrpc.Member(p, "progress"))) },
				OnActivity: func() { active++ },
			})
			if diff := cmp.Diff([]string{"0", "1", "2"}, got); err != nil || diff != "" || active != 3 {
				t.Errorf("call %d: %v, %d activities, (-want +got):\n%s", i, err, active, diff)
			}
		})
	}
	wg.Wait()
	if s := l.Stats(); s.Late != 60 || s.Dropped != 0 {
		t.Errorf("stats %+v, want 60 late", s)
	}
}

func TestProgressIsShownWhileSendStillRuns(t *testing.T) {
	// Over HTTP, Send lasts until the answer's stream has ended.
	w := newWire(func(w *memWire, m jsonrpc.Message) { w.say(progress(tokenOf(m), 1)) })
	w.hold = make(chan struct{})
	l := start(t, w, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	_, err := l.CallWith(ctx, "tools/call", nil, CallOptions{OnProgress: func(json.RawMessage) {
		seen++
		cancel()
	}})
	if err == nil || seen != 1 {
		t.Errorf("error %v, %d progress messages", err, seen)
	}
}

func TestACallWithItsOwnProgressTokenIsRefused(t *testing.T) {
	l := start(t, newWire(nil), Options{})
	_, err := l.CallWith(t.Context(), "tools/call", json.RawMessage(`{"_meta":{"progressToken":1}}`), CallOptions{OnActivity: func() {}})
	if !fault.Is(err, fault.InvalidArguments) {
		t.Errorf("error %v, want INVALID_ARGUMENTS", err)
	}
}

func TestASlowListenerDelaysOnlyItsOwnCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 1000
		w := newWire(func(w *memWire, m jsonrpc.Message) {
			if m.Method == "chatty" {
				for n := range messages {
					w.say(progress(tokenOf(m), n))
				}
			}
			w.say(answer(m, `{}`))
		})
		l := start(t, w, Options{})
		release := make(chan struct{})
		var got []string
		slow := make(chan error, 1)
		go func() {
			_, err := l.CallWith(t.Context(), "chatty", nil, CallOptions{OnProgress: func(p json.RawMessage) {
				<-release
				got = append(got, string(jsonrpc.Member(p, "progress")))
			}})
			slow <- err
		}()
		synctest.Wait()
		if _, err := l.Call(t.Context(), "other", nil); err != nil {
			t.Errorf("the other call: %v", err)
		}
		close(release)
		if err := <-slow; err != nil {
			t.Error(err)
		}
		// The one that blocked, perhaps, and the newest ones.
		if last := got[len(got)-1]; last != fmt.Sprint(messages-1) || len(got) > maxEvents+1 {
			t.Errorf("%d messages, the last is %s", len(got), last)
		}
		if s := l.Stats(); int(s.Dropped)+len(got) != messages {
			t.Errorf("%d dropped and %d seen of %d", s.Dropped, len(got), messages)
		}
	})
}

func logMessage(text string) string {
	return `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + text + `"}}`
}

func TestLogMessagesGoToTheCallThatCanBeTold(t *testing.T) {
	for _, c := range []struct {
		name    string
		shared  bool
		stream  bool // the wire knows the call
		others  int  // calls that also listen
		routed  bool
		handled bool // goes to OnNotification
	}{
		{name: "the only listener", routed: true},
		{name: "one of two listeners", others: 1, handled: true},
		{name: "a shared session", shared: true, handled: true},
		{name: "on the stream of the call, shared and with others", shared: true, stream: true, others: 3, routed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(func(w *memWire, m jsonrpc.Message) {
					if m.Method != "tools/call" {
						return
					}
					if c.stream {
						w.theSink().DeliverFor(m.ID, []byte(logMessage("hello")))
					} else {
						w.say(logMessage("hello"))
					}
					w.say(answer(m, `{}`))
				})
				handled := 0
				l := start(t, w, Options{Shared: c.shared, OnNotification: func(string, json.RawMessage) { handled++ }})
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				for range c.others {
					wg.Go(func() {
						_, _ = l.CallWith(ctx, "waits", nil, CallOptions{OnLog: func(json.RawMessage) { t.Error("a log message of another call") }})
					})
				}
				synctest.Wait()
				seen := 0
				if _, err := l.CallWith(ctx, "tools/call", nil, CallOptions{OnLog: func(json.RawMessage) { seen++ }}); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				cancel()
				wg.Wait()
				if (seen == 1) != c.routed || (handled == 1) != c.handled {
					t.Errorf("the call saw %d, the handler %d", seen, handled)
				}
			})
		})
	}
}

func TestAnErrorWithoutIDFailsTheCallOnWhoseStreamItCame(t *testing.T) {
	w := newWire(func(w *memWire, m jsonrpc.Message) {
		w.theSink().DeliverFor(m.ID, []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"unsupported version"}}`))
	})
	l := start(t, w, Options{})
	if _, err := l.Call(t.Context(), "initialize", nil); err == nil || !strings.Contains(err.Error(), "unsupported version") {
		t.Errorf("error %v", err)
	}
}

func TestNotificationsArriveInOrderAndListChangedIsNeverLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var got []string
		w := newWire(nil)
		l := start(t, w, Options{OnNotification: func(method string, params json.RawMessage) {
			<-release
			got = append(got, method+string(params))
		}})
		w.say(`{"jsonrpc":"2.0","method":"first"}`)
		synctest.Wait()
		for range 3 {
			w.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
		for n := range maxNotifications + 10 {
			w.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/x","params":[%d]}`, n))
		}
		w.say(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)
		close(release)
		synctest.Wait()
		if got[0] != "first" || got[1] != "notifications/tools/list_changed" || got[len(got)-1] != "notifications/prompts/list_changed" {
			t.Errorf("got %q … %q", got[:2], got[len(got)-1])
		}
		if s := l.Stats(); s.Dropped == 0 || int(s.Dropped)+len(got) != maxNotifications+10+3 {
			t.Errorf("%d dropped, %d seen", s.Dropped, len(got))
		}
	})
}

func TestTheServersRequestsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(nil)
		start(t, w, Options{})
		w.say(`{"jsonrpc":"2.0","id":"p-1","method":"ping"}`)
		w.say(`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`)
		synctest.Wait()
		want := []string{
			`{"jsonrpc":"2.0","id":"p-1","result":{}}`,
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"method not found"}}`,
		}
		if diff := cmp.Diff(want, w.lines()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestRequestsOfTheServerReachTheHandlerUntilTheServerCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(nil)
		started := 0
		var mu sync.Mutex
		start(t, w, Options{OnRequest: func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *jsonrpc.Error) {
			mu.Lock()
			started++
			mu.Unlock()
			switch method {
			case "roots/list":
				return json.RawMessage(`{"roots":[]}`), nil
			case "elicitation/create":
				<-ctx.Done()
				return json.RawMessage(`{"never":"sent"}`), nil
			default:
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no " + method}
			}
		}})
		w.say(`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`)
		synctest.Wait()
		w.say(`{"jsonrpc":"2.0","id":2,"method":"x"}`)
		synctest.Wait()
		w.say(`{"jsonrpc":"2.0","id":3,"method":"elicitation/create"}`)
		synctest.Wait()
		w.say(`{"jsonrpc":"2.0","id":3,"method":"elicitation/create"}`)
		synctest.Wait()
		w.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
		synctest.Wait()
		for id := range maxInbound + 1 {
			w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d","method":"elicitation/create"}`, id))
		}
		synctest.Wait()
		want := []string{
			`{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}`,
			`{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"no x"}}`,
			`{"jsonrpc":"2.0","id":3,"error":{"code":-32600,"message":"a request with this id is being answered"}}`,
			`{"jsonrpc":"2.0","id":"16","error":{"code":-32603,"message":"too many requests at once"}}`,
		}
		if diff := cmp.Diff(want, w.lines()); diff != "" || started != 3+maxInbound {
			t.Errorf("%d handlers, (-want +got):\n%s", started, diff)
		}
	})
}

func TestWhatTheLinkSendsByItselfNeverHoldsUpTheReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(func(w *memWire, m jsonrpc.Message) {
			if m.Kind == jsonrpc.Request {
				w.say(answer(m, `{}`))
			}
		})
		l := start(t, w, Options{})
		stuck := &stuckWire{memWire: w}
		l.wire = stuck
		for n := range maxOutgoing + 50 {
			w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, n))
		}
		if got, err := l.Call(t.Context(), "tools/call", nil); err != nil {
			t.Errorf("got %s, %v", got, err)
		}
		if s := l.Stats(); s.Dropped == 0 {
			t.Error("nothing was dropped")
		}
		began := time.Now()
		w.end(deathError{})
		<-l.Done()
		if took := time.Since(began); took != 0 {
			t.Errorf("the end took %v", took)
		}
	})
}

// stuckWire never gets an answer of the link's out.
type stuckWire struct{ *memWire }

func (w *stuckWire) Send(ctx context.Context, msg []byte) error {
	if m, _ := jsonrpc.Parse(msg); m.Kind != jsonrpc.Request {
		<-ctx.Done()
		return ctx.Err()
	}
	return w.memWire.Send(ctx, msg)
}

// Only the kinds of lists that MCP has are kept past the limit: a server that makes up names cannot fill the memory.
func TestMadeUpListsAreDroppedLikeOtherNotifications(t *testing.T) {
	var queue []notification
	for i := range 10 * maxNotifications {
		queue, _ = placeNotification(queue, notification{method: fmt.Sprintf("notifications/x%d/list_changed", i)})
	}
	queue, _ = placeNotification(queue, notification{method: "notifications/tools/list_changed"})
	if len(queue) > maxNotifications+1 || queue[len(queue)-1].method != "notifications/tools/list_changed" {
		t.Errorf("%d notifications wait", len(queue))
	}
}
