package sse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/safehttp"
	"github.com/toolherd/toolherd/services/toolproxy/internal/eventstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// Options describe the server. The stream is opened with the header layer of OwnHeader.
type Options = exchange.Options

const (
	maxEndpoint  = 8 << 10
	drainTimeout = time.Second // for the body of a POST that was accepted
	streamName   = "the event stream"
)

// Wire is one connection to one server. Its methods may be called concurrently. It implements link.SinkWire.
type Wire struct {
	client *exchange.Client

	ready    chan struct{} // closed when the endpoint is known
	stopping chan struct{} // closed by Close, or when the stream has ended
	done     chan struct{} // closed when RunSink returns

	// Set by RunSink, before ready is closed.
	sink   link.Sink
	life   context.Context //nolint:containedctx // ends with the stream, and every Send with it
	cancel context.CancelFunc

	mu       sync.Mutex
	stopped  bool
	endpoint *url.URL
	version  string // that initialize agreed on
	initID   jsonrpc.ID
	sends    sync.WaitGroup // begun while not stopped
}

var errClosed = errors.New("it was closed")

// New returns a wire to a server. Nothing is sent before [Wire.Run]. The error is CONFIG_INVALID or
// CREDENTIAL_ILLEGAL.
func New(o Options) (*Wire, error) {
	c, err := exchange.New(o)
	if err != nil {
		return nil, err
	}
	return &Wire{
		client:   c,
		ready:    make(chan struct{}),
		stopping: make(chan struct{}),
		done:     make(chan struct{}),
	}, nil
}

// Run is RunSink for receivers that take nothing but messages.
func (w *Wire) Run(ctx context.Context, deliver func(msg []byte)) error {
	return w.RunSink(ctx, exchange.Deliver(deliver))
}

// RunSink opens the stream and delivers what comes on it until it ends, Close was called or ctx ends. It returns why,
// and waits for the Sends in progress, which it cuts. It is called once.
func (w *Wire) RunSink(ctx context.Context, sink link.Sink) error {
	defer close(w.done)
	life, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	w.sink, w.life, w.cancel = sink, life, cancel
	stopped := w.stopped
	w.mu.Unlock()
	if stopped {
		return errClosed
	}
	err := w.receive(life)
	closed := w.stop()
	w.sends.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case closed:
		return errClosed
	default:
		return err
	}
}

// receive reads the stream from its opening to its end.
func (w *Wire) receive(ctx context.Context) error {
	opening := &exchange.Request{
		Method: http.MethodGet, What: streamName, Own: true,
		Protocol: http.Header{"Accept": {"text/event-stream"}, "Cache-Control": {"no-store"}},
	}
	resp, err := w.client.Do(ctx, opening)
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		_, err := w.client.Refusal(nil, opening, resp)
		return err
	}
	defer resp.Body.Close()
	if t := exchange.MediaType(resp); resp.StatusCode != http.StatusOK || t != "text/event-stream" {
		return w.client.BrokeProtocol(streamName, "HTTP %d and content type %q; a stream of events is expected, is the transport perhaps http?", resp.StatusCode, t)
	}
	r := eventstream.NewReader(resp.Body, w.client.MaxMessageBytes())
	if err := w.awaitEndpoint(r, resp.Request.URL); err != nil {
		return err
	}
	_, err = exchange.Receive(w.client, r, w.deliver, w.sink.Drop)
	if errors.Is(err, io.EOF) {
		return errors.New("the server ended the event stream")
	}
	return fmt.Errorf("read the event stream: %w", err)
}

// awaitEndpoint reads the event that says where messages go.
func (w *Wire) awaitEndpoint(r *eventstream.Reader, stream *url.URL) error {
	for {
		ev, err := r.Next()
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, eventstream.ErrTooLarge) {
				return w.client.BrokeProtocol(streamName, "a stream that names no endpoint; is the transport perhaps http?")
			}
			return w.client.Lost(streamName, err)
		}
		if ev.Name != "endpoint" {
			continue
		}
		if len(ev.Data) > maxEndpoint {
			return w.client.BrokeProtocol(streamName, "an endpoint of %d bytes", len(ev.Data))
		}
		to, err := stream.Parse(strings.TrimSpace(string(ev.Data)))
		if err != nil {
			return w.client.BrokeProtocol(streamName, "an endpoint that is no URL")
		}
		if to.User != nil || !safehttp.SameOrigin(stream, to) {
			return w.client.BrokeProtocol(streamName, "the endpoint %s, which is at another origin than %s; messages and credentials go there only",
				safehttp.SafeString(to), safehttp.SafeString(stream))
		}
		to.Fragment = ""
		w.mu.Lock()
		w.endpoint = to
		w.mu.Unlock()
		close(w.ready)
		return nil
	}
}

