// Package loop drives what a notifier does again and again, and keeps going while its database does not answer.
package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
)

// Loop repeats a step: at once, then after each interval, and earlier with a hint.
type Loop struct {
	// Name is what the loop does, for the log.
	Name string
	// Every is the interval, above zero.
	Every time.Duration
	// Timeout bounds one step, above zero.
	Timeout time.Duration
	// Hints make the next step come at once; nil for none.
	Hints <-chan struct{}
	// Step does the work once. More means that there is more of it, so that the next step follows at once.
	Step func(ctx context.Context) (more bool, err error)
	Log  *slog.Logger
}

// Run repeats the step until ctx ends, and returns nil. A step that fails is tried again, after less than the interval at
// first; hints do not hasten that.
func (l Loop) Run(ctx context.Context) error {
	outage := NewOutage(l.Name, l.Log)
	longest := min(5*time.Second, l.Every)
	delays := backoff.New(backoff.Config{Base: min(100*time.Millisecond, longest), Cap: longest, Jitter: 0.2})
	for {
		step, cancel := context.WithTimeout(ctx, l.Timeout)
		more, err := l.Step(step)
		cancel()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the step was given up because of ctx, and its end is how Run ends
		}
		outage.Note(ctx, err)
		switch {
		case err != nil:
			_ = backoff.Sleep(ctx, delays.Next()) // its end is seen after the next step
			continue
		case more:
			delays.Reset()
			continue
		}
		delays.Reset()
		if !Wait(ctx, l.Every, l.Hints) {
			return nil
		}
	}
}

// Wait returns after d, or with a hint; false means that ctx ended.
func Wait(ctx context.Context, d time.Duration, hints <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-hints:
	}
	return ctx.Err() == nil
}

// Outage logs when something begins to fail and when it works again, and nothing in between. It must not be used by two
// goroutines at once.
type Outage struct {
	name  string
	log   *slog.Logger
	since time.Time // zero while it works
}

// NewOutage returns an outage that has not begun. Name is what may fail.
func NewOutage(name string, log *slog.Logger) *Outage { return &Outage{name: name, log: log} }

// Note tells how a try went.
func (o *Outage) Note(ctx context.Context, err error) {
	switch {
	case err != nil && o.since.IsZero():
		o.since = time.Now()
		o.log.WarnContext(ctx, "failing, trying again until it works", "loop", o.name, "err", err)
	case err == nil && !o.since.IsZero():
		o.log.InfoContext(ctx, "works again", "loop", o.name, "failed_for", time.Since(o.since).Round(time.Millisecond))
		o.since = time.Time{}
	}
}
