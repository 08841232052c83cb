// Package loop drives what a service does again and again, and keeps going while its database does not answer.
package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
)

// Loop repeats a step: at once, and then after each interval.
type Loop struct {
	// Name is what the loop does, for the log, such as "expire tasks".
	Name string
	// Every is the interval, above zero.
	Every time.Duration
	// Timeout bounds one step, above zero.
	Timeout time.Duration
	// Step does the work once. More means that there is more of it, so the next step follows at once.
	Step func(ctx context.Context) (more bool, err error)
	Log  *slog.Logger
}

// Run repeats the step until ctx ends, and returns nil. A step that fails is tried again, after the interval or less.
func (l Loop) Run(ctx context.Context) error {
	outage := NewOutage(l.Name, l.Log)
	delays := Delays(l.Every)
	for {
		wait := l.Every
		more, err := l.once(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the step was given up because of ctx, and its end is how Run ends
		}
		outage.Note(ctx, err)
		switch {
		case err != nil:
			wait = delays.Next()
		case more:
			wait = 0
			fallthrough
		default:
			delays.Reset()
		}
		if backoff.Sleep(ctx, wait) != nil {
			return nil //nolint:nilerr // only ctx ends the wait
		}
	}
}

func (l Loop) once(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	return l.Step(ctx)
}

// Delays returns how long to wait between tries that fail: from 100 ms up to 5 s, and never longer than most.
func Delays(most time.Duration) *backoff.Backoff {
	longest := min(5*time.Second, most)
	return backoff.New(backoff.Config{Base: min(100*time.Millisecond, longest), Cap: longest, Jitter: 0.2})
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
