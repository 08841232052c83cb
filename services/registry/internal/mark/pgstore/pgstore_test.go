package pgstore_test

import (
	"testing"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/registry/internal/mark"
	"github.com/toolherd/toolherd/services/registry/internal/mark/marktest"
	"github.com/toolherd/toolherd/services/registry/internal/mark/pgstore"
)

func TestConformance(t *testing.T) {
	marktest.Run(t, func(t *testing.T) mark.Store { return pgstore.New(dbtest.Postgres(t).Pool()) })
}
