package pgstore_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot/pgstore"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot/snapshottest"
)

func TestConformance(t *testing.T) {
	snapshottest.Run(t, func(t *testing.T) snapshot.Store { return pgstore.New(dbtest.Postgres(t).Pool()) })
}

// The head is read every second by every replica.
func TestHeadIsReadFromTheEndOfAnIndex(t *testing.T) {
	pool := dbtest.Postgres(t).Pool()
	rows, err := pool.Query(t.Context(), "explain "+pgstore.HeadSQL)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	if !strings.Contains(plan, "Index Scan Backward using registry_activation_pk") {
		t.Errorf("plan is:\n%s", plan)
	}
}
