package pool_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a running pool over one in-memory server.
type fixture struct {
	*pool.Pool

	server  *wiretest.Server
	release chan struct{} // lets the hanging server answer
	stop    func()
}

// with runs test inside a bubble with a pool.
func with(t *testing.T, o pool.Options, server *wiretest.Server, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{server: server, release: make(chan struct{})}
		if server == hanging {
			f.server = f.hangingServer()
		}
		server := f.server
		o.Open = func(ctx context.Context, _ pool.Request) (*session.Session, error) {
			return session.Open(ctx, session.Options{
				Dial: server.Dial, Era: session.Legacy, ProbeTimeout: time.Second, Log: slog.New(slog.DiscardHandler),
			})
		}
		if o.MaxSessions == 0 {
			o.MaxSessions = 8
		}
		o.MaxRemote, o.CloseTimeout, o.Log = 2, time.Second, slog.New(slog.DiscardHandler)
		if o.IdleTimeout == 0 {
			o.IdleTimeout = time.Hour
		}
		f.Pool = pool.New(o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		f.stop = sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		})
		synctest.Wait()
		test(t, f)
		f.stop()
		if n := server.Alive(); n != 0 {
			t.Errorf("%d processes outlived the pool", n)
		}
	})
}

// target is a stdio server with this fingerprint.
func target(fingerprint string) *upstream.Server {
	return &upstream.Server{Name: "s", Fingerprint: fingerprint, Transport: serverconfig.Stdio, InitTimeout: 10 * time.Second}
}

func request(s *upstream.Server, user, thread string) pool.Request {
	return pool.Request{Server: s, Scope: authn.Scope{UserID: user, ThreadID: thread}}
}

func (f *fixture) get(t *testing.T, r pool.Request) pool.Lease {
	t.Helper()
	lease, err := f.Get(t.Context(), r)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return lease
}

// use gets and releases a session and returns its id.
func (f *fixture) use(t *testing.T, r pool.Request) string {
	t.Helper()
	lease := f.get(t, r)
	defer lease.Release()
	return lease.Session().ID()
}

// hanging asks for a server that does not answer initialize until release is closed.
var hanging = &wiretest.Server{}

