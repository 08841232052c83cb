package registry_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot/litestore"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot/pgstore"
)

// storeOn returns another store on the database of a registry.
func storeOn(d *db.DB) snapshot.Store {
	if d.Engine() == db.Postgres {
		return pgstore.New(d.Pool())
	}
	return litestore.New(d)
}

// execute changes the database of a registry beside it.
func execute(t *testing.T, d *db.DB, statement string) error {
	t.Helper()
	if d.Engine() == db.Postgres {
		_, err := d.Pool().Exec(t.Context(), statement)
		return err
	}
	return d.WriteTx(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), statement)
		return err
	})
}

// fill publishes n snapshots, as another registry would.
func fill(t *testing.T, d *db.DB, n int) {
	t.Helper()
	s := storeOn(d)
	for i := 0; i < n; {
		head, err := s.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := snapshot.Content{Servers: []snapshot.Entry{{
			Name: fmt.Sprint("s", i), State: snapshot.Active, Transport: "stdio", JSON: json.RawMessage(`{"command":"x"}`), Class: snapshot.User,
		}}}
		id, content, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Publish(t.Context(), snapshot.Publication{
			ID: id, Content: content, ServerCount: 1, Base: head.Revision, BaseCandidate: head.Candidate, Actor: "fill", Reason: "fill",
		})
		switch {
		case err == nil:
			i++
		case !errors.Is(err, snapshot.ErrMoved):
			t.Fatal(err)
		}
	}
}

// kept returns the ids of the snapshots that were activated and are stored, the newest first.
func (n *node) kept(t *testing.T) []string {
	t.Helper()
	var out []string
	for token := ""; ; {
		page, err := n.ListSnapshots(t.Context(), &registryv1.ListSnapshotsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.GetSnapshots() {
			if !slices.Contains(out, s.GetSnapshotId()) {
				out = append(out, s.GetSnapshotId())
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return out
		}
	}
}
