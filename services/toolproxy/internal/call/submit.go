package call

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
	"github.com/toolherd/toolherd/pkg/telemetry"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/binding"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
)

const (
	// maxSubmits bounds the submits that have not ended, those whose callers have gone included.
	maxSubmits = 1024
	// submitGrace is how long submits whose callers have gone may still take when Run ends, bookGrace how long their books.
	submitGrace = 5 * time.Second
	bookGrace   = 10 * time.Second
)

var errShutdown = errors.New("toolproxy is shutting down")

// Run lets submits outlive their callers until ctx ends. Then it waits for those that go on, within limits: what
// is not settled by then settles itself when its reservation expires.
func (c *Caller) Run(ctx context.Context) error {
	g := run.NewGroup(context.WithoutCancel(ctx), c.o.Log)
	submitting, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	c.mu.Lock()
	c.group, c.submitting = g, submitting
	c.mu.Unlock()
	<-ctx.Done()
	defer time.AfterFunc(submitGrace, func() { cut(errShutdown) }).Stop()
	defer time.AfterFunc(bookGrace, func() { g.Stop(errShutdown) }).Stop()
	return g.Wait()
}

// own runs f as part of Run, and reports false where that cannot be.
func (c *Caller) own(f func(context.Context)) bool {
	c.mu.Lock()
	g := c.group
	c.mu.Unlock()
	return g != nil && g.Go("submit of a task", f)
}

// running is the context of Run within which submits may run.
func (c *Caller) running() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.submitting
}

// submit makes a task of the call. A configuration that changed since the tool was found is looked up again, once: nothing
// has been submitted then.
func (c *Caller) submit(ctx context.Context, k *call, l Listener) (*toolproxyv1.CallToolResponse, error) {
	response, err := c.submitOnce(ctx, k, l)
	if err == nil || !pool.Retired(err) {
		return response, err
	}
	again := &call{caller: k.caller, scope: k.scope, request: k.request, args: k.args, start: k.start}
	if err := c.resolve(ctx, again); err != nil {
		return nil, err
	}
	if again.tool.Toolset == nil {
		return nil, err // an ordinary tool now; whoever calls it should know
	}
	return c.submitOnce(ctx, again, l)
}

func (c *Caller) submitOnce(ctx context.Context, k *call, l Listener) (*toolproxyv1.CallToolResponse, error) {
	if err := c.o.Intake.Off(); err != nil {
		return nil, err
	}
	bound := k.bind()
	reserve, err := k.intent(ctx, bound)
	if err != nil {
		return nil, err
	}
	s := &submission{
		c: c, k: k, caller: ctx, reserve: reserve, tools: bound.Tools(), listen: &gate{l: l},
		done: make(chan outcome), taken: make(chan bool, 1), left: make(chan struct{}),
	}
	select {
	case c.slots <- struct{}{}:
	default:
		return nil, fault.New(fault.RateLimited, "%d submits are under way, which is as many as this proxy carries at once; try again", maxSubmits)
	}
	started := c.own(func(ctx context.Context) {
		defer func() { <-c.slots }()
		s.run(ctx)
	})
	if !started {
		<-c.slots
		return nil, fault.New(fault.NotReady, "toolproxy is not running, and nothing was submitted; try again").Because(errShutdown)
	}
	defer s.listen.close()
	select {
	case o := <-s.done:
		s.taken <- ctx.Err() == nil
		if ctx.Err() == nil {
			return o.response, o.err
		}
	case <-ctx.Done():
		close(s.left)
	}
	return nil, s.deserted(ctx)
}

// outcome is what the caller is answered.
type outcome struct {
	response *toolproxyv1.CallToolResponse
	err      error
}

// submission is one submit from the reservation to the end of its books. One goroutine runs it; the caller's only
// waits.
type submission struct {
	c       *Caller
	k       *call
	caller  context.Context //nolint:containedctx // the call that asked, which may end before the submission does
	reserve *taskv1.ReserveTaskRequest
	tools   driver.Tools
	listen  *gate

	done  chan outcome  // to the caller
	taken chan bool     // holds one, from the caller: whether it could still make use of the outcome
	left  chan struct{} // closed by a caller that waits no more

	finished, delivered bool
}

// answer hands the outcome to the caller, the first time it is called, and reports whether the caller has one.
func (s *submission) answer(response *toolproxyv1.CallToolResponse, err error) bool {
	if s.finished {
		return s.delivered
	}
	s.finished = true
	select {
	case s.done <- outcome{response, err}:
		s.delivered = <-s.taken
	case <-s.left:
	}
	return s.delivered
}

