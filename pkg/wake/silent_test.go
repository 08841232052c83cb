package wake

import (
	"context"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
)

func TestConnectionThatFallsSilentIsReplaced(t *testing.T) {
	p := newProxy(t, dbtest.DSN(t))
	d, err := db.Open(t.Context(), db.Config{PostgresDSN: p.dsn})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	bus := NewPostgres(d.Pool(), nil)
	bus.probeInterval, bus.probeTimeout = 20*time.Millisecond, 500*time.Millisecond
	hints, cancelHints := bus.Subscribe("task.due")
	defer cancelHints()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := bus.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer wg.Wait()
	defer cancel()

	wait := func(what string) {
		t.Helper()
		select {
		case <-hints:
		case <-time.After(30 * time.Second):
			t.Fatalf("timed out waiting for %s", what)
		}
	}
	wait("the bus to listen")

	// While the connection answers its probes it is kept, and a hint gets through after many of them.
	for enough := p.fromClient.Load() + 200; p.fromClient.Load() < enough; {
		select {
		case <-ctx.Done():
			t.Fatal("the connection is not tried")
		case <-time.After(time.Millisecond):
		}
	}
	if n := p.accepted.Load(); n != 1 {
		t.Fatalf("there were %d connections, want one that is kept", n)
	}
	other := NewPostgres(d.Pool(), nil)
	if err := other.Notify(ctx, "task.due"); err != nil {
		t.Fatal(err)
	}
	wait("a notification")

	p.silence()
	wait("a new connection in place of the silent one")
}

// proxy stands between the bus and the server, and can let what flows over its connections vanish.
type proxy struct {
	dsn                  string
	accepted, fromClient atomic.Int64

	mu     sync.Mutex
	silent *atomic.Bool // of the connections until now
}

func newProxy(t *testing.T, dsn string) *proxy {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	server := filepath.Join(q.Get("host"), ".s.PGSQL.5432")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	q.Del("host")
	u.Host, u.RawQuery = l.Addr().String(), q.Encode()
	p := &proxy{dsn: u.String(), silent: &atomic.Bool{}}

	var wg sync.WaitGroup
	var conns sync.Map
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("unix", server)
			if err != nil {
				client.Close()
				continue
			}
			p.accepted.Add(1)
			conns.Store(client, true)
			conns.Store(upstream, true)
			p.mu.Lock()
			silent := p.silent
			p.mu.Unlock()
			wg.Go(func() { p.pass(upstream, client, silent, &p.fromClient) })
			wg.Go(func() { p.pass(client, upstream, silent, &atomic.Int64{}) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
		wg.Wait()
	})
	return p
}

// silence lets everything vanish that the connections made until now carry. They stay open.
func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent.Store(true)
	p.silent = &atomic.Bool{}
}

func (p *proxy) pass(to io.WriteCloser, from io.Reader, silent *atomic.Bool, count *atomic.Int64) {
	defer to.Close()
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		count.Add(int64(n))
		if silent.Load() {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
