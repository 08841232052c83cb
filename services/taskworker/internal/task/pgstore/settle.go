package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Settle implements task.Store.
//
// The rows that are free are settled together, in six statements however many they are, if none has news. Then come
// those that were locked, one by one.
func (s *Store) Settle(ctx context.Context, outcomes []task.Outcome) ([]task.Settled, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	var locked []task.Outcome
	together := func(some []task.Outcome) ([]task.Settled, error) {
		settled, waiting, err := s.settle(ctx, some, lockFreeSQL)
		locked = append(locked, waiting...)
		return settled, err
	}
	settled, err := task.SettleEach(outcomes, together, func(err error) bool { return refused(err) && ctx.Err() == nil })
	if len(settled) < len(outcomes) {
		return nil, fmt.Errorf("settle: %w", err)
	}
	errs := []error{err}
	for _, o := range locked {
		one, _, err := s.settle(ctx, []task.Outcome{o}, lockSQL)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		at := slices.IndexFunc(outcomes, func(other task.Outcome) bool { return other.Claim.Hold == o.Claim.Hold })
		settled[at] = one[0]
	}
	if err := errors.Join(errs...); err != nil {
		return settled, fmt.Errorf("settle: %w", err)
	}
	return settled, nil
}

// settle settles outcomes in one transaction. Those whose rows are locked by someone else, and skipped by sql, are
// returned as well.
func (s *Store) settle(ctx context.Context, outcomes []task.Outcome, sql string) (settled []task.Settled, locked []task.Outcome, err error) {
	ids := make([]string, len(outcomes))
	for i, o := range outcomes {
		ids[i] = o.Claim.TaskID
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		found, err := lock(ctx, tx, sql, ids)
		if err != nil {
			return err
		}
		var w writes
		for _, o := range outcomes {
			step := task.Step{Settled: task.Settled{TaskID: o.Claim.TaskID, Dropped: true}}
			if l := found.locked[o.Claim.TaskID]; l != nil {
				step = s.policy.Settle(&l.Live, o, found.now, jitter())
				w.save(l, step)
			} else if slices.Contains(found.others, o.Claim.TaskID) {
				locked = append(locked, o)
			}
			settled = append(settled, step.Settled)
		}
		return w.send(ctx, tx)
	})
	if err != nil {
		return nil, nil, err
	}
	return settled, locked, nil
}

// Release implements task.Store. Rows that are locked are left to the end of their leases.
func (s *Store) Release(ctx context.Context, holds []task.Hold) error {
	ids := make([]string, len(holds))
	for i, h := range holds {
		ids[i] = h.TaskID
	}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		found, err := lock(ctx, tx, lockFreeSQL, ids)
		if err != nil {
			return err
		}
		var w writes
		for _, h := range holds {
			if l := found.locked[h.TaskID]; l != nil {
				w.save(l, s.policy.Release(&l.Live, h, found.now))
			}
		}
		return w.send(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}
