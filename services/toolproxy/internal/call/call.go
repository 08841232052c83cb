package call

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/run"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// maxAttempts is how often a call may be sent; see the package doc for when it is sent again.
const maxAttempts = 2

// Options configure a Caller. Every field must be set.
type Options struct {
	Store *catalog.Store
	Pool  *pool.Pool
	// Suspect hears of a server whose session could not be started, or that lost one or wants a login. It must not block.
	Suspect func(server string)
	// Redact removes secrets from what servers say.
	Redact func(string) string
	// Intake takes durable tasks in, Tasks cancels them, and Driver submits them to their servers. They are needed for
	// tools with a toolset only.
	Intake *intake.Client
	Tasks  taskv1.TaskServiceClient
	Driver driver.Driver
	Tracer trace.Tracer
	// Log gets each call at level debug, with what the caller sent for the record.
	Log *slog.Logger
}

// Caller makes calls. It may be used concurrently. Ordinary calls need no Run.
type Caller struct {
	o     Options
	slots chan struct{} // one per submit that has not ended

	mu         sync.Mutex
	group      *run.Group      // of Run
	submitting context.Context //nolint:containedctx // of Run: it ends when submits have to
}

// New returns a Caller. It starts nothing.
func New(o Options) *Caller { return &Caller{o: o, slots: make(chan struct{}, maxSubmits)} }

// Listener hears what a server says during a call. Its functions run one at a time and before Call returns; they must
// not block. Nil ones are not called.
type Listener struct {
	Progress func(*toolproxyv1.Progress)
	Log      func(*toolproxyv1.LogMessage)
	// Dropped is called for each message that came faster than these functions took them. It runs on its own.
	Dropped func()
}

// call is one call on its way.
type call struct {
	caller   authn.Principal
	scope    authn.Scope
	request  *toolproxyv1.CallToolRequest
	args     json.RawMessage
	start    time.Time
	snapshot string
	tool     *catalog.Tool
	upstream *upstream.Server
	deadline *deadline
	session  *session.Session
	attempt  int32
}

// Call makes the call that r asks for, on behalf of the principal of ctx.
func (c *Caller) Call(ctx context.Context, r *toolproxyv1.CallToolRequest, l Listener) (*toolproxyv1.CallToolResponse, error) {
	k := &call{request: r, start: time.Now()}
	if err := k.admit(ctx); err != nil {
		return nil, err
	}
	if err := c.resolve(ctx, k); err != nil {
		return nil, err
	}
	if k.tool.Toolset != nil {
		return c.submit(ctx, k, l)
	}
	return c.ordinary(ctx, k, l)
}

// ordinary makes a call whose answer is its result.
func (c *Caller) ordinary(ctx context.Context, k *call, l Listener) (*toolproxyv1.CallToolResponse, error) {
	k.deadline = newDeadline(ctx, k.start, k.request.GetTimeout().AsDuration(), k.upstream)
	ctx = k.deadline.start(ctx)
	defer k.deadline.stop()
	ctx, span := c.startSpan(ctx, k)
	raw, err := c.send(ctx, k, l)
	if span != nil {
		span.End()
	}
	c.record(ctx, k, err)
	if err != nil {
		return nil, err
	}
	return k.respond(raw)
}

// admit checks what needs no catalog.
func (k *call) admit(ctx context.Context) (err error) {
	var ok bool
	if k.caller, ok = authn.FromContext(ctx); !ok {
		return fault.Of(fault.Unauthenticated, "the caller is not known")
	}
	s := k.request.GetScope()
	if k.scope, err = k.caller.Resolve(authn.Scope{UserID: s.GetUserId(), ThreadID: s.GetThreadId()}); err != nil {
		return err
	}
	if err := checkRequest(k.request); err != nil {
		return err
	}
	k.args, err = arguments(k.request)
	return err
}

// resolve finds the tool and the server that is to be called.
func (c *Caller) resolve(ctx context.Context, k *call) error {
	cat, tool, err := c.find(ctx, k)
	if err != nil {
		return err
	}
	k.snapshot, k.tool, k.upstream = cat.SnapshotID, tool, tool.Server.Upstream
	return nil
}

// send makes the call and returns the server's result.
func (c *Caller) send(ctx context.Context, k *call, l Listener) (json.RawMessage, error) {
	out := session.Call{
		Arguments: k.args, Meta: session.TraceMembers(ctx),
		Listen: link.CallOptions{OnActivity: k.deadline.extend},
	}
	l.attach(&out.Listen)
	for {
		lease, err := c.acquire(ctx, k)
		if err != nil {
			return nil, c.startFailed(ctx, k, err)
		}
		k.session = lease.Session()
		k.attempt++
		out.Name = k.tool.Original // acquire may have looked it up again
		raw, err := k.session.CallTool(ctx, out)
		if err == nil {
			lease.Release()
			return raw, nil
		}
		if errors.Is(err, exchange.ErrSessionLost) {
			lease.Discard()
			c.o.Suspect(k.upstream.Name) // it was started anew, and may have other tools
		}
		lease.Release()
		if !session.Repeatable(err) || k.attempt == maxAttempts || ctx.Err() != nil {
			return nil, c.callFailed(ctx, k, err)
		}
	}
}

// acquire gets the session. A configuration that changed since the tool was found is looked up again, once: nothing has
// been called yet.
func (c *Caller) acquire(ctx context.Context, k *call) (pool.Lease, error) {
	lease, retired := c.o.Pool.Get(ctx, pool.Request{Server: k.upstream, Scope: k.scope})
	if retired == nil || !pool.Retired(retired) {
		return lease, retired
	}
	if err := c.resolve(ctx, k); err != nil {
		return pool.Lease{}, err
	}
	if k.tool.Toolset != nil {
		return pool.Lease{}, retired // it submits a task now, which takes another way
	}
	return c.o.Pool.Get(ctx, pool.Request{Server: k.upstream, Scope: k.scope})
}

// respond makes the answer of a result.
func (k *call) respond(raw json.RawMessage) (*toolproxyv1.CallToolResponse, error) {
	if err := checkResult(raw, k.session.Version() == session.Version20260728); err != nil {
		return nil, k.broken(err)
	}
	result, err := view(raw, k.request.GetView())
	if err != nil {
		return nil, k.broken(err)
	}
	return &toolproxyv1.CallToolResponse{
		Outcome: &toolproxyv1.CallToolResponse_Result{Result: result},
		Info:    k.info(),
	}, nil
}

// info tells what happened on the way. A submit that was known before had no session and no deadline.
func (k *call) info() *toolproxyv1.CallInfo {
	i := &toolproxyv1.CallInfo{
		Server:           k.upstream.Name,
		OriginalName:     k.tool.Original,
		SnapshotId:       k.snapshot,
		Attempt:          k.attempt,
		CredentialLayers: k.upstream.CredentialLayers(),
		Duration:         durationpb.New(time.Since(k.start)),
	}
	if k.deadline != nil {
		i.DeadlineSource = k.deadline.source
	}
	if k.session != nil {
		i.SessionId = k.session.ID()
		i.SessionStartTime = timestamppb.New(k.session.StartTime())
		i.Era = k.session.Version()
	}
	return i
}
