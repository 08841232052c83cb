package litestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

const (
	requestSQL = `
    select q.request_hash, q.task_id, r.expire_time
      from task_request q
      left join task_reservation r on r.task_id = q.task_id
     where q.principal = ? and q.user_id = ? and q.request_id = ?`

	addBindingSQL = `
    insert into task_binding (fingerprint, binding, create_time)
    values (?, ?, ?)
        on conflict (fingerprint) do nothing`

	addRequestSQL = `
    insert into task_request (principal, user_id, request_id, request_hash, task_id)
    values (?, ?, ?, ?, ?)`

	addReservationSQL = `
    insert into task_reservation (
           task_id, fence, principal, user_id, thread_id, request_id, request_hash, fingerprint, server, task_name,
           run_id, tool_call_id, notify_sink, ttl_ms, traceparent, create_time, expire_time)
    values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
)

// Reserve implements task.Reservations.
func (s *Store) Reserve(ctx context.Context, i task.Intent) (task.Reserved, error) {
	i, err := i.Check()
	if err != nil {
		return task.Reserved{}, err
	}
	var out task.Reserved
	err = s.write(ctx, func(tx *transaction, now time.Time) error {
		if i.RequestID != "" {
			found, err := s.requested(ctx, tx, i, now)
			if found != nil || err != nil {
				out = task.Reserved{Committed: found}
				return err
			}
		}
		out = task.Reserved{TaskID: task.NewID(), Fence: 1, Expires: now.Add(task.ReservationTTL)}
		return reserve(ctx, tx, i, out, now)
	})
	if err != nil {
		return task.Reserved{}, fmt.Errorf("reserve: %w", err)
	}
	if out.Committed != nil {
		out.TaskID = out.Committed.ID
	}
	return out, nil
}

// requested returns the task that the request became, nil if there was no such request.
func (s *Store) requested(ctx context.Context, tx *transaction, i task.Intent, now time.Time) (*task.Task, error) {
	var hash, id string
	var expires moment
	err := tx.QueryRowContext(ctx, requestSQL, i.Principal, i.Scope.UserID, i.RequestID).Scan(&hash, &id, &expires)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find request: %w", err)
	case hash != i.RequestHash:
		return nil, task.IDConflict(i.RequestID)
	case !expires.IsZero():
		return nil, task.InProgress(i.RequestID, expires.Time, now)
	}
	return find(ctx, tx, id)
}

func reserve(ctx context.Context, tx *transaction, i task.Intent, r task.Reserved, now time.Time) error {
	if err := addBinding(ctx, tx, i, now); err != nil {
		return err
	}
	if i.RequestID != "" {
		if _, err := tx.ExecContext(ctx, addRequestSQL, i.Principal, i.Scope.UserID, i.RequestID, i.RequestHash, r.TaskID); err != nil {
			return fmt.Errorf("add request: %w", err)
		}
	}
	_, err := tx.ExecContext(ctx, addReservationSQL,
		r.TaskID, r.Fence, i.Principal, i.Scope.UserID, i.Scope.ThreadID, i.RequestID, i.RequestHash, i.Fingerprint, i.Server, i.TaskName,
		i.RunID, i.ToolCallID, i.NotifySink, i.TTL.Milliseconds(), i.Traceparent, stamp(now), stamp(r.Expires))
	if err != nil {
		return fmt.Errorf("add reservation: %w", err)
	}
	return nil
}

func addBinding(ctx context.Context, tx *transaction, i task.Intent, now time.Time) error {
	if _, err := tx.ExecContext(ctx, addBindingSQL, i.Fingerprint, i.Binding, stamp(now)); err != nil {
		return fmt.Errorf("add binding: %w", err)
	}
	return nil
}

const extendSQL = `
       update task_reservation
          set expire_time = ?1
        where task_id = ?2 and fence = ?3 and expire_time > ?4
    returning expire_time`

// Extend implements task.Reservations.
func (s *Store) Extend(ctx context.Context, h task.Hold) (time.Time, error) {
	var expires moment
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		return tx.QueryRowContext(ctx, extendSQL, stamp(now.Add(task.ReservationTTL)), h.TaskID, h.Fence, stamp(now)).Scan(&expires)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, task.ReservationLost(h.TaskID)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("extend reservation: %w", err)
	}
	return expires.Time, nil
}

// reservation is a row of task_reservation.
type reservation struct {
	task.Intent
	id      string
	fence   int64
	expires time.Time
}

const (
	reservationColumns = `task_id, fence, principal, user_id, thread_id, request_id, request_hash, fingerprint, server, task_name,
           run_id, tool_call_id, notify_sink, ttl_ms, traceparent, expire_time`

	reservationSQL = `
    select ` + reservationColumns + `
      from task_reservation
     where task_id = ?`

	expiredSQL = `
    select ` + reservationColumns + `
      from task_reservation
     where expire_time <= ?
     order by expire_time, task_id
     limit ?`

	dropReservationSQL = `delete from task_reservation where task_id = ?`

	dropRequestSQL = `delete from task_request where principal = ? and user_id = ? and request_id = ? and task_id = ?`
)

func scanReservation(rows *sql.Rows) (reservation, error) {
	var r reservation
	var ttl int64
	var expires moment
	err := rows.Scan(&r.id, &r.fence, &r.Principal, &r.Scope.UserID, &r.Scope.ThreadID, &r.RequestID, &r.RequestHash, &r.Fingerprint,
		&r.Server, &r.TaskName, &r.RunID, &r.ToolCallID, &r.NotifySink, &ttl, &r.Traceparent, &expires)
	r.TTL, r.expires = time.Duration(ttl)*time.Millisecond, expires.Time
	return r, err
}

// reserved returns a reservation, nil if there is none of that id.
func reserved(ctx context.Context, tx *transaction, id string) (*reservation, error) {
	rows, err := tx.QueryContext(ctx, reservationSQL, id)
	if err != nil {
		return nil, fmt.Errorf("find reservation: %w", err)
	}
	found, err := collect(rows, scanReservation)
	if err != nil {
		return nil, fmt.Errorf("find reservation: %w", err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	return &found[0], nil
}

// Abandon implements task.Reservations.
func (s *Store) Abandon(ctx context.Context, h task.Hold, mayHaveExecuted bool, why string) error {
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		r, err := reserved(ctx, tx, h.TaskID)
		if err != nil || r == nil || r.fence != h.Fence {
			return err
		}
		if mayHaveExecuted {
			return s.giveUp(ctx, tx, *r, lost{why: why, now: now})
		}
		if _, err := tx.ExecContext(ctx, dropReservationSQL, r.id); err != nil {
			return fmt.Errorf("drop reservation: %w", err)
		}
		if _, err := tx.ExecContext(ctx, dropRequestSQL, r.Principal, r.Scope.UserID, r.RequestID, r.id); err != nil {
			return fmt.Errorf("drop request: %w", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("abandon: %w", err)
	}
	return nil
}

// Reap implements task.Reservations.
func (s *Store) Reap(ctx context.Context, limit int) ([]string, error) {
	var ids []string
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		rows, err := tx.QueryContext(ctx, expiredSQL, stamp(now), limit)
		if err != nil {
			return err
		}
		expired, err := collect(rows, scanReservation)
		if err != nil {
			return err
		}
		for _, r := range expired {
			if err := s.giveUp(ctx, tx, r, lost{why: task.NeverHeard, now: now}); err != nil {
				return err
			}
			ids = append(ids, r.id)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reap: %w", err)
	}
	return ids, nil
}

// lost says how a reservation was lost.
type lost struct {
	why  string
	now  time.Time
	late *task.Commitment // the one that came too late
}

// giveUp turns a reservation into a failed task.
func (s *Store) giveUp(ctx context.Context, tx *transaction, r reservation, how lost) error {
	if _, err := tx.ExecContext(ctx, dropReservationSQL, r.id); err != nil {
		return fmt.Errorf("drop reservation: %w", err)
	}
	l, step := s.policy.Unknown(r.id, r.Intent, how.why, how.now)
	n := birth{Intent: r.Intent, fence: r.fence}
	if how.late != nil {
		n.handle, n.remoteID = how.late.Handle, how.late.RemoteID
	}
	return add(ctx, tx, l, step, n)
}

// jitter spreads polls.
func jitter() float64 { return rand.Float64() }
