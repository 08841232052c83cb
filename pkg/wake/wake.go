// Package wake carries hints between the loops of a process and of its replicas: "look at this topic now".
//
// A hint holds no data and may be lost, repeated or late. What is true stands in the database, and whoever waits for a
// hint also looks on its own from time to time; hints only make it look sooner. Everything that uses this package
// works, slower, with [None].
//
//	writer:      commit ──▶ Notify("task.due")
//	                              ┆ may be lost
//	subscriber:  loop { look at the database; wait for a hint, or for the next poll }
//
// There are three buses: [NewLocal] within a process, which suffices for SQLite; [NewPostgres] between processes;
// [None] where LISTEN cannot work, as through PgBouncer in transaction mode: there the hints would be lost, and the
// server connection that once listened would feed notifications to clients that never asked.
package wake

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"unicode"
)

// Bus passes hints from Notify to the subscribers of a topic. It is safe for concurrent use.
//
// A topic is 1 to 100 bytes without white space and control characters, such as "registry.snapshot".
type Bus interface {
	// Notify wakes the subscribers of topic. Call it after the commit of what they shall see, never inside the
	// transaction: it borrows a connection of the pool. Its error is for the log; nothing may depend on it.
	Notify(ctx context.Context, topic string) error

	// Subscribe returns a channel that yields a value some time after a Notify of topic, and cancel, which ends the
	// subscription. Hints that arrive before the subscriber has taken the last one become one. The channel is never
	// closed. cancel may be called more than once.
	Subscribe(topic string) (hints <-chan struct{}, cancel func())

	// Run does the work of the bus until ctx ends, and then returns nil. Call it once. Without it hints from other
	// processes do not arrive.
	Run(ctx context.Context) error
}

// Local is a [Bus] within this process.
type Local struct {
	mu     sync.Mutex
	topics map[string]map[chan struct{}]bool
}

// NewLocal returns a bus without subscribers.
func NewLocal() *Local { return &Local{topics: map[string]map[chan struct{}]bool{}} }

// Notify implements [Bus]. It fails only for a topic that is not valid.
func (l *Local) Notify(_ context.Context, topic string) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	l.wake(topic)
	return nil
}

// Subscribe implements [Bus].
func (l *Local) Subscribe(topic string) (hints <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1) // room for the one hint that all become
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.topics[topic] == nil {
		l.topics[topic] = map[chan struct{}]bool{}
	}
	l.topics[topic][c] = true
	return c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.topics[topic], c)
		if len(l.topics[topic]) == 0 {
			delete(l.topics, topic)
		}
	}
}

// Run implements [Bus]; there is nothing to do.
func (l *Local) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (l *Local) wake(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.topics[topic] {
		hint(c)
	}
}

func (l *Local) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, subscribers := range l.topics {
		for c := range subscribers {
			hint(c)
		}
	}
}

func hint(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // the last hint still waits
	}
}

func checkTopic(topic string) error {
	if topic == "" || len(topic) > 100 || strings.ContainsFunc(topic, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return fmt.Errorf("wake: topic %q is not 1 to 100 bytes without white space", topic)
	}
	return nil
}

// None returns a bus that loses every hint, so that its users poll.
func None() Bus { return none{} }

type none struct{}

func (none) Notify(_ context.Context, topic string) error { return checkTopic(topic) }

// Subscribe returns a channel that blocks for ever.
func (none) Subscribe(string) (hints <-chan struct{}, cancel func()) { return nil, func() {} }

func (none) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
