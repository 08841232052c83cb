package litestore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Commit implements task.Reservations.
func (s *Store) Commit(ctx context.Context, c task.Commitment) (*task.Task, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	var out *task.Task
	var refused error // decided, and what was written for it stays
	err := s.write(ctx, func(tx *transaction, now time.Time) (err error) {
		if c.Unasked != nil {
			out, err = s.commitUnasked(ctx, tx, c, now)
			return err
		}
		out, refused, err = s.commit(ctx, tx, c, now)
		return err
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	return out, nil
}

// commit makes the task of a reservation. A refusal is an error that lets the transaction commit.
func (s *Store) commit(ctx context.Context, tx *transaction, c task.Commitment, now time.Time) (_ *task.Task, refused, err error) {
	r, err := reserved(ctx, tx, c.TaskID)
	if err != nil {
		return nil, nil, err
	}
	if r == nil {
		return s.commitLate(ctx, tx, c)
	}
	taken, err := taken(ctx, tx, remote{scope: r.Scope, server: r.Server, id: c.RemoteID})
	switch {
	case err != nil:
		return nil, nil, err
	case taken != nil:
		return nil, task.Duplicate(r.Server), nil
	case r.fence != c.Fence:
		return nil, task.ReservationLost(c.TaskID), nil
	case task.RunOut(r.expires, now):
		return nil, task.ReservationLost(c.TaskID), s.giveUp(ctx, tx, *r, lost{why: task.NeverHeard, now: now, late: &c})
	}
	if _, err := tx.ExecContext(ctx, dropReservationSQL, r.id); err != nil {
		return nil, nil, fmt.Errorf("drop reservation: %w", err)
	}
	l, step := s.policy.Accept(r.id, r.Intent, c, now, jitter())
	n := birth{Intent: r.Intent, fence: r.fence, handle: c.Handle, remoteID: c.RemoteID, committed: now}
	return &l.Task, nil, add(ctx, tx, l, step, n)
}

const (
	recordedSQL = `
    select reserve_fence, handle, commit_time, user_id, server
      from task_task
     where task_id = ?`

	recordSQL = `
    update task_task
       set handle = ?2, remote_id = ?3
     where task_id = ?1 and handle is null`
)

// commitLate answers a commitment whose reservation is no more.
func (s *Store) commitLate(ctx context.Context, tx *transaction, c task.Commitment) (_ *task.Task, refused, err error) {
	var rec task.Recorded
	var committed moment
	at := remote{id: c.RemoteID}
	err = tx.QueryRowContext(ctx, recordedSQL, c.TaskID).Scan(&rec.Fence, &rec.Handle, &committed, &at.scope.UserID, &at.server)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, task.ReservationLost(c.TaskID), nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find task: %w", err)
	}
	rec.Committed = !committed.IsZero()
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
		if _, err := tx.ExecContext(ctx, recordSQL, c.TaskID, c.Handle, c.RemoteID); err != nil {
			return nil, nil, fmt.Errorf("record handle: %w", err)
		}
	}
	return nil, task.ReservationLost(c.TaskID), nil
}

// commitUnasked makes the task of a handle that came unasked, at once.
func (s *Store) commitUnasked(ctx context.Context, tx *transaction, c task.Commitment, now time.Time) (*task.Task, error) {
	i, err := c.Unasked.Check()
	if err != nil {
		return nil, err
	}
	holder, err := taken(ctx, tx, remote{scope: i.Scope, server: i.Server, id: c.RemoteID})
	if err != nil {
		return nil, err
	}
	if holder != nil {
		if holder.unasked && bytes.Equal(holder.handle, c.Handle) && holder.hash == i.RequestHash {
			return find(ctx, tx, holder.id)
		}
		return nil, task.Duplicate(i.Server)
	}
	if err := addBinding(ctx, tx, i, now); err != nil {
		return nil, err
	}
	l, step := s.policy.Accept(task.NewID(), i, c, now, jitter())
	return &l.Task, add(ctx, tx, l, step, birth{Intent: i, unasked: true, handle: c.Handle, remoteID: c.RemoteID, committed: now})
}

// remote names a remote task.
type remote struct {
	scope  authn.Scope
	server string
	id     string
}

// holder is the task that stands for a remote task.
type holder struct {
	id, hash string
	unasked  bool
	handle   []byte
}

const takenSQL = `
    select task_id, request_hash, unasked, handle
      from task_task
     where user_id = ? and server = ? and remote_id = ?`

func taken(ctx context.Context, tx *transaction, r remote) (*holder, error) {
	var h holder
	err := tx.QueryRowContext(ctx, takenSQL, r.scope.UserID, r.server, r.id).Scan(&h.id, &h.hash, &h.unasked, &h.handle)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find remote task: %w", err)
	}
	return &h, nil
}
