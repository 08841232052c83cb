package watch_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// versions is what a store says, and how often it was asked.
type versions struct {
	mu    sync.Mutex
	now   map[string]int64
	asked int
	most  int // ids at once
	err   error
}

func (v *versions) Versions(_ context.Context, ids []string) (map[string]int64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked++
	v.most = max(v.most, len(ids))
	if v.err != nil {
		return nil, v.err
	}
	out := map[string]int64{}
	for _, id := range ids {
		if n, ok := v.now[id]; ok {
			out[id] = n
		}
	}
	return out, nil
}

func (v *versions) set(id string, version int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.now[id] = version
}

func (v *versions) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.err = err
}

func (v *versions) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.asked
}

func run(t *testing.T, h *watch.Hub) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func told(w *watch.Watch) bool {
	select {
	case <-w.News():
		return true
	default:
		return false
	}
}

func TestThousandsOfWatchersCostOneQueryASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &versions{now: map[string]int64{}}
		h := watch.New(v, wake.None(), slog.New(slog.DiscardHandler))
		run(t, h)
		time.Sleep(10 * time.Second)
		if v.count() != 0 {
			t.Errorf("asked %d times while nobody watched", v.count())
		}
		var all []*watch.Watch
		for i := range 5000 {
			id := fmt.Sprint("task-", i%500) // ten each
			v.set(id, 1)
			w := h.Watch(id)
			w.Saw(1)
			all = append(all, w)
		}
		time.Sleep(10 * time.Second)
		if n := v.count(); n < 9 || n > 12 || v.most != 500 {
			t.Errorf("asked %d times in 10 s, for at most %d tasks", n, v.most)
		}
		v.set("task-7", 2)
		time.Sleep(1100 * time.Millisecond)
		for i, w := range all {
			if told(w) != (i%500 == 7) {
				t.Errorf("watcher %d of task %d was told wrongly", i, i%500)
			}
		}
		before := v.count()
		for _, w := range all {
			w.Close()
		}
		time.Sleep(10 * time.Second)
		if n := v.count() - before; n > 1 {
			t.Errorf("asked %d times for nobody", n)
		}
		// It begins again with the next watch.
		v.set("late", 3)
		w := h.Watch("late")
		time.Sleep(50 * time.Millisecond)
		if !told(w) {
			t.Error("the first watcher after a quiet time waits")
		}
		w.Close()
	})
}

func TestAHintIsLookedAtAtOnceAndManyTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &versions{now: map[string]int64{"a": 1}}
		bus := wake.NewLocal()
		h := watch.New(v, bus, slog.New(slog.DiscardHandler))
		run(t, h)
		w := h.Watch("a")
		defer w.Close()
		w.Saw(1)
		time.Sleep(100 * time.Millisecond)
		before := v.count()
		v.set("a", 2)
		for range 1000 {
			if err := bus.Notify(t.Context(), task.TopicChanged); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(50 * time.Millisecond)
		if n := v.count() - before; !told(w) || n > 3 {
			t.Errorf("told %v after %d looks", told(w), n)
		}
	})
}

func TestWatchersAreToldOfATaskThatVanishedAndAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &versions{now: map[string]int64{"a": 1}}
		h := watch.New(v, wake.None(), slog.New(slog.DiscardHandler))
		run(t, h)
		a, gone := h.Watch("a"), h.Watch("gone")
		defer a.Close()
		defer gone.Close()
		a.Saw(1)
		v.fail(errors.New("away"))
		time.Sleep(time.Minute)
		if told(a) || told(gone) {
			t.Error("told of news that nobody could read")
		}
		v.fail(nil)
		v.set("a", 5)
		time.Sleep(2 * time.Second)
		if !told(a) || !told(gone) {
			t.Error("not told after the outage")
		}
	})
}
