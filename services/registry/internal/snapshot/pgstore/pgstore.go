// Package pgstore keeps snapshots in Postgres. See snapshot.Store for the contract.
package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// Store implements snapshot.Store.
type Store struct{ pool *pgxpool.Pool }

var _ snapshot.Store = (*Store)(nil)

// New returns a store on pool, whose schema must be current.
func New(pool *pgxpool.Pool) *Store { return &Store{pool} }

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const headSQL = `
    select revision, snapshot_id, activate_time, actor, reason
      from registry_activation
     order by revision desc
     limit 1`

// Head implements snapshot.Store.
func (s *Store) Head(ctx context.Context) (snapshot.Activation, error) {
	a, err := head(ctx, s.pool)
	if err != nil {
		return a, fmt.Errorf("head: %w", err)
	}
	return a, nil
}

func head(ctx context.Context, q querier) (snapshot.Activation, error) {
	var a snapshot.Activation
	err := q.QueryRow(ctx, headSQL).Scan(&a.Revision, &a.ID, &a.ActivateTime, &a.Actor, &a.Reason)
	if errors.Is(err, pgx.ErrNoRows) {
		return a, snapshot.ErrNone
	}
	a.ActivateTime = a.ActivateTime.UTC()
	return a, err
}

const (
	// One publication at a time: revisions then rise in the order of their commits, so that a reader who has seen
	// one never misses a lower one. Readers do not wait for it.
	lockSQL = `lock table registry_activation in share row exclusive mode`

	addSecretSQL = `
    insert into registry_secret (server, field_path, mac, ciphertext, key_id, create_time)
    values ($1, $2, $3, $4, $5, now())
        on conflict on constraint registry_secret_pk do nothing`

	addSnapshotSQL = `
    insert into registry_snapshot (snapshot_id, content, server_count, create_time)
    values ($1, $2, $3, now())
        on conflict on constraint registry_snapshot_pk do nothing`

	addActivationSQL = `
       insert into registry_activation (snapshot_id, activate_time, actor, reason)
       values ($1, now(), $2, $3)
    returning revision, activate_time`
)

// Publish implements snapshot.Store.
func (s *Store) Publish(ctx context.Context, p snapshot.Publication) (snapshot.Published, error) {
	var out snapshot.Published
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSQL); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		current, err := head(ctx, tx)
		if err != nil && !errors.Is(err, snapshot.ErrNone) {
			return fmt.Errorf("head: %w", err)
		}
		if current.ID == p.ID {
			out = snapshot.Published{Activation: current}
			return nil
		}
		if current.Revision != p.Base {
			return snapshot.ErrMoved
		}
		out = snapshot.Published{New: true, Activation: snapshot.Activation{ID: p.ID, Actor: p.Actor, Reason: p.Reason}}
		return activate(ctx, tx, p, &out.Activation)
	})
	if err != nil {
		return snapshot.Published{}, fmt.Errorf("publish: %w", err)
	}
	return out, nil
}

func activate(ctx context.Context, tx pgx.Tx, p snapshot.Publication, a *snapshot.Activation) error {
	var batch pgx.Batch
	for _, x := range p.Secrets {
		batch.Queue(addSecretSQL, x.Server, x.FieldPath, x.MAC, x.Ciphertext, x.KeyID)
	}
	batch.Queue(addSnapshotSQL, string(p.ID), string(p.Content), p.ServerCount)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("add snapshot: %w", err)
	}
	if err := tx.QueryRow(ctx, addActivationSQL, string(p.ID), p.Actor, p.Reason).Scan(&a.Revision, &a.ActivateTime); err != nil {
		return fmt.Errorf("add activation: %w", err)
	}
	a.ActivateTime = a.ActivateTime.UTC()
	return prune(ctx, tx, p.Retain.OrDefault())
}

const (
	excessSQL = `
    select snapshot_id
      from registry_activation
     group by snapshot_id
     order by max(revision) desc
    offset $1`

	dropActivationsSQL = `delete from registry_activation where snapshot_id = any($1)`

	dropSnapshotsSQL = `delete from registry_snapshot where snapshot_id = any($1)`

	thinActivationsSQL = `
    delete from registry_activation a
     where a.revision <= (select b.revision from registry_activation b order by b.revision desc offset $1 limit 1)
       and exists (select from registry_activation c where c.snapshot_id = a.snapshot_id and c.revision > a.revision)`
)

