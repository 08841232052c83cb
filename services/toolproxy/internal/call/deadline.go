package call

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// The sources of a deadline that are not the server's entry.
const (
	sourceCaller  = "caller"
	sourceRequest = "request.timeout"
)

// deadline ends a call at the earliest of the caller's deadline, the request's timeout, the server's limit in all, and
// the server's limit since the last progress. Only the last one moves.
type deadline struct {
	source string // which limit would end the call if nothing happened

	total      time.Time // the fixed one of ours; zero means none
	totalLimit upstream.Limit
	idle       upstream.Limit

	cancel context.CancelCauseFunc

	mu       sync.Mutex
	timer    *time.Timer
	progress time.Time
	stopped  bool
}

// newDeadline computes the deadline of a call that began at start. A request timeout of 0 means none.
func newDeadline(ctx context.Context, start time.Time, timeout time.Duration, s *upstream.Server) *deadline {
	d := &deadline{totalLimit: s.CallMaxTimeout, idle: s.CallTimeout, progress: start}
	if timeout > 0 && (d.totalLimit.Duration <= 0 || timeout < d.totalLimit.Duration) {
		d.totalLimit = upstream.Limit{Duration: timeout, Source: sourceRequest}
	}
	if d.totalLimit.Duration > 0 {
		d.total = start.Add(d.totalLimit.Duration)
	}
	first := d.total
	d.source = d.totalLimit.Source
	if d.idle.Duration > 0 {
		if end := start.Add(d.idle.Duration); first.IsZero() || end.Before(first) {
			first, d.source = end, d.idle.Source
		}
	}
	if end, ok := ctx.Deadline(); ok && (first.IsZero() || end.Before(first)) {
		d.source = sourceCaller
	}
	return d
}

// start returns a context that ends with the deadline; stop must be called. Where the caller's own deadline comes
// first there is nothing to add: the only limit that moves, moves away.
func (d *deadline) start(ctx context.Context) context.Context {
	first, ok := d.next()
	if !ok || d.source == sourceCaller {
		return ctx
	}
	ctx, d.cancel = context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer = time.AfterFunc(time.Until(first), d.fire)
	return ctx
}

// latest is when the call has ended at the latest, whatever progress there is; false if nothing limits that.
func (d *deadline) latest(ctx context.Context) (time.Time, bool) {
	at := d.total
	if end, ok := ctx.Deadline(); ok && (at.IsZero() || end.Before(at)) {
		at = end
	}
	return at, !at.IsZero()
}

// next is when the first of our own limits ends the call as things stand.
func (d *deadline) next() (time.Time, bool) {
	at := d.total
	if d.idle.Duration > 0 {
		if end := d.progress.Add(d.idle.Duration); at.IsZero() || end.Before(at) {
			at = end
		}
	}
	return at, !at.IsZero()
}

func (d *deadline) fire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return
	}
	at, _ := d.next()
	if wait := time.Until(at); wait > 0 {
		d.timer.Reset(wait)
		return
	}
	limit := d.idle
	if at.Equal(d.total) {
		limit = d.totalLimit
	}
	d.cancel(timeoutError{limit})
}

// extend counts the idle limit from now on.
func (d *deadline) extend() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.progress = time.Now()
}

// stop ends the deadline's context and timer.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	if d.timer != nil {
		d.timer.Stop()
	}
	if d.cancel != nil {
		d.cancel(nil)
	}
}

// timeoutError is the cause of a context that one of our limits ended.
type timeoutError struct{ limit upstream.Limit }

func (t timeoutError) Error() string {
	return fmt.Sprintf("no answer within %v (%s)", t.limit.Duration, t.limit.Source)
}
