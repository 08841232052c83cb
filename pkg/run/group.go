package run

import (
	"context"
	"errors"
	"log/slog"
	"sync"
)

// Group owns goroutines that start while their owner runs. Its methods may be called concurrently.
//
// An owner makes it at the start of its Run, starts work with [Group.Go], and ends with [Group.Wait]. A panic ends
// only the goroutine it happens in: it is logged at ERROR with its stack, and Wait returns it.
//
// A group does not bound how many goroutines it runs; its owner does.
type Group struct {
	ctx    context.Context //nolint:containedctx // the group is the scope of the goroutines it runs
	cancel context.CancelCauseFunc
	log    *slog.Logger

	mu      sync.Mutex
	closed  bool
	running int
	idle    chan struct{} // closed by whichever of Wait and the last goroutine comes second
	panics  []error
}

// NewGroup returns a group whose goroutines get a context derived from ctx.
func NewGroup(ctx context.Context, log *slog.Logger) *Group {
	g := &Group{log: log, idle: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	return g
}

// Go runs f in a goroutine of the group and returns true. Once the group's context has ended or Wait was called it
// does not run f and returns false. Name appears in the log should f panic.
func (g *Group) Go(name string, f func(ctx context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.ctx.Err() != nil {
		return false
	}
	g.running++
	go protect(g.ctx,
		func(ctx context.Context) error { f(ctx); return nil },
		func(err error) { g.done(name, err) })
	return true
}

func (g *Group) done(name string, err error) {
	if err != nil {
		g.log.ErrorContext(g.ctx, "goroutine panicked", "name", name, "err", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.panics = append(g.panics, err)
	}
	g.running--
	if g.closed && g.running == 0 {
		close(g.idle)
	}
}

// Len returns how many goroutines of the group are running.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}

// Stop ends the context of the group's goroutines with this cause and makes Go refuse more. It does not wait.
func (g *Group) Stop(cause error) { g.cancel(cause) }

// Wait makes Go refuse more, waits until every goroutine of the group has returned, and returns their panics
// joined. It does not end their context: the owner's own ctx or [Group.Stop] does.
func (g *Group) Wait() error {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		if g.running == 0 {
			close(g.idle)
		}
	}
	g.mu.Unlock()

	<-g.idle
	g.cancel(nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.panics...)
}
