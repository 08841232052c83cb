package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/toolherd/toolherd/services/taskworker/internal/loop"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// errLeaseLost ends a call whose lease was lost, be it to time, to a cancel or to another claim.
var errLeaseLost = errors.New("the lease on the task was lost")

// callTime returns how long a call may take: less than its lease, so that there is time left to write what it brings.
func callTime(lease time.Duration) time.Duration { return lease * 4 / 5 }

// maxRenewals is the most leases that one statement renews.
const maxRenewals = 500

// call is a remote call that is under way.
type call struct {
	hold    task.Hold
	cancel  context.CancelCauseFunc
	ends    time.Time     // its deadline: what outlasts it has its lease no longer renewed
	renewed time.Time     // before the lease was last asked for, guarded by calls.mu
	done    chan struct{} // nil unless somebody waits for the end of the call, guarded by calls.mu
}

// calls are the calls that are under way, at most one for each task.
type calls struct {
	lease time.Duration

	mu     sync.Mutex
	byTask map[string]*call
}

func newCalls(lease time.Duration) *calls { return &calls{lease: lease, byTask: map[string]*call{}} }

func (s *calls) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byTask)
}

// begin makes a call known, whose end cancel brings. If an earlier call of the same task is under way, its lease is lost:
// begin ends it and waits for that. It returns nil if meanwhile too little is left of the claim's own lease.
func (s *calls) begin(c *claimed, cancel context.CancelCauseFunc) *call {
	k := &call{hold: c.Hold, cancel: cancel, ends: time.Now().Add(callTime(s.lease)), renewed: c.taken}
	for {
		earlier := s.enter(k)
		if earlier == nil {
			break
		}
		<-earlier
	}
	if time.Since(c.taken) > s.lease/2 {
		s.end(k)
		return nil
	}
	return k
}

// enter adds k, or cancels the call of its task that is under way and returns a channel that is closed when it ends.
func (s *calls) enter(k *call) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byTask[k.hold.TaskID]
	if old == nil {
		s.byTask[k.hold.TaskID] = k
		return nil
	}
	old.cancel(errLeaseLost)
	if old.done == nil {
		old.done = make(chan struct{})
	}
	return old.done
}

// end forgets a call and returns when its lease ends, at the earliest.
func (s *calls) end(k *call) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byTask, k.hold.TaskID)
	if k.done != nil {
		close(k.done)
	}
	return k.renewed.Add(s.lease)
}

// due cancels the calls whose lease has run out, and returns the leases that have not been renewed for the given age and
// are to be.
func (s *calls) due(now time.Time, age time.Duration) []task.Hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	var holds []task.Hold
	for _, k := range s.byTask {
		switch since := now.Sub(k.renewed); {
		case since >= s.lease:
			k.cancel(errLeaseLost)
		case since >= age && now.Before(k.ends):
			holds = append(holds, k.hold)
		}
	}
	return holds
}

// renewed says that the leases live for another term from asked on, but for those that are lost.
func (s *calls) renewed(holds, lost []task.Hold, asked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	each := func(holds []task.Hold, do func(*call)) {
		for _, h := range holds {
			if k := s.byTask[h.TaskID]; k != nil && k.hold == h {
				do(k)
			}
		}
	}
	each(holds, func(k *call) { k.renewed = asked })
	each(lost, func(k *call) { k.cancel(errLeaseLost) })
}

// keepLoop renews the leases of running calls at a third, and cancels the calls that have lost theirs, until the last call
// has ended. A hint makes it look at all of them at once: one may have been fenced.
func (w *Worker) keepLoop(ctx context.Context, called <-chan struct{}) {
	fenced, stop := w.o.Bus.Subscribe(TopicFenced)
	defer stop()
	period := w.o.Lease / 12
	tick := time.NewTicker(period)
	defer tick.Stop()
	outage := loop.NewOutage("renew leases", w.o.Log)
	for {
		age := w.o.Lease/3 - period
		select {
		case <-called:
			return
		case <-tick.C:
		case <-fenced:
			age = 0
		}
		if asked, err := w.renew(ctx, age); asked {
			outage.Note(ctx, err)
		}
	}
}

// renew renews the leases that have not been for the given age. Asked is false if there were none.
func (w *Worker) renew(ctx context.Context, age time.Duration) (asked bool, err error) {
	holds := w.calls.due(time.Now(), age)
	for len(holds) > 0 && err == nil {
		n := min(len(holds), maxRenewals)
		err = w.renewBatch(ctx, holds[:n])
		holds, asked = holds[n:], true
	}
	return asked, err
}

func (w *Worker) renewBatch(ctx context.Context, holds []task.Hold) error {
	ctx, cancel := context.WithTimeout(ctx, w.o.Lease/4)
	defer cancel()
	asked := time.Now()
	lost, err := w.o.Store.Renew(ctx, holds)
	if err != nil {
		return err
	}
	w.calls.renewed(holds, lost, asked)
	return nil
}
