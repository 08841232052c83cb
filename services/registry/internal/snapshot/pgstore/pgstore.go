// Package pgstore keeps snapshots in Postgres. See snapshot.Store for the contract.
package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

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
    select revision, snapshot_id, activate_time, actor, reason, hold_time,
           coalesce((select max(candidate_id) from registry_candidate), 0)
      from registry_activation
     order by revision desc
     limit 1`

// Head implements snapshot.Store.
func (s *Store) Head(ctx context.Context) (snapshot.Head, error) {
	h, err := head(ctx, s.pool)
	if err != nil {
		return h, fmt.Errorf("head: %w", err)
	}
	return h, nil
}

func head(ctx context.Context, q querier) (snapshot.Head, error) {
	var h snapshot.Head
	var held *time.Time
	err := q.QueryRow(ctx, headSQL).Scan(&h.Revision, &h.ID, &h.ActivateTime, &h.Actor, &h.Reason, &held, &h.Candidate)
	if errors.Is(err, pgx.ErrNoRows) {
		return h, snapshot.ErrNone
	}
	h.ActivateTime, h.HoldTime = h.ActivateTime.UTC(), utc(held)
	return h, err
}

func utc(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

const (
	// One publication at a time: revisions then rise in the order of their commits, so that a reader who has seen
	// one never misses a lower one. Readers do not wait for it.
	lockSQL = `lock table registry_activation in share row exclusive mode`

	addSecretSQL = `
    insert into registry_secret (server, field_path, mac, ciphertext, key_id, create_time, use_time)
    values ($1, $2, $3, $4, $5, now(), now())
        on conflict on constraint registry_secret_pk do update set use_time = now()`

	addSnapshotSQL = `
    insert into registry_snapshot (snapshot_id, content, server_count, create_time)
    values ($1, $2, $3, now())
        on conflict on constraint registry_snapshot_pk do nothing`

	addActivationSQL = `
       insert into registry_activation (snapshot_id, activate_time, actor, reason, hold_time)
       values ($1, now(), $2, $3, case when $4 then coalesce($5, now()) end)
    returning revision, activate_time, hold_time`

	dropCandidatesSQL = `delete from registry_candidate`
)

// Publish implements snapshot.Store.
func (s *Store) Publish(ctx context.Context, p snapshot.Publication) (snapshot.Published, error) {
	var out snapshot.Published
	err := s.locked(ctx, func(tx pgx.Tx, current snapshot.Head) error {
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

// locked runs f in a transaction that no other change of what is effective runs beside. The head is the zero value where
// there is none.
func (s *Store) locked(ctx context.Context, f func(tx pgx.Tx, current snapshot.Head) error) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSQL); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		current, err := head(ctx, tx)
		if err != nil && !errors.Is(err, snapshot.ErrNone) {
			return fmt.Errorf("head: %w", err)
		}
		return f(tx, current)
	})
}

// add stores the secrets and the content of p.
func add(ctx context.Context, tx pgx.Tx, p snapshot.Publication) error {
	var batch pgx.Batch
	for _, x := range p.Secrets {
		batch.Queue(addSecretSQL, x.Server, x.FieldPath, x.MAC, x.Ciphertext, x.KeyID)
	}
	batch.Queue(addSnapshotSQL, string(p.ID), string(p.Content), p.ServerCount)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("add snapshot: %w", err)
	}
	return nil
}

// activate makes a.ID effective. If it is to hold, it does so since a.HoldTime, or from this moment on; else nothing waits
// behind it any more.
func activate(ctx context.Context, tx pgx.Tx, a snapshot.Activation, hold bool) (snapshot.Published, error) {
	var since, held *time.Time
	if !a.HoldTime.IsZero() {
		since = &a.HoldTime
	}
	err := tx.QueryRow(ctx, addActivationSQL, string(a.ID), a.Actor, a.Reason, hold, since).Scan(&a.Revision, &a.ActivateTime, &held)
	if err != nil {
		return snapshot.Published{}, fmt.Errorf("add activation: %w", err)
	}
	if !hold {
		if _, err := tx.Exec(ctx, dropCandidatesSQL); err != nil {
			return snapshot.Published{}, fmt.Errorf("drop candidates: %w", err)
		}
	}
	a.ActivateTime, a.HoldTime = a.ActivateTime.UTC(), utc(held)
	return snapshot.Published{Activation: a, New: true}, nil
}

const (
	excessSQL = `
    select snapshot_id
      from registry_activation
     group by snapshot_id
     order by max(revision) desc
    offset $1`

	dropActivationsSQL = `delete from registry_activation where snapshot_id = any($1)`

	dropSnapshotsSQL = `
    delete from registry_snapshot s
     where not exists (select from registry_activation a where a.snapshot_id = s.snapshot_id)
       and not exists (select from registry_candidate c where c.snapshot_id = s.snapshot_id)`

	thinActivationsSQL = `
    delete from registry_activation a
     where a.revision <= (select b.revision from registry_activation b order by b.revision desc offset $1 limit 1)
       and exists (select from registry_activation c where c.snapshot_id = a.snapshot_id and c.revision > a.revision)`

	thinCandidatesSQL = `
    delete from registry_candidate c
     where c.candidate_id <= (select b.candidate_id from registry_candidate b order by b.candidate_id desc offset $1 limit 1)`
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
	}
	if _, err := tx.Exec(ctx, thinActivationsSQL, keep.Activations); err != nil {
		return fmt.Errorf("thin activations: %w", err)
	}
	if _, err := tx.Exec(ctx, thinCandidatesSQL, keep.Candidates); err != nil {
		return fmt.Errorf("thin candidates: %w", err)
	}
	if _, err := tx.Exec(ctx, dropSnapshotsSQL); err != nil {
		return fmt.Errorf("drop snapshots: %w", err)
	}
	return nil
}

const getSQL = `
    select s.content::text, s.create_time, coalesce(a.revision, 0), a.activate_time, coalesce(a.actor, ''), coalesce(a.reason, ''), a.hold_time
      from registry_snapshot s
      left join registry_activation a on a.snapshot_id = s.snapshot_id
     where s.snapshot_id = $1
     order by a.revision desc
     limit 1`

// Get implements snapshot.Store.
func (s *Store) Get(ctx context.Context, id snapshot.ID) (snapshot.Stored, error) {
	out := snapshot.Stored{Activation: snapshot.Activation{ID: id}}
	var activated, held *time.Time
	err := s.pool.QueryRow(ctx, getSQL, string(id)).
		Scan(&out.Content, &out.CreateTime, &out.Revision, &activated, &out.Actor, &out.Reason, &held)
	if errors.Is(err, pgx.ErrNoRows) {
		return snapshot.Stored{}, snapshot.ErrNotFound
	}
	if err != nil {
		return snapshot.Stored{}, fmt.Errorf("get snapshot: %w", err)
	}
	out.CreateTime, out.ActivateTime, out.HoldTime = out.CreateTime.UTC(), utc(activated), utc(held)
	return out, nil
}

const listSQL = `
    select a.revision, a.snapshot_id, a.activate_time, a.actor, a.reason, a.hold_time, s.create_time, s.server_count
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
		var held *time.Time
		err := row.Scan(&l.Revision, &l.ID, &l.ActivateTime, &l.Actor, &l.Reason, &held, &l.CreateTime, &l.ServerCount)
		l.CreateTime, l.ActivateTime, l.HoldTime = l.CreateTime.UTC(), l.ActivateTime.UTC(), utc(held)
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("list activations: %w", err)
	}
	return out, nil
}
