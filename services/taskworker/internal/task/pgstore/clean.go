package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const expirableSQL = `
    select l.task_id
      from task_task t
      join task_live l on l.task_id = t.task_id
     where t.end_time is null and t.expire_time <= now()
     order by t.expire_time
     limit $1
       for update of l skip locked`

// Expire implements task.Store.
func (s *Store) Expire(ctx context.Context, limit int) ([]string, error) {
	var ids []string
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, expirableSQL, limit)
		if err != nil {
			return err
		}
		past, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(past) == 0 {
			return err
		}
		found, err := lock(ctx, tx, lockFreeSQL, past) // again, to read what the holders before have written
		if err != nil {
			return err
		}
		var w writes
		for _, id := range past {
			l := found.locked[id]
			if l == nil {
				continue
			}
			if step := s.policy.Expire(&l.Live, found.now); step.Moved {
				w.save(l, step)
				ids = append(ids, id)
			}
		}
		return w.send(ctx, tx)
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
     where end_time <= now() - $1::bigint * interval '1 microsecond'
     order by end_time
     limit $2
       for update skip locked`

	pruneAttemptsSQL = `delete from task_attempt where task_id = any($1::text[])`
	pruneResultsSQL  = `delete from task_result where task_id = any($1::text[])`

	pruneRequestsSQL = `
    delete from task_request q
     using task_task t
     where t.task_id = any($1::text[])
       and q.principal = t.principal and q.user_id = t.user_id and q.request_id = t.request_id and q.task_id = t.task_id`

	pruneTasksSQL = `delete from task_task where task_id = any($1::text[])`

	// A binding that a submit has just found is locked by that submit, and skipped.
	pruneBindingsSQL = `
    delete from task_binding
     where fingerprint = any(array(
           select b.fingerprint
             from task_binding b
            where not exists (select from task_task t where t.fingerprint = b.fingerprint)
              and not exists (select from task_reservation r where r.fingerprint = b.fingerprint)
              for update skip locked))`
)

// Prune implements task.Store.
func (s *Store) Prune(ctx context.Context, limit int) (int, error) {
	pruned := 0
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, prunableSQL, micros(s.policy.Retention), limit)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(ids) == 0 {
			return err
		}
		pruned = len(ids)
		var b pgx.Batch
		for _, statement := range []string{pruneAttemptsSQL, pruneResultsSQL, pruneRequestsSQL, pruneTasksSQL} {
			b.Queue(statement, ids)
		}
		return send(ctx, tx, &b)
	})
	if err != nil {
		return 0, fmt.Errorf("prune: %w", err)
	}
	// On its own: a submit that comes in between makes it fail, and the next time is soon enough.
	if _, err := s.pool.Exec(ctx, pruneBindingsSQL); err != nil && !referenced(err) {
		return pruned, fmt.Errorf("prune bindings: %w", err)
	}
	return pruned, nil
}

func referenced(err error) bool {
	return violates(err, "task_reservation_fingerprint_fk") || violates(err, "task_task_fingerprint_fk")
}

const (
	beatSQL = `
      with gone as (
           delete from task_worker where expire_time <= now() and worker <> $1)
    insert into task_worker (worker, expire_time)
    values ($1, now() + $2::bigint * interval '1 microsecond')
        on conflict (worker) do update set expire_time = excluded.expire_time`

	leaveSQL = `delete from task_worker where worker = $1`

	aliveSQL = `select exists (select from task_worker where expire_time > now())`
)

// Beat implements task.Workers.
func (s *Store) Beat(ctx context.Context, worker string, ttl time.Duration) error {
	if _, err := s.pool.Exec(ctx, beatSQL, worker, micros(ttl)); err != nil {
		return fmt.Errorf("beat: %w", err)
	}
	return nil
}

// Leave implements task.Workers.
func (s *Store) Leave(ctx context.Context, worker string) error {
	if _, err := s.pool.Exec(ctx, leaveSQL, worker); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// Alive implements task.Workers.
func (s *Store) Alive(ctx context.Context) (bool, error) {
	var alive bool
	if err := s.pool.QueryRow(ctx, aliveSQL).Scan(&alive); err != nil {
		return false, fmt.Errorf("look for workers: %w", err)
	}
	return alive, nil
}
