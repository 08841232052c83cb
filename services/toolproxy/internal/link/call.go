package link

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

const (
	maxEvents        = 64          // progress and log messages that wait for a slow consumer
	streamEndTimeout = time.Second // for a stream to end after the answer it was there for
)

// CallOptions say what a caller wants to hear while its call is in flight.
//
// OnProgress and OnLog run on the caller's own goroutine, inside CallWith, in the order in which the server sent
// the messages and before CallWith returns. While one of them blocks, messages queue, up to a limit past which
// the oldest are dropped, and the call's answer and the end of its context wait; so they must return when the
// call's ctx ends.
type CallOptions struct {
	// OnProgress takes the params of each progress notification of this call. If it is set, the link puts a
	// progress token of its own into params._meta; params must not have one.
	OnProgress func(params json.RawMessage)

	// OnLog takes the params of log messages that belong to this call: over HTTP those on its stream, else, on a
	// link that is not shared, all of them while no other call asks for any.
	OnLog func(params json.RawMessage)

	// OnActivity is called by the link's receiver for each progress notification of this call as soon as it
	// comes, whatever OnProgress is doing. It must not block. If it is set, a progress token is sent as for
	// OnProgress. It serves timers that count from the last progress.
	OnActivity func()

	// OnDrop is called by the link's receiver for each progress or log message of this call that is dropped because
	// OnProgress and OnLog do not keep up. It must not block.
	OnDrop func()
}

// call is an entry of the table. Whoever removes it from there, and only that one, sends its reply.
type call struct {
	id     int64
	method string
	opts   CallOptions
	reply  chan reply // holds one
	events *events    // nil if the caller wants none
}

type reply struct {
	result json.RawMessage
	err    error
	ended  bool // the wire ended
}

// Call sends a request and waits for its answer. params are a valid JSON object or empty; they go on and the
// result comes back token for token.
//
// Errors: *[jsonrpc.Error] where the server answered with one; faults SESSION_CLOSED, PAYLOAD_TOO_LARGE,
// INVALID_ARGUMENTS (params that are no JSON object) and UPSTREAM_PROTOCOL; ctx.Err(); and what the wire's Send
// returns.
func (l *Link) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	return l.CallWith(ctx, method, params, CallOptions{})
}

// CallWith is [Link.Call] for callers who listen to progress and log messages.
func (l *Link) CallWith(ctx context.Context, method string, params json.RawMessage, o CallOptions) (json.RawMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, ErrNotSent)
	}
	select {
	case <-l.started:
	default:
		if err := l.awaitRun(ctx, method); err != nil {
			return nil, err
		}
	}
	c := &call{id: l.lastID.Add(1), method: method, opts: o, reply: make(chan reply, 1)}
	if o.OnProgress != nil || o.OnLog != nil {
		c.events = &events{ready: make(chan struct{}, 1)}
	}
	msg, err := l.request(c, params)
	if err != nil {
		return nil, err
	}
	if !l.enter(c) {
		return nil, l.closed(method, false)
	}
	l.made.Add(1)
	if c.events != nil {
		return l.callListening(ctx, c, msg)
	}
	if err := l.wire.Send(ctx, msg); err != nil {
		return l.unsent(ctx, c, err)
	}
	select {
	case r := <-c.reply:
		return l.result(c, r, true)
	case <-ctx.Done():
		return l.abandon(ctx, c)
	}
}

// callListening sends on a goroutine of its own, because Send may last as long as the call, and meanwhile passes
// on what the server tells about it.
func (l *Link) callListening(ctx context.Context, c *call, msg []byte) (json.RawMessage, error) {
	// Once the answer is there Send may read its stream to the end, though the caller has gone.
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	sent := make(chan error, 1)
	if !l.spawn("send", func(context.Context) {
		defer stop()
		sent <- l.wire.Send(sending, msg)
	}) {
		stop()
		l.leave(c)
		return nil, l.closed(c.method, false)
	}
	for {
		select {
		case r := <-c.reply:
			time.AfterFunc(streamEndTimeout, stop)
			c.events.pass(c.opts)
			return l.result(c, r, true)
		case <-c.events.ready:
			c.events.pass(c.opts)
		case err := <-sent:
			if err != nil {
				c.events.pass(c.opts)
				return l.unsent(ctx, c, err)
			}
			sent = nil
		case <-ctx.Done():
			stop()
			return l.abandon(ctx, c)
		}
	}
}

func (l *Link) awaitRun(ctx context.Context, method string) error {
	select {
	case <-l.started:
		return nil
	case <-l.done:
		return l.closed(method, false)
	case <-ctx.Done():
		return errors.Join(ctx.Err(), ErrNotSent)
	}
}

// request encodes the request of c.
func (l *Link) request(c *call, params json.RawMessage) ([]byte, error) {
	if err := checkParams(c.method, params); err != nil {
		return nil, err
	}
	const envelope = len(`{"jsonrpc":"2.0","id":-9223372036854775808,"method":"","params":}`) + len(`"_meta":{"progressToken":-9223372036854775808},`)
	msg := make([]byte, 0, envelope+len(c.method)+len(params)+1) // and the line end that a wire may append
	if c.opts.OnProgress != nil || c.opts.OnActivity != nil {
		if jsonrpc.Member(jsonrpc.Member(params, "_meta"), "progressToken") != nil {
			return nil, fault.New(fault.InvalidArguments, "%s asks for progress but its params have a progress token already: leave it out", c.method)
		}
		var err error
		if params, err = jsonrpc.AppendMeta(nil, params, `"progressToken":`+strconv.FormatInt(c.id, 10)); err != nil {
			return nil, fault.New(fault.InvalidArguments, "%s: %v", c.method, err)
		}
	}
	return l.limited(c.method, jsonrpc.AppendRequest(msg, c.id, c.method, params))
}

