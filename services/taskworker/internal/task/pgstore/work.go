package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// The subquery gives the places of the rows that it has locked, which the update then goes to at once. An array is not
// joined: the plan is the same however many rows the planner expects.
const claimSQL = `
      with claimed as (
              update task_live
                 set fence = fence + 1,
                     lease_kind = case when cancel_time <= now() then 'cancel' else 'poll' end,
                     due_time = now() + $1::bigint * interval '1 microsecond'
               where ctid = any(array(select ctid
                                        from task_live
                                       where due_time <= now() and due_time >= $3::timestamptz
                                       order by due_time, task_id
                                       limit $2
                                         for update skip locked))
           returning task_id, fence, lease_kind, poll_time, cancel_time, last_poll_time)
    select c.task_id, c.fence, c.lease_kind, c.poll_time, c.cancel_time, c.last_poll_time,
           t.server, t.user_id, t.thread_id, t.handle, t.traceparent, b.binding
      from claimed c
      join task_task t on t.task_id = c.task_id
      join task_binding b on b.fingerprint = t.fingerprint`

// leased is a claim and what its place among others depends on.
type leased struct {
	task.Claim
	due time.Time
}

// Claim implements task.Store. Which worker it is for is on record once the claim is settled.
func (s *Store) Claim(ctx context.Context, _ string, limit int) ([]task.Claim, error) {
	from := s.floor.get()
	claims, err := s.claim(ctx, limit, from)
	if err == nil && len(claims) < limit && from.After(lowest()) {
		var below []leased
		below, err = s.claim(ctx, limit-len(claims), lowest())
		claims = append(claims, below...)
	}
	// What was claimed is worked for even if looking for more went wrong.
	if err != nil && len(claims) == 0 {
		return nil, fmt.Errorf("claim: %w", err)
	}
	s.floor.set(claims, len(claims) == limit)
	slices.SortFunc(claims, func(a, b leased) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.TaskID, b.TaskID)) })
	out := make([]task.Claim, len(claims))
	for i, c := range claims {
		out[i] = c.Claim
	}
	return out, nil
}

// claim claims rows that are due from a time on.
func (s *Store) claim(ctx context.Context, limit int, from time.Time) ([]leased, error) {
	rows, err := s.pool.Query(ctx, claimSQL, micros(s.policy.Lease), limit, from)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, s.scanClaim)
}

func (s *Store) scanClaim(row pgx.CollectableRow) (leased, error) {
	var c leased
	var poll, cancel, last pgtype.Timestamptz
	err := row.Scan(&c.TaskID, &c.Fence, &c.Kind, &poll, &cancel, &last,
		&c.Server, &c.Scope.UserID, &c.Scope.ThreadID, &c.Handle, &c.Traceparent, &c.Binding)
	c.due = task.NextCall(utc(poll), utc(cancel))
	c.HoldFor = s.policy.HoldFor(utc(last), utc(poll))
	return c, err
}

// Returns what is extended, and what is not lost but locked by someone else for a moment.
const renewSQL = `
      with held as (
           select l.task_id, l.fence
             from unnest($1::text[], $2::bigint[]) as h (task_id, fence)
             join task_live l on l.task_id = h.task_id and l.fence = h.fence
            where l.lease_kind <> 'fenced' and l.due_time > clock_timestamp()),
           free as (
           select task_id
             from task_live
            where task_id = any(array(select task_id from held))
              for update skip locked),
           renewed as (
           update task_live l
              set due_time = clock_timestamp() + $3::bigint * interval '1 microsecond'
             from free f, held h
            where l.task_id = f.task_id and h.task_id = l.task_id and l.fence = h.fence
              and l.lease_kind <> 'fenced' and l.due_time > clock_timestamp()
        returning l.task_id)
    select task_id from renewed
     union
    select task_id from held where task_id not in (select task_id from free)`

// Renew implements task.Store.
func (s *Store) Renew(ctx context.Context, holds []task.Hold) ([]task.Hold, error) {
	ids, fences := make([]string, len(holds)), make([]int64, len(holds))
	for i, h := range holds {
		ids[i], fences[i] = h.TaskID, h.Fence
	}
	rows, err := s.pool.Query(ctx, renewSQL, ids, fences, micros(s.policy.Lease))
	if err != nil {
		return nil, fmt.Errorf("renew: %w", err)
	}
	kept, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("renew: %w", err)
	}
	var lost []task.Hold
	for _, h := range holds {
		if !slices.Contains(kept, h.TaskID) {
			lost = append(lost, h)
		}
	}
	return lost, nil
}

const nextDueSQL = `
    select (extract(epoch from due_time - clock_timestamp()) * 1000000)::bigint
      from task_live
     order by due_time, task_id
     limit 1`

// NextDue implements task.Store.
func (s *Store) NextDue(ctx context.Context) (time.Duration, bool, error) {
	var us int64
	nothing, err := none(s.pool.QueryRow(ctx, nextDueSQL).Scan(&us))
	if err != nil {
		return 0, false, fmt.Errorf("next due: %w", err)
	}
	return time.Duration(us) * time.Microsecond, !nothing, nil
}

// RequestCancel implements task.Store.
func (s *Store) RequestCancel(ctx context.Context, id string) (*task.Task, error) {
	var out *task.Task
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		found, err := lock(ctx, tx, lockSQL, []string{id})
		if err != nil {
			return err
		}
		if l := found.locked[id]; l != nil {
			var w writes
			w.save(l, s.policy.RequestCancel(&l.Live, found.now))
			if err := w.send(ctx, tx); err != nil {
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
