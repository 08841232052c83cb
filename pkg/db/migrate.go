package db

import (
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"path"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/toolherd/toolherd/migrations"
	"github.com/toolherd/toolherd/pkg/fault"
)

// ErrSchemaBehind is what [DB.CheckVersion] wraps: the database lacks a migration that this build needs.
var ErrSchemaBehind = fault.Of(fault.FailedPrecondition, "run `toolherd migrate` with the same database, or restart `toolherd up`, which migrates")

// versionTable records which migrations were applied. It belongs to this package.
const versionTable = "schema_migration"

// Migrate applies the migrations that the database lacks, in order, each in its own transaction, and returns when
// the schema is current. Callers that migrate at the same time, in any number of processes, wait for each other
// (on Postgres for up to five minutes) and all succeed. A schema newer than this build is left as it is.
//
// On Postgres the tables are created in the first schema of the search_path, which must exist.
func (d *DB) Migrate(ctx context.Context) error {
	var applied []*goose.MigrationResult
	var err error
	if d.engine == Postgres {
		applied, err = d.migratePostgres(ctx)
	} else {
		applied, err = d.migrateSQLite(ctx)
	}
	if err != nil {
		return fmt.Errorf("migrate %s: %w", d, err)
	}
	for _, m := range applied {
		d.log.InfoContext(ctx, "migration applied", "migration", path.Base(m.Source.Path), "duration", m.Duration)
	}
	return nil
}

func (d *DB) migratePostgres(ctx context.Context) ([]*goose.MigrationResult, error) {
	var schema *string
	if err := d.pool.QueryRow(ctx, "select current_schema()").Scan(&schema); err != nil {
		return nil, err
	}
	if schema == nil {
		return nil, fault.Of(fault.FailedPrecondition, "no schema of the search_path exists: create the one that the DSN or the role names")
	}
	// Installations in different schemas of one database need not wait for each other.
	id := fnv.New64a()
	id.Write([]byte("toolherd migrate " + *schema))
	// Waiting by polling, and not in a blocking pg_advisory_lock, lets a migration build an index concurrently:
	// that waits for every open statement, also for one that waits for the lock.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(int64(id.Sum64())), lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, err
	}
	conns := stdlib.OpenDBFromPool(d.pool)
	defer conns.Close() //nolint:errcheck // the pool stays open, and there is nothing else to close
	return d.apply(ctx, goose.DialectPostgres, conns, goose.WithSessionLocker(locker))
}

func (d *DB) migrateSQLite(ctx context.Context) ([]*goose.MigrationResult, error) {
	// SQLite has no lock that outlives a transaction, and goose picks its work outside of one.
	l := flock.New(d.path+".migrate-lock", flock.SetPermissions(0o600))
	if _, err := l.TryLockContext(ctx, 50*time.Millisecond); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	defer l.Close() //nolint:errcheck // releases the lock; the file stays, since removing it would race with the next locker
	return d.apply(ctx, goose.DialectSQLite3, d.write)
}

func (d *DB) apply(ctx context.Context, dialect goose.Dialect, conns *sql.DB, options ...goose.ProviderOption) ([]*goose.MigrationResult, error) {
	options = append(options,
		goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true),
		goose.WithSlog(slog.New(slog.DiscardHandler)))
	p, err := goose.NewProvider(dialect, conns, migrations.FS(string(d.engine)), options...)
	if err != nil {
		return nil, err
	}
	return p.Up(ctx)
}

// CheckVersion returns nil if the database has every migration that this build knows. It changes nothing.
// Else the error wraps [ErrSchemaBehind], names the first migration that is missing, and says what to run. A newer
// schema is accepted: its migrations keep this build working.
func (d *DB) CheckVersion(ctx context.Context) error {
	applied, err := d.appliedVersions(ctx)
	if err != nil {
		return fmt.Errorf("check the schema of %s: %w", d, err)
	}
	names, err := fs.Glob(migrations.FS(string(d.engine)), "*.sql")
	if err != nil {
		return fmt.Errorf("list migrations: %w", err)
	}
	var missing []string
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return fmt.Errorf("list migrations: %w", err)
		}
		if !applied[version] {
			missing = append(missing, strings.TrimSuffix(name, ".sql"))
		}
		delete(applied, version)
	}
	if len(missing) > 0 {
		return fmt.Errorf("the schema of %s lacks %d of %d migrations, first %s: %w", d, len(missing), len(names), missing[0], ErrSchemaBehind)
	}
	delete(applied, 0) // goose's own first row
	if len(applied) > 0 {
		d.log.InfoContext(ctx, "schema is newer than this build", "database", d.String(), "unknown_migrations", len(applied))
	}
	return nil
}

// appliedVersions reads the version table; a database without one has no migration.
func (d *DB) appliedVersions(ctx context.Context) (map[int64]bool, error) {
	conns, table := d.read, "select exists (select 1 from sqlite_schema where type = 'table' and name = '"+versionTable+"')"
	if d.engine == Postgres {
		conns = stdlib.OpenDBFromPool(d.pool)
		defer conns.Close() //nolint:errcheck // the pool stays open, and there is nothing else to close
		table = "select exists (select from pg_tables where schemaname = current_schema() and tablename = '" + versionTable + "')"
	}
	var exists bool
	if err := conns.QueryRowContext(ctx, table).Scan(&exists); err != nil || !exists {
		return nil, err
	}
	rows, err := conns.QueryContext(ctx, "select version_id from "+versionTable+" where is_applied")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	applied := map[int64]bool{}
	for rows.Next() {
		var version int64
		if err := rows.Scan(&version); err != nil {
			return nil, err
		}
		applied[version] = true
	}
	return applied, rows.Err()
}
