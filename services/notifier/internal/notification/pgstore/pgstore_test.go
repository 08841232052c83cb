package pgstore_test

import (
	"testing"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/notificationtest"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/pgstore"
)

func TestConformance(t *testing.T) {
	notificationtest.Run(t, func(t *testing.T) (notificationtest.Subject, *db.DB) {
		d := dbtest.Postgres(t)
		return pgstore.New(d.Pool()), d
	})
}
