// Package migrations holds the database schema of Toolherd as numbered SQL files, embedded into every binary.
//
// There are two lists, postgres/ and sqlite/, with the same numbers and names: what a number adds on one engine it
// adds on the other. pkg/db applies them; nothing else should read them.
//
// # Rules
//
//   - The first line of a file names the owner of the tables it touches: "-- owner: taskworker". Only the owner
//     writes to them. The annotations after it are goose's.
//   - Forward only: a file has no down part and is never changed once released. What is wrong is mended by the next number.
//   - Expand, deploy, contract: services of the last release keep working on the schema of this one. A column or table
//     arrives one release before code needs it and leaves one release after code stopped using it.
//   - Lower case, named constraints, a comment on each table. Time is timestamptz on Postgres and integer
//     milliseconds since 1970 on SQLite. Closed sets are text with a named check, on both.
package migrations

import (
	"embed"
	"io/fs"
)

// The engines that have a list of migrations.
const (
	Postgres = "postgres"
	SQLite   = "sqlite"
)

//go:embed postgres/*.sql sqlite/*.sql
var files embed.FS

// FS returns the migrations of engine, [Postgres] or [SQLite], as files named NNNN_name.sql at its root.
// It panics on another engine, which is a programmer's error.
func FS(engine string) fs.FS {
	if engine != Postgres && engine != SQLite {
		panic("migrations: no such engine: " + engine)
	}
	sub, err := fs.Sub(files, engine)
	if err != nil {
		panic("migrations: " + err.Error())
	}
	return sub
}
