package litestore_test

import (
	"testing"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot/litestore"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot/snapshottest"
)

func TestConformance(t *testing.T) {
	snapshottest.Run(t, func(t *testing.T) snapshot.Store { return litestore.New(dbtest.SQLite(t)) })
}
