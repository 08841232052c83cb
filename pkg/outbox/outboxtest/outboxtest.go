// Package outboxtest does to an outbox what tests of its readers need: it writes events, good and bad, on either engine.
package outboxtest

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/outbox"
)

// Append appends events in a transaction of their own.
func Append(ctx context.Context, d *db.DB, events ...outbox.Event) error {
	if d.Engine() == db.SQLite {
		return d.WriteTx(ctx, func(tx *sql.Tx) error { return outbox.AppendSQLite(ctx, tx, events...) })
	}
	return pgx.BeginFunc(ctx, d.Pool(), func(tx pgx.Tx) error { return outbox.AppendPostgres(ctx, tx, events...) })
}

const spoilSQL = `update outbox set body = '{' where task_id = $1`

// Spoil makes the bodies of a task's events something that is not JSON, which Append refuses and a defect might leave.
func Spoil(ctx context.Context, d *db.DB, taskID string) error {
	var err error
	if d.Engine() == db.SQLite {
		_, err = d.SQL().ExecContext(ctx, spoilSQL, taskID)
	} else {
		_, err = d.Pool().Exec(ctx, spoilSQL, taskID)
	}
	return err
}