// deserted is the error of a call whose caller went away or ran out of time. The submission goes on without it.
func (s *submission) deserted(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return s.k.fault(fault.Timeout, "tool %q of server %q had not taken the task by the caller's deadline; allow more time, or see whether the server is stuck",
			s.k.tool.Name, s.k.upstream.Name).With("deadline_source", sourceCaller)
	}
	return fault.Of(fault.Canceled, "the call of tool %q was cancelled; if a task came of it, that is cancelled too", s.k.tool.Name)
}

// gate passes what a server says on until it is closed.
type gate struct {
	mu     sync.Mutex
	closed bool
	l      Listener
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// listener returns functions that pass on to those of the gate's.
func (g *gate) listener() Listener {
	var l Listener
	if g.l.Progress != nil {
		l.Progress = func(p *toolproxyv1.Progress) { g.pass(func() { g.l.Progress(p) }) }
	}
	if g.l.Log != nil {
		l.Log = func(m *toolproxyv1.LogMessage) { g.pass(func() { g.l.Log(m) }) }
	}
	if g.l.Dropped != nil {
		l.Dropped = func() { g.pass(g.l.Dropped) }
	}
	return l
}

func (g *gate) pass(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		f()
	}
}

// intent says what is to be submitted, for whom.
func (k *call) intent(ctx context.Context, bound *binding.Binding) (*taskv1.ReserveTaskRequest, error) {
	r := k.request
	if t := r.GetTaskTtl(); t != nil && (t.CheckValid() != nil || t.AsDuration() <= 0) {
		return nil, invalid("task_ttl", "must be above zero")
	}
	server := k.tool.Server
	encoded, err := bound.Encode()
	if err != nil {
		return nil, err
	}
	q := &taskv1.ReserveTaskRequest{
		Principal: k.caller.Name, CallerRoles: roles(k.caller),
		Scope:     &corev1.Scope{UserId: k.scope.UserID, ThreadId: k.scope.ThreadID},
		RequestId: r.GetRequestId(), RequestHash: requestHash(server.Name, k.tool.Original, k.args),
		Binding: encoded, BindingFingerprint: bound.Fingerprint(),
		TaskName: k.tool.Toolset.Name, Server: server.Name, RunId: r.GetRunId(), ToolCallId: r.GetToolCallId(),
		NotifySink: r.GetNotifySink(), TaskTtl: r.GetTaskTtl(),
	}
	q.Traceparent, _ = telemetry.Traceparent(ctx)
	if limit, ok := newDeadline(ctx, k.start, r.GetTimeout().AsDuration(), k.upstream).latest(ctx); ok {
		q.SubmitTimeout = durationpb.New(max(time.Millisecond, time.Until(limit)))
	}
	return q, nil
}

// bind returns what the task keeps of the server.
func (k *call) bind() *binding.Binding {
	return binding.New(binding.Origin{
		Driver: driver.OrdinaryName, Server: k.tool.Server.Name, SourceClass: k.tool.Server.Class, Public: k.tool.Server.Public,
		SnapshotID: k.snapshot, Toolset: binding.ToolsetOf(*k.tool.Toolset),
	})
}

func roles(p authn.Principal) []corev1.Role {
	var out []corev1.Role
	for _, r := range p.Roles {
		if v, ok := corev1.Role_value["ROLE_"+strings.ToUpper(string(r))]; ok {
			out = append(out, corev1.Role(v))
		}
	}
	return out
}

// maxHashDepth is how deep arguments are looked into for their canonical form; deeper ones count as they are written.
const maxHashDepth = 1000

// requestHash tells requests with the same request_id apart: hex SHA-256 over server, tool and arguments, in which white
// space and the order of keys do not count.
func requestHash(server, tool string, args json.RawMessage) string {
	canonical := []byte("{}")
	if len(args) > 0 {
		canonical = args
		limits := strictjson.Limits{Bytes: len(args), Depth: maxHashDepth}
		if v, err := strictjson.Parse(args, limits); err == nil {
			canonical = v.Canonical()
		}
	}
	h := sha256.New()
	for _, part := range []string{server, tool} {
		_, _ = io.WriteString(h, part+"\x00") // no name has that character, and a hash takes everything
	}
	h.Write(canonical)
	return hex.EncodeToString(h.Sum(nil))
}
