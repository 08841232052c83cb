package link

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// DefaultMaxMessageBytes is the limit of a message where Options sets none.
const DefaultMaxMessageBytes = 16 << 20

// Options configure a [Link]. The zero value is usable.
type Options struct {
	Log    *slog.Logger // nil discards
	Server string       // the MCP server's name, for error messages

	// Shared says that callers who may not see each other's data use this link: a log message that names no call
	// then goes to none, and errors leave out the server's own last words.
	Shared bool

	// MaxMessageBytes bounds what Call and Notify send; 0 means DefaultMaxMessageBytes.
	MaxMessageBytes int

	// OnNotification takes the server's notifications, one at a time and in order, except progress and log
	// messages that belong to a call. While it works others queue up to a limit; past it the oldest are dropped,
	// list_changed ones never. Nil drops all.
	OnNotification func(method string, params json.RawMessage)

	// OnRequest answers the server's requests other than ping; several may run at once. Its ctx ends when the
	// server cancels the request or the link ends. It returns a JSON value or an error. Nil refuses all.
	OnRequest func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *jsonrpc.Error)
}

// Stats count what a link met since it began.
type Stats struct {
	InFlight int    // calls that wait for their answer now
	Calls    uint64 // calls that were made
	Skipped  uint64 // messages that were no JSON-RPC
	Late     uint64 // answers and progress for calls that had ended, or never were
	Dropped  uint64 // progress, log and other messages dropped because nobody took them in time
}

// Link is one session's multiplexer. Its methods may be called concurrently.
type Link struct {
	wire Wire
	opts Options
	log  *slog.Logger

	lastID                       atomic.Int64
	made, skipped, late, dropped atomic.Uint64

	started chan struct{} // closed by Run
	done    chan struct{} // closed when the wire has ended

	notifications mailbox[notification]
	outbox        mailbox[outgoing]

	mu      sync.Mutex
	group   *run.Group // of Run; nil before
	calls   map[int64]*call
	inbound map[string]*question // the server's requests being answered, by id token
	closing bool                 // Close was called
	err     error                // why the wire ended; nil before
}

// New returns a link over w. Nothing happens before [Link.Run].
func New(w Wire, o Options) *Link {
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, DefaultMaxMessageBytes)
	l := &Link{
		wire:    w,
		opts:    o,
		log:     cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		started: make(chan struct{}),
		done:    make(chan struct{}),
		calls:   map[int64]*call{},
		inbound: map[string]*question{},
	}
	l.notifications.place = placeNotification
	l.outbox.place = placeOutgoing
	return l
}

// Run works until the wire ends, fails what is in flight then, waits for everything it started, and returns why
// the wire ended. When ctx ends it closes the wire. It is called once.
func (l *Link) Run(ctx context.Context) error {
	group := run.NewGroup(context.WithoutCancel(ctx), l.log)
	l.mu.Lock()
	l.group = group
	l.mu.Unlock()
	close(l.started)

	var err error
	if w, ok := l.wire.(SinkWire); ok {
		err = w.RunSink(ctx, sink{l})
	} else {
		err = l.wire.Run(ctx, func(msg []byte) { l.receive(nil, msg) })
	}
	err = cmp.Or(err, errors.New("the server closed the connection"))
	l.end(err)
	group.Stop(err)
	return errors.Join(err, group.Wait())
}

// end fails every call in flight and refuses more. The first reason counts.
func (l *Link) end(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	pending := l.calls
	l.calls = nil
	l.mu.Unlock()
	close(l.done)
	for _, c := range pending {
		c.reply <- reply{ended: true}
	}
}

// Done is closed when the wire has ended.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err returns why the wire ended, or nil while it has not.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends the link: no call is begun any more, those in flight go on until the wire ends. It waits for that,
// or for ctx, and returns the wire's error of closing.
func (l *Link) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closing = true
	running := l.group != nil
	l.mu.Unlock()
	if err := l.wire.Close(ctx); err != nil {
		return fmt.Errorf("close the session with %s: %w", l.opts.Server, err)
	}
	if !running {
		l.end(errors.New("it was closed before it began"))
		return nil
	}
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the session with %s: %w", l.opts.Server, ctx.Err())
	}
}

// Stats returns the counters.
func (l *Link) Stats() Stats {
	l.mu.Lock()
	n := len(l.calls)
	l.mu.Unlock()
	return Stats{InFlight: n, Calls: l.made.Load(), Skipped: l.skipped.Load(), Late: l.late.Load(), Dropped: l.dropped.Load()}
}

// spawn runs f on a goroutine that Run waits for, unless the wire has ended. It reports whether it does.
func (l *Link) spawn(name string, f func(ctx context.Context)) bool {
	l.mu.Lock()
	group := l.group
	l.mu.Unlock()
	return group != nil && group.Go(name, f)
}

// Witness is an error, returned by a Wire's Run, that also holds the server's own last words.
type Witness interface {
	error
	LastWords() string // redacted; "" if there were none
}

// closed is the error of a call that the end of the wire ended, or that came after it.
func (l *Link) closed(method string, sent bool) error {
	reason := cmp.Or(l.Err(), errors.New("it was closed"))
	why := reason.Error()
	if w, ok := errors.AsType[Witness](reason); ok && !l.opts.Shared {
		if words := w.LastWords(); words != "" {
			why += "; its last output on stderr:\n" + words
		}
	}
	if !sent {
		return fault.New(fault.SessionClosed, "%s was not sent, the session with server %q has ended: %s", method, l.opts.Server, why).
			Because(errors.Join(ErrNotSent, reason))
	}
	return fault.New(fault.SessionClosed,
		"the session with server %q ended during %s, whose outcome is unknown; the next call starts a new session: %s",
		l.opts.Server, method, why).Because(reason)
}
