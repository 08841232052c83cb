// Package db opens the one database of a Toolherd process: an embedded SQLite file (all-in-one) or Postgres.
//
// It owns connections, their settings and the schema version. It owns no tables: each noun has its own stores, one
// per engine, which take [DB.Pool] or [DB.SQL] and [DB.Read].
//
// # Engines
//
// SQLite: WAL with synchronous=FULL, so a committed transaction survives a power loss. One writer connection, whose
// transactions are "begin immediate", so writers queue in Go and never fail with SQLITE_BUSY halfway; a separate pool
// that can only read and never waits for the writer. Foreign keys are enforced. Only one Toolherd may use a file; the
// state directory's lock sees to that, not this package.
//
// Postgres: a pgx pool. It connects on demand and heals itself; [DB.Ping] says whether the server answers.
//
// # Schema
//
// [DB.Migrate] applies the files of package migrations, once, whoever calls it and however many do at the same time.
// [DB.CheckVersion] refuses a schema that lacks one of them, and accepts a newer one, because every migration
// keeps the last release working (expand, deploy, contract). Services check; `toolherd up` and `toolherd migrate` apply.
//
// # PgBouncer
//
// Queries work behind PgBouncer in transaction mode. Before PgBouncer 1.21, or with max_prepared_statements=0, the
// DSN must say default_query_exec_mode=exec (or simple_protocol), since prepared statements belong to a session. Name
// the schema by "alter role … set search_path", not in the DSN, whose search_path PgBouncer refuses as a start-up
// parameter. Two things need a session of their own and so a DSN that leads to Postgres directly or to a
// session-mode pool: [DB.Migrate], whose lock belongs to a session, and the LISTEN of package wake, which can be left out.
//
// # Secrets
//
// No error and no log line of this package contains the password of a DSN.
package db
