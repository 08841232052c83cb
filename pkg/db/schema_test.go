package db_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
)

const (
	snapshotA = "snap_0123456789abcdef0123456789abcdef"
	snapshotB = "snap_00000000000000000000000000000000"
)

func TestBothEnginesHaveTheSameTablesAndColumns(t *testing.T) {
	got := map[db.Engine][]string{}
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		query := `select m.name || '.' || c.name || case when c."notnull" then ' not null' else '' end
			from sqlite_schema m join pragma_table_info(m.name) c
			where m.type = 'table' and m.name not like 'sqlite_%' and m.name <> 'schema_migration'`
		if d.Engine() == db.Postgres {
			query = `select table_name || '.' || column_name || case when is_nullable = 'NO' then ' not null' else '' end
				from information_schema.columns
				where table_schema = current_schema() and table_name <> 'schema_migration'`
		}
		got[d.Engine()] = list(t, d, query)
	})
	if diff := cmp.Diff(got[db.Postgres], got[db.SQLite]); diff != "" || len(got[db.SQLite]) == 0 {
		t.Errorf("columns differ (-postgres +sqlite):\n%s", diff)
	}
}

func TestEveryPostgresTableHasAComment(t *testing.T) {
	d := dbtest.Postgres(t)
	for _, table := range list(t, d, `select c.relname::text from pg_class c
		where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r' and c.relname <> 'schema_migration'
		and coalesce(obj_description(c.oid, 'pg_class'), '') = ''`) {
		t.Errorf("table %s has no comment", table)
	}
}

func TestEveryConstraintIsNamedAfterItsTable(t *testing.T) {
	d := dbtest.Postgres(t)
	for _, constraint := range list(t, d, `select c.relname || ' ' || k.conname from pg_constraint k join pg_class c on c.oid = k.conrelid
		where c.relnamespace = current_schema()::regnamespace and c.relname <> 'schema_migration' and k.contype <> 'n'`) {
		table, name, _ := strings.Cut(constraint, " ")
		if !strings.HasPrefix(name, table+"_") || strings.HasSuffix(name, "key") || strings.HasSuffix(name, "check") {
			t.Errorf("%s has constraint %s, whose name the engine chose", table, name)
		}
	}
}

func TestSnapshotsKeepTheirBytes(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		const content = `{"b":1.00,"a":12345678901234567890,"b2":"\u00e9\u0000"}`
		exec(t, d, "insert into registry_snapshot (snapshot_id, content, create_time) values ($1, $2, "+now(d)+")", snapshotA, content)
		var got string
		if err := queryRow(d, t.Context(), "select content from registry_snapshot where snapshot_id = $1", snapshotA).Scan(&got); err != nil || got != content {
			t.Errorf("read %s, %v, want %s", got, err, content)
		}
	})
}

func TestRevisionsRise(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		addSnapshot(t, d, snapshotA)
		addSnapshot(t, d, snapshotB)
		var last int64
		for _, id := range []string{snapshotA, snapshotB, snapshotA} {
			var revision int64
			q := "insert into registry_activation (snapshot_id, activate_time, actor, reason) values ($1, " + now(d) + ", 'ada', '') returning revision"
			var row interface{ Scan(dest ...any) error }
			if d.Engine() == db.Postgres {
				row = d.Pool().QueryRow(t.Context(), q, id)
			} else {
				row = d.SQL().QueryRowContext(t.Context(), q, id)
			}
			if err := row.Scan(&revision); err != nil {
				t.Fatal(err)
			}
			if revision <= last {
				t.Errorf("revision %d comes after %d", revision, last)
			}
			last = revision
			// A revision is never given twice, not even that of a row that was deleted.
			exec(t, d, "delete from registry_activation where revision = $1", revision)
		}
	})
}

func TestRegistryConstraintsHold(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		addSnapshot(t, d, snapshotA)
		exec(t, d, "insert into registry_activation (snapshot_id, activate_time, actor, reason) values ($1, "+now(d)+", '', '')", snapshotA)
		snapshot := "insert into registry_snapshot (snapshot_id, content, create_time) values ($1, $2, " + now(d) + ")"
		for _, tt := range []struct {
			name, statement string
			args            []any
		}{
			{"a snapshot twice", snapshot, []any{snapshotA, "{}"}},
			{"a snapshot id without its prefix", snapshot, []any{snapshotB[5:], "{}"}},
			{"a snapshot id in capitals", snapshot, []any{"snap_0123456789ABCDEF0123456789ABCDEF", "{}"}},
			{"a snapshot id that is too long", snapshot, []any{snapshotB + "0", "{}"}},
			{"content that is no JSON", snapshot, []any{snapshotB, "{"}},
			{"an activation of an unknown snapshot", "insert into registry_activation (snapshot_id, activate_time, actor, reason) values ($1, " + now(d) + ", '', '')", []any{snapshotB}},
			{"a snapshot removed under its activation", "delete from registry_snapshot where snapshot_id = $1", []any{snapshotA}},
		} {
			var err error
			if d.Engine() == db.Postgres {
				_, err = d.Pool().Exec(t.Context(), tt.statement, tt.args...)
			} else {
				_, err = d.SQL().ExecContext(t.Context(), tt.statement, tt.args...)
			}
			if err == nil {
				t.Errorf("%s was accepted", tt.name)
			}
		}
	})
}

// now is the present in each engine's form of a time.
func now(d *db.DB) string {
	if d.Engine() == db.Postgres {
		return "now()"
	}
	return "cast(unixepoch('subsec') * 1000 as integer)"
}

func addSnapshot(t *testing.T, d *db.DB, id string) {
	t.Helper()
	exec(t, d, "insert into registry_snapshot (snapshot_id, content, create_time) values ($1, $2, "+now(d)+")", id, "{}")
}

// list returns the rows of a query of one text column, sorted.
func list(t *testing.T, d *db.DB, query string) []string {
	t.Helper()
	var joined string
	lines := "group_concat(line, char(10))"
	if d.Engine() == db.Postgres {
		lines = "string_agg(line, chr(10))"
	}
	query = "with r (line) as (" + query + ") select coalesce(" + lines + ", '') from r"
	if err := queryRow(d, t.Context(), query).Scan(&joined); err != nil {
		t.Fatal(err)
	}
	rows := strings.FieldsFunc(joined, func(r rune) bool { return r == '\n' })
	slices.Sort(rows)
	return rows
}
