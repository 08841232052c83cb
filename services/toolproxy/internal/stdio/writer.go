package stdio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// writer writes messages to the process's stdin.
//
// The sender whose message finds the pipe free writes it itself, in one system call that does not block: no
// goroutine is woken. Messages that come meanwhile queue, and that sender writes them all in one go. What the pipe
// does not take is left to a goroutine, which exists until it has written it; it gives up, for good, when the
// process takes nothing for the stall time.
type writer struct {
	file  *os.File // not blocking
	stall time.Duration
	limit int // of queued bytes; one message may always wait

	broken chan struct{} // closed when writing has failed, and err is set

	mu      sync.Mutex
	spawn   func(f func(context.Context)) bool // starts the goroutine; nil until the process is run
	busy    bool                               // someone writes, or is about to
	stuck   bool                               // the pipe is full, the goroutine writes or is to be started
	queue   []byte
	spare   []byte        // the queue written last, for its memory
	room    chan struct{} // closed when the queue was taken; nil if nobody waits
	err     error
	attempt attempt // of the one who is busy
}

// attempt is one try to write without blocking.
type attempt struct {
	data []byte
	n    int
	err  error
	try  func(fd uintptr) bool
}

func (a *attempt) run(fd uintptr) bool {
	for {
		a.n, a.err = syscall.Write(int(fd), a.data)
		if !errors.Is(a.err, syscall.EINTR) {
			return true
		}
	}
}

const (
	maxRounds    = 4       // queues that one sender writes for others before the goroutine takes over
	maxIdleBytes = 8 << 10 // of buffers kept while nothing is written
)

// stallError says that the process takes nothing from its stdin.
type stallError struct{ after time.Duration }

func (e stallError) Error() string {
	return fmt.Sprintf("it stopped reading its stdin for %v", e.after)
}

func newWriter(file *os.File, stall time.Duration, limit int) *writer {
	w := &writer{file: file, stall: stall, limit: limit, broken: make(chan struct{})}
	w.attempt.try = w.attempt.run
	return w
}

// Send writes one message and a line end, or queues it. It blocks only while the queue is full.
func (w *writer) Send(ctx context.Context, msg []byte) error {
	w.mu.Lock()
	for w.err == nil && w.busy && len(w.queue) > 0 && len(w.queue)+len(msg) >= w.limit {
		if w.room == nil {
			w.room = make(chan struct{})
		}
		room := w.room
		w.mu.Unlock()
		select {
		case <-room:
		case <-w.broken:
		case <-ctx.Done():
			return ctx.Err()
		}
		w.mu.Lock()
	}
	if w.err != nil {
		w.mu.Unlock()
		return fmt.Errorf("%w: %w", link.ErrEnded, w.err)
	}
	if w.busy {
		w.queue = append(append(w.queue, msg...), '\n')
		w.mu.Unlock()
		return nil
	}
	w.busy = true
	w.mu.Unlock()
	return w.flush(append(msg, '\n'))
}

// flush writes data, and then what queues meanwhile, without blocking. An error is about data alone: none of it was
// written.
func (w *writer) flush(data []byte) error {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return w.fail(err)
	}
	for round := 0; ; round++ {
		w.attempt.data = data
		err := conn.Write(w.attempt.try)
		if err == nil && w.attempt.err != nil && !errors.Is(w.attempt.err, syscall.EAGAIN) {
			err = os.NewSyscallError("write", w.attempt.err)
		}
		if err != nil {
			err = w.fail(err)
			if round > 0 {
				return nil // the caller's own message was taken: it must not hear that it was not
			}
			return err
		}
		w.attempt.data = nil
		n := w.attempt.n
		if w.attempt.err != nil {
			n = 0
		}

		w.mu.Lock()
		if n < len(data) || round == maxRounds && len(w.queue) > 0 {
			// What is left of data comes before what was queued.
			w.queue = append(append(make([]byte, 0, len(data)-n+len(w.queue)), data[n:]...), w.queue...)
			w.stuck = true
			w.mu.Unlock()
			w.unstick()
			return nil
		}
		if len(w.queue) == 0 {
			w.idle()
			w.mu.Unlock()
			return nil
		}
		data = w.takeQueue()
		w.mu.Unlock()
	}
}

// takeQueue empties the queue. w.mu is held.
func (w *writer) takeQueue() []byte {
	data := w.queue
	w.queue, w.spare = w.spare[:0], data // spare is free again when data is written, and not before it is taken
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
	return data
}

// idle ends a turn of writing: the next sender writes itself. w.mu is held.
func (w *writer) idle() {
	w.busy, w.stuck = false, false
	if cap(w.queue)+cap(w.spare) > maxIdleBytes {
		w.queue, w.spare = nil, nil
	}
}

// attach gives the writer the means to start its goroutine, which it may need already.
func (w *writer) attach(spawn func(f func(context.Context)) bool) {
	w.mu.Lock()
	w.spawn = spawn
	stuck := w.stuck
	w.mu.Unlock()
	if stuck {
		spawn(w.drain)
	}
}

// unstick starts the goroutine that waits for the pipe to take what is queued.
func (w *writer) unstick() {
	w.mu.Lock()
	spawn := w.spawn
	w.mu.Unlock()
	if spawn != nil {
		spawn(w.drain)
	}
}

// drain writes what is queued, with a bound on how long nothing of it is taken.
func (w *writer) drain(context.Context) {
	for {
		w.mu.Lock()
		if len(w.queue) == 0 {
			_ = w.file.SetWriteDeadline(time.Time{})
			w.idle()
			w.mu.Unlock()
			return
		}
		data := w.takeQueue()
		w.mu.Unlock()
		for len(data) > 0 {
			_ = w.file.SetWriteDeadline(time.Now().Add(w.stall))
			n, err := w.file.Write(data[:min(len(data), chunkBytes)])
			data = data[n:]
			switch {
			case err == nil:
			case !errors.Is(err, os.ErrDeadlineExceeded):
				_ = w.fail(err)
				return
			case n == 0:
				_ = w.fail(stallError{w.stall})
				return
			}
		}
	}
}

// fail ends the writer; the first reason counts. It returns the error of the message that met it.
func (w *writer) fail(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
		close(w.broken)
	}
	return fmt.Errorf("%w: %w", link.ErrEnded, w.err)
}

// close closes the process's stdin.
func (w *writer) close() {
	_ = w.fail(errors.New("its stdin was closed"))
	_ = w.file.Close()
}
