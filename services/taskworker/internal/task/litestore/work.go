package litestore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

const (
	claimSQL = `
       update task_live
          set fence = fence + 1,
              lease_kind = case when cancel_time <= ?1 then 'cancel' else 'poll' end,
              due_time = ?2
        where task_id in (select task_id
                            from task_live
                           where due_time <= ?1
                           order by due_time, task_id
                           limit ?3)
    returning task_id, fence, lease_kind, poll_time, cancel_time, last_poll_time`

	refSQL = `
    select t.task_id, t.server, t.user_id, t.thread_id, t.handle, t.traceparent, b.binding
      from task_task t
      join task_binding b on b.fingerprint = t.fingerprint
     where t.task_id in (select value from json_each(?))`
)

// leased is a claim and what its place among others depends on.
type leased struct {
	task.Claim
	due time.Time
}

// Claim implements task.Store. Which worker it is for is on record once the claim is settled.
func (s *Store) Claim(ctx context.Context, _ string, limit int) ([]task.Claim, error) {
	var claims []leased
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		rows, err := tx.QueryContext(ctx, claimSQL, stamp(now), stamp(now.Add(s.policy.Lease)), limit)
		if err != nil {
			return err
		}
		if claims, err = collect(rows, s.scanClaim); err != nil || len(claims) == 0 {
			return err
		}
		return describe(ctx, tx, claims)
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	slices.SortFunc(claims, func(a, b leased) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.TaskID, b.TaskID)) })
	out := make([]task.Claim, len(claims))
	for i, c := range claims {
		out[i] = c.Claim
	}
	return out, nil
}

func (s *Store) scanClaim(rows *sql.Rows) (leased, error) {
	var c leased
	var poll, cancel, last moment
	err := rows.Scan(&c.TaskID, &c.Fence, &c.Kind, &poll, &cancel, &last)
	c.due = task.NextCall(poll.Time, cancel.Time)
	c.HoldFor = s.policy.HoldFor(last.Time, poll.Time)
	return c, err
}

// describe adds to claims what the remote needs to be told.
func describe(ctx context.Context, tx *transaction, claims []leased) error {
	at := map[string]int{}
	ids := make([]string, len(claims))
	for i, c := range claims {
		at[c.TaskID], ids[i] = i, c.TaskID
	}
	rows, err := tx.QueryContext(ctx, refSQL, list(ids))
	if err != nil {
		return err
	}
	_, err = collect(rows, func(rows *sql.Rows) (struct{}, error) {
		var ref task.Claim
		err := rows.Scan(&ref.TaskID, &ref.Server, &ref.Scope.UserID, &ref.Scope.ThreadID, &ref.Handle, &ref.Traceparent, &ref.Binding)
		c := &claims[at[ref.TaskID]]
		c.Server, c.Scope, c.Handle, c.Traceparent, c.Binding = ref.Server, ref.Scope, ref.Handle, ref.Traceparent, ref.Binding
		return struct{}{}, err
	})
	return err
}

const renewSQL = `
    update task_live
       set due_time = ?1
     where task_id = ?2 and fence = ?3 and lease_kind <> 'fenced' and due_time > ?4`

// Renew implements task.Store.
func (s *Store) Renew(ctx context.Context, holds []task.Hold) ([]task.Hold, error) {
	var lost []task.Hold
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		lost = nil
		for _, h := range holds {
			res, err := tx.ExecContext(ctx, renewSQL, stamp(now.Add(s.policy.Lease)), h.TaskID, h.Fence, stamp(now))
			if err != nil {
				return err
			}
			n, err := res.RowsAffected()
			if err != nil {
				return err
			}
			if n == 0 {
				lost = append(lost, h)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("renew: %w", err)
	}
	return lost, nil
}

// Settle implements task.Store.
func (s *Store) Settle(ctx context.Context, outcomes []task.Outcome) ([]task.Settled, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	together := func(some []task.Outcome) ([]task.Settled, error) { return s.settle(ctx, some) }
	settled, err := task.SettleEach(outcomes, together, func(error) bool { return ctx.Err() == nil })
	if err != nil {
		return settled, fmt.Errorf("settle: %w", err)
	}
	return settled, nil
}

func (s *Store) settle(ctx context.Context, outcomes []task.Outcome) ([]task.Settled, error) {
	var out []task.Settled
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		for _, o := range outcomes {
			l, err := alive(ctx, tx, o.Claim.TaskID)
			if err != nil {
				return err
			}
			if l == nil {
				out = append(out, task.Settled{TaskID: o.Claim.TaskID, Dropped: true})
				continue
			}
			step := s.policy.Settle(l, o, now, jitter())
			if err := save(ctx, tx, l, step); err != nil {
				return err
			}
			out = append(out, step.Settled)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Release implements task.Store.
func (s *Store) Release(ctx context.Context, holds []task.Hold) error {
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		for _, h := range holds {
			l, err := alive(ctx, tx, h.TaskID)
			if err != nil {
				return err
			}
			if l == nil {
				continue
			}
			if err := save(ctx, tx, l, s.policy.Release(l, h, now)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

const nextDueSQL = `
    select due_time, cast(unixepoch('subsec') * 1000 as integer)
      from task_live
     order by due_time, task_id
     limit 1`

// NextDue implements task.Store.
func (s *Store) NextDue(ctx context.Context) (time.Duration, bool, error) {
	var due, now moment
	switch err := s.db.Read().QueryRowContext(ctx, nextDueSQL).Scan(&due, &now); {
	case isNone(err):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("next due: %w", err)
	}
	return due.Sub(now.Time), true, nil
}

// RequestCancel implements task.Store.
func (s *Store) RequestCancel(ctx context.Context, id string) (*task.Task, error) {
	var out *task.Task
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		l, err := alive(ctx, tx, id)
		if err != nil {
			return err
		}
		if l != nil {
			if err := save(ctx, tx, l, s.policy.RequestCancel(l, now)); err != nil {
				return err
			}
		}
		out, err = find(ctx, tx, id)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("request cancel: %w", err)
	}
	return out, nil
}
