package discovery_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/activation"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/discovery"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var scope = authn.Scope{UserID: authn.DefaultID, ThreadID: authn.DefaultID}

// feed is a registry client whose snapshots come from a channel; closing it ends the stream.
type feed struct {
	registryv1.RegistryServiceClient

	snapshots chan *registryv1.Snapshot
}

func (f *feed) WatchSnapshots(ctx context.Context, _ *registryv1.WatchSnapshotsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[registryv1.WatchSnapshotsResponse], error) {
	return &stream{ctx: ctx, f: f}, nil
}

type stream struct {
	grpc.ClientStream

	ctx context.Context
	f   *feed
}

func (s *stream) Recv() (*registryv1.WatchSnapshotsResponse, error) {
	select {
	case snapshot := <-s.f.snapshots:
		if snapshot == nil {
			return nil, fmt.Errorf("the registry went away")
		}
		return &registryv1.WatchSnapshotsResponse{Snapshot: snapshot}, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

type fixture struct {
	*discovery.Discovery

	servers  map[string]*wiretest.Server
	store    *catalog.Store
	pool     *pool.Pool
	feed     *feed
	revision int64
	opened   atomic.Int64 // sessions
	noTasks  atomic.Pointer[fault.Error]
}

// with runs test inside a bubble with a discovery over these servers.
func with(t *testing.T, servers map[string]*wiretest.Server, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		f := &fixture{servers: servers, store: &catalog.Store{}, feed: &feed{snapshots: make(chan *registryv1.Snapshot)}}
		f.pool = pool.New(pool.Options{
			Open: func(ctx context.Context, r pool.Request) (*session.Session, error) {
				f.opened.Add(1)
				return session.Open(ctx, session.Options{
					Dial: servers[r.Server.Name].Dial, Era: session.Legacy, ProbeTimeout: time.Second, Log: log,
					OnListChanged: func() { f.ListChanged(r.Server.Name) },
				})
			},
			MaxSessions: 64, MaxRemote: 64, IdleTimeout: 2 * time.Hour, CloseTimeout: time.Second, Log: log,
		})
		activator := activation.New(activation.Options{
			Environment:   func() func(string) (string, bool) { return func(string) (string, bool) { return "", false } },
			Redactor:      secret.NewRedactor(),
			MaxNameLength: 64,
			Log:           log,
		})
		f.Discovery = discovery.New(discovery.Options{
			Registry: f.feed, Judge: activator.Judge, Activate: activator.Activate, Release: activator.Release,
			Pool: f.pool, Store: f.store, Scope: scope, Concurrency: 8,
			Tasks: func() error {
				if err := f.noTasks.Load(); err != nil {
					return err
				}
				return nil
			},
			Redact: func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") }, Log: log,
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { done <- f.pool.Run(ctx) }()
		synctest.Wait()
		go func() { done <- f.Run(ctx) }()
		synctest.Wait()
		test(t, f)
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		}
	})
}

// publish activates entries, raw JSON by name, and waits until everything rests.
func (f *fixture) publish(t *testing.T, entries map[string]string) {
	t.Helper()
	f.revision++
	s := &registryv1.Snapshot{SnapshotId: fmt.Sprintf("snap_%d", f.revision), Revision: f.revision}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		canonical, err := serverconfig.Canonical([]byte(entries[name]))
		if err != nil {
			t.Fatal(err)
		}
		s.Servers = append(s.Servers, &registryv1.ServerEntry{
			Name: name, State: registryv1.EntryState_ENTRY_STATE_ACTIVE, EntryJson: string(canonical),
			Fingerprint: serverconfig.Fingerprint(canonical), Source: "test.json", SourceClass: "explicit",
		})
	}
	f.feed.snapshots <- s
	synctest.Wait()
}

// entry makes the entry of a server called name, with further members `,"key":value`.
func entry(name, more string) string { return fmt.Sprintf(`{"command":%q%s}`, name, more) }

func (f *fixture) server(name string) *catalog.Server { return f.store.Load().Server(name) }

func (f *fixture) status(name string) corev1.ServerStatus { return f.server(name).Status }

func (f *fixture) tools() []string {
	var out []string
	for _, tool := range f.store.Load().Tools() {
		out = append(out, tool.Name)
	}
	return out
}

const (
	ok       = corev1.ServerStatus_SERVER_STATUS_OK
	failed   = corev1.ServerStatus_SERVER_STATUS_ERROR
	starting = corev1.ServerStatus_SERVER_STATUS_STARTING
)
