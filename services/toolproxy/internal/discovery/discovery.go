package discovery

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/run"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/activation"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// Options configure a Discovery. Every field must be set.
type Options struct {
	Registry registryv1.RegistryServiceClient
	// Judge turns a snapshot's entries into what may be activated.
	Judge func(*registryv1.Snapshot) []*activation.Entry
	// Activate resolves an entry of a snapshot.
	Activate func(ctx context.Context, snapshotID string, e *activation.Entry) (*upstream.Server, error)
	// Release forgets a server that was activated and is no longer used.
	Release func(*upstream.Server)
	Pool    *pool.Pool
	Store   *catalog.Store
	// Scope is whose sessions the checks use.
	Scope authn.Scope
	// Tasks returns nil while durable tasks may be submitted, or why that is switched off. Servers with toolsets are in error
	// with that.
	Tasks func() error
	// Concurrency is the most checks at once, > 0.
	Concurrency int
	// Redact removes secrets from reasons.
	Redact func(string) string
	Log    *slog.Logger
}

// Discovery keeps the catalog current. Its methods may be called concurrently.
type Discovery struct {
	o     Options
	slots chan struct{} // one per check that runs

	mu         sync.Mutex
	group      *run.Group // of Run
	snapshotID string
	revision   int64
	monitors   map[string]*monitor
	retired    []retiredServer
}

// retiredServer is a server whose last calls may still run.
type retiredServer struct {
	server *upstream.Server
	time   time.Time
}

// releaseAfter is when the last call of a retired server has surely ended.
const releaseAfter = 2 * time.Hour

// New returns a Discovery that knows nothing yet. It starts nothing.
func New(o Options) *Discovery {
	return &Discovery{o: o, slots: make(chan struct{}, o.Concurrency), monitors: map[string]*monitor{}}
}

// Run follows the registry and checks servers until ctx ends.
func (d *Discovery) Run(ctx context.Context) error {
	d.mu.Lock()
	d.group = run.NewGroup(ctx, d.o.Log)
	group := d.group
	d.mu.Unlock()
	d.follow(ctx)
	return group.Wait()
}

// follow applies every snapshot that the registry activates. While the registry cannot be reached the last one stays.
func (d *Discovery) follow(ctx context.Context) {
	pause := backoff.New(backoff.Config{Base: 100 * time.Millisecond, Cap: 3 * time.Second, Factor: 2, Jitter: 0.2})
	for {
		n, err := d.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if n > 0 {
			pause.Reset()
		}
		wait := pause.Next()
		d.o.Log.WarnContext(ctx, "the registry's snapshots are not being watched", "err", err, "retry_in", wait)
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// watch applies the snapshots of one stream and returns how many came, and why it ended. It asks for the current one
// first: a registry with another history may count from below.
func (d *Discovery) watch(ctx context.Context) (n int, err error) {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.o.Registry.WatchSnapshots(watching, &registryv1.WatchSnapshotsRequest{})
	if err != nil {
		return 0, err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return n, err
		}
		if r.GetSnapshot() == nil {
			return n, errors.New("the registry sent no snapshot")
		}
		n++
		d.apply(ctx, r.GetSnapshot())
	}
}

// apply makes a snapshot the current one: one swap of the catalog, and only servers whose fingerprint changed lose
// their sessions. Monitors end with ctx at the latest.
func (d *Discovery) apply(ctx context.Context, snapshot *registryv1.Snapshot) {
	entries := d.o.Judge(snapshot)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.snapshotID, d.revision = snapshot.GetSnapshotId(), snapshot.GetRevision()

	next := make(map[string]*monitor, len(entries))
	active := map[string]string{}
	var fresh []*monitor
	for _, e := range entries {
		m := d.monitors[e.Name]
		switch {
		case m != nil && m.entry.SameConnection(e):
			m.take(e)
		default:
			m = d.newMonitor(e)
			fresh = append(fresh, m)
		}
		next[e.Name] = m
		if e.Startable() {
			active[e.Name] = e.Fingerprint
		}
	}
	for name, m := range d.monitors {
		if next[name] != m {
			m.stop()
		}
	}
	d.release(time.Now())
	d.monitors = next
	d.publish()
	d.o.Pool.SetActive(active)
	for _, m := range fresh {
		m.start(ctx)
	}
	d.o.Log.InfoContext(ctx, "snapshot in use", "snapshot_id", d.snapshotID, "revision", d.revision,
		"servers", len(entries), "changed", len(fresh))
}

// start starts the monitor's goroutine if there is something to check. The caller holds d.mu.
func (m *monitor) start(ctx context.Context) {
	if !m.entry.Startable() {
		return
	}
	ctx, m.cancel = context.WithCancel(ctx)
	m.d.group.Go("monitor of "+m.entry.Name, func(context.Context) { m.run(ctx) })
}

// stop ends a monitor whose server is gone or another one now. The caller holds d.mu.
func (m *monitor) stop() {
	m.stopped = true
	if m.upstream != nil {
		m.d.retired = append(m.d.retired, retiredServer{m.upstream, time.Now()})
	}
	if m.cancel != nil {
		m.cancel()
	}
	close(m.verdict) // nobody waits for it any more
	m.verdict = make(chan struct{})
}

// release forgets the servers that were retired long ago. The caller holds d.mu.
func (d *Discovery) release(now time.Time) {
	d.retired = slices.DeleteFunc(d.retired, func(r retiredServer) bool {
		if now.Sub(r.time) < releaseAfter {
			return false
		}
		d.o.Release(r.server)
		return true
	})
}

// Close forgets every server. It is called when Run has ended and no session is left.
func (d *Discovery) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.retired {
		d.o.Release(r.server)
	}
	d.retired = nil
	for _, m := range d.monitors {
		if m.upstream != nil {
			d.o.Release(m.upstream)
			m.upstream = nil
		}
	}
}

