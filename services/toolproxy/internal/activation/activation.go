// Package activation turns entries of a snapshot into servers that may be connected to.
//
// It happens in two steps. [Activator.Judge] looks at a snapshot alone: it decides which entries may be started at all and
// says why others may not, above all those that ask for a credential layer or an interceptor that this version does not
// have: they are never called without it. [Activator.Activate] then resolves one entry, at the moment of its first use:
// literal secrets come from the registry, references from the environment of this process, and what is missing keeps that
// one server from starting. Resolved values stay in memory and are made known to the redactor.
package activation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/safehttp"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// secretsTimeout bounds the question for a server's literals.
const secretsTimeout = 10 * time.Second

// Options configure an Activator. Every field must be set, but those that say otherwise.
type Options struct {
	Credentials credentialv1.CredentialServiceClient
	// Environment returns a look-up over the variables as they are at this moment.
	Environment func() func(name string) (string, bool)
	Redactor    *secret.Redactor
	// MaxNameLength bounds visible tool names, in bytes.
	MaxNameLength int
	// ManyReplicas says that a stdio session may be reached through this proxy or through another.
	ManyReplicas bool
	// NoTasks is why there are no durable tasks, with the next step: entries with toolsets are refused. Empty if there are.
	NoTasks string
	// SkipInterceptors lists interceptors that may be left out where they cannot be resolved; may be nil.
	SkipInterceptors []string
	Log              *slog.Logger
}

// Activator activates entries. It may be used concurrently.
type Activator struct{ o Options }

// New returns an Activator.
func New(o Options) *Activator { return &Activator{o} }

// Entry is an entry of a snapshot with the verdict on it.
type Entry struct {
	Name        string
	Transport   string
	File        string // that defines it
	Fingerprint string
	Stale       bool
	Warnings    []string
	Rules       catalog.Rules

	// Of an entry that may not be started.
	Status     corev1.ServerStatus
	Reason     string
	FixCommand string

	wire   *registryv1.ServerEntry
	config serverconfig.Entry
}

// Public returns the entry as the snapshot has it, without secrets, and the class of the file that defines it.
func (e *Entry) Public() (entry json.RawMessage, class string) {
	return json.RawMessage(e.wire.GetEntryJson()), e.wire.GetSourceClass()
}

// Startable reports whether the entry may be activated.
func (e *Entry) Startable() bool { return e.Status == corev1.ServerStatus_SERVER_STATUS_UNSPECIFIED }

// Equal reports whether both say the same.
func (e *Entry) Equal(other *Entry) bool {
	return proto.Equal(e.wire, other.wire) && e.Status == other.Status && e.Reason == other.Reason
}

// SameConnection reports whether a server activated under one entry serves the other as well.
func (e *Entry) SameConnection(other *Entry) bool {
	if !e.Startable() || !other.Startable() {
		return e.Equal(other)
	}
	return e.Fingerprint == other.Fingerprint && e.wire.GetSourceClass() == other.wire.GetSourceClass()
}

// Judge returns the entries of a snapshot, each with the verdict on it.
func (a *Activator) Judge(s *registryv1.Snapshot) []*Entry {
	missing := a.missingInterceptors(s.GetInterceptorsJson())
	out := make([]*Entry, 0, len(s.GetServers()))
	for _, w := range s.GetServers() {
		e := a.judge(w)
		if e.Startable() && e.config.Transport.IsRemote() && missing != "" {
			e.refuse(missing)
		}
		out = append(out, e)
	}
	return out
}

func (a *Activator) judge(w *registryv1.ServerEntry) *Entry {
	e := &Entry{
		Name: w.GetName(), File: w.GetSource(), Fingerprint: w.GetFingerprint(), Stale: w.GetStale(),
		FixCommand: w.GetFixCommand(), Transport: "config", wire: w,
	}
	for _, p := range w.GetProblems() {
		if p.GetSeverity() == registryv1.Severity_SEVERITY_WARNING {
			e.Warnings = append(e.Warnings, problemText(p))
		}
	}
	var problems []serverconfig.Problem
	if w.GetEntryJson() != "" {
		e.config, problems = serverconfig.DecodePublic(e.Name, json.RawMessage(w.GetEntryJson()))
		e.Transport = string(e.config.Transport)
	}
	e.Rules = a.rules(e)
	switch w.GetState() {
	case registryv1.EntryState_ENTRY_STATE_ACTIVE:
		e.Status, e.FixCommand = corev1.ServerStatus_SERVER_STATUS_UNSPECIFIED, ""
		if w.GetReason() != "" {
			e.Warnings = append(e.Warnings, w.GetReason())
		}
		a.examine(e, problems)
	case registryv1.EntryState_ENTRY_STATE_DISABLED:
		e.Status, e.Reason = corev1.ServerStatus_SERVER_STATUS_DISABLED, cmp.Or(w.GetReason(), "it is switched off")
	case registryv1.EntryState_ENTRY_STATE_UNTRUSTED:
		e.Status, e.Reason = corev1.ServerStatus_SERVER_STATUS_UNTRUSTED, cmp.Or(w.GetReason(), "it comes from a project that nobody approved")
	case registryv1.EntryState_ENTRY_STATE_ERROR, registryv1.EntryState_ENTRY_STATE_UNSPECIFIED:
		e.refuse(cmp.Or(w.GetReason(), "the registry does not accept its entry"))
	default:
		e.refuse("the registry gives it a state that this version does not know")
	}
	return e
}

