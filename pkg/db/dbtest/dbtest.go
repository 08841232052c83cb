package dbtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/pkg/db"
)

// Option changes what a test gets.
type Option func(*options)

type options struct {
	maxConns   int
	unmigrated bool
}

// MaxConns bounds the connections of the pool, as [db.Config] does. With 1, code that borrows a second connection
// while it holds one hangs, and so shows itself.
func MaxConns(n int) Option { return func(o *options) { o.maxConns = n } }

// Unmigrated leaves the database empty.
func Unmigrated() Option { return func(o *options) { o.unmigrated = true } }

func collect(opts []Option) options {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Each runs test as the subtests sqlite and postgres, each with an empty, migrated database of its own.
func Each(t *testing.T, test func(t *testing.T, d *db.DB), opts ...Option) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, SQLite(t, opts...)) })
	t.Run("postgres", func(t *testing.T) { test(t, Postgres(t, opts...)) })
}

// SQLite returns a database in a new file, migrated, and closes it when the test ends. It may be used in a
// synctest bubble.
func SQLite(tb testing.TB, opts ...Option) *db.DB {
	tb.Helper()
	return open(tb, db.Config{SQLitePath: filepath.Join(tb.TempDir(), "toolherd.db")}, collect(opts))
}

// Postgres returns a pool on a new schema, migrated, and closes it when the test ends.
func Postgres(tb testing.TB, opts ...Option) *db.DB {
	tb.Helper()
	return open(tb, db.Config{PostgresDSN: DSN(tb, Unmigrated())}, collect(opts))
}

// DSN returns the DSN of a new schema, migrated, for processes and for pools that a test opens itself. The schema is
// named by the DSN's search_path and dropped when the test ends; by then no transaction may be open in it.
func DSN(tb testing.TB, opts ...Option) string {
	tb.Helper()
	admin, err := sharedDSN(tb.Context())
	if err != nil {
		tb.Fatalf("no Postgres to test with: %v", err)
	}
	dsn, schema := newSchema(tb, admin, opts)
	tb.Cleanup(func() { dropSchema(tb, admin, schema) })
	return dsn
}

func open(tb testing.TB, cfg db.Config, o options) *db.DB {
	tb.Helper()
	cfg.MaxConns = o.maxConns
	d, err := db.Open(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Errorf("close %s: %v", d, err)
		}
	})
	if !o.unmigrated {
		if err := d.Migrate(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
	return d
}

// newSchema creates a schema on the server of the DSN admin and returns a DSN that leads to it, and its name.
func newSchema(tb testing.TB, admin string, opts []Option) (dsn, schema string) {
	tb.Helper()
	random := make([]byte, 8)
	rand.Read(random)
	schema = "test_" + hex.EncodeToString(random)
	execute(tb.Context(), tb, admin, "create schema "+schema)
	dsn = withSearchPath(admin, schema)
	if !collect(opts).unmigrated {
		d, err := db.Open(tb.Context(), db.Config{PostgresDSN: dsn, MaxConns: 1})
		if err != nil {
			tb.Fatal(err)
		}
		err = d.Migrate(tb.Context())
		d.Close()
		if err != nil {
			tb.Fatal(err)
		}
	}
	return dsn, schema
}

func dropSchema(tb testing.TB, admin, schema string) {
	tb.Helper()
	// The test's own context has ended by now. A lock that someone still holds fails the test instead of hanging it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 20*time.Second)
	defer cancel()
	execute(ctx, tb, admin, "set lock_timeout = '10s'; set client_min_messages = warning; drop schema if exists "+schema+" cascade")
}

func execute(ctx context.Context, tb testing.TB, dsn, statements string) {
	tb.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		tb.Fatalf("connect to the test server: %v", err)
	}
	defer conn.Close(ctx)
	// One round trip without prepared statements, so that several statements may be given.
	if _, err := conn.PgConn().Exec(ctx, statements).ReadAll(); err != nil {
		tb.Fatalf("%s: %v", statements, err)
	}
}

func withSearchPath(dsn, schema string) string {
	if !strings.Contains(dsn, "://") {
		return dsn + " search_path=" + schema
	}
	u, err := url.Parse(dsn)
	if err != nil { // pgx has read it, so this is a form that only pgx knows
		return dsn + "&search_path=" + schema
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}
