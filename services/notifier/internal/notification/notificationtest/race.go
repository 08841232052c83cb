package notificationtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/outbox/outboxtest"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

var raceTests = map[string]func(*testing.T, *fixture){
	"ConcurrentSafe: each event is with one claim at a time, the newest of each task is delivered": claimRace,
	"ConcurrentSafe: a reader that goes on after what it saw misses nothing":                       streamRace,
	"ConcurrentSafe: consumers of a group get each event once":                                     shareRace,
	"ConcurrentSafe: a group that comes while events are recorded misses none":                     groupRace,
	"ConcurrentSafe: intake, claims, redrives, pauses and readers do not wait in a circle":         lockRace,
}

const (
	raceTasks    = 40
	raceVersions = 4
)

// together runs functions until all have returned, and fails the test with what they return. The context of each ends
// when one has failed, or after a time that only a deadlock takes.
func (f *fixture) together(functions ...func(ctx context.Context) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(functions))
	for i, fn := range functions {
		wg.Go(func() {
			if errs[i] = fn(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
}

// appendRaceTasks adds the versions of every race task, in two halves that overtake one another.
func (f *fixture) appendRaceTasks(sink string, half int) func(context.Context) error {
	return func(ctx context.Context) error {
		for i := range raceTasks {
			for v := range raceVersions {
				if version := int64(v + 1); v%2 == half {
					if err := outboxtest.Append(ctx, f.db, to(sink, event(fmt.Sprint("t", i), version))); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
}

// take takes events in until all of the race tasks have been.
func (f *fixture) take(taken *atomic.Int64, limit int) func(context.Context) error {
	return func(ctx context.Context) error {
		for taken.Load() < raceTasks*raceVersions {
			n, err := f.Intake(ctx, feed, limit)
			if err != nil {
				return err
			}
			taken.Add(int64(n))
		}
		return nil
	}
}

// NOTE-006, NOTE-005
func claimRace(t *testing.T, f *fixture) {
	var taken atomic.Int64
	var mu sync.Mutex
	with := map[string]string{}  // who holds a delivery
	newest := map[string]int64{} // what was delivered of a task
	claimer := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			for done := false; !done; {
				done = taken.Load() == raceTasks*raceVersions // before the claim: it must find nothing after that
				claims, err := f.Claim(ctx, notification.ClaimRequest{Notifier: name, Sinks: []string{ops}, Limit: 7, Lease: lease})
				if err != nil {
					return err
				}
				done = done && len(claims) == 0
				for _, c := range claims {
					mu.Lock()
					if other := with[c.ID]; other != "" {
						t.Errorf("%s and %s hold %s at the same time", other, name, c.Event.ID)
					}
					with[c.ID] = name
					if c.Event.Version <= newest[c.Event.TaskID] {
						t.Errorf("%s comes after version %d", c.Event.ID, newest[c.Event.TaskID])
					}
					mu.Unlock()
				}
				for _, c := range claims {
					mu.Lock()
					with[c.ID] = ""
					newest[c.Event.TaskID] = max(newest[c.Event.TaskID], c.Event.Version)
					mu.Unlock()
					if ok, err := f.Settle(ctx, notification.Outcome{Claim: c, Verdict: notification.Done}); err != nil || !ok {
						return fmt.Errorf("settle %s: %v, %w", c.Event.ID, ok, err)
					}
				}
			}
			return nil
		}
	}
	f.together(
		f.appendRaceTasks(ops, 0), f.appendRaceTasks(ops, 1), f.take(&taken, 5), f.take(&taken, 3), f.take(&taken, 50),
		claimer("n1"), claimer("n2"), claimer("n3"),
	)
	for _, c := range f.claim(ops) { // those that became due when a claimer had gone
		newest[c.Event.TaskID] = c.Event.Version
		f.settle(c, notification.Done)
	}
	for i := range raceTasks {
		task := fmt.Sprint("t", i)
		f.stands(task, raceVersions, notification.Delivered)
		if newest[task] != raceVersions {
			t.Errorf("the newest that a claimer saw of %s is %d", task, newest[task])
		}
	}
	if n := f.count("outbox"); n != 0 {
		t.Errorf("%d events are left in the outbox", n)
	}
}

// NOTE-018
func streamRace(t *testing.T, f *fixture) {
	var taken atomic.Int64
	f.read("g", 0)
	seen := map[string]int64{}
	reader := func(ctx context.Context) error {
		var last int64
		for done := false; !done; {
			done = taken.Load() == raceTasks*raceVersions
			events, err := f.Next(ctx, notification.StreamRequest{Sink: feed, Group: "g", Consumer: "c", After: last, Limit: 10, Lease: time.Hour})
			if err != nil {
				return err
			}
			done = done && len(events) == 0
			for _, e := range events {
				if e.Sequence <= last {
					t.Errorf("%s has sequence %d, after %d", e.Event.ID, e.Sequence, last)
				}
				last = e.Sequence
				seen[e.Event.TaskID] = e.Event.Version
				if err := f.Ack(ctx, feed, "g", e.Event.ID, authn.Scope{}); err != nil {
					return err
				}
			}
		}
		return nil
	}
	f.together(f.appendRaceTasks("", 0), f.appendRaceTasks("", 1), f.take(&taken, 2), f.take(&taken, 3), f.take(&taken, 10), reader)
	for i := range raceTasks {
		task := fmt.Sprint("t", i)
		if seen[task] != raceVersions {
			t.Errorf("the reader saw version %d of %s last, want %d", seen[task], task, raceVersions)
		}
		f.stands(task, raceVersions, notification.Delivered)
	}
}

// NOTE-018
func shareRace(t *testing.T, f *fixture) {
	const events = 300
	for i := range events {
		f.add(to("", event(fmt.Sprint("t", i), 1)))
	}
	if n, err := f.Intake(t.Context(), feed, events); err != nil || n != events {
		t.Fatalf("took %d, %v", n, err)
	}
	f.next(notification.StreamRequest{Group: "g", Limit: -1}) // the group has come
	var mu sync.Mutex
	had := map[string]int{}
	consumer := func(ctx context.Context) error {
		for {
			got, err := f.Next(ctx, notification.StreamRequest{Sink: feed, Group: "g", Consumer: "c", Limit: 7, Lease: time.Hour})
			if err != nil || len(got) == 0 {
				return err
			}
			mu.Lock()
			for _, e := range got {
				had[e.Event.ID]++
			}
			mu.Unlock()
		}
	}
	f.together(consumer, consumer, consumer, consumer)
	for id, n := range had {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
	for _, id := range f.read("g", 0) { // what was locked by another when a consumer found nothing
		had[id]++
	}
	if len(had) != events {
		t.Errorf("%d events came, want %d", len(had), events)
	}
}

func groupRace(t *testing.T, f *fixture) {
	var taken atomic.Int64
	join := func(group string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := f.Next(ctx, notification.StreamRequest{Sink: feed, Group: group, Consumer: "c", Limit: 0, Lease: lease})
			return err
		}
	}
	functions := []func(context.Context) error{f.appendRaceTasks("", 0), f.appendRaceTasks("", 1), f.take(&taken, 2), f.take(&taken, 3)}
	for i := range 8 {
		group := fmt.Sprint("g", i)
		functions = append(functions, join(group), join(group))
	}
	f.together(functions...)
	var want []string
	for i := range raceTasks {
		want = append(want, fmt.Sprintf("t%d:%d", i, raceVersions))
	}
	slices.Sort(want)
	for i := range 8 {
		got := f.read(fmt.Sprint("g", i), 0)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("group %d reads %v, want %v", i, got, want)
		}
	}
}

func lockRace(t *testing.T, f *fixture) {
	var taken atomic.Int64
	until := func(fn func(ctx context.Context, i int) error) func(context.Context) error {
		return func(ctx context.Context) error {
			for i := 0; taken.Load() < raceTasks*raceVersions; i++ {
				if err := fn(ctx, i); err != nil {
					return err
				}
			}
			return nil
		}
	}
	claimer := func(ctx context.Context, i int) error {
		claims, err := f.Claim(ctx, notification.ClaimRequest{Notifier: "n", Sinks: []string{ops}, Known: []string{ops}, Limit: 20, Lease: lease})
		if err != nil {
			return err
		}
		if _, err := f.Renew(ctx, claims, lease); err != nil {
			return err
		}
		for _, c := range claims {
			v := []notification.Verdict{notification.Done, notification.Failed, notification.Dead, notification.Deferred}[i%4]
			if _, err := f.Settle(ctx, notification.Outcome{Claim: c, Verdict: v}); err != nil {
				return err
			}
		}
		return nil
	}
	reader := func(ctx context.Context, i int) error {
		events, err := f.Next(ctx, notification.StreamRequest{Sink: ops, Group: fmt.Sprint("g", i%3), Consumer: "c", Limit: 10, Lease: time.Millisecond})
		if err != nil {
			return err
		}
		for _, e := range events {
			if err := f.Ack(ctx, ops, fmt.Sprint("g", i%3), e.Event.ID, ada); err != nil && !errors.Is(err, notification.ErrNotFound) {
				return err
			}
		}
		return nil
	}
	f.together(
		f.appendRaceTasks(ops, 0), f.appendRaceTasks(ops, 1), f.take(&taken, 5), f.take(&taken, 7),
		until(claimer), until(claimer), until(reader), until(reader),
		until(func(ctx context.Context, _ int) error {
			_, err := f.Redrive(ctx, notification.Redrive{Actor: "ada"})
			return err
		}),
		until(func(ctx context.Context, i int) error { return f.SetPaused(ctx, ops, i%2 == 0, "") }),
		until(func(ctx context.Context, _ int) error {
			_, err := f.Forget(ctx, []string{ops}, -time.Hour, 10)
			return err
		}),
		until(func(ctx context.Context, _ int) error {
			_, err := f.Prune(ctx, time.Hour, 10)
			return err
		}),
	)
	for i := range raceTasks {
		if n := f.of(fmt.Sprint("t", i)); n.EventVersion != raceVersions && n.WaitingVersion != raceVersions {
			t.Errorf("%s is at version %d, want %d", n.TaskID, n.EventVersion, raceVersions)
		}
	}
}
