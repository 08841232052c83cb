package call

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// Lengths of what a caller may send for the record, in bytes.
const (
	maxRequestID  = 128
	maxRunID      = 64
	maxToolCallID = 128
)

// revisionWait is how long a call waits for the configuration it asks for.
const revisionWait = 10 * time.Second

func checkRequest(r *toolproxyv1.CallToolRequest) error {
	switch {
	case r.GetName() == "":
		return invalid("name", "a tool's name is needed; ListTools names them")
	case len(r.GetRequestId()) > maxRequestID:
		return invalid("request_id", "longer than %d bytes", maxRequestID)
	case len(r.GetRunId()) > maxRunID:
		return invalid("run_id", "longer than %d bytes", maxRunID)
	case len(r.GetToolCallId()) > maxToolCallID:
		return invalid("tool_call_id", "longer than %d bytes", maxToolCallID)
	case r.GetRequestState() != "" || r.GetInputResponsesJson() != "":
		return fault.Of(fault.Unimplemented, "input_responses_json and request_state: answering a server's questions is not built yet")
	case toolproxyv1.ResultView_name[int32(r.GetView())] == "":
		return invalid("view", "%d is no view", r.GetView())
	}
	if t := r.GetTimeout(); t != nil {
		if err := t.CheckValid(); err != nil || t.AsDuration() <= 0 {
			return invalid("timeout", "must be above zero")
		}
	}
	return nil
}

// find returns the tool that k names and the catalog it is of. A name that a server in its first start may turn out to
// own is waited for as long as the call may take.
func (c *Caller) find(ctx context.Context, k *call) (*catalog.Catalog, *catalog.Tool, error) {
	cat := c.o.Store.Load()
	if cat == nil {
		return nil, nil, fault.New(fault.NotReady, "toolproxy has no configuration yet: the registry has not answered; try again")
	}
	name := k.request.GetName()
	if cat.Revision < k.request.GetMinRevision() {
		var err error
		if cat, err = c.awaitRevision(ctx, k); err != nil {
			return nil, nil, err
		}
	}
	if cat.Tool(name) == nil && cat.Pending(name) {
		var err error
		if cat, err = c.awaitStart(ctx, k); err != nil {
			return nil, nil, err
		}
	}
	tool := cat.Tool(name)
	switch {
	case tool == nil:
		return nil, nil, noTool(cat, name)
	case !tool.Server.Callable():
		return nil, nil, noServer(tool.Server)
	}
	return cat, tool, nil
}

// awaitStart waits until no server in its first start may own the name any more, or one does.
func (c *Caller) awaitStart(ctx context.Context, k *call) (*catalog.Catalog, error) {
	ctx, cancel := k.bound(ctx)
	defer cancel()
	name := k.request.GetName()
	cat, err := c.o.Store.Wait(ctx, func(c *catalog.Catalog) bool { return c.Tool(name) != nil || !c.Pending(name) })
	if err != nil {
		return nil, waitEnded(ctx, "tool "+strconv.Quote(name)+" may be one of a server that is still in its first start; ListServers shows how far it is, allow more time")
	}
	return cat, nil
}

func (c *Caller) awaitRevision(ctx context.Context, k *call) (*catalog.Catalog, error) {
	ctx, cancel := k.bound(ctx)
	defer cancel()
	bounded, cancel := context.WithTimeout(ctx, revisionWait)
	defer cancel()
	revision := k.request.GetMinRevision()
	cat, err := c.o.Store.Wait(bounded, func(c *catalog.Catalog) bool { return c.Revision >= revision })
	switch {
	case err == nil:
		return cat, nil
	case ctx.Err() != nil:
		return nil, waitEnded(ctx, fmt.Sprintf("this proxy does not use configuration revision %d yet, which min_revision asks for; allow more time", revision))
	}
	return nil, fault.New(fault.NotReady,
		"this proxy uses configuration revision %d, not yet the %d asked for in min_revision; try again", cat.Revision, revision)
}

// bound ends ctx when the time that the request allows is over. It is for waits before the server's limits are known.
func (k *call) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if k.request.GetTimeout() == nil {
		return ctx, func() {}
	}
	d := k.request.GetTimeout().AsDuration()
	return context.WithDeadlineCause(ctx, k.start.Add(d), timeoutError{upstream.Limit{Duration: d, Source: sourceRequest}})
}

// waitEnded is the error of a call whose context ended before its server was found. Nothing was called.
func waitEnded(ctx context.Context, why string) error {
	cause := context.Cause(ctx)
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return cause
	}
	source := sourceCaller
	if ours, ok := errors.AsType[timeoutError](cause); ok {
		source = ours.limit.Source
	}
	return fault.New(fault.Timeout, "the time of the call ended (%s) before it was made: %s", source, why).
		With("deadline_source", source).Because(ctx.Err())
}

// noTool explains a name without a tool.
func noTool(cat *catalog.Catalog, name string) error {
	if s := cat.Owner(name); s != nil && s.Status != corev1.ServerStatus_SERVER_STATUS_OK {
		return noServer(s)
	}
	hint := "ListTools names them"
	if near := cat.Nearest(name); near != "" {
		hint = "did you mean " + near + "? ListTools names all"
	}
	return fault.New(fault.ToolNotFound, "no tool is called %q; %s", name, hint)
}

// noServer explains why a server's tools cannot be called.
func noServer(s *catalog.Server) error {
	var f *fault.Error
	switch s.Status {
	case corev1.ServerStatus_SERVER_STATUS_DISABLED:
		f = fault.New(fault.ServerDisabled, "server %q is switched off%s", s.Name, nextStep(s))
	case corev1.ServerStatus_SERVER_STATUS_UNTRUSTED:
		f = fault.New(fault.ServerUntrusted, "server %q comes from a project that nobody approved%s", s.Name, nextStep(s))
	case corev1.ServerStatus_SERVER_STATUS_UNAUTHENTICATED:
		f = fault.New(fault.UpstreamUnauthenticated, "server %q wants a login: %s%s", s.Name, s.Reason, nextStep(s))
	default:
		f = fault.New(fault.ServerError, "server %q is in error: %s%s", s.Name, s.Reason, nextStep(s))
	}
	return f.With("server", s.Name)
}

func nextStep(s *catalog.Server) string {
	switch {
	case s.FixCommand != "":
		return "; to mend it: " + s.FixCommand
	case !s.NextRetry.IsZero():
		return "; it is tried again at " + s.NextRetry.UTC().Format(time.TimeOnly) + " UTC, or at once by RefreshServers"
	case s.Status == corev1.ServerStatus_SERVER_STATUS_ERROR:
		return "; correct its entry" + inFile(s)
	default:
		return "; change that in its entry" + inFile(s)
	}
}

func inFile(s *catalog.Server) string {
	if s.File == "" {
		return ""
	}
	return " in " + s.File
}
