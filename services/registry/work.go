package registry

import (
	"context"
	"sync"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
)

// errStopping: nothing was done, since whoever would do it has stopped.
var errStopping = fault.New(fault.NotReady, "the registry is stopping: try again at another, or when it is back")

// work is what others ask the publisher to do between its checks of the files, which only its own goroutine may use.
type work struct {
	wanted chan struct{} // can be received from when there may be something to do

	mu     sync.Mutex
	queue  []*job
	closed bool
}

// job is done when its channel is closed, and was not done at all if err is errStopping.
type job struct {
	do   func(ctx context.Context, p *publisher) error
	err  error
	done chan struct{}
}

func newWork() *work { return &work{wanted: make(chan struct{}, 1)} }

// ask waits until the publisher has done do, and returns its error. Once it has begun it goes on to its end.
func (w *work) ask(do func(ctx context.Context, p *publisher) error) error {
	j := &job{do: do, done: make(chan struct{})}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return errStopping
	}
	w.queue = append(w.queue, j)
	w.mu.Unlock()
	select {
	case w.wanted <- struct{}{}:
	default: // it will look in any case
	}
	<-j.done
	return j.err
}

// take returns what there is to do.
func (w *work) take() []*job {
	w.mu.Lock()
	defer w.mu.Unlock()
	queue := w.queue
	w.queue = nil
	return queue
}

// run does what there is to do.
func (w *work) run(ctx context.Context, p *publisher) {
	for _, j := range w.take() {
		j.err = j.do(ctx, p)
		close(j.done)
	}
}

// close refuses what is still to do, and all that comes later.
func (w *work) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	for _, j := range w.take() {
		j.err = errStopping
		close(j.done)
	}
}

// sleep returns after d, or earlier if there is something to do. It returns the error of ctx when that ends.
func (w *work) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.wanted:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
