package pool

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// Options configure a pool. Every field must be set.
type Options struct {
	// Open opens a session for r within ctx. It runs on a goroutine of the pool.
	Open func(ctx context.Context, r Request) (*session.Session, error)
	// MaxSessions is the most stdio sessions at once, > 0.
	MaxSessions int
	// MaxRemote is the most sessions over HTTP and SSE at once, > 0.
	MaxRemote int
	// IdleTimeout ends a session that carried no call for so long, > 0.
	IdleTimeout time.Duration
	// CloseTimeout is how long the polite end of a session may take, > 0.
	CloseTimeout time.Duration
	// Log gets what sessions do.
	Log *slog.Logger
}

// Request names the session that a call needs.
type Request struct {
	Server *upstream.Server
	Scope  authn.Scope // resolved: neither field is empty
	// Task is the task that asks, if it is one that was submitted under the server's fingerprint: it may be one that is no
	// longer in force. The task holds the session for HoldFor, its start included.
	Task    string
	HoldFor time.Duration
}

// errStale marks the error of a Get for a configuration that is no longer in force.
var errStale = errors.New("stale configuration")

// Faults of Get that are not those of a start.
var (
	errRetired = fault.New(fault.SessionClosed, "the server's configuration has just changed; call again").Because(errStale)

	errUnwanted = fault.New(fault.SessionClosed, "the session was given up and carries no call any more")
	errReset    = fault.New(fault.SessionClosed, "the session was reset; call again")
	errShutdown = fault.New(fault.NotReady, "toolproxy is not running")
	errPanic    = fault.New(fault.SessionClosed, "the session's start failed by a mistake of Toolherd; see its log")
)

// Retired reports whether Get refused because the server was changed or removed since the caller looked it up. Nothing
// was called.
func Retired(err error) bool { return errors.Is(err, errStale) }

// Pool owns sessions. Its methods may be called concurrently, but Get only works while Run runs.
type Pool struct {
	o Options

	running chan struct{} // closed when Run has begun

	mu      sync.Mutex
	group   *run.Group // nil outside of Run
	entries map[upstream.Key]*entry
	leaving map[*entry]struct{} // not found any more, but not gone yet
	holds   map[string]hold     // by task; only on entries that are found
	active  map[string]string   // server → fingerprint that may start; nil before the first SetActive
}

// New returns an empty pool. It starts nothing.
func New(o Options) *Pool {
	return &Pool{o: o, running: make(chan struct{}), entries: map[upstream.Key]*entry{}, leaving: map[*entry]struct{}{}, holds: map[string]hold{}}
}

// Running is closed when Get works for the first time. Who asks for sessions of its own accord waits for it.
func (p *Pool) Running() <-chan struct{} { return p.running }

// Run serves until ctx ends, then ends every session and waits for all of them. It is called once.
func (p *Pool) Run(ctx context.Context) error {
	// Sessions end through their entry and not through a context: a polite end takes time.
	group := run.NewGroup(context.WithoutCancel(ctx), p.o.Log)
	p.mu.Lock()
	p.group = group
	p.mu.Unlock()
	close(p.running)

	p.sweep(ctx)

	p.mu.Lock()
	p.group = nil
	for _, e := range p.entries {
		p.end(e, errShutdown)
	}
	for e := range p.leaving {
		p.end(e, errShutdown)
	}
	p.mu.Unlock()
	return group.Wait()
}

// sweep ends idle sessions until ctx ends.
func (p *Pool) sweep(ctx context.Context) {
	tick := time.NewTicker(min(max(p.o.IdleTimeout/20, 10*time.Millisecond), time.Minute))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			p.endIdle(now)
		}
	}
}

func (p *Pool) endIdle(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lapse(now)
	for _, e := range p.entries {
		if e.idle() && now.Sub(e.lastUse) >= p.o.IdleTimeout && !p.held(e, now) {
			p.end(e, fault.New(fault.SessionClosed, "the session was idle for %v", p.o.IdleTimeout))
		}
	}
}

// Get returns the session for r, started if need be. The caller must end the lease with [Lease.Release].
//
// Errors: that of the start; one that [Retired] knows; SESSION_LIMIT; SESSION_CLOSED where the session was reset while it started;
// NOT_READY outside of Run; the cause of ctx's end, which ends the wait and not the start.
func (p *Pool) Get(ctx context.Context, r Request) (Lease, error) {
	e, err := p.enter(r)
	if err != nil {
		return Lease{}, err
	}
	select {
	case <-e.started: // the usual case, decided without a look at ctx
		err = e.err
	default:
		err = e.wait(ctx)
	}
	if err != nil {
		p.leave(e)
		return Lease{}, err
	}
	return Lease{pool: p, entry: e}, nil
}

