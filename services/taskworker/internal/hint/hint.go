// Package hint sends wake-ups without making anybody wait for them.
//
// A wake-up costs a round trip to the database. Whoever has one to give only marks its topic; [Sender.Run] sends what is
// marked, so that a thousand commits in a moment are a few wake-ups.
package hint

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/taskworker/internal/loop"
)

const (
	// pause is the least time between two rounds of wake-ups.
	pause = 5 * time.Millisecond
	// timeout bounds one wake-up.
	timeout = 5 * time.Second
	// lastTimeout bounds the wake-ups that are left when the sender ends.
	lastTimeout = time.Second
)

// Sender sends wake-ups. It is safe for concurrent use.
type Sender struct {
	bus    wake.Bus
	log    *slog.Logger
	marked chan struct{} // there is something in topics

	mu     sync.Mutex
	topics []string
}

// New returns a sender on bus. Nothing is sent before it runs.
func New(bus wake.Bus, log *slog.Logger) *Sender {
	return &Sender{bus: bus, log: log, marked: make(chan struct{}, 1)}
}

// Send has the topics sent soon. It does not wait.
func (s *Sender) Send(topics ...string) {
	if len(topics) == 0 {
		return
	}
	s.mu.Lock()
	for _, t := range topics {
		if !slices.Contains(s.topics, t) {
			s.topics = append(s.topics, t)
		}
	}
	s.mu.Unlock()
	select {
	case s.marked <- struct{}{}:
	default:
	}
}

// Run sends until ctx ends, then once more what is left, and returns nil. A wake-up that fails is lost: who waits for it
// also looks on its own.
func (s *Sender) Run(ctx context.Context) error {
	outage := loop.NewOutage("wake-ups", s.log)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-s.marked:
			s.flush(ctx, outage)
			_ = backoff.Sleep(ctx, pause) // its error says that ctx has ended, as the loop does
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
	defer cancel()
	s.flush(last, outage)
	return nil
}

// flush sends what is marked. What the end of ctx leaves unsent stays marked.
func (s *Sender) flush(ctx context.Context, outage *loop.Outage) {
	s.mu.Lock()
	topics := s.topics
	s.topics = nil
	s.mu.Unlock()
	for i, t := range topics {
		err := s.notify(ctx, t)
		if ctx.Err() != nil {
			s.Send(topics[i:]...)
			return
		}
		outage.Note(ctx, err)
	}
}

func (s *Sender) notify(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.bus.Notify(ctx, topic)
}
