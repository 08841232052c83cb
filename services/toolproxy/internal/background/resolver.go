package background

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/activation"
	"github.com/toolherd/toolherd/services/toolproxy/internal/binding"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// ResolverOptions configure a Resolver. Every field must be set.
type ResolverOptions struct {
	Activator *activation.Activator
	// Forsake hears of each server that is not trusted: no task may hold a session of it. It must not block.
	Forsake func(server string)
}

// Resolver turns bindings into servers that may be connected to. It may be used concurrently.
type Resolver struct {
	o     ResolverOptions
	today atomic.Pointer[today]

	mu      sync.Mutex
	known   map[[sha256.Size]byte]*known // by the hash of the binding
	retired []retiredServer
}

// today is the snapshot in force. It is immutable.
type today struct {
	snapshot *registryv1.Snapshot
	entries  map[string]*registryv1.ServerEntry
}

// known is a binding that a call has brought.
type known struct {
	binding *binding.Binding
	turn    chan struct{} // holds one: whoever resolves
	current atomic.Pointer[target]
	used    time.Time // guarded by the Resolver's lock
}

// target is where the calls of a binding go under one snapshot. It is immutable.
type target struct {
	binding *binding.Binding
	server  *upstream.Server
	public  string // the entry that was resolved
	today   *today
	inForce bool // ordinary calls use this connection too
}

// retiredServer is a server whose last calls may still run.
type retiredServer struct {
	server *upstream.Server
	time   time.Time
}

// releaseAfter is when nothing uses a server any more that was not asked for since: the longest hold of a session has
// ended, and so has the last call.
const releaseAfter = MaxHold + 2*time.Hour

// NewResolver returns a Resolver that knows no snapshot yet.
func NewResolver(o ResolverOptions) *Resolver {
	return &Resolver{o: o, known: map[[sha256.Size]byte]*known{}}
}

// Follow makes a snapshot the one in force.
func (r *Resolver) Follow(s *registryv1.Snapshot) {
	t := &today{snapshot: s, entries: make(map[string]*registryv1.ServerEntry, len(s.GetServers()))}
	for _, e := range s.GetServers() {
		t.entries[e.GetName()] = e
	}
	r.today.Store(t)
	for name, e := range t.entries {
		if e.GetState() == registryv1.EntryState_ENTRY_STATE_UNTRUSTED {
			r.o.Forsake(name)
		}
	}
	r.release(time.Now())
}

// resolve returns where the calls of a binding go. The errors are those of the package.
func (r *Resolver) resolve(ctx context.Context, raw []byte) (*target, error) {
	now := r.today.Load()
	if now == nil {
		return nil, fault.New(fault.NotReady, "toolproxy has no configuration yet: the registry has not answered; try again")
	}
	k, err := r.find(raw)
	if err != nil {
		return nil, err
	}
	if t := k.current.Load(); t != nil && t.today == now {
		return t, nil
	}
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	last := k.current.Load()
	if last != nil && last.today == now {
		return last, nil
	}
	t, err := r.aim(ctx, k.binding, now, last)
	if err != nil {
		return nil, err
	}
	k.current.Store(t)
	if last != nil && last.server != t.server {
		r.retire(last.server)
	}
	return t, nil
}

// find returns what is known of a binding.
func (r *Resolver) find(raw []byte) (*known, error) {
	sum := sha256.Sum256(raw)
	if k := r.use(sum, nil); k != nil {
		return k, nil
	}
	b, err := binding.Decode(raw)
	if err != nil {
		return nil, fault.New(fault.InvalidArguments, "the task's binding cannot be read: %v", err)
	}
	return r.use(sum, b), nil
}

// use returns what is known under sum, which is b from now on if that is nothing.
func (r *Resolver) use(sum [sha256.Size]byte, b *binding.Binding) *known {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.known[sum]
	if k == nil {
		if b == nil {
			return nil
		}
		k = &known{binding: b, turn: make(chan struct{}, 1)}
		r.known[sum] = k
	}
	k.used = time.Now()
	return k
}

