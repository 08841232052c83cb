package discovery

import (
	"cmp"
	"context"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/activation"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

const (
	// debounce gathers a burst of list_changed into one check.
	debounce = 250 * time.Millisecond
	// steady is how long a good verdict must have held for the back-off to start anew.
	steady = time.Minute
	// shortestTTL keeps a server from having its list read all the time.
	shortestTTL = 10 * time.Second
	// giveUp is the number of failed checks in a row after which a list is no longer served.
	giveUp = 3
)

// retries is the back-off of a server that fails.
func retries() *backoff.Backoff {
	return backoff.New(backoff.Config{Base: time.Second, Cap: 5 * time.Minute, Factor: 2, Jitter: 0.2})
}

// monitor is one server of the current snapshot. Fields without a remark are guarded by Discovery.mu.
type monitor struct {
	d       *Discovery         // constant
	cancel  context.CancelFunc // constant once started; nil if there is nothing to check
	wake    chan struct{}      // holds one: check at once
	changed chan struct{}      // holds one: the server says that its list changed

	entry    *activation.Entry
	upstream *upstream.Server // nil until activated
	stopped  bool             // no longer part of the snapshot

	status    corev1.ServerStatus
	reason    string
	tail      string
	fix       string
	since     time.Time
	nextRetry time.Time
	failures  int // checks in a row

	known    []catalog.Definition // the last good list
	hasList  bool
	unbound  bool     // its toolsets cannot work as things stand: the list explains, and is not served
	warnings []string // about that list
	tools    catalog.Contribution

	begun, ended int           // counts of checks
	verdict      chan struct{} // closed and replaced with each end of a check
}

// newMonitor returns the monitor of an entry with its first status. It starts nothing.
func (d *Discovery) newMonitor(e *activation.Entry) *monitor {
	m := &monitor{
		d: d, entry: e,
		wake: make(chan struct{}, 1), changed: make(chan struct{}, 1), verdict: make(chan struct{}),
		status: corev1.ServerStatus_SERVER_STATUS_STARTING, reason: "its first start is under way", since: time.Now(),
	}
	if !e.Startable() {
		m.status, m.reason, m.fix = e.Status, e.Reason, e.FixCommand
	}
	return m
}

// run checks the server whenever there is cause to, until ctx ends.
func (m *monitor) run(ctx context.Context) {
	var (
		pause  = retries()
		okTime time.Time // of the last verdict, if it was good
	)
	delay := func() time.Duration {
		if !okTime.IsZero() && time.Since(okTime) >= steady {
			pause.Reset()
		}
		okTime = time.Time{}
		return pause.Next()
	}
	for {
		r := m.check(ctx)
		if ctx.Err() != nil {
			return
		}
		var wait time.Duration // 0: no check is planned
		switch {
		case r.err != nil:
			wait = delay()
		case r.ttl > 0:
			wait = max(r.ttl, shortestTTL)
		}
		m.conclude(r, wait)
		if r.err == nil {
			okTime = cmp.Or(okTime, time.Now())
		}
		cause := m.await(ctx, wait, r)
		if cause == sessionEnded {
			// Its server ended it: a server that starts well and then fails is not started without a pause.
			cause = m.await(ctx, delay(), result{})
		}
		if cause == stopped {
			return
		}
	}
}

// cause is why a check is due.
type cause uint8

const (
	stopped cause = iota // none: the monitor's context ended
	asked
	planned
	listChanged
	sessionEnded
)

// await waits for the next cause of a check. A wait of 0 has no end. An announcement counts while its session lives: a
// server that makes one and ends must not get around the back-off.
func (m *monitor) await(ctx context.Context, wait time.Duration, r result) cause {
	var timer <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		timer = t.C
	}
	var ended <-chan struct{}
	if r.session != nil {
		ended = r.session.Done()
	}
	var changed <-chan struct{}
	if r.lives {
		changed = m.changed
	}
	for {
		select {
		case <-ctx.Done():
			return stopped
		case <-m.wake:
			return asked
		case <-timer:
			return planned
		case <-changed:
			if backoff.Sleep(ctx, debounce) != nil {
				return stopped
			}
			select { // the rest of the burst
			case <-changed:
			default:
			}
			if r.session != nil && r.session.Err() != nil && !r.session.Closed() {
				return sessionEnded
			}
			return listChanged
		case <-ended:
			if !r.session.Closed() {
				return sessionEnded
			}
			ended = nil // idle, evicted or reset: the next call starts another one
		}
	}
}

// nudge fills a channel that holds one.
func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// conclude records the verdict of a check and publishes it.
func (m *monitor) conclude(r result, wait time.Duration) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.stopped {
		return
	}
	now := time.Now()
	status := corev1.ServerStatus_SERVER_STATUS_OK
	m.reason, m.tail, m.fix, m.nextRetry = "", "", "", time.Time{}
	m.unbound = r.unbound || m.unbound && r.err != nil
	if r.tools != nil {
		m.known, m.warnings, m.hasList = r.tools, r.warnings, true
		m.tools = catalog.Contribute(m.entry.Rules, m.known)
	}
	if r.err == nil {
		m.failures = 0
	} else {
		m.failures++
		m.nextRetry = now.Add(wait)
		status = corev1.ServerStatus_SERVER_STATUS_ERROR
		m.reason, m.tail = m.d.explain(r.err)
		if wantsLogin(r.err) {
			status = corev1.ServerStatus_SERVER_STATUS_UNAUTHENTICATED
			m.fix = loginCommand(m.entry.Name)
		}
	}
	if m.status != status {
		m.status, m.since = status, now
	}
	m.ended++
	close(m.verdict)
	m.verdict = make(chan struct{})
	m.d.publish()
}

// source is what the catalog shows of the server. The caller holds Discovery.mu.
func (m *monitor) source() catalog.Source {
	e := m.entry
	s := catalog.Source{
		Name: e.Name, Transport: e.Transport, File: e.File, Prefix: e.Rules.Prefix,
		Status: m.status, Reason: m.reason, Tail: m.tail, FixCommand: m.fix, Since: m.since, NextRetry: m.nextRetry,
		Stale: e.Stale, Upstream: m.upstream, Tools: m.tools,
	}
	s.Public, s.Class = e.Public()
	s.Warnings = append(append(s.Warnings, e.Warnings...), m.warnings...)
	if m.hasList {
		s.Listed = m.failures < giveUp && !m.unbound
		s.Stale = s.Stale || m.failures > 0 && s.Listed
	}
	return s
}