// deliver passes on a message and notes the version that initialize agreed on.
func (w *Wire) deliver(msg []byte) {
	w.mu.Lock()
	id := w.initID
	w.mu.Unlock()
	if id != nil && exchange.Answers(msg, id) {
		if m, err := jsonrpc.Parse(msg); err == nil && m.Kind == jsonrpc.Response {
			version, _ := jsonrpc.String(jsonrpc.Member(m.Result, "protocolVersion"))
			w.mu.Lock()
			w.version, w.initID = exchange.EncodeHeader(version), nil
			w.mu.Unlock()
		}
	}
	w.sink.Deliver(msg)
}

// Send posts one message. Its answer comes on the stream. An error concerns this message alone;
// [exchange.NotRun] says whether it may be repeated.
func (w *Wire) Send(ctx context.Context, msg []byte) error {
	m, err := jsonrpc.Parse(msg)
	if err != nil {
		return fmt.Errorf("send: %w", errors.Join(err, link.ErrNotSent))
	}
	select {
	case <-w.ready:
	case <-w.stopping:
	case <-ctx.Done():
		return errors.Join(ctx.Err(), link.ErrNotSent)
	}
	r, err := w.begin(&m, msg)
	if err != nil {
		return err
	}
	defer w.sends.Done()
	sending, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.life, func() { cancel(errClosed) })()
	err = w.post(sending, r, &m)
	if ctx.Err() != nil && fault.Is(err, fault.SessionClosed) && !errors.Is(err, exchange.ErrSessionLost) {
		return fmt.Errorf("%s: %w", r.What, ctx.Err())
	}
	return err
}

func what(m *jsonrpc.Message) string {
	if m.Method == "" {
		return "an answer"
	}
	return m.Method
}

// begin registers a Send, unless the wire has ended.
func (w *Wire) begin(m *jsonrpc.Message, msg []byte) (*exchange.Request, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return nil, errors.Join(errClosed, link.ErrEnded)
	}
	w.sends.Add(1)
	if m.Method == "initialize" {
		w.initID, w.version = append(jsonrpc.ID(nil), m.ID...), ""
	}
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
	if w.version != "" {
		h[exchange.ProtocolVersionHeader] = []string{w.version}
	}
	// The session is part of the endpoint.
	return &exchange.Request{Method: http.MethodPost, URL: w.endpoint, What: what(m), Protocol: h, Body: msg, InSession: true}, nil
}

func (w *Wire) post(ctx context.Context, r *exchange.Request, m *jsonrpc.Message) error {
	resp, err := w.client.Do(ctx, r)
	if err != nil {
		return err
	}
	if resp.StatusCode < http.StatusBadRequest {
		// Servers say "Accepted" or nothing; whatever it is, it is not worth waiting for.
		timer := time.AfterFunc(drainTimeout, func() { _ = resp.Body.Close() })
		exchange.Drain(resp.Body)
		timer.Stop()
		return nil
	}
	answer, err := w.client.Refusal(m, r, resp)
	if err != nil {
		return err
	}
	w.sink.DeliverFor(m.ID, answer)
	return nil
}

// stop ends the wire and reports whether it had been ended before.
func (w *Wire) stop() (before bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return true
	}
	w.stopped = true
	close(w.stopping)
	if w.cancel != nil {
		w.cancel()
	}
	return false
}

// Close ends the stream and every Send in progress, and waits for that until ctx ends.
func (w *Wire) Close(ctx context.Context) error {
	w.stop()
	w.mu.Lock()
	started := w.cancel != nil
	w.mu.Unlock()
	if !started {
		return nil
	}
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
