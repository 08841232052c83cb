// Package pgstore keeps marks in Postgres. See mark.Store for the contract.
package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/services/registry/internal/mark"
)

// Store implements mark.Store.
type Store struct{ pool *pgxpool.Pool }

var _ mark.Store = (*Store)(nil)

// New returns a store on pool, whose schema must be current.
func New(pool *pgxpool.Pool) *Store { return &Store{pool} }

const (
	overlaysSQL = `select path, server, enabled from registry_overlay`

	writtenSQL = `select path, server, definition from registry_written`
)

// All implements mark.Store.
func (s *Store) All(ctx context.Context) (mark.Set, error) {
	var out mark.Set
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, overlaysSQL)
		if err != nil {
			return fmt.Errorf("read overlays: %w", err)
		}
		out.Overlays, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (o mark.Overlay, err error) {
			return o, row.Scan(&o.Path, &o.Server, &o.Enabled)
		})
		if err != nil {
			return fmt.Errorf("read overlays: %w", err)
		}
		rows, err = tx.Query(ctx, writtenSQL)
		if err != nil {
			return fmt.Errorf("read written definitions: %w", err)
		}
		out.Written, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (w mark.Written, err error) {
			return w, row.Scan(&w.Path, &w.Server, &w.Definition)
		})
		if err != nil {
			return fmt.Errorf("read written definitions: %w", err)
		}
		return nil
	})
	if err != nil {
		return mark.Set{}, fmt.Errorf("read marks: %w", err)
	}
	return out, nil
}

const switchSQL = `
    insert into registry_overlay (path, server, enabled, actor, update_time)
    values ($1, $2, $3, $4, now())
        on conflict on constraint registry_overlay_pk do update
       set enabled = excluded.enabled, actor = excluded.actor, update_time = excluded.update_time`

// Switch implements mark.Store.
func (s *Store) Switch(ctx context.Context, o mark.Overlay, actor string) error {
	if _, err := s.pool.Exec(ctx, switchSQL, o.Path, o.Server, o.Enabled, actor); err != nil {
		return fmt.Errorf("switch entry: %w", err)
	}
	return nil
}

const clearSQL = `delete from registry_overlay where path = $1 and server = $2`

// Clear implements mark.Store.
func (s *Store) Clear(ctx context.Context, p mark.Place) error {
	if _, err := s.pool.Exec(ctx, clearSQL, p.Path, p.Server); err != nil {
		return fmt.Errorf("clear overlay: %w", err)
	}
	return nil
}

const addSQL = `
    insert into registry_written (path, server, definition, write_time)
    select path, server, definition, now()
      from unnest($1::text[], $2::text[], $3::text[]) as w (path, server, definition)
        on conflict on constraint registry_written_pk do nothing`

// Add implements mark.Store.
func (s *Store) Add(ctx context.Context, written []mark.Written) error {
	paths, servers, definitions := columns(written)
	if _, err := s.pool.Exec(ctx, addSQL, paths, servers, definitions); err != nil {
		return fmt.Errorf("add written definitions: %w", err)
	}
	return nil
}

const keepSQL = `
    delete from registry_written r
     where r.path = $4
       and not exists (
           select from unnest($1::text[], $2::text[], $3::text[]) as w (path, server, definition)
            where w.path = r.path and w.server = r.server and w.definition = r.definition)`

// Keep implements mark.Store.
func (s *Store) Keep(ctx context.Context, path string, written []mark.Written) error {
	paths, servers, definitions := columns(written)
	if _, err := s.pool.Exec(ctx, keepSQL, paths, servers, definitions, path); err != nil {
		return fmt.Errorf("forget written definitions: %w", err)
	}
	return nil
}

// columns returns the fields of written, which are empty and not null where there is nothing.
func columns(written []mark.Written) (paths, servers, definitions []string) {
	paths, servers, definitions = []string{}, []string{}, []string{}
	for _, w := range written {
		paths, servers, definitions = append(paths, w.Path), append(servers, w.Server), append(definitions, w.Definition)
	}
	return paths, servers, definitions
}
