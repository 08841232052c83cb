package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"

	"github.com/toolherd/toolherd/pkg/fault"

	_ "modernc.org/sqlite" // registers the driver "sqlite"
)

func (d *DB) openSQLite(ctx context.Context, cfg Config) error {
	path, err := filepath.Abs(cfg.SQLitePath)
	if err != nil {
		return fmt.Errorf("open sqlite: %w", err)
	}
	d.engine, d.path, d.name = SQLite, path, "sqlite "+path

	// SQLite would create the file with the umask's mode; its -wal and -shm files take the mode of the main file.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fault.Of(fault.FailedPrecondition, "%s cannot be opened: %v: create its directory, or let this user write to it", d, err).Because(err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("open %s: %w", d, err)
	}

	// The writer comes first: it turns the file to WAL, which the readers then find.
	if d.write, err = openSQLitePool(ctx, sqliteDSN(path, false), 1); err != nil {
		return d.notSQLite(err)
	}
	readers := cfg.MaxConns
	if readers <= 0 {
		readers = max(4, runtime.NumCPU())
	}
	if d.read, err = openSQLitePool(ctx, sqliteDSN(path, true), readers); err != nil {
		return d.notSQLite(errors.Join(err, d.write.Close()))
	}
	return nil
}

func (d *DB) notSQLite(err error) error {
	return fault.Of(fault.FailedPrecondition, "%s cannot be opened: %v: move the file away if it is not Toolherd's", d, err).Because(err)
}

// openSQLitePool opens up to conns connections, which stay open when idle, and tries the first.
func openSQLitePool(ctx context.Context, dsn string, conns int) (*sql.DB, error) {
	pool, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	if err := touch(ctx, pool); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return pool, nil
}

// touch reads the file, which database/sql's Ping does not: only so does a file that is no database show.
func touch(ctx context.Context, pool *sql.DB) error {
	var tables int
	return pool.QueryRowContext(ctx, "select count(*) from sqlite_schema").Scan(&tables)
}

func sqliteDSN(path string, readOnly bool) string {
	q := url.Values{
		"_dqs": {"0"}, // "x" is an identifier and never a string, as on Postgres
		"_pragma": {
			"busy_timeout(10000)",
			"journal_mode(WAL)",
			"synchronous(FULL)",
			"foreign_keys(1)",
			"journal_size_limit(67108864)", // a WAL that once grew is cut back to 64 MiB
		},
		"_txlock": {"immediate"},
	}
	if readOnly {
		q["_txlock"] = []string{"deferred"}
		q["_query_only"] = []string{"1"}
	}
	// A URL, so that no character of the path can be taken for the start of the parameters.
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}
