package litestore_test

import (
	"testing"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/litestore"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/notificationtest"
)

func TestConformance(t *testing.T) {
	notificationtest.Run(t, func(t *testing.T) (notificationtest.Subject, *db.DB) {
		d := dbtest.SQLite(t)
		return litestore.New(d), d
	})
}
