package scenario

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
)

// pooler is a connection pooler in front of Postgres as PgBouncer is in transaction mode: a client has a server connection
// for the length of a transaction only. What a session would keep, prepared statements, settings and LISTEN, is gone or
// somebody else's with the next transaction, and no notification reaches anyone.
type pooler struct {
	dsn     string // of the server
	servers chan *pgconn.HijackedConn
	clients sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// newPooler starts a pooler with so many server connections and returns the DSN that leads through it.
func newPooler(t testing.TB, dsn string, size int) string {
	t.Helper()
	p := &pooler{dsn: dsn, servers: make(chan *pgconn.HijackedConn, size), conns: map[net.Conn]bool{}}
	for range size {
		server, err := p.connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.servers <- server
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns[conn] = true
			p.mu.Unlock()
			p.clients.Go(func() { p.serve(ctx, conn) })
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-accepted
		p.mu.Lock()
		for conn := range p.conns {
			_ = conn.Close()
		}
		p.mu.Unlock()
		p.clients.Wait()
		for range size {
			_ = (<-p.servers).Conn.Close()
		}
	})
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	through := url.URL{
		Scheme: "postgres", User: url.User(config.User), Host: l.Addr().String(), Path: "/" + config.Database,
		RawQuery: "sslmode=disable&default_query_exec_mode=exec",
	}
	return through.String()
}

// connect opens a server connection; the DSN's search_path is set on it, as `alter role … set` would.
func (p *pooler) connect(ctx context.Context) (*pgconn.HijackedConn, error) {
	conn, err := pgconn.Connect(ctx, p.dsn)
	if err != nil {
		return nil, err
	}
	return conn.Hijack()
}

// serve serves a client until it is gone.
func (p *pooler) serve(ctx context.Context, conn net.Conn) {
	defer func() {
		_ = conn.Close()
		p.mu.Lock()
		delete(p.conns, conn)
		p.mu.Unlock()
	}()
	client := pgproto3.NewBackend(conn, conn)
	if p.greet(client, conn) != nil {
		return
	}
	for {
		first, err := client.Receive()
		if err != nil {
			return
		}
		if _, ok := first.(*pgproto3.Terminate); ok {
			return
		}
		server := <-p.servers
		if err := transaction(client, server.Frontend, first); err != nil {
			_ = server.Conn.Close() // in the middle of something
			if server, err = p.connect(ctx); err != nil {
				panic("the pooler lost its server: " + err.Error())
			}
			p.servers <- server
			return
		}
		p.servers <- server
	}
}

func (p *pooler) greet(client *pgproto3.Backend, conn net.Conn) error {
	for {
		message, err := client.ReceiveStartupMessage()
		if err != nil {
			return err
		}
		switch message.(type) {
		case *pgproto3.StartupMessage:
			server := <-p.servers
			client.Send(&pgproto3.AuthenticationOk{})
			for name, value := range server.ParameterStatuses {
				client.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
			}
			p.servers <- server
			client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			return client.Flush()
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			if _, err := conn.Write([]byte{'N'}); err != nil {
				return err
			}
		default:
			return errors.New("a cancel request: it is the caller's connection that ends")
		}
	}
}

// transaction passes messages both ways until the server is idle again.
func transaction(client *pgproto3.Backend, server *pgproto3.Frontend, message pgproto3.FrontendMessage) error {
	for {
		server.Send(message)
		switch message.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
			if err := server.Flush(); err != nil {
				return err
			}
			idle, err := replies(client, server)
			if err != nil || idle {
				return err
			}
		case *pgproto3.Terminate:
			return errors.New("the client left in the middle of a transaction")
		}
		var err error
		if message, err = client.Receive(); err != nil {
			return err
		}
	}
}

// replies passes what the server says to a client until it is ready for more, and reports whether no transaction is open.
func replies(client *pgproto3.Backend, server *pgproto3.Frontend) (idle bool, err error) {
	for {
		message, err := server.Receive()
		if err != nil {
			return false, err
		}
		if _, ok := message.(*pgproto3.NotificationResponse); ok {
			continue
		}
		client.Send(message)
		if ready, ok := message.(*pgproto3.ReadyForQuery); ok {
			return ready.TxStatus == 'I', client.Flush()
		}
	}
}

// The pooler is worth its name: more clients than server connections, one backend for the length of a transaction, and a
// statement that was prepared is not there in the next.
func TestThePoolerKeepsNoSession(t *testing.T) {
	t.Parallel()
	through := newPooler(t, dbtest.DSN(t), 2)
	backend := func(q interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}) (pid int) {
		t.Helper()
		if err := q.QueryRow(t.Context(), "select pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	var clients []*pgx.Conn
	for range 4 {
		client, err := pgx.Connect(t.Context(), through)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
		clients = append(clients, client)
	}
	if _, err := clients[0].Prepare(t.Context(), "kept", "select 1"); err != nil {
		t.Fatal(err)
	}
	pids := map[int]bool{}
	for range 2 {
		for _, client := range clients {
			pids[backend(client)] = true
		}
	}
	if len(pids) != 2 {
		t.Errorf("4 clients saw %d backends, want 2", len(pids))
	}
	tx, err := clients[1].Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := backend(tx)
	for range 3 {
		if got := backend(tx); got != first {
			t.Errorf("within a transaction the backend is %d, then %d", first, got)
		}
		if got := backend(clients[2]); got == first {
			t.Error("a backend serves somebody else in the middle of a transaction")
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	misses := 0
	for range 4 {
		if _, err := clients[0].PgConn().ExecPrepared(t.Context(), "kept", nil, nil, nil).Close(); err != nil {
			misses++
		}
	}
	if misses == 0 {
		t.Error("a prepared statement is always there")
	}
}
