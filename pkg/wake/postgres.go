package wake

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/pkg/backoff"
)

const (
	channel = "toolherd"

	connectTimeout = 10 * time.Second // for a connection that listens
	probeInterval  = 30 * time.Second // without a hint, after which the connection is tried
	probeTimeout   = 5 * time.Second
)

// Postgres is a [Bus] between all processes that use one schema of one database, by LISTEN and NOTIFY.
//
// It listens on one connection of its own, outside the pool. When that is lost it connects again with a growing
// delay of up to 10 s; each time it listens anew it wakes every subscriber once, since hints may have been missed.
// A connection on which nothing arrives is tried every 30 s, so that one which died without a word is replaced.
// Subscribers in the process that notifies are woken at once, without the database.
type Postgres struct {
	pool  *pgxpool.Pool
	log   *slog.Logger
	local *Local
	id    string // of this bus, whose own notifications are old news

	probeInterval, probeTimeout time.Duration
}

// NewPostgres returns a bus that notifies through pool and listens where pool's configuration leads. log may be nil.
func NewPostgres(pool *pgxpool.Pool, log *slog.Logger) *Postgres {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Postgres{
		pool: pool, log: log, local: NewLocal(), id: rand.Text(),
		probeInterval: probeInterval, probeTimeout: probeTimeout,
	}
}

// Notify implements [Bus].
func (p *Postgres) Notify(ctx context.Context, topic string) error {
	if err := p.local.Notify(ctx, topic); err != nil {
		return err
	}
	// Channels belong to the database; the schema in the payload keeps installations apart.
	const notify = "select pg_notify('" + channel + "', $1::text || ' ' || $2::text || ' ' || coalesce(current_schema(), ''))"
	if _, err := p.pool.Exec(ctx, notify, p.id, topic); err != nil {
		return fmt.Errorf("notify %s: %w", topic, err)
	}
	return nil
}

// Subscribe implements [Bus].
func (p *Postgres) Subscribe(topic string) (hints <-chan struct{}, cancel func()) {
	return p.local.Subscribe(topic)
}

// Run implements [Bus]. It never fails: as long as nobody can listen, subscribers poll.
func (p *Postgres) Run(ctx context.Context) error {
	delays := backoff.New(backoff.Config{Base: 200 * time.Millisecond, Cap: 10 * time.Second, Jitter: 0.5})
	for {
		began := time.Now()
		err := p.listen(ctx, delays.Attempts() > 0)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the connection was given up because of ctx
		}
		if time.Since(began) > probeInterval { // else a server that hangs up at once would be asked at once again
			delays.Reset()
		}
		delay := delays.Next()
		level := slog.LevelWarn
		if delays.Attempts() > 1 {
			level = slog.LevelDebug // said already
		}
		p.log.Log(ctx, level, "no wake-ups from other processes, polling until they are back", "err", err, "retry_in", delay)
		if backoff.Sleep(ctx, delay) != nil {
			return nil //nolint:nilerr // only ctx ends the wait, and its end is how Run ends
		}
	}
}

// listen passes on what other processes notify until the connection is lost or ctx ends, and returns why.
func (p *Postgres) listen(ctx context.Context, again bool) error {
	conn, schema, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	if again {
		p.log.InfoContext(ctx, "wake-ups from other processes are back")
	}
	p.local.wakeAll()
	for {
		n, err := p.next(ctx, conn)
		if err != nil {
			return err
		}
		if n == nil {
			continue
		}
		id, rest, _ := strings.Cut(n.Payload, " ")
		topic, from, ok := strings.Cut(rest, " ")
		if ok && id != p.id && from == schema {
			p.local.wake(topic)
		}
	}
}

func (p *Postgres) connect(ctx context.Context) (conn *pgx.Conn, schema string, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err = pgx.ConnectConfig(ctx, p.pool.Config().ConnConfig)
	if err != nil {
		return nil, "", err
	}
	if _, err = conn.Exec(ctx, "listen "+channel); err == nil {
		err = conn.QueryRow(ctx, "select coalesce(current_schema(), '')").Scan(&schema)
	}
	if err != nil {
		closeConn(ctx, conn)
		return nil, "", fmt.Errorf("listen: %w", err)
	}
	return conn, schema, nil
}

// next returns the next notification, or nil if there was none for a while and the connection still answers.
func (p *Postgres) next(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	wait, cancel := context.WithTimeout(ctx, p.probeInterval)
	defer cancel()
	n, err := conn.WaitForNotification(wait)
	if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return n, err
	}
	probe, cancel := context.WithTimeout(ctx, p.probeTimeout)
	defer cancel()
	if err := conn.Ping(probe); err != nil {
		return nil, fmt.Errorf("the listening connection does not answer: %w", err)
	}
	return nil, nil
}

// closeConn says goodbye to the server even if ctx has ended, but not for long.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	conn.Close(ctx) //nolint:errcheck // the connection is given up either way
}
