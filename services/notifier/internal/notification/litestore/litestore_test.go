package litestore_test

import (
	"testing"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/litestore"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/notificationtest"
)

// NOTE-005, NOTE-006, NOTE-007: the suite names the tests.
func TestConformance(t *testing.T) {
	notificationtest.Run(t, func(t *testing.T) (notificationtest.Subject, *db.DB) {
		d := dbtest.SQLite(t)
		return litestore.New(d), d
	})
}
