package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

const (
	// One round trip, and no row if the request is known. A concurrent submit of the same request waits here for the
	// outcome of the first.
	reserveSQL = `
      with binding as (
           insert into task_binding (fingerprint, binding, create_time)
           values ($8, $9, now())
               on conflict (fingerprint) do nothing),
           request as (
           insert into task_request (principal, user_id, request_id, request_hash, task_id)
           select $3, $4, $6, $7, $1
            where $6::text <> ''
               on conflict (principal, user_id, request_id) do nothing
        returning task_id)
    insert into task_reservation (
           task_id, fence, principal, user_id, thread_id, request_id, request_hash, fingerprint, server, task_name,
           run_id, tool_call_id, notify_sink, ttl_ms, traceparent, create_time, expire_time)
    select $1, $2, $3, $4, $5, $6, $7, $8, $10, $11, $12, $13, $14, $15, $16, now(), now() + $17::bigint * interval '1 microsecond'
     where $6::text = '' or exists (select from request)
 returning expire_time`

	requestSQL = `
    select q.request_hash, q.task_id, r.expire_time, now()
      from task_request q
      left join task_reservation r on r.task_id = q.task_id
     where q.principal = $1 and q.user_id = $2 and q.request_id = $3`
)

// reserveTries bounds how often a reservation is tried anew after what stood in its way has vanished.
const reserveTries = 10

// errAgain says that what stood in the way of a reservation has just vanished.
var errAgain = errors.New("the request or its binding was removed meanwhile")

// Reserve implements task.Reservations.
func (s *Store) Reserve(ctx context.Context, i task.Intent) (task.Reserved, error) {
	i, err := i.Check()
	if err != nil {
		return task.Reserved{}, err
	}
	var out task.Reserved
	for range reserveTries {
		if out, err = s.reserve(ctx, i); !errors.Is(err, errAgain) {
			break
		}
	}
	if err != nil {
		return task.Reserved{}, fmt.Errorf("reserve: %w", err)
	}
	return out, nil
}

func (s *Store) reserve(ctx context.Context, i task.Intent) (task.Reserved, error) {
	out := task.Reserved{TaskID: task.NewID(), Fence: 1}
	err := s.pool.QueryRow(ctx, reserveSQL,
		out.TaskID, out.Fence, i.Principal, i.Scope.UserID, i.Scope.ThreadID, i.RequestID, i.RequestHash, i.Fingerprint, i.Binding, i.Server,
		i.TaskName, i.RunID, i.ToolCallID, i.NotifySink, i.TTL.Milliseconds(), i.Traceparent, micros(task.ReservationTTL)).Scan(&out.Expires)
	known, err := none(err)
	switch {
	case violates(err, "task_reservation_fingerprint_fk"):
		return task.Reserved{}, errAgain
	case err != nil:
		return task.Reserved{}, err
	case known:
		return s.requested(ctx, i)
	}
	out.Expires = out.Expires.UTC()
	return out, nil
}

// requested returns what the request became.
func (s *Store) requested(ctx context.Context, i task.Intent) (task.Reserved, error) {
	var hash, id string
	var expires pgtype.Timestamptz
	var now time.Time
	gone, err := none(s.pool.QueryRow(ctx, requestSQL, i.Principal, i.Scope.UserID, i.RequestID).Scan(&hash, &id, &expires, &now))
	switch {
	case err != nil:
		return task.Reserved{}, fmt.Errorf("find request: %w", err)
	case gone:
		return task.Reserved{}, errAgain
	case hash != i.RequestHash:
		return task.Reserved{}, task.IDConflict(i.RequestID)
	case expires.Valid:
		return task.Reserved{}, task.InProgress(i.RequestID, expires.Time, now)
	}
	t, err := find(ctx, s.pool, id)
	if err != nil {
		return task.Reserved{}, err
	}
	return task.Reserved{TaskID: t.ID, Committed: t}, nil
}

const extendSQL = `
       update task_reservation
          set expire_time = now() + $3::bigint * interval '1 microsecond'
        where task_id = $1 and fence = $2 and expire_time > clock_timestamp()
    returning expire_time`