func (f *fixture) hangingServer() *wiretest.Server {
	return &wiretest.Server{Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method != "initialize" {
			return false
		}
		go func() {
			select {
			case <-f.release:
				p.Reply(m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}`)
			case <-p.Done():
			}
		}()
		return true
	}}
}

// SESS-001: the key is a tuple of server, fingerprint, user and thread.
func TestSessionsAreKeyedByTuples(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		s := target("1")
		first := f.use(t, request(s, "a:b", "c"))
		if again := f.use(t, request(s, "a:b", "c")); again != first {
			t.Error("the same key got another session")
		}
		seen := map[string]string{first: "a:b/c"}
		for _, r := range []pool.Request{
			request(s, "a", "b:c"), request(s, "a:b", "d"), request(s, "b", "c"), request(target("2"), "a:b", "c"),
			request(&upstream.Server{Name: "other", Fingerprint: "1", Transport: serverconfig.Stdio}, "a:b", "c"),
		} {
			id := f.use(t, r)
			if other, shared := seen[id]; shared {
				t.Errorf("%v shares its session with %s", r.Scope, other)
			}
			seen[id] = fmt.Sprint(r.Scope)
		}
	})
}

// SESS-002: scope user shares over threads, shared over everybody.
func TestSessionScopesShare(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		user, shared := target("u"), target("s")
		user.Scope, shared.Scope = serverconfig.ScopeUser, serverconfig.ScopeShared
		if f.use(t, request(user, "ann", "1")) != f.use(t, request(user, "ann", "2")) {
			t.Error("scope user: two threads of a user have two sessions")
		}
		if f.use(t, request(user, "ann", "1")) == f.use(t, request(user, "bob", "1")) {
			t.Error("scope user: two users share a session")
		}
		if f.use(t, request(shared, "ann", "1")) != f.use(t, request(shared, "bob", "2")) {
			t.Error("scope shared: two callers have two sessions")
		}
	})
}

// SESS-004: concurrent first calls of a key start one process.
func TestConcurrentGetsShareOneStart(t *testing.T) {
	with(t, pool.Options{}, hanging, func(t *testing.T, f *fixture) {
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { f.use(t, request(target("1"), "u", "t")) })
		}
		synctest.Wait()
		close(f.release)
		wg.Wait()
		if n := len(f.server.Processes()); n != 1 {
			t.Errorf("%d processes were started", n)
		}
	})
}

// SESS-004: a failed start gives every waiter the error and leaves nothing behind; the next call tries anew.
func TestFailedStartIsEverybodysAndNobodysAfterwards(t *testing.T) {
	server := &wiretest.Server{Handle: func(p *wiretest.Process, _ jsonrpc.Message) bool { return p.Number == 1 }}
	with(t, pool.Options{}, server, func(t *testing.T, f *fixture) {
		errs := make(chan error, 10)
		for range 10 {
			go func() {
				_, err := f.Get(t.Context(), request(target("1"), "u", "t"))
				errs <- err
			}()
		}
		synctest.Wait()
		f.server.Processes()[0].Exit(errors.New("exit status 3"))
		for range 10 {
			if err := <-errs; err == nil || err.Error() != "exit status 3" {
				t.Errorf("a waiter got %v", err)
			}
		}
		synctest.Wait()
		if n := len(f.List()); n != 0 {
			t.Errorf("%d sessions are registered", n)
		}
		f.use(t, request(target("1"), "u", "t"))
	})
}

// SESS-005: a caller that goes away ends its wait and not the start.
func TestCallersDeadlineEndsItsWaitOnly(t *testing.T) {
	with(t, pool.Options{}, hanging, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := f.Get(ctx, request(target("1"), "u", "t")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("the caller was held for %v", took)
		}
		close(f.release)
		synctest.Wait()
		if f.server.Alive() != 1 {
			t.Error("the start was given up")
		}
		f.use(t, request(target("1"), "u", "t"))
		if n := len(f.server.Processes()); n != 1 {
			t.Errorf("%d processes were started", n)
		}
	})
}

// SESS-027: a start that takes too long is TIMEOUT with server and seconds, and its process is ended.
func TestStartIsBounded(t *testing.T) {
	with(t, pool.Options{}, hanging, func(t *testing.T, f *fixture) {
		start := time.Now()
		_, err := f.Get(t.Context(), request(target("1"), "u", "t"))
		if !fault.Is(err, fault.Timeout) || time.Since(start) > 11*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		synctest.Wait()
		if f.server.Alive() != 0 {
			t.Error("the process lives on")
		}
	})
}

// SESS-005: a session that is reset or retired while it starts is torn down and never handed out.
func TestResetAndRetiredStartsAreTornDown(t *testing.T) {
	for name, end := range map[string]func(*fixture){
		"reset":   func(f *fixture) { f.Reset(func(upstream.Key) bool { return true }) },
		"retired": func(f *fixture) { f.SetActive(map[string]string{"s": "other"}) },
	} {
		t.Run(name, func(t *testing.T) {
			server := &wiretest.Server{Handle: func(_ *wiretest.Process, m jsonrpc.Message) bool { return m.Method == "initialize" }}
			with(t, pool.Options{}, server, func(t *testing.T, f *fixture) {
				got := make(chan error, 1)
				go func() {
					_, err := f.Get(t.Context(), request(target("1"), "u", "t"))
					got <- err
				}()
				synctest.Wait()
				end(f)
				if err := <-got; !fault.Is(err, fault.SessionClosed) {
					t.Errorf("the waiter got %v", err)
				}
				synctest.Wait()
				if f.server.Alive() != 0 || len(f.List()) != 0 {
					t.Errorf("%d processes, %d sessions", f.server.Alive(), len(f.List()))
				}
			})
		})
	}
}

// SESS-006: at most so many sessions; the least recently used goes, never one in use, else SESSION_LIMIT.
func TestCapacity(t *testing.T) {
	with(t, pool.Options{MaxSessions: 2}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		s := target("1")
		f.use(t, request(s, "u", "old"))
		time.Sleep(time.Second)
		busy := f.get(t, request(s, "u", "busy"))
		time.Sleep(time.Second)
		f.use(t, request(s, "u", "new")) // old makes room
		synctest.Wait()
		if got := threads(f); fmt.Sprint(got) != "[busy new]" {
			t.Errorf("sessions are %v", got)
		}
		if n := f.server.Alive(); n != 2 {
			t.Errorf("%d processes are alive", n)
		}
		second := f.get(t, request(s, "u", "new"))
		_, err := f.Get(t.Context(), request(s, "u", "more"))
		if !fault.Is(err, fault.SessionLimit) {
			t.Errorf("with every session in use: %v", err)
		}
		busy.Release()
		f.use(t, request(s, "u", "more"))
		second.Release()
	})
}

// SESS-006: sessions in their start count, and one without a process does not.
func TestStartsCountAndRemoteSessionsDoNot(t *testing.T) {
	with(t, pool.Options{MaxSessions: 1}, hanging, func(t *testing.T, f *fixture) {
		started := make(chan struct{})
		go func() {
			defer close(started)
			f.use(t, request(target("1"), "u", "t"))
		}()
		synctest.Wait()
		if _, err := f.Get(t.Context(), request(target("1"), "u", "second")); !fault.Is(err, fault.SessionLimit) {
			t.Errorf("beside a start: %v", err)
		}
		close(f.release)
		<-started
		remote := &upstream.Server{Name: "r", Fingerprint: "1", Transport: serverconfig.HTTP}
		f.use(t, request(remote, "u", "1"))
		f.use(t, request(remote, "u", "2"))
		if n := len(f.List()); n != 3 {
			t.Errorf("%d sessions", n)
		}
	})
}

func threads(f *fixture) []string {
	var out []string
	for _, i := range f.List() {
		out = append(out, i.Key.ThreadID)
	}
	return out
}

// SESS-007: a session that carries no call ends after the idle time; one that carries a call does not.
func TestIdleSessionsEnd(t *testing.T) {
	with(t, pool.Options{IdleTimeout: 2 * time.Hour}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		s := target("1")
		f.use(t, request(s, "u", "idle"))
		busy := f.get(t, request(s, "u", "busy"))
		time.Sleep(2*time.Hour - 2*time.Minute)
		if n := len(f.List()); n != 2 {
			t.Errorf("%d sessions before the time", n)
		}
		time.Sleep(4 * time.Minute)
		if got := threads(f); fmt.Sprint(got) != "[busy]" {
			t.Errorf("sessions are %v", got)
		}
		busy.Release()
	})
}

// SESS-011: a retired fingerprint starts no session, and its sessions end after their calls.
func TestRetiredFingerprintsDrain(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		old, unchanged := target("old"), &upstream.Server{Name: "same", Fingerprint: "1", Transport: serverconfig.Stdio}
		f.SetActive(map[string]string{"s": "old", "same": "1"})
		kept := f.use(t, request(unchanged, "u", "t"))
		f.use(t, request(old, "u", "idle"))
		busy := f.get(t, request(old, "u", "busy"))

		f.SetActive(map[string]string{"s": "new", "same": "1"})
		if _, err := f.Get(t.Context(), request(old, "u", "busy")); !pool.Retired(err) || !fault.Is(err, fault.SessionClosed) {
			t.Errorf("a retired fingerprint gives %v", err)
		}
		if _, err := busy.Session().CallTool(t.Context(), session.Call{Name: "echo"}); err != nil {
			t.Errorf("a call on a retired session: %v", err)
		}
		synctest.Wait()
		if n := f.server.Alive(); n != 2 {
			t.Errorf("%d processes are alive while one drains", n)
		}
		busy.Release()
		synctest.Wait()
		if n := f.server.Alive(); n != 1 {
			t.Errorf("%d processes are alive afterwards", n)
		}
		if f.use(t, request(unchanged, "u", "t")) != kept {
			t.Error("a session whose fingerprint did not change was replaced")
		}
	})
}

func TestFingerprintThatComesBackKeepsItsDrainingSession(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		s := target("a")
		f.SetActive(map[string]string{"s": "a"})
		busy := f.get(t, request(s, "u", "t"))
		f.SetActive(map[string]string{"s": "b"})
		f.SetActive(map[string]string{"s": "a"})
		id := busy.Session().ID()
		busy.Release()
		if f.use(t, request(s, "u", "t")) != id {
			t.Error("it was ended all the same")
		}
	})
}

// SESS-014: the end of an old session does not remove its replacement.
// SESS-015: the next call after a loss starts a new session.
func TestRemovalIsByIdentity(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		r := request(target("1"), "u", "t")
		old := f.get(t, r)
		f.server.Processes()[0].Exit(errors.New("exit status 1"))
		synctest.Wait()
		replacement := f.get(t, r)
		if replacement.Session().ID() == old.Session().ID() {
			t.Fatal("a dead session was handed out")
		}
		old.Discard()
		old.Release()
		synctest.Wait()
		if replacement.Session().Err() != nil {
			t.Error("the late failure ended the replacement")
		}
		replacement.Release()
		if f.use(t, r) != replacement.Session().ID() {
			t.Error("the replacement is no longer pooled")
		}
	})
}

// CALL-024: a session that one caller gives up goes on for the calls of others, and takes no new ones.
func TestDiscardedSessionsServeTheirCallsToTheEnd(t *testing.T) {
	with(t, pool.Options{MaxSessions: 2}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		r := request(target("1"), "u", "t")
		one, other := f.get(t, r), f.get(t, r)
		one.Discard()
		one.Release()
		synctest.Wait()
		if _, err := other.Session().CallTool(t.Context(), session.Call{Name: "echo"}); err != nil {
			t.Errorf("the other caller: %v", err)
		}
		if f.use(t, r) == other.Session().ID() {
			t.Error("a discarded session was handed out")
		}
		third, err := f.Get(t.Context(), request(target("1"), "u", "third")) // takes the place of the replacement, not of the one in use
		if err != nil {
			t.Fatal(err)
		}
		third.Release()
		other.Release()
		synctest.Wait()
		if n := f.server.Alive(); n != 1 {
			t.Errorf("%d processes are alive", n)
		}
	})
}

func TestShutdownEndsEverySession(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		for _, thread := range []string{"1", "2", "3"} {
			f.use(t, request(target("1"), "u", thread))
		}
		f.stop()
		if f.server.Alive() != 0 {
			t.Error("sessions outlived Run")
		}
		if _, err := f.Get(t.Context(), request(target("1"), "u", "4")); !fault.Is(err, fault.NotReady) {
			t.Errorf("after Run: %v", err)
		}
	})
}

func TestPanicOfAStartReachesItsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pool.New(pool.Options{
			Open:        func(context.Context, pool.Request) (*session.Session, error) { panic("boom") },
			MaxSessions: 1, MaxRemote: 1, IdleTimeout: time.Hour, CloseTimeout: time.Second, Log: slog.New(slog.DiscardHandler),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		synctest.Wait()
		if _, err := p.Get(ctx, request(target("1"), "u", "t")); !fault.Is(err, fault.SessionClosed) {
			t.Errorf("error is %v", err)
		}
		cancel()
		if err := <-done; err == nil {
			t.Error("Run does not report the panic")
		}
	})
}
