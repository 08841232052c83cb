package link

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// server is the far side of a wire in memory: what it does with a message decides the test.
type server func(w *memWire, m jsonrpc.Message)

// memWire is a wire in memory. Its server runs inside Send, so that everything has happened when Send returns;
// with hold it runs only when the test says so.
type memWire struct {
	serve server
	hold  chan struct{} // if not nil, Send waits for it to close, or for its ctx

	mu   sync.Mutex
	sent []string
	sink Sink
	ends chan error

	running chan struct{} // closed by RunSink
}

func newWire(serve server) *memWire {
	return &memWire{serve: serve, ends: make(chan error, 1), running: make(chan struct{})}
}

func (w *memWire) Send(ctx context.Context, msg []byte) error {
	w.mu.Lock()
	w.sent = append(w.sent, string(msg))
	w.mu.Unlock()
	m, err := jsonrpc.Parse(msg)
	if err != nil {
		return err
	}
	if w.serve != nil {
		w.serve(w, m)
	}
	if w.hold != nil && m.Kind == jsonrpc.Request {
		select {
		case <-w.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (w *memWire) Run(context.Context, func([]byte)) error { panic("a SinkWire's Run is not called") }

func (w *memWire) RunSink(ctx context.Context, s Sink) error {
	w.mu.Lock()
	w.sink = s
	w.mu.Unlock()
	close(w.running)
	select {
	case err := <-w.ends:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *memWire) Close(context.Context) error {
	w.end(errors.New("closed by the client"))
	return nil
}

func (w *memWire) end(err error) {
	select {
	case w.ends <- err:
	default:
	}
}

func (w *memWire) say(msg string) { w.theSink().Deliver([]byte(msg)) }

func (w *memWire) theSink() Sink {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sink
}

func (w *memWire) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.sent...)
}

// start runs a link over w until the test ends.
func start(t *testing.T, w *memWire, o Options) *Link {
	t.Helper()
	if o.Server == "" {
		o.Server = "demo"
	}
	l := New(w, o)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Run(context.WithoutCancel(t.Context()))
	}()
	t.Cleanup(func() {
		w.end(errors.New("the test is over"))
		<-done
	})
	<-w.running
	return l
}

func answer(m jsonrpc.Message, result string) string {
	return string(jsonrpc.AppendResult(nil, m.ID, json.RawMessage(result)))
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
