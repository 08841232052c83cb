package link

import (
	"context"
	"encoding/json"
	"sync"
)

// mailbox is a bounded queue worked off by one goroutine, which exists only while there is something to do:
// an idle session costs none.
type mailbox[T any] struct {
	// place puts v into the queue, or makes room for it, or leaves it; it says how many were lost.
	place func(queue []T, v T) (after []T, lost int)

	mu    sync.Mutex
	queue []T
	busy  bool
}

// put adds v and reports whether the caller must start work, and how many items were lost.
func (m *mailbox[T]) put(v T) (start bool, lost int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue, lost = m.place(m.queue, v)
	start = !m.busy
	m.busy = true
	return start, lost
}

// work passes items to handle until there are none.
func (m *mailbox[T]) work(handle func(T)) {
	for {
		m.mu.Lock()
		if len(m.queue) == 0 {
			m.queue = nil
			m.busy = false
			m.mu.Unlock()
			return
		}
		v := m.queue[0]
		m.queue = m.queue[1:]
		m.mu.Unlock()
		handle(v)
	}
}

// notification waits for Options.OnNotification.
type notification struct {
	method string
	params json.RawMessage
}

// listChanged reports whether n says that a list is another one: of these one of each kind is enough, and none is lost.
func (n notification) listChanged() bool {
	switch n.method {
	case "notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed":
		return true
	}
	return false
}

// placeNotification keeps one list_changed of each kind and drops the oldest of the others past the limit.
func placeNotification(queue []notification, n notification) ([]notification, int) {
	if n.listChanged() {
		for _, q := range queue {
			if q.method == n.method {
				return queue, 0
			}
		}
		return append(queue, n), 0
	}
	if len(queue) < maxNotifications {
		return append(queue, n), 0
	}
	for i, q := range queue {
		if !q.listChanged() {
			return append(append(queue[:i:i], queue[i+1:]...), n), 1
		}
	}
	return queue, 1
}

func (l *Link) dispatch(n notification) {
	if l.opts.OnNotification == nil {
		return
	}
	start, lost := l.notifications.put(n)
	l.dropped.Add(uint64(lost))
	if start {
		l.spawn("notifications", func(context.Context) {
			l.notifications.work(func(n notification) { l.opts.OnNotification(n.method, n.params) })
		})
	}
}

// outgoing is a message that the link sends by itself.
type outgoing struct {
	ctx context.Context //nolint:containedctx // of the call it belongs to, for its credentials; nil for the link's own
	msg []byte
}

// placeOutgoing refuses what comes past the limit.
func placeOutgoing(queue []outgoing, o outgoing) ([]outgoing, int) {
	if len(queue) == maxOutgoing {
		return queue, 1
	}
	return append(queue, o), 0
}

// post sends a message without making anyone wait for it.
func (l *Link) post(o outgoing) {
	start, lost := l.outbox.put(o)
	l.dropped.Add(uint64(lost))
	if start {
		l.spawn("outbox", func(ctx context.Context) {
			l.outbox.work(func(o outgoing) { l.sendPosted(ctx, o) })
		})
	}
}

func (l *Link) sendPosted(group context.Context, o outgoing) {
	ctx := group
	if o.ctx != nil {
		ctx = o.ctx
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	defer context.AfterFunc(group, cancel)()
	if err := l.wire.Send(ctx, o.msg); err != nil {
		l.log.DebugContext(ctx, "could not send to the server", "err", err)
	}
}