// enter finds or makes the entry for r and counts the caller in.
func (p *Pool) enter(r Request) (*entry, error) {
	key := r.Server.Key(r.Scope)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.group == nil {
		return nil, errShutdown
	}
	if r.Task == "" && !p.mayStart(key) {
		return nil, errRetired
	}
	if e := p.entries[key]; e != nil {
		if !e.dead() {
			e.users++
			e.calls++
			p.holdFor(e, r)
			return e, nil
		}
		p.end(e, nil) // its wire ended, and its goroutine is about to notice
	}
	victim, ok := p.makeRoom(r.Server.Transport)
	if !ok {
		return nil, fault.New(fault.SessionLimit,
			"server %q needs another session, but all %d are in use or held by tasks; try again later or raise toolproxy.max_sessions",
			key.Server, p.limit(r.Server.Transport)).With("server", key.Server)
	}
	e := &entry{
		key: key, request: r, users: 1, calls: 1, retired: !p.mayStart(key), tasks: map[string]struct{}{},
		started: make(chan struct{}), ending: make(chan struct{}), gone: make(chan struct{}),
	}
	p.entries[key] = e
	p.holdFor(e, r)
	p.group.Go("session of "+key.Server, func(ctx context.Context) { p.own(ctx, e, victim) })
	return e, nil
}

// holdFor holds e for the task of r, if it is for one. The caller holds the lock.
func (p *Pool) holdFor(e *entry, r Request) {
	if r.Task != "" {
		p.hold(e, r.Task, r.HoldFor)
	}
}

// mayStart reports whether the key's fingerprint is the one in force. The caller holds the lock.
func (p *Pool) mayStart(key upstream.Key) bool {
	return p.active == nil || p.active[key.Server] == key.Fingerprint
}

func (p *Pool) limit(t serverconfig.Transport) int {
	if t == serverconfig.Stdio {
		return p.o.MaxSessions
	}
	return p.o.MaxRemote
}

// makeRoom reports whether another session may exist, and which one has to be gone first, if any.
// The caller holds the lock.
func (p *Pool) makeRoom(t serverconfig.Transport) (victim *entry, ok bool) {
	sameKind := func(e *entry) bool {
		return (e.request.Server.Transport == serverconfig.Stdio) == (t == serverconfig.Stdio)
	}
	count, now := 0, time.Now()
	var oldest, ended *entry
	for _, e := range p.entries {
		if !sameKind(e) {
			continue
		}
		count++
		if e.idle() && !p.held(e, now) && (oldest == nil || e.lastUse.Before(oldest.lastUse)) {
			oldest = e
		}
	}
	for e := range p.leaving {
		if sameKind(e) && !e.replaced { // one that is replaced is counted in the entry that waits for its end
			count++
			if e.ended {
				ended = e
			}
		}
	}
	switch {
	case count < p.limit(t):
		return nil, true
	case ended != nil:
		victim = ended
	case oldest != nil:
		victim = oldest
		p.end(victim, fault.New(fault.SessionClosed, "the session made room for another one"))
	default:
		return nil, false
	}
	victim.replaced = true
	return victim, true
}

// SetActive says which fingerprint of each server may have sessions. Others finish the calls they carry, and what tasks hold
// them for, and then end; those in their start are torn down at once, unless a task needs them, and their waiters get an
// error that [Retired] knows.
func (p *Pool) SetActive(fingerprints map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active = fingerprints
	now := time.Now()
	for _, e := range p.entries {
		e.retired = !p.mayStart(e.key)
		if p.spent(e, now) || e.retired && e.session == nil && !p.held(e, now) {
			p.end(e, errRetired)
		}
	}
}

// Reset ends the sessions that match, those with calls and those that tasks hold included; callers get SESSION_CLOSED. It
// returns how many.
func (p *Pool) Reset(match func(upstream.Key) bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for key, e := range p.entries {
		if match(key) {
			n++
			p.end(e, errReset)
		}
	}
	return n
}

// remove takes e out of the pool, so that the next Get of its key makes another one. The caller holds the lock.
func (p *Pool) remove(e *entry) {
	if p.entries[e.key] == e {
		delete(p.entries, e.key)
	}
	p.forget(e)
	p.leaving[e] = struct{}{}
}

// end takes e out of the pool and tells its goroutine. A second end changes nothing. The caller holds the lock.
func (p *Pool) end(e *entry, cause error) {
	if e.ended {
		return
	}
	e.ended = true
	e.endCause = cause
	p.remove(e)
	close(e.ending)
}

// leave counts a caller out.
func (p *Pool) leave(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.users--
	e.lastUse = time.Now()
	if e.users == 0 && e.retired && !p.held(e, e.lastUse) {
		p.end(e, errUnwanted)
	}
}

// discard takes e out of the pool and lets it end with its last caller. Another session of the same key is not touched.
func (p *Pool) discard(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.ended {
		return
	}
	e.retired = true
	p.remove(e)
}