func checkParams(method string, params json.RawMessage) error {
	// Invalid bytes from one caller would break a session that others use.
	if len(params) > 0 && (!jsonrpc.IsObject(params) || !jsonrpc.Valid(params)) {
		return fault.New(fault.InvalidArguments, "the params of %s are not a JSON object", method)
	}
	return nil
}

func (l *Link) limited(method string, msg []byte) ([]byte, error) {
	if len(msg) > l.opts.MaxMessageBytes {
		return nil, fault.New(fault.PayloadTooLarge,
			"%s makes a message of %d bytes to server %q, the limit is %d: send less, or raise toolproxy.max_message_bytes",
			method, len(msg), l.opts.Server, l.opts.MaxMessageBytes)
	}
	return msg, nil
}

// enter puts c into the table, unless the link has ended.
func (l *Link) enter(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing || l.err != nil {
		return false
	}
	l.calls[c.id] = c
	return true
}

// open reports whether calls may begin.
func (l *Link) open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closing && l.err == nil
}

// leave takes c out of the table, and reports false if its reply was sent, or is about to be, by someone else.
func (l *Link) leave(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls[c.id] != c {
		return false
	}
	delete(l.calls, c.id)
	return true
}

// take finds a call by the id that a message names and removes it from the table.
func (l *Link) take(id jsonrpc.ID) *call {
	n, ok := id.Int()
	if !ok {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.calls[n]
	delete(l.calls, n)
	return c
}

// find finds a call by its id and leaves it in the table.
func (l *Link) find(id int64) *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[id]
}

// result turns a reply into what Call returns.
func (l *Link) result(c *call, r reply, sent bool) (json.RawMessage, error) {
	if r.ended {
		return nil, l.closed(c.method, sent)
	}
	return r.result, r.err
}

// unsent ends a call whose Send returned err.
func (l *Link) unsent(ctx context.Context, c *call, err error) (json.RawMessage, error) {
	if ctx.Err() != nil {
		return l.abandon(ctx, c)
	}
	if errors.Is(err, ErrEnded) {
		// Run is about to say why.
		select {
		case r := <-c.reply:
			return l.result(c, r, false)
		case <-ctx.Done():
			l.leave(c)
			return nil, errors.Join(ctx.Err(), ErrNotSent)
		}
	}
	if !l.leave(c) {
		return l.result(c, <-c.reply, true)
	}
	return nil, err
}

// abandon ends a call whose ctx has ended: the server is told, the caller does not wait for it. An answer that
// came meanwhile counts.
func (l *Link) abandon(ctx context.Context, c *call) (json.RawMessage, error) {
	if !l.leave(c) {
		return l.result(c, <-c.reply, true)
	}
	if c.method != "initialize" { // the protocol forbids to cancel that one
		reason := "the caller cancelled"
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			reason = "the deadline passed"
		}
		params := append(strconv.AppendInt([]byte(`{"requestId":`), c.id, 10), `,"reason":"`+reason+`"}`...)
		l.post(outgoing{
			ctx: context.WithoutCancel(ctx),
			msg: jsonrpc.AppendNotification(nil, "notifications/cancelled", params),
		})
	}
	return nil, ctx.Err()
}

// Notify sends a notification. params are as for [Link.Call]. It returns the wire's error of sending.
func (l *Link) Notify(ctx context.Context, method string, params json.RawMessage) error {
	if err := checkParams(method, params); err != nil {
		return err
	}
	if !l.open() {
		return l.closed(method, false)
	}
	msg, err := l.limited(method, jsonrpc.AppendNotification(nil, method, params))
	if err != nil {
		return err
	}
	if err := l.wire.Send(ctx, msg); err != nil {
		if errors.Is(err, ErrEnded) {
			return l.closed(method, false)
		}
		return err
	}
	return nil
}

// queue keeps a message for the caller, who hears of one that had to go for it.
func (l *Link) queue(c *call, ev event) {
	if !c.events.put(ev) {
		return
	}
	l.dropped.Add(1)
	if c.opts.OnDrop != nil {
		c.opts.OnDrop()
	}
}

// events are the messages that wait for a caller's OnProgress and OnLog.
type events struct {
	ready chan struct{} // holds one: there is something to pass

	mu    sync.Mutex
	queue []event
}

type event struct {
	log    bool
	params json.RawMessage
}

// put adds an event and reports whether the oldest had to go for it.
func (e *events) put(ev event) (dropped bool) {
	e.mu.Lock()
	if dropped = len(e.queue) == maxEvents; dropped {
		e.queue = e.queue[:copy(e.queue, e.queue[1:])]
	}
	e.queue = append(e.queue, ev)
	e.mu.Unlock()
	select {
	case e.ready <- struct{}{}:
	default:
	}
	return dropped
}

// pass hands the waiting events to the caller's functions.
func (e *events) pass(o CallOptions) {
	for {
		e.mu.Lock()
		if len(e.queue) == 0 {
			e.mu.Unlock()
			return
		}
		ev := e.queue[0]
		e.queue = e.queue[:copy(e.queue, e.queue[1:])]
		e.mu.Unlock()
		if ev.log {
			o.OnLog(ev.params)
		} else {
			o.OnProgress(ev.params)
		}
	}
}