// Extend implements task.Reservations.
func (s *Store) Extend(ctx context.Context, h task.Hold) (time.Time, error) {
	var expires time.Time
	gone, err := none(s.pool.QueryRow(ctx, extendSQL, h.TaskID, h.Fence, micros(task.ReservationTTL)).Scan(&expires))
	if gone {
		return time.Time{}, task.ReservationLost(h.TaskID)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("extend reservation: %w", err)
	}
	return expires.UTC(), nil
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
     where task_id = $1
       for update`

	expiredSQL = `
    select ` + reservationColumns + `
      from task_reservation
     where expire_time <= now()
     order by expire_time, task_id
     limit $1
       for update skip locked`

	dropReservationSQL = `delete from task_reservation where task_id = $1`

	dropRequestSQL = `delete from task_request where principal = $1 and user_id = $2 and request_id = $3 and task_id = $4`
)

func scanReservation(row pgx.CollectableRow) (reservation, error) {
	var r reservation
	var ttl int64
	err := row.Scan(&r.id, &r.fence, &r.Principal, &r.Scope.UserID, &r.Scope.ThreadID, &r.RequestID, &r.RequestHash, &r.Fingerprint,
		&r.Server, &r.TaskName, &r.RunID, &r.ToolCallID, &r.NotifySink, &ttl, &r.Traceparent, &r.expires)
	r.TTL = time.Duration(ttl) * time.Millisecond
	return r, err
}

// reserved locks and returns a reservation, nil if there is none of that id, and the time.
func reserved(ctx context.Context, tx pgx.Tx, id string) (*reservation, time.Time, error) {
	var found []reservation
	var now time.Time
	var b pgx.Batch
	ask(&b, &found, scanReservation, reservationSQL, id)
	askTime(&b, &now)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, now, fmt.Errorf("find reservation: %w", err)
	}
	if len(found) == 0 {
		return nil, now, nil
	}
	return &found[0], now, nil
}

// Abandon implements task.Reservations.
func (s *Store) Abandon(ctx context.Context, h task.Hold, mayHaveExecuted bool, why string) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		r, now, err := reserved(ctx, tx, h.TaskID)
		if err != nil || r == nil || r.fence != h.Fence {
			return err
		}
		if mayHaveExecuted {
			return s.giveUp(ctx, tx, []reservation{*r}, lost{why: why, now: now})
		}
		var b pgx.Batch
		b.Queue(dropReservationSQL, r.id)
		b.Queue(dropRequestSQL, r.Principal, r.Scope.UserID, r.RequestID, r.id)
		return send(ctx, tx, &b)
	})
	if err != nil {
		return fmt.Errorf("abandon: %w", err)
	}
	return nil
}

// Reap implements task.Reservations.
func (s *Store) Reap(ctx context.Context, limit int) ([]string, error) {
	var ids []string
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var expired []reservation
		var now time.Time
		var b pgx.Batch
		ask(&b, &expired, scanReservation, expiredSQL, limit)
		askTime(&b, &now)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		for _, r := range expired {
			ids = append(ids, r.id)
		}
		return s.giveUp(ctx, tx, expired, lost{why: task.NeverHeard, now: now})
	})
	if err != nil {
		return nil, fmt.Errorf("reap: %w", err)
	}
	return ids, nil
}

// lost says how reservations were lost.
type lost struct {
	why  string
	now  time.Time
	late *task.Commitment // the one that came too late
}

// giveUp turns reservations into failed tasks.
func (s *Store) giveUp(ctx context.Context, tx pgx.Tx, rs []reservation, how lost) error {
	var w writes
	for _, r := range rs {
		w.batch.Queue(dropReservationSQL, r.id)
		l, step := s.policy.Unknown(r.id, r.Intent, how.why, how.now)
		n := birth{Intent: r.Intent, fence: r.fence}
		if how.late != nil {
			n.handle, n.remoteID = how.late.Handle, how.late.RemoteID
		}
		w.add(l, step, n)
	}
	return w.send(ctx, tx)
}
