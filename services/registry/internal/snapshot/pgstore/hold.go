package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

const (
	existsSQL = `select exists (select from registry_snapshot where snapshot_id = $1)`

	newestCandidateSQL = `
    select candidate_id, snapshot_id
      from registry_candidate
     order by candidate_id desc
     limit 1`

	addCandidateSQL = `
    insert into registry_candidate (snapshot_id, record_time, actor, reason)
    values ($1, now(), $2, $3)`
)

// newest returns the newest candidate; its number is 0 if there is none.
func newest(ctx context.Context, tx pgx.Tx) (snapshot.Candidate, error) {
	var c snapshot.Candidate
	err := tx.QueryRow(ctx, newestCandidateSQL).Scan(&c.Number, &c.ID)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return c, fmt.Errorf("newest candidate: %w", err)
	}
	return c, nil
}

// record makes p a candidate behind current, unless it is the newest one already.
func record(ctx context.Context, tx pgx.Tx, p snapshot.Publication, current snapshot.Head) (snapshot.Published, error) {
	out := snapshot.Published{Activation: current.Activation}
	last, err := newest(ctx, tx)
	if err != nil || last.ID == p.ID {
		return out, err
	}
	if current.Revision != p.Base || last.Number != p.BaseCandidate {
		return out, snapshot.ErrMoved
	}
	if err := add(ctx, tx, p); err != nil {
		return out, err
	}
	if _, err := tx.Exec(ctx, addCandidateSQL, string(p.ID), p.Actor, p.Reason); err != nil {
		return out, fmt.Errorf("add candidate: %w", err)
	}
	out.Recorded = true
	return out, prune(ctx, tx, p.Retain.OrDefault())
}

// Activate implements snapshot.Store.
func (s *Store) Activate(ctx context.Context, c snapshot.Choice) (snapshot.Published, error) {
	var out snapshot.Published
	err := s.locked(ctx, func(tx pgx.Tx, current snapshot.Head) error {
		var stored bool
		switch err := tx.QueryRow(ctx, existsSQL, string(c.ID)).Scan(&stored); {
		case err != nil:
			return fmt.Errorf("find snapshot: %w", err)
		case current.Revision == 0:
			return snapshot.ErrNone
		case !stored:
			return snapshot.ErrNotFound
		case c.Expect != "" && c.Expect != current.ID:
			return snapshot.ErrConflict
		}
		if c.Hold && !current.Holds() {
			if _, err := tx.Exec(ctx, addCandidateSQL, string(current.ID), current.Actor, current.Reason); err != nil {
				return fmt.Errorf("add candidate: %w", err)
			}
		}
		var err error
		if out, err = activate(ctx, tx, snapshot.Activation{ID: c.ID, Actor: c.Actor, Reason: c.Reason}, c.Hold); err != nil {
			return err
		}
		return prune(ctx, tx, c.Retain.OrDefault())
	})
	if err != nil {
		return snapshot.Published{}, fmt.Errorf("activate: %w", err)
	}
	return out, nil
}

// Release implements snapshot.Store.
func (s *Store) Release(ctx context.Context, e snapshot.End) (snapshot.Published, error) {
	var out snapshot.Published
	err := s.locked(ctx, func(tx pgx.Tx, current snapshot.Head) error {
		out = snapshot.Published{Activation: current.Activation}
		switch {
		case current.Revision == 0:
			return snapshot.ErrNone
		case !current.Holds():
			return nil
		}
		last, err := newest(ctx, tx)
		if err != nil {
			return err
		}
		if out, err = activate(ctx, tx, snapshot.Activation{ID: last.ID, Actor: e.Actor, Reason: e.Reason}, false); err != nil {
			return err
		}
		return prune(ctx, tx, e.Retain.OrDefault())
	})
	if err != nil {
		return snapshot.Published{}, fmt.Errorf("release: %w", err)
	}
	return out, nil
}

const candidatesSQL = `
    select c.candidate_id, c.snapshot_id, c.record_time, c.actor, c.reason, s.server_count
      from registry_candidate c
      join registry_snapshot s on s.snapshot_id = c.snapshot_id
     order by c.candidate_id desc`

// Candidates implements snapshot.Store.
func (s *Store) Candidates(ctx context.Context) ([]snapshot.Candidate, error) {
	rows, err := s.pool.Query(ctx, candidatesSQL)
	if err != nil {
		return nil, fmt.Errorf("list candidates: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (snapshot.Candidate, error) {
		var c snapshot.Candidate
		err := row.Scan(&c.Number, &c.ID, &c.RecordTime, &c.Actor, &c.Reason, &c.ServerCount)
		c.RecordTime = c.RecordTime.UTC()
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("list candidates: %w", err)
	}
	return out, nil
}
