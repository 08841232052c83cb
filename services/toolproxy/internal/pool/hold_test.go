package pool_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

// forTask is the request of a background call.
func forTask(r pool.Request, task string, hold time.Duration) pool.Request {
	r.Task, r.HoldFor = task, hold
	return r
}

// SESS-012: a held session is not idle-ended; when the hold has run out it is.
func TestHeldSessionsAreNotIdle(t *testing.T) {
	with(t, pool.Options{IdleTimeout: time.Hour}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		s := target("1")
		lease := f.get(t, request(s, "u", "held"))
		lease.Hold("task", 5*time.Hour)
		lease.Release()
		f.use(t, request(s, "u", "idle"))
		time.Sleep(4 * time.Hour)
		if got := threads(f); fmt.Sprint(got) != "[held]" {
			t.Errorf("sessions are %v", got)
		}
		if !f.Extend("task", 5*time.Hour) || f.Extend("another", time.Hour) {
			t.Error("a hold is extended, and none is made of nothing")
		}
		f.Extend("task", time.Minute) // does not shorten it
		if got, want := f.List()[0].HeldUntil, time.Now().Add(5*time.Hour); !got.Equal(want) {
			t.Errorf("held until %v, want %v", got, want)
		}
		time.Sleep(5*time.Hour - time.Minute)
		if n := len(f.List()); n != 1 {
			t.Errorf("%d sessions before the hold ends", n)
		}
		time.Sleep(5 * time.Minute)
		if n := len(f.List()); n != 0 {
			t.Errorf("%d sessions after it has", n)
		}
	})
}

// SESS-012: a held session makes no room for others, who get SESSION_LIMIT where all are held.
func TestHeldSessionsAreNotEvicted(t *testing.T) {
	with(t, pool.Options{MaxSessions: 2}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		s := target("1")
		id := f.use(t, forTask(request(s, "u", "held"), "one", time.Hour))
		time.Sleep(time.Second)
		f.use(t, request(s, "u", "second"))
		time.Sleep(time.Second)
		f.use(t, request(s, "u", "third")) // second makes room, though held was used before it
		if got := threads(f); fmt.Sprint(got) != "[held third]" {
			t.Errorf("sessions are %v", got)
		}
		f.use(t, forTask(request(s, "u", "third"), "two", time.Hour))
		if _, err := f.Get(t.Context(), request(s, "u", "fourth")); !fault.Is(err, fault.SessionLimit) {
			t.Errorf("with every session held: %v", err)
		}
		if f.use(t, request(s, "u", "held")) != id {
			t.Error("the held session was replaced")
		}
		f.Unhold("one")
		if got := f.use(t, request(s, "u", "fourth")); got == id {
			t.Error("nothing made room")
		}
	})
}

// SESS-012: a change of the configuration does not drain a held session; with its last task it ends.
func TestHeldSessionsAreNotDrained(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		f.SetActive(map[string]string{"s": "old"})
		r := request(target("old"), "u", "t")
		id := f.use(t, forTask(r, "one", time.Hour))
		f.use(t, forTask(r, "two", time.Hour))
		f.SetActive(map[string]string{"s": "new"})
		f.SetActive(map[string]string{})
		synctest.Wait()
		if f.use(t, forTask(r, "one", time.Hour)) != id {
			t.Error("the task lost its session")
		}
		if _, err := f.Get(t.Context(), r); !pool.Retired(err) {
			t.Errorf("an ordinary call of the old configuration: %v", err)
		}
		f.Unhold("one")
		f.Unhold("unknown")
		synctest.Wait()
		if f.server.Alive() != 1 {
			t.Error("the session ended while a task holds it")
		}
		f.Unhold("two")
		synctest.Wait()
		if f.server.Alive() != 0 {
			t.Error("the session outlived its last task")
		}
	})
}

func TestRetiredSessionsEndWhenTheirHoldRunsOut(t *testing.T) {
	with(t, pool.Options{IdleTimeout: 100 * time.Hour}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		f.SetActive(map[string]string{"s": "old"})
		f.use(t, forTask(request(target("old"), "u", "t"), "one", time.Hour))
		f.SetActive(map[string]string{"s": "new"})
		time.Sleep(59 * time.Minute)
		if f.server.Alive() != 1 {
			t.Error("the session ended before the hold")
		}
		time.Sleep(3 * time.Minute)
		if f.server.Alive() != 0 {
			t.Error("the session outlived the hold")
		}
	})
}

