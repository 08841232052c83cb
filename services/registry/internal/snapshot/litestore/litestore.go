// Package litestore keeps snapshots in SQLite. See snapshot.Store for the contract.
package litestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// Store implements snapshot.Store.
type Store struct{ db *db.DB }

var _ snapshot.Store = (*Store)(nil)

// New returns a store on the SQLite database d, whose schema must be current.
func New(d *db.DB) *Store { return &Store{d} }

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

const headSQL = `
    select revision, snapshot_id, activate_time, actor, reason
      from registry_activation
     order by revision desc
     limit 1`

// Head implements snapshot.Store.
func (s *Store) Head(ctx context.Context) (snapshot.Activation, error) {
	a, err := head(ctx, s.db.Read())
	if err != nil {
		return a, fmt.Errorf("head: %w", err)
	}
	return a, nil
}

func head(ctx context.Context, q querier) (snapshot.Activation, error) {
	var a snapshot.Activation
	var ms int64
	err := q.QueryRowContext(ctx, headSQL).Scan(&a.Revision, &a.ID, &ms, &a.Actor, &a.Reason)
	if errors.Is(err, sql.ErrNoRows) {
		return a, snapshot.ErrNone
	}
	a.ActivateTime = utc(ms)
	return a, err
}

const (
	addSecretSQL = `
    insert into registry_secret (server, field_path, mac, ciphertext, key_id, create_time)
    values (?, ?, ?, ?, ?, ?)
        on conflict (server, field_path, mac) do nothing`

	addSnapshotSQL = `
    insert into registry_snapshot (snapshot_id, content, server_count, create_time)
    values (?, ?, ?, ?)
        on conflict (snapshot_id) do nothing`

	addActivationSQL = `
       insert into registry_activation (snapshot_id, activate_time, actor, reason)
       values (?, ?, ?, ?)
    returning revision`
)

// Publish implements snapshot.Store.
func (s *Store) Publish(ctx context.Context, p snapshot.Publication) (snapshot.Published, error) {
	var out snapshot.Published
	// A write transaction holds the lock from its first moment, so publications come one after another.
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
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

func activate(ctx context.Context, tx *sql.Tx, p snapshot.Publication, a *snapshot.Activation) error {
	now := time.Now().UnixMilli()
	a.ActivateTime = utc(now)
	for _, x := range p.Secrets {
		if _, err := tx.ExecContext(ctx, addSecretSQL, x.Server, x.FieldPath, x.MAC, x.Ciphertext, x.KeyID, now); err != nil {
			return fmt.Errorf("add secret: %w", err)
		}
	}
	if _, err := tx.ExecContext(ctx, addSnapshotSQL, string(p.ID), string(p.Content), p.ServerCount, now); err != nil {
		return fmt.Errorf("add snapshot: %w", err)
	}
	if err := tx.QueryRowContext(ctx, addActivationSQL, string(p.ID), now, p.Actor, p.Reason).Scan(&a.Revision); err != nil {
		return fmt.Errorf("add activation: %w", err)
	}
	return prune(ctx, tx, p.Retain.OrDefault())
}

const (
	excessSQL = `
    select snapshot_id
      from registry_activation
     group by snapshot_id
     order by max(revision) desc
     limit -1 offset ?`

	dropActivationsSQL = `delete from registry_activation where snapshot_id = ?`

	dropSnapshotSQL = `delete from registry_snapshot where snapshot_id = ?`

	thinActivationsSQL = `
    delete from registry_activation as a
     where a.revision <= (select b.revision from registry_activation b order by b.revision desc limit 1 offset ?)
       and exists (select 1 from registry_activation c where c.snapshot_id = a.snapshot_id and c.revision > a.revision)`
)

func prune(ctx context.Context, tx *sql.Tx, keep snapshot.Retention) error {
	rows, err := tx.QueryContext(ctx, excessSQL, keep.Snapshots)
	if err != nil {
		return fmt.Errorf("find excess snapshots: %w", err)
	}
	excess, err := collect(rows, func(rows *sql.Rows) (id string, err error) { return id, rows.Scan(&id) })
	if err != nil {
		return fmt.Errorf("find excess snapshots: %w", err)
	}
	for _, id := range excess {
		if _, err := tx.ExecContext(ctx, dropActivationsSQL, id); err != nil {
			return fmt.Errorf("drop activations: %w", err)
		}
		if _, err := tx.ExecContext(ctx, dropSnapshotSQL, id); err != nil {
			return fmt.Errorf("drop snapshot: %w", err)
		}
	}
	if _, err := tx.ExecContext(ctx, thinActivationsSQL, keep.Activations); err != nil {
		return fmt.Errorf("thin activations: %w", err)
	}
	return nil
}

const getSQL = `
    select s.content, s.create_time, a.revision, a.activate_time, a.actor, a.reason
      from registry_snapshot s
      join registry_activation a on a.snapshot_id = s.snapshot_id
     where s.snapshot_id = ?
     order by a.revision desc
     limit 1`

// Get implements snapshot.Store.
func (s *Store) Get(ctx context.Context, id snapshot.ID) (snapshot.Stored, error) {
	out := snapshot.Stored{Activation: snapshot.Activation{ID: id}}
	var created, activated int64
	err := s.db.Read().QueryRowContext(ctx, getSQL, string(id)).
		Scan(&out.Content, &created, &out.Revision, &activated, &out.Actor, &out.Reason)
	if errors.Is(err, sql.ErrNoRows) {
		return snapshot.Stored{}, snapshot.ErrNotFound
	}
	if err != nil {
		return snapshot.Stored{}, fmt.Errorf("get snapshot: %w", err)
	}
	out.CreateTime, out.ActivateTime = utc(created), utc(activated)
	return out, nil
}

const listSQL = `
    select a.revision, a.snapshot_id, a.activate_time, a.actor, a.reason, s.create_time, s.server_count
      from registry_activation a
      join registry_snapshot s on s.snapshot_id = a.snapshot_id
     where ?1 = 0 or a.revision < ?1
     order by a.revision desc
     limit ?2`

// List implements snapshot.Store.
func (s *Store) List(ctx context.Context, before snapshot.Revision, limit int) ([]snapshot.Listed, error) {
	rows, err := s.db.Read().QueryContext(ctx, listSQL, int64(before), limit)
	if err != nil {
		return nil, fmt.Errorf("list activations: %w", err)
	}
	out, err := collect(rows, func(rows *sql.Rows) (l snapshot.Listed, err error) {
		var activated, created int64
		err = rows.Scan(&l.Revision, &l.ID, &activated, &l.Actor, &l.Reason, &created, &l.ServerCount)
		l.ActivateTime, l.CreateTime = utc(activated), utc(created)
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("list activations: %w", err)
	}
	return out, nil
}

const sealedSQL = `
    select ciphertext, key_id
      from registry_secret
     where server = ? and field_path = ? and mac = ?`

// Secrets implements snapshot.Store.
func (s *Store) Secrets(ctx context.Context, refs []snapshot.Ref) ([]snapshot.Secret, error) {
	var out []snapshot.Secret
	for _, r := range refs {
		x := snapshot.Secret{Ref: r}
		err := s.db.Read().QueryRowContext(ctx, sealedSQL, r.Server, r.FieldPath, r.MAC).Scan(&x.Ciphertext, &x.KeyID)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read secrets: %w", err)
		}
		out = append(out, x)
	}
	return out, nil
}

// collect reads rows to their end and closes them.
func collect[T any](rows *sql.Rows, scan func(*sql.Rows) (T, error)) ([]T, error) {
	defer rows.Close() // rows.Err has what matters
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

func utc(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
