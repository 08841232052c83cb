package litestore_test

import (
	"testing"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/registry/internal/mark"
	"github.com/toolherd/toolherd/services/registry/internal/mark/litestore"
	"github.com/toolherd/toolherd/services/registry/internal/mark/marktest"
)

func TestConformance(t *testing.T) {
	marktest.Run(t, func(t *testing.T) mark.Store { return litestore.New(dbtest.SQLite(t)) })
}
