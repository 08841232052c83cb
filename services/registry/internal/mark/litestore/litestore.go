// Package litestore keeps marks in SQLite. See mark.Store for the contract.
package litestore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/services/registry/internal/mark"
)

// Store implements mark.Store.
type Store struct{ db *db.DB }

var _ mark.Store = (*Store)(nil)

// New returns a store on the SQLite database d, whose schema must be current.
func New(d *db.DB) *Store { return &Store{d} }

const (
	overlaysSQL = `select path, server, enabled from registry_overlay`

	writtenSQL = `select path, server, definition from registry_written`
)

// All implements mark.Store.
func (s *Store) All(ctx context.Context) (mark.Set, error) {
	var out mark.Set
	tx, err := s.db.Read().BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return out, fmt.Errorf("read marks: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it has read only
	err = each(ctx, tx, overlaysSQL, func(rows *sql.Rows) error {
		var o mark.Overlay
		err := rows.Scan(&o.Path, &o.Server, &o.Enabled)
		out.Overlays = append(out.Overlays, o)
		return err
	})
	if err != nil {
		return mark.Set{}, fmt.Errorf("read overlays: %w", err)
	}
	err = each(ctx, tx, writtenSQL, func(rows *sql.Rows) error {
		var w mark.Written
		err := rows.Scan(&w.Path, &w.Server, &w.Definition)
		out.Written = append(out.Written, w)
		return err
	})
	if err != nil {
		return mark.Set{}, fmt.Errorf("read written definitions: %w", err)
	}
	return out, nil
}

func each(ctx context.Context, tx *sql.Tx, query string, scan func(*sql.Rows) error) error {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close() // rows.Err has what matters
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

const switchSQL = `
    insert into registry_overlay (path, server, enabled, actor, update_time)
    values (?, ?, ?, ?, ?)
        on conflict (path, server) do update
       set enabled = excluded.enabled, actor = excluded.actor, update_time = excluded.update_time`

// Switch implements mark.Store.
func (s *Store) Switch(ctx context.Context, o mark.Overlay, actor string) error {
	return s.exec(ctx, "switch entry", switchSQL, o.Path, o.Server, o.Enabled, actor, time.Now().UnixMilli())
}

const clearSQL = `delete from registry_overlay where path = ? and server = ?`

// Clear implements mark.Store.
func (s *Store) Clear(ctx context.Context, p mark.Place) error {
	return s.exec(ctx, "clear overlay", clearSQL, p.Path, p.Server)
}

func (s *Store) exec(ctx context.Context, what, query string, args ...any) error {
	return s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

const addSQL = `
    insert into registry_written (path, server, definition, write_time)
    values (?, ?, ?, ?)
        on conflict (path, server, definition) do nothing`

// Add implements mark.Store.
func (s *Store) Add(ctx context.Context, written []mark.Written) error {
	return s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		for _, w := range written {
			if _, err := tx.ExecContext(ctx, addSQL, w.Path, w.Server, w.Definition, time.Now().UnixMilli()); err != nil {
				return fmt.Errorf("add written definition: %w", err)
			}
		}
		return nil
	})
}

const (
	writtenAtSQL = `select server, definition from registry_written where path = ?`

	forgetSQL = `delete from registry_written where path = ? and server = ? and definition = ?`
)

// Keep implements mark.Store.
func (s *Store) Keep(ctx context.Context, path string, written []mark.Written) error {
	return s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, writtenAtSQL, path)
		if err != nil {
			return fmt.Errorf("read written definitions: %w", err)
		}
		defer rows.Close() // rows.Err has what matters
		var gone []mark.Written
		for rows.Next() {
			w := mark.Written{Place: mark.Place{Path: path}}
			if err := rows.Scan(&w.Server, &w.Definition); err != nil {
				return fmt.Errorf("read written definitions: %w", err)
			}
			if !slices.Contains(written, w) {
				gone = append(gone, w)
			}
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("read written definitions: %w", err)
		}
		for _, w := range gone {
			if _, err := tx.ExecContext(ctx, forgetSQL, w.Path, w.Server, w.Definition); err != nil {
				return fmt.Errorf("forget written definition: %w", err)
			}
		}
		return nil
	})
}
