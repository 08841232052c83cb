package db

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/pkg/fault"
)

func (d *DB) openPostgres(ctx context.Context, cfg Config) error {
	pc, err := parseDSN(cfg.PostgresDSN)
	if err != nil {
		return err
	}
	if cfg.MaxConns > 0 {
		pc.MaxConns = int32(min(cfg.MaxConns, 1<<20))
		pc.MinConns = min(pc.MinConns, pc.MaxConns)
		pc.MinIdleConns = min(pc.MinIdleConns, pc.MaxConns)
	}
	if pc.ConnConfig.RuntimeParams["application_name"] == "" {
		pc.ConnConfig.RuntimeParams["application_name"] = "toolherd"
	}
	d.engine = Postgres
	d.name = fmt.Sprintf("postgres %s:%d/%s", pc.ConnConfig.Host, pc.ConnConfig.Port, pc.ConnConfig.Database)
	if d.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return fmt.Errorf("open %s: %w", d, err)
	}
	return nil
}

// parseDSN parses dsn; its error contains no part of dsn that could be a password, nor does anything it wraps.
func parseDSN(dsn string) (*pgxpool.Config, error) {
	const form = "expected postgres://user:password@host:5432/database?sslmode=verify-full or host=… user=… dbname=…"
	if misread(dsn) {
		return nil, fault.New(fault.ConfigInvalid,
			"the Postgres DSN is malformed: %s; in a password, write @ as %%40 and / as %%2F", form)
	}
	pc, err := pgxpool.ParseConfig(dsn)
	if err == nil {
		return pc, nil
	}
	u, urlErr := url.Parse(dsn)
	if urlErr != nil || u.Scheme == "" {
		// Where the text does not parse as a URL, no one can say which part of it is the password.
		return nil, fault.New(fault.ConfigInvalid,
			"the Postgres DSN is malformed or has an invalid parameter; it is not shown, since it may hold a password: %s", form)
	}
	cause := "a parameter is not valid" // pgx's own text begins with the DSN
	if parse, ok := errors.AsType[*pgconn.ParseConfigError](err); ok && parse.Unwrap() != nil {
		cause = parse.Unwrap().Error()
	}
	password, _ := u.User.Password()
	for _, secret := range append([]string{password}, append(u.Query()["password"], u.Query()["sslpassword"]...)...) {
		if secret != "" {
			cause = strings.ReplaceAll(cause, secret, "***")
		}
	}
	return nil, fault.New(fault.ConfigInvalid, "the Postgres DSN is not valid: %s: %s", cause, form)
}

// misread reports whether dsn is a URL with an @ that does not end the credentials. pgx would take what follows an
// unescaped @ or / of a password for a host or a database, whose names appear in errors.
func misread(dsn string) bool {
	scheme, rest, ok := strings.Cut(dsn, "://")
	if !ok || strings.ContainsAny(scheme, " =") {
		return false
	}
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	return strings.Count(rest, "@") > 1 || strings.Contains(rest, "@") && !strings.Contains(authority, "@")
}

// oneLine returns the text of err with its lines joined: pgx lists the addresses it tried one a line.
func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
