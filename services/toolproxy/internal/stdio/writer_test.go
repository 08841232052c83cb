//go:build linux

package stdio

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// newTestWriter returns a writer, and the end of the pipe that a process would read.
func newTestWriter(t *testing.T, stall time.Duration, limit int) (*writer, *os.File) {
	t.Helper()
	r, file, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w := newWriter(file, stall, limit)
	var wg sync.WaitGroup
	w.attach(func(f func(context.Context)) bool {
		wg.Go(func() { f(t.Context()) })
		return true
	})
	t.Cleanup(func() {
		w.close()
		_ = r.Close()
		wg.Wait()
	})
	return w, r
}

func TestMessagesOfEverySenderArriveWholeAndInItsOrder(t *testing.T) {
	const senders, messages = 16, 300
	w, r := newTestWriter(t, 10*time.Second, 1<<20)
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for m := range messages {
				pad := strings.Repeat("x", (s*m*37)%5000) // at times more than the pipe takes
				if err := w.Send(t.Context(), fmt.Appendf(nil, "%d %d %s", s, m, pad)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	next := make([]int, senders)
	lines := bufio.NewReader(r)
	for range senders * messages {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		var s, m int
		var pad string
		_, _ = fmt.Sscan(line, &s, &m, &pad)
		if m != next[s] || len(pad) != (s*m*37)%5000 {
			t.Fatalf("sender %d: message %d with %d bytes, want message %d", s, m, len(pad), next[s])
		}
		next[s]++
	}
	wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy || w.stuck || len(w.queue) != 0 {
		t.Errorf("the writer rests with busy=%t, stuck=%t and %d bytes", w.busy, w.stuck, len(w.queue))
	}
	if cap(w.queue)+cap(w.spare) > maxIdleBytes {
		t.Errorf("it holds %d bytes", cap(w.queue)+cap(w.spare))
	}
}

func TestSendersWaitForRoomOnlyAsLongAsTheirContext(t *testing.T) {
	w, r := newTestWriter(t, time.Minute, 1000)
	big := []byte(strings.Repeat("x", 100_000)) // the pipe takes a part
	for range 2 {
		if err := w.Send(t.Context(), big); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for {
		// The goroutine takes what is queued once; then it is stuck, and so is the next.
		err := w.Send(ctx, []byte(strings.Repeat("y", 2000)))
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sent := make(chan error, 1)
	go func() { sent <- w.Send(t.Context(), []byte("last")) }()
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func TestASlowReaderIsNoStall(t *testing.T) {
	const stall = time.Second
	w, r := newTestWriter(t, stall, 1<<20)
	began := time.Now()
	if err := w.Send(t.Context(), []byte(strings.Repeat("x", 1<<20))); err != nil {
		t.Fatal(err)
	}
	// It reads a little all the time, and takes longer than the stall time for the whole.
	read := 0
	buf := make([]byte, 1<<20/200)
	for read <= 1<<20 {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		read += n
		<-time.After(stall / 150)
	}
	if took := time.Since(began); took < stall {
		t.Errorf("it read everything within %v: this proves nothing", took)
	}
	select {
	case <-w.broken:
		t.Errorf("the writer gave up: %v", w.err)
	default:
	}
}

func TestAStalledWriterFailsEveryoneForGood(t *testing.T) {
	w, _ := newTestWriter(t, 20*time.Millisecond, 1000)
	if err := w.Send(t.Context(), []byte(strings.Repeat("x", 100_000))); err != nil {
		t.Fatal(err)
	}
	<-w.broken
	err := w.Send(t.Context(), []byte("more"))
	if _, ok := errors.AsType[stallError](err); !ok || !errors.Is(err, link.ErrEnded) {
		t.Errorf("error %v", err)
	}
}

func TestAClosedPipeIsTheEndAndNoCrash(t *testing.T) {
	w, r := newTestWriter(t, time.Second, 1000)
	_ = r.Close()
	if err := w.Send(t.Context(), []byte("x")); !errors.Is(err, link.ErrEnded) {
		t.Errorf("error %v", err)
	}
	<-w.broken
}

// A message that the pipe took may be acted upon: its sender must not hear that it was not sent because a later one,
// written on behalf of another sender, met the end.
func TestSenderIsNotBlamedForWhatItWritesForOthers(t *testing.T) {
	w, r := newTestWriter(t, time.Second, 1<<20)
	writes := 0
	w.attempt.try = func(fd uintptr) bool {
		if writes++; writes == 2 { // the process is gone between its message and the other
			_ = r.Close()
		}
		done := w.attempt.run(fd)
		if writes == 1 {
			if err := w.Send(t.Context(), []byte("other")); err != nil {
				t.Error(err)
			}
		}
		return done
	}
	if err := w.Send(t.Context(), []byte("own")); err != nil {
		t.Errorf("the message was written, Send returned %v", err)
	}
	if err := w.Send(t.Context(), []byte("late")); !errors.Is(err, link.ErrEnded) {
		t.Errorf("a Send after that returned %v", err)
	}
}