// examine refuses what this version cannot do as the entry asks.
func (a *Activator) examine(e *Entry, problems []serverconfig.Problem) {
	if err := serverconfig.Fault(problems); err != nil {
		e.refuse(err.Error())
		return
	}
	switch layers := e.config.CredentialLayers(); {
	case e.wire.GetEntryJson() == "":
		e.refuse("its entry is empty")
	case len(layers) > 0:
		e.refuse(fmt.Sprintf("its entry uses %s, which this version does not support; it is not called without", strings.Join(layers, ", ")))
	case len(e.config.TaskToolsets) > 0 && a.o.NoTasks != "":
		e.refuse(string(fault.TasksUnavailable) + ": its entry has task_toolsets, and " + a.o.NoTasks)
	case a.o.ManyReplicas && e.config.Transport == serverconfig.Stdio && e.config.SessionScope != serverconfig.ScopeShared:
		e.refuse("a stdio session lives in one proxy, and toolproxy.replicas is many; set its session_scope to shared, or replicas to one")
	}
}

func (e *Entry) refuse(reason string) {
	e.Status, e.Reason = corev1.ServerStatus_SERVER_STATUS_ERROR, reason
}

// missingInterceptors says which interceptors of a snapshot cannot be had, or "".
func (a *Activator) missingInterceptors(raw string) string {
	names, problem := serverconfig.ParseInterceptors(json.RawMessage(raw))
	if problem != nil {
		return "mcpInterceptors cannot be used, and no server is called without them: " + problem.String()
	}
	names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(a.o.SkipInterceptors, n) })
	if len(names) == 0 {
		return ""
	}
	return "the interceptor " + strings.Join(names, ", ") + " of mcpInterceptors cannot be resolved by this version, and no server is called without it; " +
		"remove it, or allow it in toolproxy.interceptors with `on_unresolved: skip`"
}

func problemText(p *registryv1.Problem) string {
	text := p.GetMessage()
	if p.GetPath() != "" {
		text = p.GetPath() + ": " + text
	}
	if p.GetHint() != "" {
		text += ": " + p.GetHint()
	}
	return text
}

// Activate resolves an entry of a snapshot. The error is a fault that names field and variable, or the registry.
func (a *Activator) Activate(ctx context.Context, snapshotID string, e *Entry) (*upstream.Server, error) {
	return a.activate(ctx, e, &credentialv1.ResolveSecretsRequest{SnapshotId: snapshotID, Server: e.Name})
}

// secrets returns the values of a server that must not be seen. Where programs are looked for is not among them, though it
// stands in env: an error has to name it.
func secrets(r serverconfig.Resolved) []string {
	return slices.DeleteFunc(slices.Clone(r.Secrets()), func(v string) bool { return v == r.Env["PATH"] })
}

// Release forgets the secrets of a server that nothing uses any more.
func (a *Activator) Release(s *upstream.Server) {
	a.o.Redactor.Remove(s.Secrets...)
	if t, ok := s.HTTP.(*safehttp.Transport); ok {
		t.CloseIdleConnections()
	}
}

func (a *Activator) server(e *Entry, r serverconfig.Resolved) (*upstream.Server, error) {
	c := e.config
	s := &upstream.Server{
		Name: e.Name, Fingerprint: e.Fingerprint, Transport: c.Transport, Scope: c.SessionScope, Era: c.Era,
		Command: r.Command, Args: r.Args, Env: r.Env, Cwd: r.Cwd,
		InitTimeout:    c.SessionInitTimeout,
		CallTimeout:    e.limit("tool_call_timeout", c.ToolCallTimeout),
		CallMaxTimeout: e.limit("tool_call_max_timeout", c.ToolCallMaxTimeout),
		Secrets:        secrets(r),
	}
	if !c.Transport.IsRemote() {
		return s, nil
	}
	s.URL = r.URL
	s.Header = make(http.Header, len(r.Headers))
	for name, value := range r.Headers {
		s.Header.Set(name, value)
	}
	private := safehttp.AnyHost
	if e.wire.GetSourceClass() == "project" {
		u, err := url.Parse(r.URL)
		if err != nil {
			return nil, fault.New(fault.ConfigInvalid, "server %q: its url cannot be read; write it like https://example.com/mcp", e.Name)
		}
		private = safehttp.VisiblyPrivate(u)
	}
	s.HTTP = safehttp.NewTransport(safehttp.Options{
		AllowPrivate: private, AllowUserinfo: true, MaxBodyBytes: -1,
		Setting: "entries of the user's own files and of --mcp-config may name such a host, those of a project may not",
	})
	return s, nil
}

// limit returns a time limit of the entry with its source, which tells a default from what is written.
func (e *Entry) limit(key string, d time.Duration) upstream.Limit {
	var written map[string]json.RawMessage
	source := "default." + key
	if json.Unmarshal([]byte(e.wire.GetEntryJson()), &written) == nil && written[key] != nil {
		source = "server." + key
	}
	return upstream.Limit{Duration: d, Source: source}
}
