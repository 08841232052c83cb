package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Commit implements task.Reservations.
func (s *Store) Commit(ctx context.Context, c task.Commitment) (*task.Task, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	var out *task.Task
	var refused error // decided, and what was written for it stays
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		if c.Unasked != nil {
			out, err = s.commitUnasked(ctx, tx, c)
			return err
		}
		out, refused, err = s.commit(ctx, tx, c)
		return err
	})
	switch {
	case violates(err, "task_task_remote_id_uq"): // another was faster
		err = s.duplicate(ctx, c)
	case err == nil:
		err = refused
	}
	if err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	return out, nil
}

// duplicate is the fault of a commitment that lost a race to another for the same remote task.
func (s *Store) duplicate(ctx context.Context, c task.Commitment) error {
	if c.Unasked != nil {
		return task.Duplicate(c.Unasked.Server)
	}
	var server string
	if err := s.pool.QueryRow(ctx, serverSQL, c.TaskID).Scan(&server); err != nil {
		return fmt.Errorf("find server: %w", err)
	}
	return task.Duplicate(server)
}

const serverSQL = `
    select server from task_reservation where task_id = $1
     union
    select server from task_task where task_id = $1`

// commit makes the task of a reservation. A refusal is an error that lets the transaction commit.
func (s *Store) commit(ctx context.Context, tx pgx.Tx, c task.Commitment) (_ *task.Task, refused, err error) {
	r, now, err := reserved(ctx, tx, c.TaskID)
	if err != nil {
		return nil, nil, err
	}
	if r == nil {
		return commitLate(ctx, tx, c)
	}
	taken, err := taken(ctx, tx, remote{user: r.Scope.UserID, server: r.Server, id: c.RemoteID})
	switch {
	case err != nil:
		return nil, nil, err
	case taken != nil:
		return nil, task.Duplicate(r.Server), nil
	case r.fence != c.Fence:
		return nil, task.ReservationLost(c.TaskID), nil
	case task.RunOut(r.expires, now):
		return nil, task.ReservationLost(c.TaskID), s.giveUp(ctx, tx, []reservation{*r}, lost{why: task.NeverHeard, now: now, late: &c})
	}
	var w writes
	w.batch.Queue(dropReservationSQL, r.id)
	l, step := s.policy.Accept(r.id, r.Intent, c, now, jitter())
	w.add(l, step, birth{Intent: r.Intent, fence: r.fence, handle: c.Handle, remoteID: c.RemoteID, committed: now})
	return &l.Task, nil, w.send(ctx, tx)
}

const (
	recordedSQL = `
    select reserve_fence, handle, commit_time, user_id, server
      from task_task
     where task_id = $1`

	recordSQL = `
    update task_task
       set handle = $2, remote_id = $3
     where task_id = $1 and handle is null`
)

// commitLate answers a commitment whose reservation is no more.
func commitLate(ctx context.Context, tx pgx.Tx, c task.Commitment) (_ *task.Task, refused, err error) {
	var rec task.Recorded
	var committed pgtype.Timestamptz
	at := remote{id: c.RemoteID}
	gone, err := none(tx.QueryRow(ctx, recordedSQL, c.TaskID).Scan(&rec.Fence, &rec.Handle, &committed, &at.user, &at.server))
	if err != nil {
		return nil, nil, fmt.Errorf("find task: %w", err)
	}
	if gone {
		return nil, task.ReservationLost(c.TaskID), nil
	}
	rec.Committed = committed.Valid
	if rec.Repeated(c) {
		t, err := find(ctx, tx, c.TaskID)
		return t, nil, err
	}
	taken, err := taken(ctx, tx, at)
	if err != nil {
		return nil, nil, err
	}
	if taken != nil && taken.id != c.TaskID {
		return nil, task.Duplicate(at.server), nil
	}
	if rec.Late(c) {
		if _, err := tx.Exec(ctx, recordSQL, c.TaskID, c.Handle, c.RemoteID); err != nil {
			return nil, nil, fmt.Errorf("record handle: %w", err)
		}
	}
	return nil, task.ReservationLost(c.TaskID), nil
}

// Locks the binding, so that it stays while the task is written.
const bindSQL = `
    insert into task_binding (fingerprint, binding, create_time)
    values ($1, $2, now())
        on conflict (fingerprint) do update set fingerprint = excluded.fingerprint`

// commitUnasked makes the task of a handle that came unasked, at once.
func (s *Store) commitUnasked(ctx context.Context, tx pgx.Tx, c task.Commitment) (*task.Task, error) {
	i, err := c.Unasked.Check()
	if err != nil {
		return nil, err
	}
	holder, err := taken(ctx, tx, remote{user: i.Scope.UserID, server: i.Server, id: c.RemoteID})
	if err != nil {
		return nil, err
	}
	if holder != nil {
		if holder.unasked && bytes.Equal(holder.handle, c.Handle) && holder.hash == i.RequestHash {
			return find(ctx, tx, holder.id)
		}
		return nil, task.Duplicate(i.Server)
	}
	var now time.Time
	if err := tx.QueryRow(ctx, clockSQL).Scan(&now); err != nil {
		return nil, fmt.Errorf("clock: %w", err)
	}
	var w writes
	w.batch.Queue(bindSQL, i.Fingerprint, i.Binding)
	l, step := s.policy.Accept(task.NewID(), i, c, now.UTC(), jitter())
	w.add(l, step, birth{Intent: i, unasked: true, handle: c.Handle, remoteID: c.RemoteID, committed: now})
	return &l.Task, w.send(ctx, tx)
}

// remote names a remote task.
type remote struct{ user, server, id string }

// holder is the task that stands for a remote task.
type holder struct {
	id, hash string
	unasked  bool
	handle   []byte
}

const takenSQL = `
    select task_id, request_hash, unasked, handle
      from task_task
     where user_id = $1 and server = $2 and remote_id = $3`

func taken(ctx context.Context, tx pgx.Tx, r remote) (*holder, error) {
	var h holder
	gone, err := none(tx.QueryRow(ctx, takenSQL, r.user, r.server, r.id).Scan(&h.id, &h.hash, &h.unasked, &h.handle))
	if err != nil {
		return nil, fmt.Errorf("find remote task: %w", err)
	}
	if gone {
		return nil, nil
	}
	return &h, nil
}
