package backoff_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/toolherd/toolherd/pkg/backoff"
)

func TestNextGrowsToTheCapAndResetStartsAgain(t *testing.T) {
	b := backoff.New(backoff.Config{Base: 5 * time.Second, Cap: 30 * time.Second, Factor: 2})
	var got []time.Duration
	for range 5 {
		got = append(got, b.Next())
	}
	b.Reset()
	got = append(got, b.Next())
	want := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, 30 * time.Second, 5 * time.Second}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("delays (-want +got):\n%s", diff)
	}
}

func TestJitterOnlyShortens(t *testing.T) {
	c := backoff.Config{Base: time.Second, Cap: time.Second, Jitter: 0.2, Rand: func() float64 { return 1 }}
	if got := c.Delay(1); got != 800*time.Millisecond {
		t.Errorf("shortest delay is %v, want 800ms", got)
	}
	c.Rand = func() float64 { return 0 }
	if got := c.Delay(1); got != time.Second {
		t.Errorf("longest delay is %v, want 1s", got)
	}
}

func TestDelayStaysWithinItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := backoff.Config{
			Base:   time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "base")),
			Factor: rapid.Float64Range(1, 1e6).Draw(t, "factor"),
			Jitter: rapid.Float64Range(0, 1).Draw(t, "jitter"),
		}
		c.Cap = c.Base + time.Duration(rapid.Int64Range(0, math.MaxInt64-int64(time.Hour)).Draw(t, "above base"))
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		attempts := rapid.IntRange(1, math.MaxInt).Draw(t, "attempts")
		d := c.Delay(attempts)
		if d < 0 || d > c.Cap {
			t.Fatalf("delay %v is outside 0 to %v", d, c.Cap)
		}
		if low := float64(c.Base) * (1 - c.Jitter); float64(d) < math.Floor(low)-1 {
			t.Fatalf("delay %v is below the first delay less its jitter", d)
		}
	})
}

func TestDelayBeforeAnyFailureIsZero(t *testing.T) {
	if d := (backoff.Config{}).Delay(0); d != 0 {
		t.Errorf("delay after no attempt is %v", d)
	}
}

func TestValidateNamesTheBadValue(t *testing.T) {
	for name, c := range map[string]backoff.Config{
		"negative base":   {Base: -1},
		"base above cap":  {Base: 2, Cap: 1},
		"factor below 1":  {Factor: 0.5},
		"factor NaN":      {Factor: math.NaN()},
		"jitter above 1":  {Jitter: 1.5},
		"negative jitter": {Jitter: -0.1},
	} {
		if c.Validate() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if err := (backoff.Config{}).Validate(); err != nil {
		t.Errorf("zero value is refused: %v", err)
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := backoff.Sleep(t.Context(), time.Hour); err != nil || time.Since(start) != time.Hour {
			t.Errorf("slept %v with error %v, want 1h", time.Since(start), err)
		}
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(stop) })
		start = time.Now()
		if err := backoff.Sleep(ctx, time.Hour); !errors.Is(err, stop) || time.Since(start) != time.Minute {
			t.Errorf("slept %v with error %v, want 1m and the cause", time.Since(start), err)
		}
		if err := backoff.Sleep(ctx, 0); !errors.Is(err, stop) {
			t.Errorf("an ended context slept with error %v", err)
		}
	})
}
