package streamhttp

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolherd/toolherd/services/toolproxy/internal/eventstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// StatusError is what Send returns for an HTTP status >= 400 without an answer; see [exchange.StatusError].
type StatusError = exchange.StatusError

// ErrSessionLost is matched by what Send returns when the server no longer knows the session; the error is an
// [exchange.SessionLostError], which says whether the message was executed.
var ErrSessionLost = exchange.ErrSessionLost

// WithHeader returns a context whose messages carry h above the headers of the server entry; see
// [exchange.WithHeader].
func WithHeader(ctx context.Context, h http.Header) context.Context {
	return exchange.WithHeader(ctx, h)
}

// Defaults of [Options].
const (
	DefaultMaxResumes = 3
)

const (
	closeTimeout = 5 * time.Second        // for closing when the context of Run has ended
	closeGrace   = 2 * time.Second        // of it, for answers that are on their way
	drainTimeout = time.Second            // for a stream to end behind the answer it was there for
	maxDrains    = 256                    // streams that may be ending at once; more are cut
	resumeBase   = 500 * time.Millisecond // before a broken stream is asked for again
	resumeCap    = 10 * time.Second
)

// Options describe the server and how to listen to it.
type Options struct {
	exchange.Options

	// StandingGET keeps a stream open on which a legacy server sends what belongs to no call, such as
	// tools/list_changed. It begins with notifications/initialized and ends for good where the server offers none.
	StandingGET bool
	// MaxResumes bounds how often in a row, without a new event, a broken stream is asked for again; 0 means
	// [DefaultMaxResumes], a negative value never.
	MaxResumes int
	// EventIdleTimeout ends a call on whose stream nothing came for so long, keep-alives included; 0 means never.
	EventIdleTimeout time.Duration
}

// Wire is one connection to one server. Its methods may be called concurrently. It implements link.SinkWire.
type Wire struct {
	client     *exchange.Client
	standing   bool
	maxResumes int
	eventIdle  time.Duration
	readers    sync.Pool // of *eventstream.Reader

	sink     link.Sink     // set before started is closed
	started  chan struct{} // closed by RunSink
	opened   chan struct{} // closed when a legacy handshake is complete
	stopping chan struct{} // closed when Close began
	quiet    chan struct{} // closed when no flight is left then
	done     chan struct{} // closed when Close has finished

	state atomic.Pointer[state]

	mu      sync.Mutex
	closing bool
	flights map[*flight]struct{}
	idle    chan struct{} // made by Close, closed when the last flight has ended
	drains  int
	running sync.WaitGroup // drains
	once    sync.Once      // closes opened
}

// state is what the handshake settled.
type state struct {
	modern    bool
	version   string // "" until a legacy handshake is answered
	sessionID string // of legacy servers that keep sessions
}

// flight is one message on its way, until its answer has been read to the end.
type flight struct {
	ctx    context.Context //nolint:containedctx // the scope of one exchange, which may outlive Send
	cancel context.CancelCauseFunc
	detach func() bool // from the caller's context
}

var (
	errClosed = errors.New("it was closed")
	errIdle   = errors.New("the server sent nothing on the stream for too long")
)

// New returns a wire to a server. Nothing is sent before [Wire.Run]. The error is CONFIG_INVALID or
// CREDENTIAL_ILLEGAL.
func New(o Options) (*Wire, error) {
	c, err := exchange.New(o.Options)
	if err != nil {
		return nil, err
	}
	w := &Wire{
		client:     c,
		standing:   o.StandingGET,
		maxResumes: max(cmp.Or(o.MaxResumes, DefaultMaxResumes), 0),
		eventIdle:  o.EventIdleTimeout,
		started:    make(chan struct{}),
		opened:     make(chan struct{}),
		stopping:   make(chan struct{}),
		quiet:      make(chan struct{}),
		done:       make(chan struct{}),
		flights:    map[*flight]struct{}{},
	}
	limit := c.MaxMessageBytes()
	w.readers.New = func() any { return eventstream.NewReader(nil, limit) }
	w.state.Store(&state{})
	return w, nil
}

