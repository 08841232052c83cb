package pool

import (
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
)

// hold keeps a session for a task until some time.
type hold struct {
	entry *entry
	until time.Time
}

// Hold keeps the session for a task for d from now, at least: until then it is neither idle-ended, nor made to leave room
// for another, nor drained by a change of the configuration. A task holds one session; a hold on another one ends with this,
// and one that lasts longer already stays as it is. A session that has left the pool cannot be held.
func (l Lease) Hold(task string, d time.Duration) {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.pool.hold(l.entry, task, d)
}

// hold is [Lease.Hold] for a caller that has the lock.
func (p *Pool) hold(e *entry, task string, d time.Duration) {
	if p.entries[e.key] != e {
		return
	}
	until := time.Now().Add(d)
	if old, ok := p.holds[task]; ok {
		if old.entry != e {
			p.unhold(task, old)
		} else if old.until.After(until) {
			return
		}
	}
	p.holds[task] = hold{e, until}
	e.tasks[task] = struct{}{}
}

// Extend keeps the session that a task holds for d from now, at least. It reports false if the task holds none.
func (p *Pool) Extend(task string, d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.holds[task]
	if !ok {
		return false
	}
	if until := time.Now().Add(d); until.After(h.until) {
		h.until = until
		p.holds[task] = h
	}
	return true
}

// Unhold ends the hold of a task, which needs its session no longer. It is no error if the task holds none.
func (p *Pool) Unhold(task string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h, ok := p.holds[task]; ok {
		p.unhold(task, h)
	}
}

// Forsake ends every hold on sessions of a server.
func (p *Pool) Forsake(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for task, h := range p.holds {
		if h.entry.key.Server == server {
			p.unhold(task, h)
		}
	}
}

// unhold ends a hold, and with the last one a session that is retired. The caller holds the lock.
func (p *Pool) unhold(task string, h hold) {
	delete(p.holds, task)
	delete(h.entry.tasks, task)
	if p.spent(h.entry, time.Now()) {
		p.end(h.entry, errUnneeded)
	}
}

var errUnneeded = fault.New(fault.SessionClosed, "the server's configuration has changed and no task needs the session any more")

// heldUntil returns until when a session is held; the zero time if it is not. The caller holds the lock.
func (p *Pool) heldUntil(e *entry) time.Time {
	var last time.Time
	for task := range e.tasks {
		if until := p.holds[task].until; until.After(last) {
			last = until
		}
	}
	return last
}

// held reports whether a task holds the session. The caller holds the lock.
func (p *Pool) held(e *entry, now time.Time) bool {
	for task := range e.tasks {
		if p.holds[task].until.After(now) {
			return true
		}
	}
	return false
}

// spent reports whether a session is retired and nobody needs it any more. The caller holds the lock.
func (p *Pool) spent(e *entry, now time.Time) bool {
	return e.retired && e.idle() && !p.held(e, now)
}

// forget ends the holds on a session that leaves the pool. The caller holds the lock.
func (p *Pool) forget(e *entry) {
	for task := range e.tasks {
		delete(p.holds, task)
	}
	clear(e.tasks)
}

// lapse ends the holds that have run out, and the retired sessions that they kept. The caller holds the lock.
func (p *Pool) lapse(now time.Time) {
	for task, h := range p.holds {
		if !h.until.After(now) {
			p.unhold(task, h)
		}
	}
}
