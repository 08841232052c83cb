package discovery

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// result is the outcome of a check.
type result struct {
	session  *session.Session // that listed the tools
	lives    bool             // there is a session, whose announcements count
	tools    []catalog.Definition
	warnings []string
	ttl      time.Duration // how long the list holds; 0 if the server does not say
	err      error
	unbound  bool // its toolsets cannot work, so that no list of its tools is served
}

// check activates the server, starts its session if need be and lists its tools, within its session_init_timeout.
func (m *monitor) check(ctx context.Context) result {
	select {
	case m.d.slots <- struct{}{}:
	case <-ctx.Done():
		return result{err: context.Cause(ctx)}
	}
	defer func() { <-m.d.slots }()
	m.d.mu.Lock()
	m.begun++
	m.d.mu.Unlock()
	select { // what was announced before is in the list that is read now
	case <-m.changed:
	default:
	}

	rules := m.rules()
	if len(rules.Toolsets) > 0 {
		if err := m.d.o.Tasks(); err != nil {
			return result{err: err, unbound: true}
		}
	}
	up, err := m.activate(ctx)
	if err != nil {
		return result{err: err}
	}
	if limit := up.InitTimeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, pool.StartTimeout(up))
		defer cancel()
	}
	lease, err := m.d.o.Pool.Get(ctx, pool.Request{Server: up, Scope: m.d.o.Scope})
	if err != nil {
		return result{err: err}
	}
	defer lease.Release()
	list, err := lease.Session().ListTools(ctx)
	lives := false
	switch {
	case err == nil:
		r := read(up.Name, lease.Session(), list)
		if missing := rules.MissingTaskTools(r.tools); len(missing) > 0 {
			r.session, r.err, r.unbound = nil, errMissing(missing), true
		}
		return r
	case ctx.Err() != nil: // it hangs, and would hang for others
		err = context.Cause(ctx)
		lease.Discard()
	case lease.Session().Err() != nil: // the reason says more than that tools/list failed
		err = lease.Session().Err()
	default:
		lives = true
	}
	return result{err: err, lives: lives}
}

// rules returns what the entry says about the server's tools.
func (m *monitor) rules() catalog.Rules {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	return m.entry.Rules
}

func errMissing(tools []string) error {
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = strconv.Quote(t)
	}
	return fault.New(fault.ServerError, "task_toolsets names %s, which the server does not list; correct the names, or the server",
		strings.Join(names, ", "))
}

// activate resolves the entry, once.
func (m *monitor) activate(ctx context.Context) (*upstream.Server, error) {
	m.d.mu.Lock()
	up, entry, snapshot := m.upstream, m.entry, m.d.snapshotID
	m.d.mu.Unlock()
	if up != nil {
		return up, nil
	}
	up, err := m.d.o.Activate(ctx, snapshot, entry)
	if err != nil {
		return nil, err
	}
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.stopped {
		m.d.retired = append(m.d.retired, retiredServer{up, time.Now()})
		return nil, context.Canceled
	}
	m.upstream = up
	return up, nil
}

// read decodes the tools of a list; what cannot be decoded is left out and reported.
func read(server string, s *session.Session, list session.Listing) result {
	r := result{session: s, lives: true, ttl: list.TTL, tools: make([]catalog.Definition, 0, len(list.Tools))}
	for _, what := range list.Skipped {
		r.warnings = append(r.warnings, fmt.Sprintf("server %q: %s and is left out", server, what))
	}
	for i, raw := range list.Tools {
		d, err := catalog.Define(raw)
		if err != nil {
			r.warnings = append(r.warnings, fmt.Sprintf("server %q: tool %d of its list is left out: %v", server, i+1, err))
			continue
		}
		r.tools = append(r.tools, d)
	}
	return r
}

// explain turns the error of a check into a reason for people and the server's last output.
func (d *Discovery) explain(err error) (reason, tail string) {
	if fault.Is(err, fault.TasksUnavailable) {
		return d.o.Redact(string(fault.TasksUnavailable) + ": " + err.Error()), ""
	}
	if w, ok := errors.AsType[link.Witness](err); ok {
		return d.o.Redact(w.Error()), d.o.Redact(w.LastWords())
	}
	return d.o.Redact(err.Error()), ""
}