// take gives the monitor a new form of its entry with the same connection. The caller holds d.mu.
func (m *monitor) take(e *activation.Entry) {
	if m.entry.Equal(e) {
		return
	}
	m.entry = e
	if m.hasList {
		m.tools = catalog.Contribute(e.Rules, m.known)
	}
}

// publish makes a new catalog of what is known. The caller holds d.mu.
func (d *Discovery) publish() {
	sources := make([]catalog.Source, 0, len(d.monitors))
	for _, m := range d.monitors {
		sources = append(sources, m.source())
	}
	d.o.Store.Publish(catalog.Build(d.snapshotID, d.revision, sources))
}

// ListChanged is called when a session of the server says that its tools changed.
func (d *Discovery) ListChanged(server string) {
	d.mu.Lock()
	m := d.monitors[server]
	d.mu.Unlock()
	if m != nil {
		nudge(m.changed)
	}
}

// Suspect asks for a check of a server whose session failed a call, or could not be started for it. It does not wait.
func (d *Discovery) Suspect(server string) {
	d.mu.Lock()
	m := d.monitors[server]
	ok := m != nil && m.failures == 0 // else a retry is planned
	d.mu.Unlock()
	if ok {
		nudge(m.changed)
	}
}

// TasksChanged asks for a check of the servers with toolsets, since Options.Tasks says something else. It does not wait.
func (d *Discovery) TasksChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.monitors {
		if m.cancel != nil && len(m.entry.Rules.Toolsets) > 0 {
			nudge(m.wake)
		}
	}
}

// Refresh checks the named servers, or all, and waits for the verdicts or ctx. A server that fares well is checked only
// with force. Errors: SERVER_NOT_FOUND before anything is checked; the cause of ctx's end.
func (d *Discovery) Refresh(ctx context.Context, names []string, force bool) error {
	pending, err := d.request(names, force)
	if err != nil {
		return err
	}
	for _, p := range pending {
		if err := d.awaitCheck(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// pendingCheck is a check that a Refresh waits for.
type pendingCheck struct {
	m      *monitor
	number int
}

func (d *Discovery) request(names []string, force bool) ([]pendingCheck, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(names) == 0 {
		for name := range d.monitors {
			names = append(names, name)
		}
		slices.Sort(names)
	}
	for _, name := range names {
		if d.monitors[name] == nil {
			return nil, fault.New(fault.ServerNotFound, "no server is called %q; ListServers names them", name).With("server", name)
		}
	}
	var out []pendingCheck
	for _, name := range names {
		m := d.monitors[name]
		if m.cancel == nil || !force && m.failures == 0 && m.hasList {
			continue
		}
		if !force && m.ended == 0 {
			out = append(out, pendingCheck{m, 1}) // its first verdict is on its way
			continue
		}
		// The next check that begins from here on; one that runs may not have seen what the caller mended.
		out = append(out, pendingCheck{m, m.begun + 1})
		nudge(m.wake)
	}
	return out, nil
}

func (d *Discovery) awaitCheck(ctx context.Context, p pendingCheck) error {
	for {
		d.mu.Lock()
		done, verdict := p.m.ended >= p.number || p.m.stopped, p.m.verdict
		d.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-verdict:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
