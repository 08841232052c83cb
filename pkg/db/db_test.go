package db_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
)

func TestOpenWantsExactlyOneDatabase(t *testing.T) {
	for _, cfg := range []db.Config{{}, {SQLitePath: "x.db", PostgresDSN: "postgres://h/d"}} {
		d, err := db.Open(t.Context(), cfg)
		if d != nil || !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("Open(%+v) = %v, %v, want CONFIG_INVALID", cfg, d, err)
		}
	}
}

func TestSQLiteSettings(t *testing.T) {
	d := dbtest.SQLite(t)
	for name, conns := range map[string]*sql.DB{"writer": d.SQL(), "reader": d.Read()} {
		for pragma, want := range map[string]string{
			"journal_mode": "wal", "synchronous": "2", "busy_timeout": "10000", "foreign_keys": "1",
		} {
			var got string
			if err := conns.QueryRowContext(t.Context(), "pragma "+pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s of the %s is %q, %v, want %q", pragma, name, got, err, want)
			}
		}
	}
	if n := d.SQL().Stats().MaxOpenConnections; n != 1 {
		t.Errorf("there are up to %d writers, want 1", n)
	}
}

func TestSQLiteReadersCannotWrite(t *testing.T) {
	d := dbtest.SQLite(t)
	if _, err := d.Read().ExecContext(t.Context(), "create table t (n int)"); err == nil {
		t.Error("a reader created a table")
	}
}

func TestSQLiteReadersDoNotWaitForTheWriter(t *testing.T) {
	d := dbtest.SQLite(t)
	ctx := t.Context()
	exec(t, d, "create table t (n int)")
	err := d.WriteTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "insert into t values (1)"); err != nil {
			return err
		}
		if n := count(t, d, "t"); n != 0 {
			t.Errorf("a reader sees %d rows that are not committed", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(t, d, "t"); n != 1 {
		t.Errorf("a reader sees %d rows after the commit, want 1", n)
	}
}

func TestWriteTxRollsBackOnErrorAndPanic(t *testing.T) {
	d := dbtest.SQLite(t)
	ctx := t.Context()
	exec(t, d, "create table t (n int)")
	want := errors.New("no")
	if err := d.WriteTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "insert into t values (1)")
		return errors.Join(err, want)
	}); !errors.Is(err, want) {
		t.Errorf("WriteTx returned %v, want fn's error", err)
	}
	func() {
		defer func() { recover() }()
		d.WriteTx(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, "insert into t values (2)"); err != nil {
				t.Error(err)
			}
			panic("in a transaction")
		})
	}()
	if n := count(t, d, "t"); n != 0 {
		t.Errorf("%d rows were committed, want 0", n)
	}
	exec(t, d, "insert into t values (3)") // the writer is free again
}

func TestWriteTxRefusesPostgres(t *testing.T) {
	if err := dbtest.Postgres(t).WriteTx(t.Context(), func(*sql.Tx) error { return nil }); err == nil {
		t.Error("WriteTx ran on Postgres")
	}
}

func TestSQLitePathMayHoldAnyCharacter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?c=d&e#f%20g;h.db")
	d, err := db.Open(t.Context(), db.Config{SQLitePath: path})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, d, "create table t (n int)")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() == 0 || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has %d bytes and mode %v, want some and 0600", info.Size(), info.Mode().Perm())
	}
}

func TestSQLiteOpenSaysWhatIsWrong(t *testing.T) {
	foreign := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(foreign, []byte(strings.Repeat("not a database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, hint := range map[string]string{
		foreign: "move the file away",
		filepath.Join(t.TempDir(), "no", "such", "dir.db"): "create its directory",
	} {
		_, err := db.Open(t.Context(), db.Config{SQLitePath: path})
		if fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), hint) {
			t.Errorf("Open(%s) = %v, want the path and %q", path, err, hint)
		}
	}
}

func TestPingAnswers(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		if err := d.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		if got := d.String(); !strings.HasPrefix(got, string(d.Engine())+" /") { // the test server's host is a socket
			t.Errorf("String is %q", got)
		}
	})
}

