package registry_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/registry"
)

type snapshots = grpc.ServerStreamingClient[registryv1.WatchSnapshotsResponse]

func (n *node) watch(t *testing.T, after int64) snapshots {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	stream, err := n.WatchSnapshots(ctx, &registryv1.WatchSnapshotsRequest{AfterRevision: after})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func receive(t *testing.T, s snapshots) *registryv1.Snapshot {
	t.Helper()
	resp, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetSnapshot()
}

// SNAP-016
func TestAWatchSendsWhatIsEffectiveAndThenEachLaterOne(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"a":{"command":"x"}}`)
		n := start(t, d, options{cfg: p.config()})
		w := n.watch(t, 0)
		first := receive(t, w)
		if first.GetSnapshotId() != n.current(t).GetSnapshotId() || first.GetServers()[0].GetName() != "a" || first.GetServerCount() != 1 {
			t.Errorf("first came %v", first)
		}
		last := first.GetRevision()
		for i := range 3 {
			name := fmt.Sprint("b", i)
			p.user(`{"` + name + `":{"command":"x"}}`)
			next := receive(t, w)
			if next.GetRevision() <= last || next.GetServers()[0].GetName() != name {
				t.Errorf("after revision %d came %d with %v, want %s", last, next.GetRevision(), next.GetServers(), name)
			}
			last = next.GetRevision()
		}
	})
}

// SNAP-016
func TestAWatchResumesAfterARevisionAndAfterARestart(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(`{"a":{"command":"x"}}`)
		n := start(t, d, options{cfg: p.config()})
		w := n.watch(t, 0)
		seen := receive(t, w).GetRevision()
		n.stop()
		if _, err := w.Recv(); err == nil {
			t.Error("the watch outlived its registry")
		}

		n = start(t, d, options{cfg: p.config()}) // the same files: no new revision
		w = n.watch(t, seen)
		p.user(`{"b":{"command":"x"}}`)
		next := receive(t, w)
		if next.GetRevision() <= seen || next.GetServers()[0].GetName() != "b" {
			t.Errorf("after revision %d came %v", seen, next)
		}
		n.stop()

		p.user(`{"c":{"command":"x"}}`) // while no registry runs
		n = start(t, d, options{cfg: p.config()})
		missed := receive(t, n.watch(t, next.GetRevision()))
		if missed.GetRevision() <= next.GetRevision() || missed.GetServers()[0].GetName() != "c" {
			t.Errorf("after revision %d came %v", next.GetRevision(), missed)
		}
	})
}

func TestAWatchWaitsForTheFirstSnapshot(t *testing.T) {
	p := newPlace(t)
	d := dbtest.SQLite(t)
	idle := start(t, d, options{cfg: p.config(), idle: true})
	w := idle.watch(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- idle.Run(ctx) }()
	if first := receive(t, w); first.GetRevision() < 1 {
		t.Errorf("first came %v", first)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A watcher that has revisions of a database which was replaced would otherwise wait until the new one catches up.
func TestAWatcherAheadOfTheDatabaseBeginsAnew(t *testing.T) {
	p := newPlace(t)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	if got := receive(t, n.watch(t, 1_000_000)).GetRevision(); got != n.current(t).GetRevision() {
		t.Errorf("first came revision %d", got)
	}
	if _, err := n.watch(t, -1).Recv(); !fault.Is(err, fault.InvalidArguments) {
		t.Errorf("a negative revision: %v, want INVALID_ARGUMENTS", err)
	}
}

func TestASlowWatcherGetsTheNewestOnly(t *testing.T) {
	p := newPlace(t)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	slow := &slowStream{ctx: ctx, sent: make(chan *registryv1.Snapshot)}
	ended := make(chan error, 1)
	go func() { ended <- watchDirectly(n.Service, slow) }()
	first := <-slow.sent

	for i := range 5 { // nobody takes what is sent
		p.user(fmt.Sprintf(`{"b%d":{"command":"x"}}`, i))
		n.becomes(t, fmt.Sprintf("b%d: ACTIVE", i))
	}
	second, third := <-slow.sent, n.current(t)
	if second.GetRevision() != third.GetRevision() {
		// The one whose sending began before the watcher fell behind may come between.
		if second = <-slow.sent; second.GetRevision() != third.GetRevision() {
			t.Errorf("the watcher got %d after %d, want the newest, %d", second.GetRevision(), first.GetRevision(), third.GetRevision())
		}
	}
	cancel()
	<-ended
}

// slowStream is a stream whose messages are taken one by one.
type slowStream struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan *registryv1.Snapshot
}

func (s *slowStream) Context() context.Context { return s.ctx }

func (s *slowStream) Send(m *registryv1.WatchSnapshotsResponse) error {
	select {
	case s.sent <- m.GetSnapshot():
		return nil
	case <-s.ctx.Done():
		return io.EOF
	}
}

// watchDirectly calls the handler of s as a server would.
func watchDirectly(s *registry.Service, stream *slowStream) error {
	var server registryv1.RegistryServiceServer
	s.Register(registrar(func(_ *grpc.ServiceDesc, impl any) {
		if r, ok := impl.(registryv1.RegistryServiceServer); ok {
			server = r
		}
	}))
	return server.WatchSnapshots(&registryv1.WatchSnapshotsRequest{}, stream)
}

type registrar func(*grpc.ServiceDesc, any)

func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) { r(desc, impl) }
