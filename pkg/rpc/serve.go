package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/run"
)

const (
	// watchLinger is how long health watchers may take to hear that the server goes away.
	watchLinger = 100 * time.Millisecond
	// stopTimeout bounds how long Serve waits for handlers that ignore the end of their context.
	stopTimeout = 5 * time.Second
)

// errClosing is the cause with which the contexts of open streams end.
var errClosing = errors.New("the server is shutting down")

// Serve takes calls from l until ctx ends, and returns nil after an ordinary shutdown. It closes l. It may be called
// once.
//
//	ctx ends ─▶ NOT_SERVING, Draining ─▶ no new calls ─▶ wait DrainTimeout for running ones ─▶ cancel the rest
//
// When it returns no handler is running, except where one ignored the end of its context for 5 s, which is an error.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	select {
	case <-s.started:
		return errors.Join(fmt.Errorf("server %s: Serve is called twice", s.options.Name), l.Close())
	default:
		close(s.started)
	}
	var drained context.CancelCauseFunc
	s.drain, drained = context.WithCancelCause(context.WithoutCancel(ctx))
	defer drained(nil)

	g := s.build()
	s.log.InfoContext(ctx, "serving", "address", l.Addr().String(), "tls", s.options.TLS != nil, "tokens", s.options.Tokens != nil)
	return run.All(ctx,
		run.Task{Name: "health", Run: s.health.poll},
		run.Task{Name: "serve " + s.options.Name, Run: func(ctx context.Context) error {
			ended := make(chan error, 1)
			go func() {
				err := g.Serve(l)
				if errors.Is(err, grpc.ErrServerStopped) {
					err = nil
				}
				ended <- err
			}()
			select {
			case err := <-ended:
				s.health.close()
				return errors.Join(err, s.stop(g, 0))
			case <-ctx.Done():
			}
			s.health.close()
			linger := time.AfterFunc(watchLinger, func() { drained(errClosing) })
			defer linger.Stop()
			if err := s.stop(g, s.options.DrainTimeout); err != nil {
				return err // g.Serve waits for the handlers and would not return either
			}
			return <-ended
		}},
	)
}

// stop ends g within the given time and stopTimeout.
func (s *Server) stop(g *grpc.Server, drain time.Duration) error {
	graceful := make(chan struct{})
	go func() {
		g.GracefulStop()
		close(graceful)
	}()
	if drain > 0 {
		timer := time.NewTimer(drain)
		defer timer.Stop()
		select {
		case <-graceful:
			return nil
		case <-timer.C:
			s.log.Warn("calls still run at the end of the drain time and are cancelled", "drain_timeout", drain)
		}
	}
	stopped := make(chan struct{})
	go func() {
		g.Stop()
		close(stopped)
	}()
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-stopped:
		<-graceful
		return nil
	case <-timer.C:
		return fmt.Errorf("handlers ignore the end of their context for %v", stopTimeout)
	}
}

type drainKey struct{}

// Draining returns a channel that is closed when the server of the streaming call with this context begins to shut down.
// A stream without an end of its own, such as a watch, returns then; others go on to their end. In other contexts the
// channel is nil.
func Draining(ctx context.Context) <-chan struct{} {
	ch, _ := ctx.Value(drainKey{}).(<-chan struct{})
	return ch
}
