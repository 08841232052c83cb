package session

import (
	"context"
	"errors"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

const (
	// held is how long a subscription must have lasted to have been one.
	held = time.Second
	// steady is how long one must have lasted for the back-off to start anew.
	steady = time.Minute
)

// subscribe keeps the subscription through which a modern server says that its tools changed, as long as the connection
// lasts. A stream that breaks, as one over HTTP does after a while, is asked for again with a pause, and what was missed
// meanwhile counts as a change; a server that refuses has none.
func (s *Session) subscribe(ctx context.Context, o *Options) {
	if !o.Subscribe {
		return
	}
	ctx = context.WithoutCancel(ctx)
	s.running.Go(func() {
		pause := backoff.New(backoff.Config{Base: time.Second, Cap: 5 * time.Minute, Factor: 2, Jitter: 0.2})
		for {
			begin := time.Now()
			_, err := s.request(ctx, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`)
			s.log.DebugContext(ctx, "subscription to list changes ended", "session_id", s.id, "err", err)
			lasted := time.Since(begin)
			if _, refused := errors.AsType[*jsonrpc.Error](err); refused || err == nil && lasted < held {
				return
			}
			if lasted >= steady {
				pause.Reset()
			}
			if !s.sleep(pause.Next()) {
				return
			}
			if lasted >= held && s.onListChanged != nil {
				s.onListChanged()
			}
		}
	})
}

// sleep waits for d and reports true, or false as soon as the connection has ended.
func (s *Session) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.Done():
		return false
	}
}
