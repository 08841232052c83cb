package streamhttp_test

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/safehttp"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange/exchangetest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/streamhttp"
)

func publicOnly(t *testing.T) http.RoundTripper {
	tr := safehttp.NewTransport(safehttp.Options{MaxBodyBytes: -1})
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func TestAnAnswerAboveTheLimitFailsItsCallAlone(t *testing.T) {
	const limit = 256 << 10
	big := strings.Repeat("x", 1<<20)
	// huge writes an answer of 20 MB until nobody wants more of it.
	huge := func(w io.Writer, m jsonrpc.Message) {
		_, err := fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":"`, m.ID)
		for i := 0; i < 20 && err == nil; i++ {
			_, err = io.WriteString(w, big)
		}
		_, _ = io.WriteString(w, `"}}`)
	}
	srv := fake(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
		switch tool(m) {
		case "20 MB of JSON":
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(20<<20+len(`{"jsonrpc":"2.0","id":,"result":{"content":""}}`)+len(m.ID)))
			huge(w, m)
		case "20 MB of JSON in chunks":
			w.Header().Set("Content-Type", "application/json")
			flush(w)
			huge(w, m)
		case "20 MB in an event":
			events(w)
			send(w, "data: ")
			huge(w, m)
			send(w, "\n\n")
		case "endless line":
			events(w)
			for {
				if _, err := io.WriteString(w, big); err != nil {
					return
				}
			}
		case "gzip bomb":
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
			for range 3 {
				if _, err := io.WriteString(z, big); err != nil {
					return
				}
			}
			_ = z.Close()
		case "claimed length":
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000000000000")
			_, _ = io.WriteString(w, "{")
		case "just below":
			answer(w, m, `{"content":"`+big[:limit-100]+`"}`)
		default:
			answer(w, m, `{}`)
		}
	})
	p := exchangetest.Start(t, newWire(t, srv.URL, func(o *streamhttp.Options) { o.MaxMessageBytes = limit }))
	p.MustInitialize()
	if _, err := p.Call(t.Context(), "tools/call", call("just below")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"20 MB of JSON", "20 MB of JSON in chunks", "20 MB in an event", "endless line", "gzip bomb", "claimed length"} {
		_, err := p.Call(t.Context(), "tools/call", call(name))
		if !fault.Is(err, fault.PayloadTooLarge) || !strings.Contains(err.Error(), "max_message_bytes") || !strings.Contains(err.Error(), "262144") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := p.Call(t.Context(), "tools/call", call("ok")); err != nil {
			t.Errorf("the call after %s: %v", name, err)
		}
	}
}

func TestAGzipAnswerIsRead(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		if tool(m) == "json" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = z.Write(jsonrpc.AppendResult(nil, m.ID, []byte(`{"accept":"`+r.Header.Get("Accept-Encoding")+`"}`)))
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(z, "data: "+string(jsonrpc.AppendResult(nil, m.ID, []byte(`{"accept":"identity"}`)))+"\n\n")
		_ = z.Flush()
		flush(w)
		<-r.Context().Done() // an event counts when it is there, not when the stream ends
	})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	for _, name := range []string{"json", "events"} {
		m, err := p.Call(t.Context(), "tools/call", call(name))
		if err != nil || string(m.Result) != `{"accept":"identity"}` {
			t.Errorf("%s: %s, %v", name, m.Result, err)
		}
	}
}

func TestHeadersWithoutEndFailTheCall(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = c.Read(make([]byte, 1024))
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
				for {
					if _, err := io.WriteString(c, "X-A: "+strings.Repeat("a", 4000)+"\r\n"); err != nil {
						return
					}
				}
			})
		}
	})
	p := exchangetest.Start(t, newWire(t, "http://"+l.Addr().String()))
	if _, err := p.Call(t.Context(), "tools/call", call("x")); !fault.Is(err, fault.SessionClosed) || !strings.Contains(err.Error(), "headers exceeded") {
		t.Errorf("%v", err)
	}
}

func TestTheEndOfACallersContextEndsThePost(t *testing.T) {
	for _, form := range []string{"before headers", "in the stream", "in the body"} {
		t.Run(form, func(t *testing.T) {
			gone := make(chan struct{}, 1)
			reached := make(chan struct{}, 1)
			srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
				if tool(m) != "hang" {
					answer(w, m, `{}`)
					return
				}
				switch form {
				case "in the stream":
					events(w)
					send(w, ": hello\n\n")
				case "in the body":
					w.Header().Set("Content-Type", "application/json")
					send(w, "{")
				}
				reached <- struct{}{}
				<-r.Context().Done()
				gone <- struct{}{}
			})
			p := exchangetest.Start(t, newWire(t, srv.URL))
			p.MustInitialize()
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() {
				_, err := p.Call(ctx, "tools/call", call("hang"))
				result <- err
			}()
			<-reached
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) || fault.ReasonOf(err) != "" {
				t.Errorf("%v", err)
			}
			select {
			case <-gone:
			case <-time.After(exchangetest.Patience):
				t.Error("the server still works")
			}
			if _, err := p.Call(t.Context(), "tools/call", call("ok")); err != nil {
				t.Errorf("the next call: %v", err)
			}
			deadline, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if _, err := p.Call(deadline, "tools/call", call("hang")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAStreamOnWhichNothingComesEndsItsCallIfThereIsALimit(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
		events(w)
		if tool(m) == "alive" {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for range 15 {
				send(w, ": keep-alive\n")
				<-tick.C
			}
			send(w, "\ndata: %s\n\n", jsonrpc.AppendResult(nil, m.ID, []byte(`{}`)))
			return
		}
		<-r.Context().Done()
	})
	p := exchangetest.Start(t, newWire(t, srv.URL, func(o *streamhttp.Options) { o.EventIdleTimeout = 200 * time.Millisecond }))
	if _, err := p.Call(t.Context(), "tools/call", call("alive")); err != nil {
		t.Errorf("keep-alives count: %v", err)
	}
	if _, err := p.Call(t.Context(), "tools/call", call("dead")); !fault.Is(err, fault.SessionClosed) || !strings.Contains(err.Error(), "nothing on the stream") {
		t.Errorf("%v", err)
	}
}

func TestANotificationNeverWaitsForAStream(t *testing.T) {
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
		events(w)
		<-r.Context().Done()
	})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	ctx, cancel := context.WithTimeout(t.Context(), exchangetest.Patience)
	defer cancel()
	if err := p.Notify(ctx, "notifications/cancelled", `{"requestId":1}`); err != nil {
		t.Error(err)
	}
}
