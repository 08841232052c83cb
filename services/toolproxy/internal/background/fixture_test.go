package background_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/activation"
	"github.com/toolherd/toolherd/services/toolproxy/internal/background"
	"github.com/toolherd/toolherd/services/toolproxy/internal/binding"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const remoteID = "remote-1234"

// fixture is what serves workers, over one server in memory and a registry made by hand.
type fixture struct {
	*background.Service

	t        *testing.T
	pool     *pool.Pool
	resolver *background.Resolver
	redactor *secret.Redactor
	metrics  *prometheus.Registry
	server   *wiretest.Server
	keeper   keeper
	tracer   trace.Tracer

	mu     sync.Mutex
	vars   map[string]string
	answer func(p *wiretest.Process, tool string) string // the result of each tools/call
	sent   []string                                      // tool and arguments of each
	opened []pool.Request
	active map[string]string
}

// keeper is the registry's store of literals, and counts who asks.
type keeper struct {
	credentialv1.CredentialServiceClient

	literals map[string]string // by server, path and digest
	asked    int
	err      error
}

func (k *keeper) ResolveSecrets(_ context.Context, r *credentialv1.ResolveSecretsRequest, _ ...grpc.CallOption) (*credentialv1.ResolveSecretsResponse, error) {
	k.asked++
	if k.err != nil {
		return nil, k.err
	}
	out := map[string]string{}
	for _, ref := range r.GetRefs() {
		literal, ok := k.literals[r.GetServer()+" "+ref.GetFieldPath()+" "+ref.GetMac()]
		if !ok {
			return nil, fault.New(fault.ServerError, "%s is not stored", ref.GetFieldPath())
		}
		out[ref.GetFieldPath()] = literal
	}
	return &credentialv1.ResolveSecretsResponse{Secrets: out}, nil
}

// with runs a test in a bubble with at most so many stdio sessions.
func with(t *testing.T, sessions int, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{
			t: t, redactor: secret.NewRedactor(), metrics: prometheus.NewRegistry(), vars: map[string]string{},
			keeper: keeper{literals: map[string]string{}}, tracer: noop.NewTracerProvider().Tracer(""),
			answer: func(*wiretest.Process, string) string { return running("") },
		}
		f.server = &wiretest.Server{Handle: f.handle}
		f.build(sessions)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.pool.Run(ctx) }()
		synctest.Wait()
		test(t, f)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		f.resolver.Close()
	})
}

// tracing defers the choice of the tracer to the test.
type tracing struct {
	noop.Tracer
	f *fixture
}

func (x tracing) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	return x.f.tracer.Start(ctx, name, o...)
}

func (f *fixture) build(sessions int) {
	log := slog.New(slog.DiscardHandler)
	f.pool = pool.New(pool.Options{
		Open: func(ctx context.Context, r pool.Request) (*session.Session, error) {
			f.mu.Lock()
			f.opened = append(f.opened, r)
			f.mu.Unlock()
			return session.Open(ctx, session.Options{Dial: f.server.Dial, Era: session.Legacy, ProbeTimeout: time.Second, Log: log})
		},
		MaxSessions: sessions, MaxRemote: 10, IdleTimeout: 2 * time.Hour, CloseTimeout: time.Second, Log: log,
	})
	f.resolver = background.NewResolver(background.ResolverOptions{
		Forsake: f.pool.Forsake,
		Activator: activation.New(activation.Options{
			Credentials: &f.keeper, Redactor: f.redactor, MaxNameLength: 64, Log: log,
			NoTasks: "none are taken in", // which is no reason to leave those alone that there are
			Environment: func() func(string) (string, bool) {
				return func(name string) (string, bool) { v, ok := f.vars[name]; return v, ok }
			},
		}),
	})
	badHint, err := background.CountBadHints(f.metrics, log)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Service = background.New(background.Options{
		Resolver: f.resolver, Pool: f.pool, Suspect: func(string) {}, Redact: f.redactor.Redact, Tracer: tracing{f: f}, Log: log,
		Drivers: map[string]driver.Driver{driver.OrdinaryName: driver.NewOrdinary(driver.Options{Redact: f.redactor.Redact, BadHint: badHint})},
	})
}

// handle answers tools/call.
func (f *fixture) handle(p *wiretest.Process, m jsonrpc.Message) bool {
	if m.Method != "tools/call" {
		return false
	}
	tool, _ := jsonrpc.String(jsonrpc.Member(m.Params, "name"))
	f.mu.Lock()
	f.sent = append(f.sent, tool+" "+string(jsonrpc.Member(m.Params, "arguments")))
	answer := f.answer(p, tool)
	f.mu.Unlock()
	switch {
	case answer == "":
	case answer[0] == '!':
		p.Refuse(m.ID, -32050, answer[1:])
	case answer[0] == '?':
		p.Emit(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, answer[1:]))
	default:
		p.Reply(m.ID, answer)
	}
	return true
}

