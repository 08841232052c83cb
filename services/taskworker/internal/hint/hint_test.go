package hint_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/taskworker/internal/hint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bus counts what it is asked to send, and takes its time.
type bus struct {
	wake.Bus
	mu   sync.Mutex
	sent map[string]int
	err  error
}

func (b *bus) Notify(ctx context.Context, topic string) error {
	time.Sleep(time.Millisecond)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent[topic]++
	return errors.Join(b.err, ctx.Err())
}

func TestManyWakeUpsBecomeFewAndTheLastIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bus{sent: map[string]int{}, err: errors.New("away")}
		s := hint.New(b, slog.New(slog.DiscardHandler))
		s.Send("early") // before it runs
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		began := time.Now()
		for range 10_000 {
			s.Send("a", "b")
			time.Sleep(10 * time.Microsecond)
		}
		if took := time.Since(began); took > 150*time.Millisecond {
			t.Errorf("the senders waited: %v", took)
		}
		synctest.Wait()
		s.Send("last")
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if b.sent["early"] != 1 || b.sent["last"] != 1 || b.sent["a"] < 5 || b.sent["a"] > 50 {
			t.Errorf("sent %v", b.sent)
		}
	})
}