func prune(ctx context.Context, tx pgx.Tx, keep snapshot.Retention) error {
	rows, err := tx.Query(ctx, excessSQL, keep.Snapshots)
	if err != nil {
		return fmt.Errorf("find excess snapshots: %w", err)
	}
	excess, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("find excess snapshots: %w", err)
	}
	if len(excess) > 0 {
		if _, err := tx.Exec(ctx, dropActivationsSQL, excess); err != nil {
			return fmt.Errorf("drop activations: %w", err)
		}
		if _, err := tx.Exec(ctx, dropSnapshotsSQL, excess); err != nil {
			return fmt.Errorf("drop snapshots: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, thinActivationsSQL, keep.Activations); err != nil {
		return fmt.Errorf("thin activations: %w", err)
	}
	return nil
}

const getSQL = `
    select s.content::text, s.create_time, a.revision, a.activate_time, a.actor, a.reason
      from registry_snapshot s
      join registry_activation a on a.snapshot_id = s.snapshot_id
     where s.snapshot_id = $1
     order by a.revision desc
     limit 1`

// Get implements snapshot.Store.
func (s *Store) Get(ctx context.Context, id snapshot.ID) (snapshot.Stored, error) {
	out := snapshot.Stored{Activation: snapshot.Activation{ID: id}}
	err := s.pool.QueryRow(ctx, getSQL, string(id)).
		Scan(&out.Content, &out.CreateTime, &out.Revision, &out.ActivateTime, &out.Actor, &out.Reason)
	if errors.Is(err, pgx.ErrNoRows) {
		return snapshot.Stored{}, snapshot.ErrNotFound
	}
	if err != nil {
		return snapshot.Stored{}, fmt.Errorf("get snapshot: %w", err)
	}
	out.CreateTime, out.ActivateTime = out.CreateTime.UTC(), out.ActivateTime.UTC()
	return out, nil
}

const listSQL = `
    select a.revision, a.snapshot_id, a.activate_time, a.actor, a.reason, s.create_time, s.server_count
      from registry_activation a
      join registry_snapshot s on s.snapshot_id = a.snapshot_id
     where $1 = 0 or a.revision < $1
     order by a.revision desc
     limit $2`

// List implements snapshot.Store.
func (s *Store) List(ctx context.Context, before snapshot.Revision, limit int) ([]snapshot.Listed, error) {
	rows, err := s.pool.Query(ctx, listSQL, int64(before), limit)
	if err != nil {
		return nil, fmt.Errorf("list activations: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (snapshot.Listed, error) {
		var l snapshot.Listed
		err := row.Scan(&l.Revision, &l.ID, &l.ActivateTime, &l.Actor, &l.Reason, &l.CreateTime, &l.ServerCount)
		l.CreateTime, l.ActivateTime = l.CreateTime.UTC(), l.ActivateTime.UTC()
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("list activations: %w", err)
	}
	return out, nil
}

const sealedSQL = `
    select s.server, s.field_path, s.mac, s.ciphertext, s.key_id
      from registry_secret s
      join unnest($1::text[], $2::text[], $3::text[]) as r (server, field_path, mac)
        on s.server = r.server and s.field_path = r.field_path and s.mac = r.mac`

// Secrets implements snapshot.Store.
func (s *Store) Secrets(ctx context.Context, refs []snapshot.Ref) ([]snapshot.Secret, error) {
	var servers, paths, macs []string
	for _, r := range refs {
		servers, paths, macs = append(servers, r.Server), append(paths, r.FieldPath), append(macs, r.MAC)
	}
	rows, err := s.pool.Query(ctx, sealedSQL, servers, paths, macs)
	if err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (snapshot.Secret, error) {
		var x snapshot.Secret
		err := row.Scan(&x.Server, &x.FieldPath, &x.MAC, &x.Ciphertext, &x.KeyID)
		return x, err
	})
	if err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	return out, nil
}