func running(more string) string {
	return `{"content":[],"structuredContent":{"task_id":"` + remoteID + `","status":"running"` + more + `}}`
}

func ended(status string) string {
	return `{"content":[],"structuredContent":{"task_id":"` + remoteID + `","status":"` + status + `"}}`
}

// always makes every call have this result.
func (f *fixture) always(answer string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = func(*wiretest.Process, string) string { return answer }
}

// entry is raw JSON of a server as a snapshot has it; its literals go to the keeper.
func (f *fixture) entry(name, raw string) *registryv1.ServerEntry {
	public, literals := serverconfig.Externalize(name, json.RawMessage(raw), func(label string, data []byte) string {
		return fmt.Sprintf("%x", sha256.Sum256(append([]byte(label), data...)))
	})
	refs, err := binding.Refs(public)
	if err != nil || len(refs) != len(literals) {
		f.t.Fatalf("entry %s has %d references to %d literals, %v", public, len(refs), len(literals), err)
	}
	for _, ref := range refs {
		f.keeper.literals[name+" "+ref.FieldPath+" "+ref.MAC] = literals[ref.FieldPath]
	}
	return &registryv1.ServerEntry{
		Name: name, State: registryv1.EntryState_ENTRY_STATE_ACTIVE, EntryJson: string(public),
		Fingerprint: serverconfig.Fingerprint(public), SourceClass: "user",
	}
}

// publish makes entries, raw JSON by name, the snapshot in force; change may change one.
func (f *fixture) publish(entries map[string]string, change ...func(*registryv1.ServerEntry)) {
	s := &registryv1.Snapshot{}
	f.active = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := f.entry(name, entries[name])
		for _, c := range change {
			c(e)
		}
		s.Servers = append(s.Servers, e)
		if e.GetState() == registryv1.EntryState_ENTRY_STATE_ACTIVE {
			f.active[name] = e.GetFingerprint()
		}
	}
	f.resolver.Follow(s)
	f.pool.SetActive(f.active)
	synctest.Wait()
}

// bind returns the binding of a task that is submitted to the server s as raw JSON has it.
func (f *fixture) bind(raw string, scope serverconfig.Scope) []byte {
	e := f.entry("s", raw)
	b := binding.New(binding.Origin{
		Driver: driver.OrdinaryName, Server: "s", SourceClass: e.GetSourceClass(), Public: json.RawMessage(e.GetEntryJson()), SnapshotID: "snap_1",
		Toolset: binding.Toolset{Name: "jobs", SubmitTool: "start", StatusTool: "status", CancelTool: "stop", BackgroundScope: scope},
	})
	encoded, err := b.Encode()
	if err != nil {
		f.t.Fatal(err)
	}
	return encoded
}

// ref names the one remote task, as task task of ann's thread thread.
func ref(bound []byte, task, thread string) *toolproxyv1.RemoteTaskRef {
	return &toolproxyv1.RemoteTaskRef{
		Handle: []byte(`{"v":1,"task_id":"` + remoteID + `"}`), Binding: bound, TaskId: task,
		Scope: &corev1.Scope{UserId: "ann", ThreadId: thread},
	}
}

func (f *fixture) poll(bound []byte, task string, hold time.Duration) (*toolproxyv1.RemoteTaskSnapshot, error) {
	f.t.Helper()
	r, err := f.GetRemoteTask(f.t.Context(), &toolproxyv1.GetRemoteTaskRequest{Ref: ref(bound, task, "t1"), HoldFor: durationpb.New(hold)})
	return r.GetSnapshot(), err
}

func (f *fixture) mustPoll(bound []byte, task string, hold time.Duration) *toolproxyv1.RemoteTaskSnapshot {
	f.t.Helper()
	s, err := f.poll(bound, task, hold)
	if err != nil {
		f.t.Fatalf("poll: %v", err)
	}
	return s
}

// call is what an ordinary call does under the configuration that a task was bound to: it returns the session's id.
func (f *fixture) call(bound []byte, thread string) (string, error) {
	f.t.Helper()
	b, err := binding.Decode(bound)
	if err != nil {
		f.t.Fatal(err)
	}
	e, _ := serverconfig.DecodePublic("s", b.Public)
	server := &upstream.Server{Name: "s", Fingerprint: b.Connection, Transport: e.Transport, Scope: e.SessionScope}
	lease, err := f.pool.Get(f.t.Context(), pool.Request{Server: server, Scope: authn.Scope{UserID: "ann", ThreadID: thread}})
	if err != nil {
		return "", err
	}
	defer lease.Release()
	return lease.Session().ID(), nil
}
