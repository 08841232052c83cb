package db_test

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
)

func TestSchemaBehindIsRefusedAndNamesTheCommand(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		err := d.CheckVersion(t.Context())
		if !errors.Is(err, db.ErrSchemaBehind) || fault.KindOf(err) != fault.FailedPrecondition {
			t.Fatalf("CheckVersion of an empty database: %v", err)
		}
		for _, part := range []string{"toolherd migrate", "0001_registry", d.String()} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
		if n := tables(t, d); n != 0 {
			t.Errorf("checking made %d tables", n)
		}
		if err := d.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := d.CheckVersion(t.Context()); err != nil {
			t.Errorf("after migrating: %v", err)
		}
	}, dbtest.Unmigrated())
}

func TestSchemaThatLacksAnOlderMigrationIsBehind(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		exec(t, d, "update schema_migration set version_id = 9000 where version_id = 1")
		if err := d.CheckVersion(t.Context()); !errors.Is(err, db.ErrSchemaBehind) {
			t.Errorf("CheckVersion without migration 1: %v", err)
		}
	})
}

func TestNewerSchemaIsAcceptedAndLeftAlone(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		exec(t, d, "insert into schema_migration (version_id, is_applied) values (9000, true)")
		if err := d.CheckVersion(t.Context()); err != nil {
			t.Error(err)
		}
		if err := d.Migrate(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestMigrateTwiceChangesNothing(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		before := tables(t, d)
		if err := d.Migrate(t.Context()); err != nil {
			t.Error(err)
		}
		if after := tables(t, d); after != before {
			t.Errorf("%d tables became %d", before, after)
		}
	})
}

func TestMigrateAtTheSameTimeSucceedsForAll(t *testing.T) {
	for _, tt := range []struct {
		engine string
		config func(t *testing.T) db.Config
	}{
		{"postgres", func(t *testing.T) db.Config {
			return db.Config{PostgresDSN: dbtest.DSN(t, dbtest.Unmigrated()), MaxConns: 1}
		}},
		{"sqlite", func(t *testing.T) db.Config { return db.Config{SQLitePath: filepath.Join(t.TempDir(), "one.db")} }},
	} {
		t.Run(tt.engine, func(t *testing.T) {
			cfg := tt.config(t)
			const callers = 4 // each with connections of its own, as processes have
			errs := make([]error, callers)
			start := make(chan struct{})
			var wg sync.WaitGroup
			for i := range callers {
				d, err := db.Open(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					defer d.Close()
					<-start
					if errs[i] = d.Migrate(t.Context()); errs[i] == nil {
						errs[i] = d.CheckVersion(t.Context())
					}
				})
			}
			close(start)
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMigrateWorksWithOneConnection(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		if err := d.CheckVersion(t.Context()); err != nil {
			t.Error(err)
		}
	}, dbtest.MaxConns(1))
}

func TestMigrateNeedsASchemaThatExists(t *testing.T) {
	d, err := db.Open(t.Context(), db.Config{PostgresDSN: strings.Replace(dbtest.DSN(t), "search_path=", "search_path=no_such_", 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "no schema of the search_path exists") {
		t.Errorf("Migrate without a schema: %v", err)
	}
}

func TestMigrateLogsWhatItApplied(t *testing.T) {
	var log strings.Builder
	d, err := db.Open(t.Context(), db.Config{
		SQLitePath: filepath.Join(t.TempDir(), "x.db"), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), `msg="migration applied" migration=0001_registry.sql`) {
		t.Errorf("the log is %q", log.String())
	}
}

func tables(t *testing.T, d *db.DB) int {
	t.Helper()
	if d.Engine() == db.Postgres {
		return count(t, d, "pg_tables where schemaname = current_schema()")
	}
	return count(t, d, "sqlite_schema where type = 'table'")
}