// aim resolves a binding under a snapshot. What was resolved under an earlier one is kept where it is the same.
func (r *Resolver) aim(ctx context.Context, b *binding.Binding, now *today, last *target) (*target, error) {
	entry := now.entries[b.Server]
	if entry.GetState() == registryv1.EntryState_ENTRY_STATE_UNTRUSTED {
		return nil, fault.New(fault.ServerUntrusted, "server %q is not trusted any more: %s", b.Server, entry.GetReason()).With("server", b.Server)
	}
	public, err := b.Entry([]byte(entry.GetEntryJson()))
	if err != nil {
		return nil, unusable(b.Server, err)
	}
	wire := &registryv1.ServerEntry{
		Name: b.Server, State: registryv1.EntryState_ENTRY_STATE_ACTIVE, EntryJson: string(public),
		SourceClass: b.SourceClass, Fingerprint: b.Connection,
	}
	// The process of a stdio server may be all there is of a task: it is found under the fingerprint of the submit,
	// whichever credentials it was started with. A remote server is called with those of today.
	if e, _ := serverconfig.DecodePublic(b.Server, public); e.Transport.IsRemote() {
		wire.Fingerprint = serverconfig.Fingerprint(public)
	}
	judged := r.o.Activator.JudgeBound(now.snapshot, wire)
	if !judged.Startable() {
		return nil, unusable(b.Server, errors.New(judged.Reason))
	}
	t := &target{
		binding: b, public: string(public), today: now,
		inForce: entry.GetState() == registryv1.EntryState_ENTRY_STATE_ACTIVE && entry.GetFingerprint() == wire.GetFingerprint(),
	}
	if last != nil && last.public == t.public {
		t.server = last.server
		return t, nil
	}
	t.server, err = r.activate(ctx, judged, public)
	if err != nil {
		return nil, unusable(b.Server, err)
	}
	t.server.Scope = wider(t.server.Scope, b.Toolset.BackgroundScope)
	return t, nil
}

func (r *Resolver) activate(ctx context.Context, e *activation.Entry, public []byte) (*upstream.Server, error) {
	refs, err := binding.Refs(public)
	if err != nil {
		return nil, err
	}
	asked := make([]*credentialv1.SecretRef, len(refs))
	for i, ref := range refs {
		asked[i] = &credentialv1.SecretRef{FieldPath: ref.FieldPath, Mac: ref.MAC}
	}
	return r.o.Activator.ActivateBound(ctx, e, asked)
}

// unusable is the error of a server that cannot be resolved at present, such as for a variable that is not set.
func unusable(server string, err error) error {
	if fault.Is(err, fault.ServerUntrusted) {
		return err
	}
	return fault.New(fault.ServerError, "server %q cannot be called for its task: %s", server, catalog.Shorten(err.Error(), maxErrorChars)).
		With("server", server).Because(err)
}

// wider returns the scope that more calls share.
func wider(a, b serverconfig.Scope) serverconfig.Scope {
	order := []serverconfig.Scope{serverconfig.ScopeThread, serverconfig.ScopeUser, serverconfig.ScopeShared}
	if slices.Index(order, b) > slices.Index(order, a) {
		return b
	}
	return a
}

// retire keeps a server that was replaced until its last calls have ended.
func (r *Resolver) retire(s *upstream.Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired = append(r.retired, retiredServer{s, time.Now()})
}

// release forgets what has not been used for long.
func (r *Resolver) release(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for sum, k := range r.known {
		if now.Sub(k.used) < releaseAfter {
			continue
		}
		delete(r.known, sum)
		if t := k.current.Load(); t != nil {
			r.o.Activator.Release(t.server)
		}
	}
	r.retired = slices.DeleteFunc(r.retired, func(s retiredServer) bool {
		if now.Sub(s.time) < releaseAfter {
			return false
		}
		r.o.Activator.Release(s.server)
		return true
	})
}

// Close forgets every server. It is called when no call runs any more and no session is left.
func (r *Resolver) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.known {
		if t := k.current.Load(); t != nil {
			r.o.Activator.Release(t.server)
		}
	}
	for _, s := range r.retired {
		r.o.Activator.Release(s.server)
	}
	clear(r.known)
	r.retired = nil
}
