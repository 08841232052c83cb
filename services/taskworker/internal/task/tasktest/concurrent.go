package tasktest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// seen is what claimers got, each lease once.
type seen struct {
	mu     sync.Mutex
	leases map[task.Hold]string
	tasks  map[string]int
}

func (s *seen) add(t *testing.T, worker string, claims []task.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range claims {
		if other := s.leases[c.Hold]; other != "" {
			t.Errorf("%s and %s both claimed %+v", other, worker, c.Hold)
		}
		s.leases[c.Hold] = worker
		s.tasks[c.TaskID]++
	}
}

// TASK-017 TASK-018
func claimers(t *testing.T, b Bench) {
	const tasks, workers, batch = 120, 8, 7
	for n := range tasks {
		b.submit(t, n)
	}
	b.Pass(t, time.Minute)
	s := &seen{leases: map[task.Hold]string{}, tasks: map[string]int{}}
	for round := range 3 {
		held := make([][]task.Claim, workers)
		atOnce(workers, func(k int) {
			worker := fmt.Sprint("w", k)
			for {
				claims, err := b.Claim(t.Context(), worker, batch)
				if err != nil {
					t.Error(err)
					return
				}
				if len(claims) == 0 { // a claim skips what others are just locking, so this says little
					return
				}
				s.add(t, worker, claims)
				held[k] = append(held[k], claims...)
			}
		})
		s.add(t, "the last", b.claim(t, tasks)) // what every claimer skipped
		if len(s.tasks) != tasks || len(s.leases) != tasks*(round+1) {
			t.Fatalf("round %d: %d leases on %d tasks, want each task claimed once", round, len(s.leases), len(s.tasks))
		}
		b.Pass(t, Policy().Lease+time.Minute)
	}
}

// Everyone works on the same few tasks, and no statement may fail: not for a deadlock, nor for a row that has gone.
//
// TASK-018
func everyone(t *testing.T, b Bench) {
	const tasks, rounds = 12, 25
	ids := make([]string, tasks)
	for n := range tasks {
		ids[n] = b.submit(t, n).ID
	}
	b.Exec(t, "update task_live set due_time = poll_time") // as it is; the last one before the storm
	b.Pass(t, time.Minute)
	s := &seen{leases: map[task.Hold]string{}, tasks: map[string]int{}}
	var settled sync.Map
	worker := func(k int) {
		name := fmt.Sprint("w", k)
		for range rounds {
			claims, err := b.Claim(t.Context(), name, 5)
			if err != nil {
				t.Errorf("claim: %v", err)
				return
			}
			s.add(t, name, claims)
			var holds []task.Hold
			var outcomes []task.Outcome
			for _, c := range claims {
				holds = append(holds, c.Hold)
				o := says(c, task.Snapshot{Status: task.Working, PollAfter: time.Nanosecond, StatusMessage: fmt.Sprint(rand.IntN(3))})
				if rand.IntN(20) == 0 {
					o = says(c, completed(`1`))
				}
				outcomes = append(outcomes, o)
			}
			if _, err := b.Renew(t.Context(), holds); err != nil {
				t.Errorf("renew: %v", err)
			}
			if k == 0 && rand.IntN(2) == 0 {
				if err := b.Release(t.Context(), holds); err != nil {
					t.Errorf("release: %v", err)
				}
			}
			rand.Shuffle(len(outcomes), func(x, y int) { outcomes[x], outcomes[y] = outcomes[y], outcomes[x] })
			results, err := b.Settle(t.Context(), outcomes)
			if err != nil {
				t.Errorf("settle: %v", err)
			}
			for i, r := range results {
				if r.Dropped {
					continue
				}
				if _, twice := settled.LoadOrStore(outcomes[i].Claim.Hold, true); twice {
					t.Errorf("%+v was settled twice", outcomes[i].Claim.Hold)
				}
			}
		}
	}
	owner := func() {
		for k := range rounds {
			if _, err := b.RequestCancel(t.Context(), ids[k%tasks]); err != nil {
				t.Errorf("request cancel: %v", err)
			}
			if _, err := b.Expire(t.Context(), 3); err != nil {
				t.Errorf("expire: %v", err)
			}
			if _, err := b.Reap(t.Context(), 3); err != nil {
				t.Errorf("reap: %v", err)
			}
			if _, err := b.Prune(t.Context(), 3); err != nil {
				t.Errorf("prune: %v", err)
			}
			if _, err := b.Reserve(t.Context(), intent(1000+k)); err != nil {
				t.Errorf("reserve: %v", err)
			}
		}
	}
	atOnce(6, func(k int) {
		if k < 4 {
			worker(k)
		} else if k == 4 {
			owner()
		} else {
			for range rounds {
				if _, err := b.List(t.Context(), task.Filter{}); err != nil {
					t.Errorf("list: %v", err)
				}
			}
		}
	})
	if len(s.leases) < tasks {
		t.Errorf("only %d leases were given", len(s.leases))
	}
}

func badRow(t *testing.T, b Bench) {
	b.Refuse(t, "cursed")
	var outcomes []task.Outcome
	for n := range 5 {
		b.submit(t, n)
	}
	b.Pass(t, Policy().PollInterval)
	for n, c := range b.claim(t, 5) {
		o := says(c, completed(`1`))
		if n == 2 {
			o.Worker = "cursed"
		}
		outcomes = append(outcomes, o)
	}
	settled, err := b.Settle(t.Context(), outcomes)
	if err == nil || len(settled) != len(outcomes) {
		t.Fatalf("settled %v, %v, want an answer for each and an error", settled, err)
	}
	for n, s := range settled {
		if s.TaskID != outcomes[n].Claim.TaskID || s.Dropped != (n == 2) || s.Event == (n == 2) {
			t.Errorf("outcome %d was settled as %+v", n, s)
		}
		want := task.Completed
		if n == 2 {
			want = task.Submitted
		}
		if got := b.get(t, s.TaskID); got.Status != want {
			t.Errorf("task %d is %s, want %s", n, got.Status, want)
		}
	}
	if e := b.Events(t); len(e) != 4 {
		t.Errorf("%d events, want those of the four tasks that ended", len(e))
	}
	outcomes[2].Worker = "w1"
	b.done(t, outcomes[2]) // the lease still lives
}