func TestUnreachablePostgresIsNotReadyAndNamedWithoutItsPassword(t *testing.T) {
	// A port that was free a moment ago and on which nobody answers.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	d, err := db.Open(t.Context(), db.Config{PostgresDSN: "postgres://ada:" + password + "@" + addr + "/herd?sslmode=disable"})
	if err != nil {
		t.Fatalf("Open wants the server: %v", err)
	}
	defer d.Close()
	for operation, err := range map[string]error{
		"ping":    d.Ping(t.Context()),
		"migrate": d.Migrate(t.Context()),
		"check":   d.CheckVersion(t.Context()),
	} {
		if err == nil || !strings.Contains(err.Error(), addr+"/herd") {
			t.Errorf("%s: %v, want an error that names %s/herd", operation, err, addr)
		}
		refuteSecret(t, err)
	}
	if err := d.Ping(t.Context()); !fault.Is(err, fault.NotReady) {
		t.Errorf("ping: %v, want NOT_READY", err)
	}
}

func TestPingEndsWithItsContext(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Ping(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Ping of a cancelled context: %v", err)
		}
	})
}

const password = "hunter2swordfish"

func TestBadDSNIsRefusedWithoutShowingItsPassword(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u:" + password + "@host:port/db",
		"postgres://u:" + password + "%zz@host/db",
		"postgres://u:a@" + password + "@host/db", // the host would be the password's rest
		"postgres://u:1/" + password + "@host/db", // the database would be
		"postgres://u:1?" + password + "@host/db", // a parameter would be
		"postgres://u:a#" + password + "@host/d@b",
		"postgres://u:" + password + "@host/db?sslmode=no",
		"postgres://u:" + password + "@host/db?pool_max_conns=many",
		"postgres://u:" + password + "@host/db?default_query_exec_mode=" + password,
		"postgres://host/db?connect_timeout=x&password=" + password,
		"host=x password=" + password + " sslmode=no",
		"host=x password='" + password,
		"host=x password=a " + password,
		"host=x port=" + password,
		password,
	} {
		d, err := db.Open(t.Context(), db.Config{PostgresDSN: dsn})
		if !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("Open(%s) = %v, %v, want CONFIG_INVALID", dsn, d, err)
			continue
		}
		if !strings.Contains(err.Error(), "expected postgres://user:password@host:5432/database") {
			t.Errorf("the error does not show the form: %v", err)
		}
		refuteSecret(t, err)
	}
}

func TestInvalidDSNParameterIsNamed(t *testing.T) {
	_, err := db.Open(t.Context(), db.Config{PostgresDSN: "postgres://u:p@host/db?sslmode=no"})
	if err == nil || !strings.Contains(err.Error(), "sslmode is invalid") {
		t.Errorf("the error is %v, want it to name sslmode", err)
	}
}

// refuteSecret fails if any error of err's tree shows the password: a caller may print a cause alone.
func refuteSecret(t *testing.T, err error) {
	t.Helper()
	for ; err != nil; err = errors.Unwrap(err) {
		if strings.Contains(err.Error(), password) {
			t.Errorf("an error shows the password: %v", err)
		}
	}
}

func TestSimpleProtocolServesQueriesAndMigrations(t *testing.T) {
	for _, mode := range []string{"simple_protocol", "exec"} {
		t.Run(mode, func(t *testing.T) {
			d, err := db.Open(t.Context(), db.Config{PostgresDSN: dbtest.DSN(t, dbtest.Unmigrated()) + "&default_query_exec_mode=" + mode})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := d.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := d.CheckVersion(t.Context()); err != nil {
				t.Error(err)
			}
			addSnapshot(t, d, snapshotA)
			var prepared int
			if err := d.Pool().QueryRow(t.Context(), "select count(*) from pg_prepared_statements").Scan(&prepared); err != nil || prepared != 0 {
				t.Errorf("the session holds %d prepared statements, %v, want 0", prepared, err)
			}
		})
	}
}

func exec(t *testing.T, d *db.DB, statement string, args ...any) {
	t.Helper()
	var err error
	if d.Engine() == db.Postgres {
		_, err = d.Pool().Exec(t.Context(), statement, args...)
	} else {
		_, err = d.SQL().ExecContext(t.Context(), statement, args...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, d *db.DB, table string) int {
	t.Helper()
	var n int
	if err := queryRow(d, t.Context(), "select count(*) from "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func queryRow(d *db.DB, ctx context.Context, query string, args ...any) interface{ Scan(dest ...any) error } {
	if d.Engine() == db.Postgres {
		return d.Pool().QueryRow(ctx, query, args...)
	}
	return d.Read().QueryRowContext(ctx, query, args...)
}
