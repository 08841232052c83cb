package session

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// Protocol versions, newest first.
const (
	Version20260728 = "2026-07-28" // modern: stateless, every request says its version
	Version20251125 = "2025-11-25" // the legacy version that Open offers
	Version20250618 = "2025-06-18"
	Version20250326 = "2025-03-26"
	Version20241105 = "2024-11-05"
)

// Era says which versions Open may speak.
type Era string

// The eras, as server entries spell them.
const (
	Auto   Era = "auto"
	Legacy Era = "legacy"
	Modern Era = "modern"
)

// Client is how Toolherd introduces itself to servers.
type Client struct {
	Name    string
	Version string
}

// Options describe the session to open.
type Options struct {
	// Dial makes a new connection to the server. It is called again where the first one did not survive the
	// detection of the era.
	Dial func(ctx context.Context) (link.Wire, error)
	// Era limits the versions; empty means Auto.
	Era Era
	// Known is the version that a server of this fingerprint spoke before; empty if it is not known. With Auto it
	// saves the probe and is not binding.
	Known string
	// ProbeTimeout bounds the wait for an answer to server/discover where the era is not known; it must be > 0.
	ProbeTimeout time.Duration
	// Client is sent to the server.
	Client Client
	// Subscribe keeps a subscription to tools/list_changed open where the version needs one.
	Subscribe bool
	// OnListChanged is called whenever the server says that its tools changed. It must not block.
	OnListChanged func()
	// Link is passed on to the connection; Open sets its OnNotification and OnRequest.
	Link link.Options
	// Log gets what is not returned.
	Log *slog.Logger
}

// Session is an open session. Its methods may be called concurrently.
type Session struct {
	id            string
	startTime     time.Time
	wire          link.Wire
	link          *link.Link
	onListChanged func()
	log           *slog.Logger

	// Set by the handshake, constant afterwards.
	version string
	meta    string // the members that every request carries in _meta
	noTools bool   // the server did not declare tools

	running sync.WaitGroup
	stop    context.CancelCauseFunc
	closed  atomic.Bool
}

// connect dials and starts to read.
func connect(ctx context.Context, o *Options) (*Session, error) {
	w, err := o.Dial(ctx)
	if err != nil {
		return nil, err
	}
	s := &Session{
		id:            "sess_" + rand.Text(),
		startTime:     time.Now(),
		wire:          w,
		onListChanged: o.OnListChanged,
		log:           o.Log,
	}
	lo := o.Link
	lo.OnNotification = s.notified
	lo.OnRequest = refuse
	s.link = link.New(w, lo)

	// The session outlives the start: ending ctx ends the handshake, not the connection.
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	s.stop = stop
	s.running.Go(func() {
		if err := s.link.Run(running); err != nil {
			s.log.DebugContext(running, "connection ended", "session_id", s.id, "err", err)
		}
	})
	return s, nil
}

// ID names the session in CallInfo and logs.
func (s *Session) ID() string { return s.id }

// StartTime is when the connection was made.
func (s *Session) StartTime() time.Time { return s.startTime }

// Version is the protocol version spoken.
func (s *Session) Version() string { return s.version }

// PID is the number of the server's process, or 0 where the connection is not to one.
func (s *Session) PID() int {
	if p, ok := s.wire.(interface{ PID() int }); ok {
		return p.PID()
	}
	return 0
}

// Done is closed when the connection has ended.
func (s *Session) Done() <-chan struct{} { return s.link.Done() }

// Err says why the connection ended; nil while it lives.
func (s *Session) Err() error { return s.link.Err() }

// Closed reports whether Close was called before the connection ended, which was our doing then.
func (s *Session) Closed() bool { return s.closed.Load() }

// Close ends the connection politely within ctx, then by force, and returns when nothing of the session runs any
// more. Calls in flight fail with SESSION_CLOSED.
func (s *Session) Close(ctx context.Context) error {
	select {
	case <-s.Done():
	default:
		s.closed.Store(true)
	}
	err := s.link.Close(ctx)
	s.stop(errClosed)
	s.running.Wait()
	return err
}

// request sends a request with these members of params, `"key":value,…` or none, and what the version asks for.
func (s *Session) request(ctx context.Context, method, members string) (json.RawMessage, error) {
	if s.meta != "" {
		members = joinMembers(members, `"_meta":{`+s.meta+"}")
	}
	var params json.RawMessage
	if members != "" {
		params = json.RawMessage("{" + members + "}")
	}
	return s.link.Call(ctx, method, params)
}

// notified takes what the server says of its own accord.
func (s *Session) notified(method string, _ json.RawMessage) {
	if method == "notifications/tools/list_changed" && s.onListChanged != nil {
		s.onListChanged()
	}
}

// refuse answers what a server asks of its client, which declared no capability. The link itself answers ping.
func refuse(_ context.Context, method string, _ json.RawMessage) (json.RawMessage, *jsonrpc.Error) {
	return nil, &jsonrpc.Error{
		Code:    jsonrpc.CodeMethodNotFound,
		Message: "Toolherd does not offer " + method + ", as its client capabilities say",
	}
}
