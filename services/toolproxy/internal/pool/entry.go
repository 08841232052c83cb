package pool

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// entry is one session from the first Get to its end.
type entry struct {
	key     upstream.Key
	request Request

	started chan struct{} // closed by publish: session and err are set
	ending  chan struct{} // closed by Pool.end
	gone    chan struct{} // closed by the entry's goroutine: nothing is left
	err     error         // of the start; constant once started is closed

	// Guarded by the pool's lock.
	session  *session.Session // nil until started, and if the start failed
	users    int              // callers that wait for it or use it
	calls    int64
	lastUse  time.Time
	retired  bool                // ends with its last caller and hold
	tasks    map[string]struct{} // that hold it
	ended    bool                // no longer in the pool
	endCause error               // why
	replaced bool                // another entry waits for the end
}

// idle reports whether the session could end without hurting anyone.
func (e *entry) idle() bool { return e.session != nil && e.users == 0 && !e.ended }

// dead reports whether the session's connection has ended.
func (e *entry) dead() bool {
	if e.session == nil {
		return false
	}
	select {
	case <-e.session.Done():
		return true
	default:
		return false
	}
}

// wait waits for the outcome of the start.
func (e *entry) wait(ctx context.Context) error {
	select {
	case <-e.started:
		return e.err
	case <-e.ending:
		if e.endCause == nil {
			return errReset
		}
		return e.endCause
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// own is the life of an entry. A victim must be gone before its session may start.
func (p *Pool) own(ctx context.Context, e *entry, victim *entry) {
	defer func() {
		p.publish(e, nil, errPanic) // of no effect unless Open panicked
		p.mu.Lock()
		delete(p.leaving, e)
		p.mu.Unlock()
		close(e.gone)
	}()
	if victim != nil {
		<-victim.gone
	}
	s, err := p.open(ctx, e)
	if published := p.publish(e, s, err); s == nil {
		return
	} else if published {
		p.serve(ctx, e, s)
	}
	ctx, cancel := context.WithTimeout(ctx, p.o.CloseTimeout)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		p.o.Log.WarnContext(ctx, "session did not end well", "server", e.key.Server, "session_id", s.ID(), "err", err)
	}
}

// open starts the session, bounded by the server's limit and ended early by the end of the entry.
func (p *Pool) open(ctx context.Context, e *entry) (*session.Session, error) {
	server := e.request.Server
	if limit := server.InitTimeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, StartTimeout(server))
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-e.ending:
			cancel(errReset)
		case <-ctx.Done():
		}
	})
	defer watch.Wait()
	defer cancel(nil)

	s, err := p.o.Open(ctx, e.request)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return s, err
}

// StartTimeout is the error of a server that did not start, or list its tools, within its session_init_timeout.
func StartTimeout(s *upstream.Server) error {
	return fault.New(fault.Timeout,
		"server %q did not start and list its tools within %v s (session_init_timeout); try its command by hand, or raise the limit",
		s.Name, s.InitTimeout.Seconds()).With("server", s.Name)
}

// publish hands the outcome of a start to those who wait, once, and reports whether the session is to be served.
func (p *Pool) publish(e *entry, s *session.Session, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-e.started:
		return false
	default:
	}
	switch {
	case e.ended:
		err = cmp.Or(e.endCause, error(errReset))
	case err == nil && !p.mayStart(e.key) && !p.held(e, time.Now()):
		err = errRetired
	}
	e.lastUse = time.Now()
	if e.err = err; err != nil {
		p.end(e, err)
	} else {
		e.session = s
	}
	close(e.started)
	return err == nil
}

// serve waits until the session has to end or has ended.
func (p *Pool) serve(ctx context.Context, e *entry, s *session.Session) {
	log := p.o.Log.With("server", e.key.Server, "session_id", s.ID())
	log.InfoContext(ctx, "session started", "protocol_version", s.Version())
	select {
	case <-e.ending:
		log.InfoContext(ctx, "session ends", "cause", e.endCause)
	case <-s.Done():
		log.WarnContext(ctx, "session ended by its server", "err", s.Err())
		p.mu.Lock()
		p.end(e, nil)
		p.mu.Unlock()
	}
}

// Lease is a caller's hold on a session. It must be released exactly once and not used afterwards.
type Lease struct {
	pool  *Pool
	entry *entry
}

// Session is the held session.
func (l Lease) Session() *session.Session { return l.entry.session }

// Release gives the session back.
func (l Lease) Release() { l.pool.leave(l.entry) }

// Discard takes this very session out of the pool: the next Get starts another one, and this one ends when the calls it
// carries have ended, those of others included. The lease remains to be released.
func (l Lease) Discard() { l.pool.discard(l.entry) }

// Info is a session as people see it.
type Info struct {
	Key       upstream.Key
	Transport serverconfig.Transport
	Session   *session.Session
	LastUse   time.Time
	Calls     int64
	InFlight  int
	HeldUntil time.Time // zero if no task holds it
}

// List returns the open sessions by server, user, thread and session id: while one of a former configuration carries its
// last calls, there are two of one server and scope.
func (p *Pool) List() []Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var out []Info
	for _, e := range p.entries {
		if e.session != nil {
			i := Info{
				Key: e.key, Transport: e.request.Server.Transport, Session: e.session,
				LastUse: e.lastUse, Calls: e.calls, InFlight: e.users,
			}
			if until := p.heldUntil(e); until.After(now) {
				i.HeldUntil = until
			}
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Key.Server, b.Key.Server), cmp.Compare(a.Key.UserID, b.Key.UserID),
			cmp.Compare(a.Key.ThreadID, b.Key.ThreadID), cmp.Compare(a.Session.ID(), b.Session.ID()))
	})
	return out
}
