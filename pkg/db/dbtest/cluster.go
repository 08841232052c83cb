package dbtest

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/toolherd/toolherd/pkg/db"
)

// shared is the server that the tests of this binary share; it also keeps the guard's pipe from being collected, and
// so closed, before the process ends.
var shared struct {
	mu     sync.Mutex
	server *server
}

// sharedDSN returns the DSN of the shared server's superuser, and starts the server on the first call.
// Nothing in this process stops it: the guard does, when the process has ended.
func sharedDSN(ctx context.Context) (string, error) {
	if dsn := os.Getenv("TOOLHERD_TEST_POSTGRES"); dsn != "" {
		return dsn, nil
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		s, err := newServer(ctx, nil)
		if err != nil {
			return "", err
		}
		shared.server = s
	}
	return shared.server.dsn(), nil
}

// Cluster is a Postgres server of one test, which may stop and start it. Its methods fail the test that made it.
type Cluster struct {
	tb testing.TB
	s  *server
}

// NewCluster starts a private server and removes it when the test ends. Settings are name=value pairs of
// postgresql.conf that override those of this package, such as "fsync=on". It needs binaries; TOOLHERD_TEST_POSTGRES
// does not serve it.
func NewCluster(tb testing.TB, settings ...string) *Cluster {
	tb.Helper()
	s, err := newServer(tb.Context(), settings)
	if err != nil {
		tb.Fatalf("no Postgres to test with: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.remove(); err != nil {
			tb.Errorf("remove the Postgres server: %v", err)
		}
	})
	return &Cluster{tb: tb, s: s}
}

// DSN returns the DSN of a new schema, migrated. It stays the same over [Cluster.Stop] and [Cluster.Start].
func (c *Cluster) DSN(tb testing.TB, opts ...Option) string {
	tb.Helper()
	dsn, _ := newSchema(tb, c.s.dsn(), opts)
	return dsn
}

// Open returns a pool on a new schema, migrated, and closes it when the test ends.
func (c *Cluster) Open(tb testing.TB, opts ...Option) *db.DB {
	tb.Helper()
	return open(tb, db.Config{PostgresDSN: c.DSN(tb, Unmigrated())}, collect(opts))
}

// Stop ends the server at once, as a crash would: connections break, committed transactions are kept. It returns when
// the server has gone; a server that is stopped stays stopped.
func (c *Cluster) Stop() {
	c.tb.Helper()
	if err := c.s.stop(); err != nil {
		c.tb.Fatalf("stop Postgres: %v", err)
	}
}

// Start starts the server again after [Cluster.Stop] and returns when it accepts connections.
func (c *Cluster) Start() {
	c.tb.Helper()
	if err := c.s.start(c.tb.Context()); err != nil {
		c.tb.Fatalf("start Postgres: %v", err)
	}
}
