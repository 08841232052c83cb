package stack

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
)

// empty returns the configurations of an all-in-one on a database without a schema, one for each engine.
func empty(t *testing.T) map[string]config.Config {
	t.Helper()
	out := map[string]config.Config{}
	for _, engine := range []string{"sqlite", "postgres"} {
		cfg := config.Defaults()
		cfg.NoMCP, cfg.LogLevel, cfg.StateDir = true, "error", filepath.Join(t.TempDir(), "state")
		if engine == "postgres" {
			cfg.Postgres = dbtest.DSN(t, dbtest.Unmigrated())
		} else {
			// A file that is there is looked into.
			if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(cfg.StateDir, databaseName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out[engine] = cfg
	}
	return out
}

// OPS-013
func TestMigrationsAreAppliedByMigrateAndByAComposition(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	apply := map[string]func(ctx context.Context, cfg config.Config) error{
		"migrate": func(ctx context.Context, cfg config.Config) error { return Migrate(ctx, cfg, io.Discard) },
		"a composition": func(ctx context.Context, cfg config.Config) error {
			return Compose(ctx, cfg, io.Discard, func(context.Context, *grpc.ClientConn) error { return nil })
		},
	}
	for by, f := range apply {
		for engine, cfg := range empty(t) {
			t.Run(by+" on "+engine, func(t *testing.T) {
				if _, err := CheckDatabase(t.Context(), cfg); !errors.Is(err, db.ErrSchemaBehind) {
					t.Fatalf("before: %v, want a schema that lacks migrations", err)
				}
				if err := f(t.Context(), cfg); err != nil {
					t.Fatal(err)
				}
				if name, err := CheckDatabase(t.Context(), cfg); err != nil {
					t.Errorf("after: %s: %v", name, err)
				}
				if err := f(t.Context(), cfg); err != nil {
					t.Errorf("again: %v", err)
				}
			})
		}
	}
}

func TestADatabaseThatIsNotThereIsSaidToBeSo(t *testing.T) {
	cfg := config.Defaults()
	cfg.StateDir = t.TempDir()
	if _, err := CheckDatabase(t.Context(), cfg); err != nil {
		t.Errorf("an SQLite file that is made at the first start: %v", err)
	}
	if entries, err := os.ReadDir(cfg.StateDir); err != nil || len(entries) > 0 {
		t.Errorf("the check made %v, %v", entries, err)
	}
	cfg.Postgres = "postgres://nobody:secret-word@127.0.0.1:1/none"
	if _, err := CheckDatabase(t.Context(), cfg); err == nil {
		t.Error("a Postgres that cannot be reached is fine")
	}
}
