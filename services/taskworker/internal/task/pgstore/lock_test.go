package pgstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/pgstore"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/tasktest"
)

// submit makes n tasks that are due at once.
func submit(t *testing.T, s *pgstore.Store, n int) {
	t.Helper()
	for k := range n {
		r, err := s.Reserve(t.Context(), task.Intent{
			Scope: authn.Scope{UserID: "u", ThreadID: "t"}, Server: "s", TaskName: "n", Fingerprint: "fp", Binding: []byte("b"),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(t.Context(), task.Commitment{
			Hold: task.Hold{TaskID: r.TaskID, Fence: r.Fence}, Handle: []byte("h"), RemoteID: fmt.Sprint(k),
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A row that someone else has locked is waited for after the others are settled.
func TestALockedRowHindersNoOther(t *testing.T) {
	pool := dbtest.Postgres(t).Pool()
	s := pgstore.New(pool, tasktest.Policy())
	const n = 4
	submit(t, s, n)
	bench(pool, tasktest.Policy()).Pass(t, time.Minute)
	claims, err := s.Claim(t.Context(), "w", n)
	if err != nil || len(claims) != n {
		t.Fatalf("claimed %v, %v", claims, err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "select from task_live where task_id = $1 for update", claims[1].TaskID); err != nil {
		t.Fatal(err)
	}
	if lost, err := s.Renew(t.Context(), []task.Hold{claims[0].Hold, claims[1].Hold}); err != nil || len(lost) != 0 {
		t.Errorf("renewing lost %v, %v; a locked lease is not lost", lost, err)
	}
	var outcomes []task.Outcome
	for _, c := range claims {
		outcomes = append(outcomes, task.Outcome{Claim: c, Worker: "w", Snapshot: &task.Snapshot{Status: task.Completed}})
	}
	done := make(chan error, 1)
	var settled []task.Settled
	go func() {
		var err error
		settled, err = s.Settle(t.Context(), outcomes)
		done <- err
	}()
	deadline := time.After(2 * time.Second)
	for others := 0; others < n-1; {
		if err := pool.QueryRow(t.Context(), "select count(*) from task_task where status = 'completed'").Scan(&others); err != nil {
			t.Fatal(err)
		}
		select {
		case <-deadline:
			t.Fatalf("%d of %d others were settled beside a locked row", others, n-1)
		default:
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for k, x := range settled {
		if x.Dropped || x.TaskID != claims[k].TaskID || x.Status != task.Completed {
			t.Errorf("outcome %d was settled as %+v", k, x)
		}
	}
}

// While there is a backlog a claim begins where the last one ended, and still finds what was put before that.
func TestTheFloorOfABacklogHidesNothingForLong(t *testing.T) {
	pool := dbtest.Postgres(t).Pool()
	s := pgstore.New(pool, tasktest.Policy())
	submit(t, s, 20)
	b := bench(pool, tasktest.Policy())
	b.Pass(t, time.Minute)
	first, err := s.Claim(t.Context(), "w", 5)
	if err != nil || len(first) != 5 {
		t.Fatalf("claimed %v, %v", first, err)
	}
	// An hour before everything else.
	b.Exec(t, "update task_live set due_time = due_time - interval '1 hour', poll_time = poll_time - interval '1 hour' where task_id = '"+first[0].TaskID+"'")
	seen := map[string]bool{}
	for range 3 {
		claims, err := s.Claim(t.Context(), "w", 5)
		if err != nil || len(claims) != 5 {
			t.Fatalf("claimed %v, %v", claims, err)
		}
		for _, c := range claims {
			seen[c.TaskID] = true
		}
	}
	last, err := s.Claim(t.Context(), "w", 5)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range last {
		seen[c.TaskID] = true
	}
	if len(seen) != 16 || !seen[first[0].TaskID] {
		t.Errorf("%d tasks were claimed, the one below the floor: %v; want 16, with it", len(seen), seen[first[0].TaskID])
	}
}
