// Package backoff computes how long to wait before trying again.
//
// The delays grow from Base by Factor up to Cap. Jitter only ever shortens a delay, so Cap is a true bound and
// callers that failed together do not come back together. A sequence is kept in a [Backoff]; work whose attempts are
// counted in a database asks [Config.Delay] instead, which keeps nothing.
package backoff

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Config describes a sequence of delays. Zero values of Base, Cap and Factor take the defaults.
type Config struct {
	Base   time.Duration  // the first delay; default 1 s
	Cap    time.Duration  // no delay is longer; default 5 min, and never below Base
	Factor float64        // growth per attempt, at least 1; default 2
	Jitter float64        // share of each delay that is random, 0 to 1: 0.2 gives 80 to 100 % of it; default 0
	Rand   func() float64 // returns numbers in [0, 1); default math/rand/v2
}

// Validate reports values outside their ranges.
func (c Config) Validate() error {
	switch {
	case c.Base < 0 || c.Cap < 0:
		return fmt.Errorf("back-off: base %v and cap %v must not be negative", c.Base, c.Cap)
	case c.Cap > 0 && c.Base > c.Cap:
		return fmt.Errorf("back-off: base %v is above cap %v", c.Base, c.Cap)
	case c.Factor != 0 && !(c.Factor >= 1):
		return fmt.Errorf("back-off: factor %v must be at least 1", c.Factor)
	case !(c.Jitter >= 0 && c.Jitter <= 1):
		return fmt.Errorf("back-off: jitter %v must be between 0 and 1", c.Jitter)
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.Base = cmp.Or(c.Base, time.Second)
	c.Cap = max(cmp.Or(c.Cap, 5*time.Minute), c.Base)
	c.Factor = max(cmp.Or(c.Factor, 2), 1)
	c.Jitter = min(max(c.Jitter, 0), 1)
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c
}

// Delay returns the delay after the given number of failed attempts, counted from 1. Below 1 it is zero.
func (c Config) Delay(attempts int) time.Duration {
	if attempts < 1 {
		return 0
	}
	c = c.withDefaults()
	d := c.Cap
	if grown := float64(c.Base) * math.Pow(c.Factor, float64(attempts-1)); grown < float64(c.Cap) {
		d = time.Duration(grown)
	}
	return d - time.Duration(float64(d)*c.Jitter*c.Rand())
}

// Backoff is a sequence of delays. It must not be used by two goroutines at once.
type Backoff struct {
	config   Config
	attempts int
}

// New returns a sequence at its start.
func New(c Config) *Backoff { return &Backoff{config: c.withDefaults()} }

// Next returns the next delay.
func (b *Backoff) Next() time.Duration {
	b.attempts++
	return b.config.Delay(b.attempts)
}

// Attempts returns how often Next was called since the last Reset.
func (b *Backoff) Attempts() int { return b.attempts }

// Reset starts the sequence again, after a success.
func (b *Backoff) Reset() { b.attempts = 0 }

// Sleep waits for d and returns nil, or the cause of ctx's end as soon as that comes first.
func Sleep(ctx context.Context, d time.Duration) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
