// Package watch tells watchers of tasks that there is a newer version.
//
// However many watch, the store is asked for the versions of all watched tasks at once: every second, and when a wake-up
// says that some task changed. Watchers are only told that there is news; what it is they read themselves, so that a slow
// one gets the newest state and never the backlog.
package watch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/taskworker/internal/loop"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

const (
	interval = time.Second
	// pause is the least time between two looks, however many hints come.
	pause   = 20 * time.Millisecond
	timeout = 10 * time.Second
	// maxIDs is the most tasks that are asked for in one statement.
	maxIDs = 1000
)

// Versions is what a [Hub] asks of the store.
type Versions interface {
	// Versions returns the versions of those tasks that exist.
	Versions(ctx context.Context, ids []string) (map[string]int64, error)
}

// Hub knows who watches which task. It is safe for concurrent use.
type Hub struct {
	store Versions
	bus   wake.Bus
	log   *slog.Logger

	first chan struct{} // there is a watch where there was none
	mu    sync.Mutex
	tasks map[string]map[*Watch]bool
}

// New returns a hub. It tells nobody anything before it runs.
func New(store Versions, bus wake.Bus, log *slog.Logger) *Hub {
	return &Hub{store: store, bus: bus, log: log, first: make(chan struct{}, 1), tasks: map[string]map[*Watch]bool{}}
}

// Watch is the watch of one task. It is used by one goroutine.
type Watch struct {
	hub  *Hub
	id   string
	news chan struct{}
	seen int64 // guarded by hub.mu
}

// Watch begins a watch. The caller closes it.
func (h *Hub) Watch(id string) *Watch {
	w := &Watch{hub: h, id: id, news: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.tasks) == 0 {
		select {
		case h.first <- struct{}{}:
		default:
		}
	}
	if h.tasks[id] == nil {
		h.tasks[id] = map[*Watch]bool{}
	}
	h.tasks[id][w] = true
	return w
}

// News yields a value some time after the task got a version above that of the last [Watch.Saw], or vanished.
func (w *Watch) News() <-chan struct{} { return w.news }

// Saw says that the watcher knows the task up to this version.
func (w *Watch) Saw(version int64) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.seen = max(w.seen, version)
}

// Close ends the watch.
func (w *Watch) Close() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.tasks[w.id], w)
	if len(h.tasks[w.id]) == 0 {
		delete(h.tasks, w.id)
	}
}

// Run looks for news until ctx ends, and returns nil. While nobody watches it asks nothing.
func (h *Hub) Run(ctx context.Context) error {
	hints, stop := h.bus.Subscribe(task.TopicChanged)
	defer stop()
	outage := loop.NewOutage("watch tasks", h.log)
	delays := loop.Delays(interval)
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		n, err := h.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		outage.Note(ctx, err)
		if err != nil {
			if backoff.Sleep(ctx, delays.Next()) != nil {
				return nil
			}
			continue
		}
		delays.Reset()
		if backoff.Sleep(ctx, pause) != nil {
			return nil
		}
		if n == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-h.first:
			}
			continue
		}
		timer.Reset(interval)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-hints:
		}
	}
}

// look asks for the versions of all watched tasks, tells who is behind, and returns how many tasks there were.
func (h *Hub) look(ctx context.Context) (int, error) {
	ids := h.ids()
	for rest := ids; len(rest) > 0; {
		n := min(len(rest), maxIDs)
		if err := h.ask(ctx, rest[:n]); err != nil {
			return len(ids), err
		}
		rest = rest[n:]
	}
	return len(ids), nil
}

func (h *Hub) ids() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := make([]string, 0, len(h.tasks))
	for id := range h.tasks {
		ids = append(ids, id)
	}
	return ids
}

func (h *Hub) ask(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	versions, err := h.store.Versions(ctx, ids)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		version, exists := versions[id]
		for w := range h.tasks[id] {
			if exists && version <= w.seen {
				continue
			}
			select {
			case w.news <- struct{}{}:
			default: // told already
			}
		}
	}
	return nil
}
