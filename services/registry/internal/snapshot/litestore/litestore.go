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
    select revision, snapshot_id, activate_time, actor, reason, hold_time,
           coalesce((select max(candidate_id) from registry_candidate), 0)
      from registry_activation
     order by revision desc
     limit 1`

// Head implements snapshot.Store.
func (s *Store) Head(ctx context.Context) (snapshot.Head, error) {
	h, err := head(ctx, s.db.Read())
	if err != nil {
		return h, fmt.Errorf("head: %w", err)
	}
	return h, nil
}

func head(ctx context.Context, q querier) (snapshot.Head, error) {
	var h snapshot.Head
	var activated, held sql.NullInt64
	err := q.QueryRowContext(ctx, headSQL).Scan(&h.Revision, &h.ID, &activated, &h.Actor, &h.Reason, &held, &h.Candidate)
	if errors.Is(err, sql.ErrNoRows) {
		return h, snapshot.ErrNone
	}
	h.ActivateTime, h.HoldTime = utc(activated), utc(held)
	return h, err
}

const (
	addSecretSQL = `
    insert into registry_secret (server, field_path, mac, ciphertext, key_id, create_time, use_time)
    values (?1, ?2, ?3, ?4, ?5, ?6, ?6)
        on conflict (server, field_path, mac) do update set use_time = ?6`

	addSnapshotSQL = `
    insert into registry_snapshot (snapshot_id, content, server_count, create_time)
    values (?, ?, ?, ?)
        on conflict (snapshot_id) do nothing`

	addActivationSQL = `
       insert into registry_activation (snapshot_id, activate_time, actor, reason, hold_time)
       values (?, ?, ?, ?, ?)
    returning revision`

	dropCandidatesSQL = `delete from registry_candidate`
)

// Publish implements snapshot.Store.
func (s *Store) Publish(ctx context.Context, p snapshot.Publication) (snapshot.Published, error) {
	var out snapshot.Published
	err := s.locked(ctx, func(tx *sql.Tx, current snapshot.Head) error {
		var err error
		switch {
		case current.Holds() && !p.Amends:
			out, err = record(ctx, tx, p, current)
			return err
		case current.ID == p.ID:
			out = snapshot.Published{Activation: current.Activation}
			return nil
		case current.Revision != p.Base, p.Amends && !current.Holds():
			return snapshot.ErrMoved
		}
		if err := add(ctx, tx, p); err != nil {
			return err
		}
		out, err = activate(ctx, tx, snapshot.Activation{ID: p.ID, Actor: p.Actor, Reason: p.Reason, HoldTime: current.HoldTime}, current.Holds())
		if err != nil {
			return err
		}
		return prune(ctx, tx, p.Retain.OrDefault())
	})
	if err != nil {
		return snapshot.Published{}, fmt.Errorf("publish: %w", err)
	}
	return out, nil
}

// locked runs f in a transaction that no other change of what is effective runs beside: a write transaction holds the
// lock from its first moment. The head is the zero value where there is none.
func (s *Store) locked(ctx context.Context, f func(tx *sql.Tx, current snapshot.Head) error) error {
	return s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		current, err := head(ctx, tx)
		if err != nil && !errors.Is(err, snapshot.ErrNone) {
			return fmt.Errorf("head: %w", err)
		}
		return f(tx, current)
	})
}

// add stores the secrets and the content of p.
func add(ctx context.Context, tx *sql.Tx, p snapshot.Publication) error {
	now := time.Now().UnixMilli()
	for _, x := range p.Secrets {
		if _, err := tx.ExecContext(ctx, addSecretSQL, x.Server, x.FieldPath, x.MAC, x.Ciphertext, x.KeyID, now); err != nil {
			return fmt.Errorf("add secret: %w", err)
		}
	}
	if _, err := tx.ExecContext(ctx, addSnapshotSQL, string(p.ID), string(p.Content), p.ServerCount, now); err != nil {
		return fmt.Errorf("add snapshot: %w", err)
	}
	return nil
}

// activate makes a.ID effective. If it is to hold, it does so since a.HoldTime, or from this moment on; else nothing waits
// behind it any more.
func activate(ctx context.Context, tx *sql.Tx, a snapshot.Activation, hold bool) (snapshot.Published, error) {
	now := time.Now().UnixMilli()
	var held sql.NullInt64
	switch {
	case hold && a.Holds():
		held = sql.NullInt64{Int64: a.HoldTime.UnixMilli(), Valid: true}
	case hold:
		held = sql.NullInt64{Int64: now, Valid: true}
	}
	if err := tx.QueryRowContext(ctx, addActivationSQL, string(a.ID), now, a.Actor, a.Reason, held).Scan(&a.Revision); err != nil {
		return snapshot.Published{}, fmt.Errorf("add activation: %w", err)
	}
	if !hold {
		if _, err := tx.ExecContext(ctx, dropCandidatesSQL); err != nil {
			return snapshot.Published{}, fmt.Errorf("drop candidates: %w", err)
		}
	}
	a.ActivateTime, a.HoldTime = time.UnixMilli(now).UTC(), utc(held)
	return snapshot.Published{Activation: a, New: true}, nil
}

const (
	excessSQL = `
    select snapshot_id
      from registry_activation
     group by snapshot_id
     order by max(revision) desc
     limit -1 offset ?`

	dropActivationsSQL = `delete from registry_activation where snapshot_id = ?`

	dropSnapshotsSQL = `
    delete from registry_snapshot as s
     where not exists (select 1 from registry_activation a where a.snapshot_id = s.snapshot_id)
       and not exists (select 1 from registry_candidate c where c.snapshot_id = s.snapshot_id)`

	thinActivationsSQL = `
    delete from registry_activation as a
     where a.revision <= (select b.revision from registry_activation b order by b.revision desc limit 1 offset ?)
       and exists (select 1 from registry_activation c where c.snapshot_id = a.snapshot_id and c.revision > a.revision)`

	thinCandidatesSQL = `
    delete from registry_candidate as c
     where c.candidate_id <= (select b.candidate_id from registry_candidate b order by b.candidate_id desc limit 1 offset ?)`
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
	}
	if _, err := tx.ExecContext(ctx, thinActivationsSQL, keep.Activations); err != nil {
		return fmt.Errorf("thin activations: %w", err)
	}
	if _, err := tx.ExecContext(ctx, thinCandidatesSQL, keep.Candidates); err != nil {
		return fmt.Errorf("thin candidates: %w", err)
	}
	if _, err := tx.ExecContext(ctx, dropSnapshotsSQL); err != nil {
		return fmt.Errorf("drop snapshots: %w", err)
	}
	return nil
}

const getSQL = `
    select s.content, s.create_time, coalesce(a.revision, 0), a.activate_time, coalesce(a.actor, ''), coalesce(a.reason, ''), a.hold_time
      from registry_snapshot s
      left join registry_activation a on a.snapshot_id = s.snapshot_id
     where s.snapshot_id = ?
     order by a.revision desc
     limit 1`

// Get implements snapshot.Store.
func (s *Store) Get(ctx context.Context, id snapshot.ID) (snapshot.Stored, error) {
	out := snapshot.Stored{Activation: snapshot.Activation{ID: id}}
	var created, activated, held sql.NullInt64
	err := s.db.Read().QueryRowContext(ctx, getSQL, string(id)).
		Scan(&out.Content, &created, &out.Revision, &activated, &out.Actor, &out.Reason, &held)
	if errors.Is(err, sql.ErrNoRows) {
		return snapshot.Stored{}, snapshot.ErrNotFound
	}
	if err != nil {
		return snapshot.Stored{}, fmt.Errorf("get snapshot: %w", err)
	}
	out.CreateTime, out.ActivateTime, out.HoldTime = utc(created), utc(activated), utc(held)
	return out, nil
}

const listSQL = `
    select a.revision, a.snapshot_id, a.activate_time, a.actor, a.reason, a.hold_time, s.create_time, s.server_count
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
		var activated, held, created sql.NullInt64
		err = rows.Scan(&l.Revision, &l.ID, &activated, &l.Actor, &l.Reason, &held, &created, &l.ServerCount)
		l.ActivateTime, l.HoldTime, l.CreateTime = utc(activated), utc(held), utc(created)
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("list activations: %w", err)
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

// utc returns the time that a column says; null is the zero time.
func utc(ms sql.NullInt64) time.Time {
	if !ms.Valid {
		return time.Time{}
	}
	return time.UnixMilli(ms.Int64).UTC()
}
