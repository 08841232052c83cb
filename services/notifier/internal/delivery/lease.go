package delivery

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolherd/toolherd/services/notifier/internal/loop"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

// errLeaseLost ends an attempt whose lease was lost, be it to time, to a redrive or to another claim.
var errLeaseLost = errors.New("the lease on the delivery was lost")

// attempt is one that is under way, or whose outcome is.
type attempt struct {
	claim   notification.Claim
	cancel  context.CancelCauseFunc
	renewed time.Time // before the lease was last asked for, guarded by held.mu
	lost    atomic.Bool
}

func (a *attempt) isLost() bool { return a.lost.Load() }

func (a *attempt) lose() {
	a.lost.Store(true)
	a.cancel(errLeaseLost)
}

// held are the attempts that are under way, by notification and fence: an attempt whose lease was lost may still be
// ending when the delivery is claimed again.
type held struct {
	lease time.Duration

	mu       sync.Mutex
	attempts map[holdKey]*attempt
}

type holdKey struct {
	id    string
	fence int64
}

func newHeld(lease time.Duration) *held {
	return &held{lease: lease, attempts: map[holdKey]*attempt{}}
}

func (h *held) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.attempts)
}

// begin makes an attempt known, from when its claim was asked for.
func (h *held) begin(c notification.Claim, asked time.Time, cancel context.CancelCauseFunc) *attempt {
	a := &attempt{claim: c, cancel: cancel, renewed: asked}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempts[holdKey{c.ID, c.Fence}] = a
	return a
}

// end makes it unknown again.
func (h *held) end(a *attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attempts, holdKey{a.claim.ID, a.claim.Fence})
}

// due cancels the attempts whose lease has run out, and returns the claims that were not renewed for the given age.
func (h *held) due(now time.Time, age time.Duration) []notification.Claim {
	h.mu.Lock()
	defer h.mu.Unlock()
	var claims []notification.Claim
	for _, a := range h.attempts {
		switch since := now.Sub(a.renewed); {
		case since >= h.lease:
			a.lose()
		case since >= age:
			claims = append(claims, a.claim)
		}
	}
	return claims
}

// renewed says that the leases of claims live for another term from asked on, but for those that are lost.
func (h *held) renewed(claims []notification.Claim, lost []string, asked time.Time) {
	gone := map[string]bool{}
	for _, id := range lost {
		gone[id] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range claims {
		a := h.attempts[holdKey{c.ID, c.Fence}]
		switch {
		case a == nil:
		case gone[c.ID]:
			a.lose()
		default:
			a.renewed = asked
		}
	}
}

// keepLoop renews the leases of attempts at a third, and cancels those that have lost theirs, until done is closed.
func (d *Deliverer) keepLoop(ctx context.Context, done <-chan struct{}) {
	period := max(d.o.Lease/12, time.Millisecond)
	tick := time.NewTicker(period)
	defer tick.Stop()
	outage := loop.NewOutage("renew leases", d.o.Log)
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		claims := d.held.due(time.Now(), d.o.Lease/3-period)
		if len(claims) > 0 {
			outage.Note(ctx, d.renew(ctx, claims))
		}
	}
}

func (d *Deliverer) renew(ctx context.Context, claims []notification.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, d.o.Lease/4)
	defer cancel()
	asked := time.Now()
	lost, err := d.o.Store.Renew(ctx, claims, d.o.Lease)
	if err != nil {
		return err
	}
	d.held.renewed(claims, lost, asked)
	return nil
}
