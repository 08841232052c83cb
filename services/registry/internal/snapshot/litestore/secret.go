package litestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

const sealedSQL = `
    select ciphertext, key_id
      from registry_secret
     where server = ? and field_path = ? and mac = ?`

// Secrets implements snapshot.Store.
func (s *Store) Secrets(ctx context.Context, refs []snapshot.Ref) ([]snapshot.Secret, error) {
	var out []snapshot.Secret
	for _, r := range refs {
		x := snapshot.Secret{Ref: r}
		err := s.db.Read().QueryRowContext(ctx, sealedSQL, r.Server, r.FieldPath, r.MAC).Scan(&x.Ciphertext, &x.KeyID)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read secrets: %w", err)
		}
		out = append(out, x)
	}
	return out, nil
}

const (
	lastUseSQL = `
    select use_time
      from registry_secret
     where server = ? and field_path = ? and mac = ?`

	useSQL = `
    update registry_secret
       set use_time = ?
     where server = ? and field_path = ? and mac = ?`
)

// UseSecrets implements snapshot.Store. It writes nothing where nothing is due.
func (s *Store) UseSecrets(ctx context.Context, refs []snapshot.Ref) error {
	due := before(snapshot.UseGranularity)
	var late []snapshot.Ref
	for _, r := range refs {
		var used int64
		err := s.db.Read().QueryRowContext(ctx, lastUseSQL, r.Server, r.FieldPath, r.MAC).Scan(&used)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("note use of secrets: %w", err)
		}
		if err == nil && used < due {
			late = append(late, r)
		}
	}
	if len(late) == 0 {
		return nil
	}
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		now := time.Now().UnixMilli()
		for _, r := range late {
			if _, err := tx.ExecContext(ctx, useSQL, now, r.Server, r.FieldPath, r.MAC); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("note use of secrets: %w", err)
	}
	return nil
}

// before returns the moment that lies d back, as columns have it.
func before(d time.Duration) int64 { return time.Now().Add(-d).UnixMilli() }

const staleSQL = `
    select server, field_path, mac
      from registry_secret
     where use_time < ?
     order by use_time
     limit ?`

// StaleSecrets implements snapshot.Store.
func (s *Store) StaleSecrets(ctx context.Context, unused time.Duration, limit int) ([]snapshot.Ref, error) {
	rows, err := s.db.Read().QueryContext(ctx, staleSQL, before(unused), limit)
	if err != nil {
		return nil, fmt.Errorf("find stale secrets: %w", err)
	}
	out, err := collect(rows, func(rows *sql.Rows) (r snapshot.Ref, err error) {
		return r, rows.Scan(&r.Server, &r.FieldPath, &r.MAC)
	})
	if err != nil {
		return nil, fmt.Errorf("find stale secrets: %w", err)
	}
	return out, nil
}

const dropSecretSQL = `
    delete from registry_secret
     where server = ? and field_path = ? and mac = ? and use_time < ?`

// DropSecrets implements snapshot.Store.
func (s *Store) DropSecrets(ctx context.Context, refs []snapshot.Ref, unused time.Duration) (int, error) {
	var dropped int64
	err := s.db.WriteTx(ctx, func(tx *sql.Tx) error {
		due := before(unused)
		for _, r := range refs {
			done, err := tx.ExecContext(ctx, dropSecretSQL, r.Server, r.FieldPath, r.MAC, due)
			if err != nil {
				return err
			}
			n, err := done.RowsAffected()
			if err != nil {
				return err
			}
			dropped += n
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("drop secrets: %w", err)
	}
	return int(dropped), nil
}
