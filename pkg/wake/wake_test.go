package wake_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/wake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLocalWakesTheSubscribersOfTheTopic(t *testing.T) {
	bus := wake.NewLocal()
	first, cancelFirst := bus.Subscribe("task.due")
	second, cancelSecond := bus.Subscribe("task.due")
	other, cancelOther := bus.Subscribe("registry.snapshot")
	defer cancelFirst()
	defer cancelSecond()
	defer cancelOther()
	notify(t, bus, "task.due")
	if !woken(first) || !woken(second) {
		t.Error("a subscriber of the topic was not woken")
	}
	if woken(other) {
		t.Error("a subscriber of another topic was woken")
	}
}

func TestHintsThatWaitBecomeOne(t *testing.T) {
	bus := wake.NewLocal()
	hints, cancel := bus.Subscribe("task.due")
	defer cancel()
	for range 1000 { // blocks if the bus waits for subscribers
		notify(t, bus, "task.due")
	}
	if !woken(hints) {
		t.Error("no hint after 1000 notifications")
	}
	if woken(hints) {
		t.Error("two hints for notifications that nobody had taken")
	}
	notify(t, bus, "task.due")
	if !woken(hints) {
		t.Error("no hint after the last was taken")
	}
}

func TestCancelEndsASubscription(t *testing.T) {
	bus := wake.NewLocal()
	hints, cancel := bus.Subscribe("task.due")
	stays, cancelStays := bus.Subscribe("task.due")
	defer cancelStays()
	cancel()
	cancel() // twice does no harm
	notify(t, bus, "task.due")
	if woken(hints) {
		t.Error("woken after cancel")
	}
	if !woken(stays) {
		t.Error("the other subscription ended too")
	}
}

func TestNoneLosesEveryHint(t *testing.T) {
	bus := wake.None()
	hints, cancel := bus.Subscribe("task.due")
	defer cancel()
	notify(t, bus, "task.due")
	if woken(hints) {
		t.Error("woken")
	}
}

func TestTopicsThatCannotTravelAreRefused(t *testing.T) {
	for name, bus := range map[string]wake.Bus{"local": wake.NewLocal(), "none": wake.None()} {
		for _, topic := range []string{"", "two words", "line\nfeed", "nul\x00", strings.Repeat("x", 101)} {
			if err := bus.Notify(t.Context(), topic); err == nil {
				t.Errorf("%s took topic %q", name, topic)
			}
		}
	}
}

func TestRunEndsWithItsContextAndWithoutAnError(t *testing.T) {
	for name, bus := range map[string]wake.Bus{"local": wake.NewLocal(), "none": wake.None()} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if err := bus.Run(ctx); err != nil || ctx.Err() == nil {
				t.Errorf("%s: Run returned %v, context %v", name, err, ctx.Err())
			}
		})
	}
}

func notify(t *testing.T, bus wake.Bus, topic string) {
	t.Helper()
	if err := bus.Notify(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
}

// woken takes a hint if one waits.
func woken(hints <-chan struct{}) bool {
	select {
	case <-hints:
		return true
	default:
		return false
	}
}