// SESS-011: a retired fingerprint starts no session, except for background calls of tasks bound to it.
func TestTasksStartSessionsOfRetiredFingerprints(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		f.SetActive(map[string]string{"s": "new"})
		old := request(target("old"), "u", "t")
		if _, err := f.Get(t.Context(), old); !pool.Retired(err) {
			t.Errorf("an ordinary call: %v", err)
		}
		id := f.use(t, forTask(old, "one", time.Hour))
		if f.use(t, forTask(old, "two", time.Hour)) != id {
			t.Error("the second task got another session")
		}
		f.SetActive(map[string]string{"s": "newer"})
		if f.use(t, forTask(old, "one", time.Hour)) != id {
			t.Error("the session did not outlive the next change")
		}
	})
}

// SESS-011: whether a start is still wanted is checked again when the session is published.
func TestStartsForTasksOutliveAChangeAndTheirWaiters(t *testing.T) {
	with(t, pool.Options{}, hanging, func(t *testing.T, f *fixture) {
		f.SetActive(map[string]string{"s": "old"})
		r := forTask(request(target("old"), "u", "t"), "one", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		waiter := make(chan error, 1)
		go func() {
			_, err := f.Get(ctx, r)
			waiter <- err
		}()
		synctest.Wait()
		f.SetActive(map[string]string{"s": "new"})
		if err := <-waiter; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the waiter got %v", err)
		}
		close(f.release)
		synctest.Wait()
		if f.server.Alive() != 1 || len(f.List()) != 1 {
			t.Errorf("%d processes, %d sessions", f.server.Alive(), len(f.List()))
		}
		f.use(t, r)
		if n := len(f.server.Processes()); n != 1 {
			t.Errorf("%d starts for one task", n)
		}
	})
}

func TestHeldSessionsEndByResetAndByTheirWire(t *testing.T) {
	for name, end := range map[string]func(f *fixture){
		"reset": func(f *fixture) { f.Reset(func(upstream.Key) bool { return true }) },
		"wire":  func(f *fixture) { f.server.Processes()[0].Exit(errors.New("exit status 1")) },
		"forsaken": func(f *fixture) {
			f.SetActive(nil)
			f.Forsake("other")
			f.SetActive(map[string]string{})
			f.Forsake("s")
		},
	} {
		t.Run(name, func(t *testing.T) {
			with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
				r := forTask(request(target("1"), "u", "t"), "one", time.Hour)
				f.use(t, r)
				end(f)
				synctest.Wait()
				if f.server.Alive() != 0 || len(f.List()) != 0 {
					t.Errorf("%d processes, %d sessions", f.server.Alive(), len(f.List()))
				}
				if f.Extend("one", time.Hour) {
					t.Error("the hold outlived the session")
				}
				f.use(t, r)
				if n := len(f.server.Processes()); n != 2 {
					t.Errorf("%d starts", n)
				}
			})
		})
	}
}

func TestATaskHoldsOneSession(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		f.SetActive(map[string]string{"s": "old"})
		f.use(t, forTask(request(target("old"), "u", "t"), "one", time.Hour))
		f.SetActive(map[string]string{"s": "new"})
		f.use(t, forTask(request(target("new"), "u", "t"), "one", time.Hour))
		synctest.Wait()
		if list := f.List(); len(list) != 1 || list[0].Key.Fingerprint != "new" || list[0].HeldUntil.IsZero() {
			t.Errorf("sessions are %+v", list)
		}
	})
}

func TestADiscardedSessionIsNotHeld(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		lease := f.get(t, forTask(request(target("1"), "u", "t"), "one", time.Hour))
		lease.Discard()
		lease.Hold("one", time.Hour)
		lease.Release()
		synctest.Wait()
		if f.server.Alive() != 0 || f.Extend("one", time.Hour) {
			t.Error("it lives on for the task")
		}
	})
}
