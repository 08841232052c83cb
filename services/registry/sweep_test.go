package registry_test

import (
	"testing"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
)

// age makes every secret appear unused for longer, by hours.
func age(t *testing.T, d *db.DB, hours string) {
	t.Helper()
	statement := "update registry_secret set use_time = use_time - " + hours + " * 3600 * 1000"
	if d.Engine() == db.Postgres {
		statement = "update registry_secret set use_time = use_time - " + hours + " * interval '1 hour'"
	}
	if err := execute(t, d, statement); err != nil {
		t.Fatal(err)
	}
}

func (n *node) sweep(t *testing.T, want int) {
	t.Helper()
	if got, err := n.Sweep(t.Context()); err != nil || got != want {
		t.Errorf("%d secrets were deleted, %v, want %d", got, err, want)
	}
}

// SNAP-009
func TestTheSecretsOfARemovedServerLiveAsLongAsItsTasks(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"a":{"command":"x","env":{"K":"literal-one","L":"literal-two"}}}`)
		n := start(t, d, options{cfg: p.config()}) // tasks end after 720 h
		bound := boundRef(t, n.current(t), "a", "K")

		age(t, d, "10000")
		n.sweep(t, 0) // what is in force is in use
		p.user(`{"b":{"command":"x"}}`)
		n.becomes(t, "b: ACTIVE")
		age(t, d, "10000")
		n.sweep(t, 0) // its snapshot is stored and can be activated again
		n.activate(t, n.kept(t)[1], "")
		n.becomes(t, "a: ACTIVE")
		if got, err := n.resolve(t, n.current(t).GetSnapshotId(), "a"); err != nil || got["env.K"] != "literal-one" {
			t.Errorf("after a rollback: %v, %v", got, err)
		}
		n.release(t)
		fill(t, d, 100) // and now it is not

		// A task that was submitted while the server was there resolves a secret now and then, however long it takes.
		for _, deleted := range []int{0, 0, 1} { // the other one, 900 hours after it was in force
			age(t, d, "300")
			n.sweep(t, deleted)
			if got, err := n.resolveRefs(t, "a", bound); err != nil || got["env.K"] != "literal-one" {
				t.Fatalf("while the task lives: %v, %v", got, err)
			}
		}
		if got := secretsStored(t, d); got != 1 {
			t.Errorf("%d secrets are stored, want the one that a task uses", got)
		}
		age(t, d, "743") // less than the longest task and a day
		n.sweep(t, 0)
		if got, err := n.resolveRefs(t, "a", bound); err != nil || got["env.K"] != "literal-one" {
			t.Errorf("within the age of the longest task: %v, %v", got, err)
		}
		age(t, d, "745")
		n.sweep(t, 1)
		if got, err := n.resolveRefs(t, "a", bound); !fault.Is(err, fault.ServerError) || len(got) != 0 {
			t.Errorf("long after the task: %d secrets, %v", len(got), err)
		}
		if got := secretsStored(t, d); got != 0 {
			t.Errorf("%d secrets are left", got)
		}
	})
}

func secretsStored(t *testing.T, d *db.DB) (n int) {
	t.Helper()
	const query = "select count(*) from registry_secret"
	var err error
	if d.Engine() == db.Postgres {
		err = d.Pool().QueryRow(t.Context(), query).Scan(&n)
	} else {
		err = d.Read().QueryRowContext(t.Context(), query).Scan(&n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}