// SessionID returns the session's id as the server gave it; "" if it keeps none or the handshake is not over.
func (w *Wire) SessionID() string { return w.state.Load().sessionID }

// Run is RunSink for receivers that take nothing but messages.
func (w *Wire) Run(ctx context.Context, deliver func(msg []byte)) error {
	return w.RunSink(ctx, exchange.Deliver(deliver))
}

// RunSink works until Close was called or ctx ends, which closes the wire, and waits for everything the wire
// started. Messages on the stream of a request are delivered for that request. It is called once.
func (w *Wire) RunSink(ctx context.Context, sink link.Sink) error {
	w.sink = sink
	close(w.started)
	listening, stop := context.WithCancel(ctx)
	defer stop()
	var listener sync.WaitGroup
	if w.standing {
		listener.Go(func() { w.listen(listening) })
	}
	reason := errClosed
	select {
	case <-ctx.Done():
		reason = context.Cause(ctx)
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := w.Close(closing); err != nil {
			w.client.Log().DebugContext(ctx, "session was not deleted", "server", w.client.Server(), "err", err)
		}
	case <-w.quiet:
	}
	stop()
	<-w.done
	listener.Wait()
	w.running.Wait()
	return reason
}

// Close ends the wire. Messages that a session has on their way get up to two seconds, less if ctx ends before, to
// be answered, then they are cut with an unknown outcome; without a session they are cut at once. Then the session
// is deleted at the server. The error is that of the deletion, which the server may also refuse.
func (w *Wire) Close(ctx context.Context) error {
	w.mu.Lock()
	first := !w.closing
	if first {
		w.closing = true
		w.idle = make(chan struct{})
		if len(w.flights) == 0 {
			close(w.idle)
		}
	}
	w.mu.Unlock()
	if !first {
		select {
		case <-w.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer close(w.done)
	close(w.stopping)
	session := w.SessionID()
	if session != "" {
		w.awaitAnswers(ctx)
	}
	w.cut()
	<-w.idle
	close(w.quiet)
	if session == "" {
		return nil
	}
	return w.deleteSession(ctx)
}

// awaitAnswers waits for the flights to end, but leaves part of ctx's time for the deletion.
func (w *Wire) awaitAnswers(ctx context.Context) {
	grace := closeGrace
	if d, ok := ctx.Deadline(); ok {
		grace = min(grace, time.Until(d)/2)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-w.idle:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// cut ends every flight.
func (w *Wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range w.flights {
		f.cancel(errClosed)
	}
}

// deleteSession tells the server that the session is over. A server may not offer that, or have forgotten it.
func (w *Wire) deleteSession(ctx context.Context) error {
	r := &exchange.Request{Method: http.MethodDelete, What: "the end of the session", Protocol: w.sessionHeader(), Own: true}
	resp, err := w.client.Do(ctx, r)
	if err != nil {
		return err
	}
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusGone:
		return resp.Body.Close()
	}
	if resp.StatusCode >= http.StatusBadRequest {
		_, err := w.client.Refusal(nil, r, resp)
		return err
	}
	return resp.Body.Close()
}

// begin registers a message that is about to be sent.
func (w *Wire) begin(ctx context.Context) (*flight, error) {
	select {
	case <-w.started:
	default:
		select {
		case <-w.started:
		case <-w.stopping:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), link.ErrNotSent)
		}
	}
	f := &flight{}
	f.ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	w.mu.Lock()
	if w.closing {
		w.mu.Unlock()
		f.cancel(nil)
		return nil, errors.Join(errClosed, link.ErrEnded)
	}
	w.flights[f] = struct{}{}
	w.mu.Unlock()
	f.detach = context.AfterFunc(ctx, func() { f.cancel(ctx.Err()) })
	return f, nil
}

// end unregisters a flight.
func (w *Wire) end(f *flight) {
	f.detach()
	f.cancel(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flights, f)
	if w.closing && len(w.flights) == 0 {
		close(w.idle)
	}
}
