package task

import (
	"math"
	"time"
)

// Limits that no configuration changes.
const (
	ReservationTTL = 15 * time.Second // of a reservation, from each time that it is made or extended
	AttemptsKept   = 20               // newest attempts of a task
	MaxErrorChars  = 4000             // of a kept error or status message

	maxPayloadBytes   = 64 << 10 // of input_required and of a result's artifact, each
	maxPayloadDepth   = 1000     // of the same
	maxResultBytes    = 16 << 20 // of a result that is kept beside its task
	minPollHint       = 250 * time.Millisecond
	maxPollGap        = 24 * time.Hour
	steadyPollGap     = 60 * time.Second // what the gap of an unchanging task grows to
	cancelResendAfter = 5 * time.Minute  // of an acknowledged cancel
	cancelTriesAlone  = 5                // failing cancels before polling resumes beside them
)

// Policy is what an operator may set about tasks.
type Policy struct {
	PollInterval              time.Duration // between polls without a hint, before they grow
	Lease                     time.Duration // of a claim
	MaxPollBackoff            time.Duration // between failing polls, and between failing cancels
	InputRequiredPollInterval time.Duration // at least, while a task waits for input
	MaxAge                    time.Duration // of a task that does not end; 0: no limit
	Retention                 time.Duration // of a task that has ended

	TrackingDegradedAfterErrors int // consecutive
	MaxResultBytes              int // of a result that is kept in its task
	ResultPreviewMaxChars       int
}

// nextPoll returns how long after a poll that succeeded the next one is due. Jitter is in [0, 1).
func (p Policy) nextPoll(status Status, hint time.Duration, unchanged int, jitter float64) time.Duration {
	gap := p.pollGap(unchanged)
	if hint > 0 {
		gap = min(max(hint, minPollHint), maxPollGap)
		gap += time.Duration(jitter * float64(gap) / 10)
	}
	if status == InputRequired {
		gap = max(gap, p.InputRequiredPollInterval)
	}
	return min(gap, maxPollGap)
}

// pollGap is the poll interval after so many polls that changed nothing.
func (p Policy) pollGap(unchanged int) time.Duration {
	grown := float64(p.PollInterval) * math.Pow(1.5, float64(min(unchanged, 64)))
	return time.Duration(min(grown, float64(max(steadyPollGap, p.PollInterval))))
}

// backoff returns how long to wait after n consecutive failures.
func (p Policy) backoff(n int) time.Duration {
	wait := float64(p.PollInterval) * float64(int(1)<<min(max(n, 0), 16))
	return time.Duration(min(wait, float64(p.MaxPollBackoff)))
}

// holdFor returns how long the session of a remote task may be needed that was polled with this gap before.
func (p Policy) holdFor(gap time.Duration) time.Duration {
	return max(gap, p.PollInterval, steadyPollGap, p.MaxPollBackoff, p.InputRequiredPollInterval) + 2*p.Lease
}

// expiry returns when a task ends at the latest, for a time to live that its submit asked for; 0 is none.
func (p Policy) expiry(created time.Time, ttl time.Duration) time.Time {
	return earliest(after(created, ttl), after(created, p.MaxAge))
}

// after returns t + d, or never if d is 0.
func after(t time.Time, d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return t.Add(d)
}

// earliest returns the earlier of two times of which a zero one means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
