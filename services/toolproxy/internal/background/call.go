package background

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/safehttp"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

const (
	// maxAttempts is how often a call may be sent: again only where the server provably did not execute it.
	maxAttempts = 2
	// maxErrorChars bounds a message.
	maxErrorChars = 500
)

// call is one call for a remote task. It is the driver's Conn.
type call struct {
	service     *Service
	target      *target
	driver      driver.Driver
	task        driver.Task
	id          string // what the session is held by
	hold        time.Duration
	traceparent string
	scope       authn.Scope
}

// CallTool implements driver.Conn. Its errors are those of the package.
func (k *call) CallTool(ctx context.Context, name string, arguments json.RawMessage) (json.RawMessage, error) {
	server := k.target.server
	out := session.Call{Name: name, Arguments: arguments, Meta: session.TraceMembers(ctx)}
	for attempt := 1; ; attempt++ {
		lease, err := k.service.o.Pool.Get(ctx, pool.Request{Server: server, Scope: k.scope, Task: k.id, HoldFor: k.hold})
		if err != nil {
			return nil, k.startFailed(ctx, err)
		}
		raw, err := send(ctx, lease.Session(), out, server)
		if errors.Is(err, exchange.ErrSessionLost) {
			lease.Discard()
			k.suspect()
		}
		lease.Release()
		if err == nil {
			return raw, nil
		}
		if !session.Repeatable(err) || attempt == maxAttempts || ctx.Err() != nil {
			return nil, k.callFailed(ctx, name, err)
		}
	}
}

// send makes a call within the server's tool_call_timeout.
func send(ctx context.Context, s *session.Session, c session.Call, server *upstream.Server) (json.RawMessage, error) {
	if limit := server.CallTimeout; limit.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit.Duration, timeoutError{limit})
		defer cancel()
	}
	raw, err := s.CallTool(ctx, c)
	if late, ok := errors.AsType[timeoutError](context.Cause(ctx)); ok && err != nil && errors.Is(err, ctx.Err()) {
		return nil, late
	}
	return raw, err
}

// timeoutError is the cause of a call that a limit of its server ended.
type timeoutError struct{ limit upstream.Limit }

func (t timeoutError) Error() string {
	return fmt.Sprintf("no answer within %v (%s)", t.limit.Duration, t.limit.Source)
}

func (k *call) suspect() {
	if k.target.inForce {
		k.service.o.Suspect(k.target.binding.Server)
	}
}

// fault returns an error with a message that may be stored and shown.
func (k *call) fault(r fault.Reason, cause error, format string, args ...any) error {
	text := k.conceal(k.service.o.Redact(fmt.Sprintf(format, args...)))
	f := fault.New(r, "%s", catalog.Shorten(text, maxErrorChars-1)).With("server", k.target.binding.Server).Because(cause)
	if told, ok := errors.AsType[*fault.Error](cause); ok && told.RetryDelay() > 0 {
		return f.RetryIn(told.RetryDelay())
	}
	return f
}

// conceal removes the server's address from a message: who may read of a task need not know it.
func (k *call) conceal(text string) string {
	raw := k.target.server.URL
	_, host, _ := strings.Cut(raw, "://")
	host, _, _ = strings.Cut(host, "/")
	for _, part := range []string{raw, host} {
		if part != "" {
			text = strings.ReplaceAll(text, part, "its address")
		}
	}
	return text
}

// gaveUp returns the error of a call whose caller has gone or ran out of time, or nil.
func (k *call) gaveUp(ctx context.Context) error {
	switch cause := ctx.Err(); {
	case errors.Is(cause, context.DeadlineExceeded):
		return k.fault(fault.Timeout, cause, "server %q gave no answer before the worker's deadline", k.target.binding.Server)
	case cause != nil:
		return fault.Of(fault.Canceled, "the call was cancelled; server %q was told", k.target.binding.Server)
	}
	return nil
}

// startFailed is the error of a call for which there was no session.
func (k *call) startFailed(ctx context.Context, err error) error {
	if gone := k.gaveUp(ctx); gone != nil {
		return gone
	}
	name, reason := k.target.binding.Server, fault.ServerError
	switch got := fault.ReasonOf(err); got {
	case fault.SessionLimit, fault.SessionClosed, fault.NotReady:
		return err // about the pool, not about the server
	case fault.Timeout:
		k.suspect()
		return err // names the server and the limit
	case fault.UpstreamUnauthenticated:
		reason = got
	default: // whatever it was, it was the start that failed
	}
	k.suspect()
	if unreachable(err) {
		return k.fault(reason, err, "server %q cannot be reached; see whether it runs and its url is right", name)
	}
	return k.fault(reason, err, "server %q could not be started: %v", name, err)
}

// callFailed is the error of a call that was sent, or about to be. What a wire calls a breach of the protocol is no verdict
// on the task: the next answer may be whole.
func (k *call) callFailed(ctx context.Context, tool string, err error) error {
	name := k.target.binding.Server
	if refused, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return k.fault(fault.UpstreamError, err, "server %q refused tool %q with JSON-RPC error %d: %s", name, tool, refused.Code, refused.Message)
	}
	if late, ok := errors.AsType[timeoutError](err); ok {
		return k.fault(fault.Timeout, err, "tool %q of server %q gave no answer within %v (%s)", tool, name, late.limit.Duration, late.limit.Source)
	}
	if gone := k.gaveUp(ctx); gone != nil {
		return gone
	}
	if unreachable(err) {
		return k.fault(fault.ServerError, err, "server %q cannot be reached; see whether it runs and its url is right", name)
	}
	reason := fault.ReasonOf(err)
	switch reason {
	case fault.UpstreamUnauthenticated:
		k.suspect()
	case fault.UpstreamProtocol:
		reason = fault.UpstreamError
	case "":
		reason = fault.SessionClosed
	default: // as the wire calls it
	}
	return k.fault(reason, err, "%v", err)
}

// unreachable reports whether there was no connection to the server.
func unreachable(err error) bool {
	_, ok := errors.AsType[*safehttp.DialError](err)
	return ok
}
