package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/migrations"
	"github.com/toolherd/toolherd/pkg/fault"
)

// Engine says which database a [DB] is.
type Engine string

// The engines.
const (
	SQLite   Engine = migrations.SQLite
	Postgres Engine = migrations.Postgres
)

// Config says which database to open. Exactly one of SQLitePath and PostgresDSN is set.
type Config struct {
	// SQLitePath is the database file. It is created, readable by its owner alone, where it is missing; its
	// directory is not.
	SQLitePath string
	// PostgresDSN is a URL (postgres://user:password@host/database?…) or a keyword/value string. It may carry
	// pgx's own parameters, such as pool_max_conns and default_query_exec_mode.
	PostgresDSN string
	// MaxConns bounds the Postgres pool, or the reading connections of SQLite. Zero leaves it to the DSN's
	// pool_max_conns, else to the default, which is the number of CPUs and at least 4.
	MaxConns int
	// Log may be nil.
	Log *slog.Logger
}

// DB is an open database. It is safe for concurrent use. Whoever opened it closes it, after everyone has stopped using it.
type DB struct {
	engine Engine
	name   string
	log    *slog.Logger

	pool *pgxpool.Pool // Postgres

	path  string  // SQLite, as are the next two
	write *sql.DB // one connection
	read  *sql.DB
}

// Open opens the database that cfg names.
//
// For SQLite the file is opened before Open returns. For Postgres the DSN is checked but nothing is connected, so
// that services start in any order: ask [DB.Ping]. ctx bounds the opening only.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	d := &DB{log: cfg.Log}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	var err error
	switch {
	case cfg.SQLitePath != "" && cfg.PostgresDSN != "":
		err = fault.New(fault.ConfigInvalid, "two databases are configured, a SQLite file and a Postgres DSN: remove one")
	case cfg.SQLitePath != "":
		err = d.openSQLite(ctx, cfg)
	case cfg.PostgresDSN != "":
		err = d.openPostgres(ctx, cfg)
	default:
		err = fault.New(fault.ConfigInvalid, "no database is configured: give a Postgres DSN or a SQLite file")
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Engine returns which database this is.
func (d *DB) Engine() Engine { return d.engine }

// String names the database for people, such as "postgres db.example.com:5432/toolherd". It never contains a credential.
func (d *DB) String() string { return d.name }

// Pool returns the Postgres pool, or nil on SQLite.
func (d *DB) Pool() *pgxpool.Pool { return d.pool }

// SQL returns the one connection that may write to SQLite, or nil on Postgres. A transaction begun on it holds the
// write lock from its first moment, and a caller that begins a second one before ending the first waits for ever: see [DB.WriteTx].
func (d *DB) SQL() *sql.DB { return d.write }

// Read returns the connections that only read SQLite, or nil on Postgres. Each statement, and each transaction, sees
// the state of its own start, which includes every write committed before.
func (d *DB) Read() *sql.DB { return d.read }

// WriteTx runs fn in one SQLite write transaction, commits if it returns nil and rolls back if it returns an error or
// panics. fn must use tx alone, keep no state on failure, and make no call that leaves the process, for every other
// writer waits meanwhile. On Postgres use pgx.BeginFunc with [DB.Pool]; WriteTx fails there.
func (d *DB) WriteTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	if d.write == nil {
		return errors.New("db: WriteTx is for SQLite")
	}
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // a no-op after the commit; otherwise fn's error is the one that matters
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Ping returns nil if the database answers a query within ctx, else a fault NOT_READY that says what to look at.
func (d *DB) Ping(ctx context.Context) error {
	var err error
	hint := "check that the server runs and that the DSN names it"
	if d.engine == Postgres {
		err = d.pool.Ping(ctx)
	} else {
		hint = "check that the file is there and that the disk is not full"
		err = touch(ctx, d.read)
	}
	if err != nil {
		return fault.New(fault.NotReady, "%s does not answer: %s: %s", d, oneLine(err), hint).Because(err)
	}
	return nil
}

// Close closes every connection. On Postgres it waits until borrowed ones have been returned.
func (d *DB) Close() error {
	if d.engine == Postgres {
		d.pool.Close()
		return nil
	}
	return errors.Join(d.read.Close(), d.write.Close())
}
