package litestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

func isNone(err error) bool { return errors.Is(err, sql.ErrNoRows) }

const expirableSQL = `
    select ` + liveColumns + `
      from task_task t
      join task_live l on l.task_id = t.task_id
     where t.end_time is null and t.expire_time <= ?
     order by t.expire_time
     limit ?`

// Expire implements task.Store.
func (s *Store) Expire(ctx context.Context, limit int) ([]string, error) {
	var ids []string
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		rows, err := tx.QueryContext(ctx, expirableSQL, stamp(now), limit)
		if err != nil {
			return err
		}
		past, err := collect(rows, scanLive)
		if err != nil {
			return err
		}
		for _, l := range past {
			if err := save(ctx, tx, l, s.policy.Expire(l, now)); err != nil {
				return err
			}
			ids = append(ids, l.ID)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("expire: %w", err)
	}
	return ids, nil
}

const (
	prunableSQL = `
    select task_id
      from task_task
     where end_time <= ?
     order by end_time
     limit ?`

	pruneAttemptsSQL = `delete from task_attempt where task_id in (select value from json_each(?))`
	pruneResultsSQL  = `delete from task_result where task_id in (select value from json_each(?))`

	pruneRequestsSQL = `
    delete from task_request
     where (principal, user_id, request_id, task_id) in (
           select principal, user_id, request_id, task_id
             from task_task
            where task_id in (select value from json_each(?)))`

	pruneTasksSQL = `delete from task_task where task_id in (select value from json_each(?))`

	pruneBindingsSQL = `
    delete from task_binding
     where not exists (select 1 from task_task t where t.fingerprint = task_binding.fingerprint)
       and not exists (select 1 from task_reservation r where r.fingerprint = task_binding.fingerprint)`
)

// Prune implements task.Store.
func (s *Store) Prune(ctx context.Context, limit int) (int, error) {
	pruned := 0
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		rows, err := tx.QueryContext(ctx, prunableSQL, stamp(now.Add(-s.policy.Retention)), limit)
		if err != nil {
			return err
		}
		ids, err := collect(rows, scanID)
		if err != nil {
			return err
		}
		if pruned = len(ids); pruned == 0 {
			_, err = tx.ExecContext(ctx, pruneBindingsSQL)
			return err
		}
		for _, statement := range []string{pruneAttemptsSQL, pruneResultsSQL, pruneRequestsSQL, pruneTasksSQL} {
			if _, err := tx.ExecContext(ctx, statement, list(ids)); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, pruneBindingsSQL)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("prune: %w", err)
	}
	return pruned, nil
}

const (
	beatSQL = `
    insert into task_worker (worker, expire_time)
    values (?, ?)
        on conflict (worker) do update set expire_time = excluded.expire_time`

	forgetSQL = `delete from task_worker where expire_time <= ?`

	leaveSQL = `delete from task_worker where worker = ?`

	aliveSQL = `
    select exists (select 1 from task_worker where expire_time > cast(unixepoch('subsec') * 1000 as integer))`
)

// Beat implements task.Workers.
func (s *Store) Beat(ctx context.Context, worker string, ttl time.Duration) error {
	err := s.write(ctx, func(tx *transaction, now time.Time) error {
		if _, err := tx.ExecContext(ctx, forgetSQL, stamp(now)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, beatSQL, worker, stamp(now.Add(ttl)))
		return err
	})
	if err != nil {
		return fmt.Errorf("beat: %w", err)
	}
	return nil
}

// Leave implements task.Workers.
func (s *Store) Leave(ctx context.Context, worker string) error {
	if _, err := s.db.SQL().ExecContext(ctx, leaveSQL, worker); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// Alive implements task.Workers.
func (s *Store) Alive(ctx context.Context) (bool, error) {
	var alive bool
	if err := s.db.Read().QueryRowContext(ctx, aliveSQL).Scan(&alive); err != nil {
		return false, fmt.Errorf("look for workers: %w", err)
	}
	return alive, nil
}
