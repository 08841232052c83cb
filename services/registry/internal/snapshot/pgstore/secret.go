package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// columns returns refs as the arrays that statements unnest.
func columns(refs []snapshot.Ref) (servers, paths, macs []string) {
	for _, r := range refs {
		servers, paths, macs = append(servers, r.Server), append(paths, r.FieldPath), append(macs, r.MAC)
	}
	return servers, paths, macs
}

const sealedSQL = `
    select s.server, s.field_path, s.mac, s.ciphertext, s.key_id
      from registry_secret s
      join unnest($1::text[], $2::text[], $3::text[]) as r (server, field_path, mac)
        on s.server = r.server and s.field_path = r.field_path and s.mac = r.mac`

// Secrets implements snapshot.Store.
func (s *Store) Secrets(ctx context.Context, refs []snapshot.Ref) ([]snapshot.Secret, error) {
	servers, paths, macs := columns(refs)
	rows, err := s.pool.Query(ctx, sealedSQL, servers, paths, macs)
	if err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (snapshot.Secret, error) {
		var x snapshot.Secret
		err := row.Scan(&x.Server, &x.FieldPath, &x.MAC, &x.Ciphertext, &x.KeyID)
		return x, err
	})
	if err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	return out, nil
}

const useSQL = `
    update registry_secret s
       set use_time = now()
      from unnest($1::text[], $2::text[], $3::text[]) as r (server, field_path, mac)
     where s.server = r.server and s.field_path = r.field_path and s.mac = r.mac
       and s.use_time < now() - $4::interval`

// UseSecrets implements snapshot.Store.
func (s *Store) UseSecrets(ctx context.Context, refs []snapshot.Ref) error {
	servers, paths, macs := columns(refs)
	if _, err := s.pool.Exec(ctx, useSQL, servers, paths, macs, snapshot.UseGranularity); err != nil {
		return fmt.Errorf("note use of secrets: %w", err)
	}
	return nil
}

const staleSQL = `
    select server, field_path, mac
      from registry_secret
     where use_time < now() - $1::interval
     order by use_time
     limit $2`

// StaleSecrets implements snapshot.Store.
func (s *Store) StaleSecrets(ctx context.Context, unused time.Duration, limit int) ([]snapshot.Ref, error) {
	rows, err := s.pool.Query(ctx, staleSQL, unused, limit)
	if err != nil {
		return nil, fmt.Errorf("find stale secrets: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[snapshot.Ref])
	if err != nil {
		return nil, fmt.Errorf("find stale secrets: %w", err)
	}
	return out, nil
}

const dropSecretsSQL = `
    delete from registry_secret s
     using unnest($1::text[], $2::text[], $3::text[]) as r (server, field_path, mac)
     where s.server = r.server and s.field_path = r.field_path and s.mac = r.mac
       and s.use_time < now() - $4::interval`

// DropSecrets implements snapshot.Store.
func (s *Store) DropSecrets(ctx context.Context, refs []snapshot.Ref, unused time.Duration) (int, error) {
	servers, paths, macs := columns(refs)
	tag, err := s.pool.Exec(ctx, dropSecretsSQL, servers, paths, macs, unused)
	if err != nil {
		return 0, fmt.Errorf("drop secrets: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
