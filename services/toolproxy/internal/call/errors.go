package call

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// ended returns the error of a call whose context ended, or nil if it lives.
func (c *Caller) ended(ctx context.Context, k *call) error {
	switch cause, ours := errors.AsType[timeoutError](context.Cause(ctx)); {
	case ours:
		return k.fault(fault.Timeout, "tool %q of server %q gave no answer within %v (%s); raise that limit, or see whether the server is stuck",
			k.tool.Name, k.upstream.Name, cause.limit.Duration, cause.limit.Source).With("deadline_source", cause.limit.Source)
	case errors.Is(context.Cause(ctx), intake.ErrLost):
		return k.fault(fault.ReservationExpired, "taskworker could not be told any more that tool %q of server %q is still being called, so the call was ended; see whether taskworker runs",
			k.tool.Name, k.upstream.Name).Because(intake.ErrLost)
	case errors.Is(context.Cause(ctx), errShutdown):
		return k.fault(fault.SessionClosed, "the call of tool %q of server %q was ended, since toolproxy shuts down", k.tool.Name, k.upstream.Name).
			Because(errShutdown)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return k.fault(fault.Timeout, "tool %q of server %q gave no answer before the caller's deadline; allow more time, or see whether the server is stuck",
			k.tool.Name, k.upstream.Name).With("deadline_source", sourceCaller)
	case ctx.Err() != nil:
		return fault.Of(fault.Canceled, "the call of tool %q was cancelled; server %q was told", k.tool.Name, k.upstream.Name)
	}
	return nil
}

func (k *call) fault(r fault.Reason, format string, args ...any) *fault.Error {
	return fault.New(r, format, args...).With("server", k.upstream.Name)
}

// startFailed is the error of a call for which there was no session.
func (c *Caller) startFailed(ctx context.Context, k *call, err error) error {
	if ended := c.ended(ctx, k); ended != nil {
		return ended
	}
	switch fault.ReasonOf(err) {
	case fault.SessionLimit, fault.SessionClosed, fault.NotReady, fault.ToolNotFound, fault.ServerDisabled, fault.ServerUntrusted:
		return err // about the pool or the configuration, not about the server
	default:
		c.o.Suspect(k.upstream.Name)
	}
	switch fault.ReasonOf(err) {
	case fault.Timeout, fault.CredentialIllegal, fault.LaunchPolicy, fault.ServerError:
		return err // names the server and the next step already
	case fault.UpstreamUnauthenticated:
		return c.wantsLogin(k, err)
	default:
		return k.fault(fault.ServerError, "server %q could not be started: %s", k.upstream.Name, c.o.Redact(k.describe(err))).Because(err)
	}
}

func (c *Caller) wantsLogin(k *call, err error) error {
	return k.fault(fault.UpstreamUnauthenticated, "server %q wants a login: %s; log in with `toolherd login %s`",
		k.upstream.Name, c.o.Redact(err.Error()), k.upstream.Name).Because(err)
}

// describe returns the text of a server's failure, with its last output for those who may see that: who calls a session
// of its own, and operators.
func (k *call) describe(err error) string {
	w, ok := errors.AsType[link.Witness](err)
	if !ok {
		return err.Error()
	}
	words := w.LastWords()
	if words == "" || k.upstream.Shared() && !k.caller.Has(authn.Operator) {
		return w.Error()
	}
	return w.Error() + "; its last output on stderr:\n" + words
}

// callFailed is the error of a call that was sent, or about to be.
func (c *Caller) callFailed(ctx context.Context, k *call, err error) error {
	if refused, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return k.fault(fault.UpstreamError, "server %q refused tool %q with JSON-RPC error %d: %s%s",
			k.upstream.Name, k.tool.Name, refused.Code, catalog.Shorten(c.o.Redact(refused.Message), maxQuoted), advice(refused.Code)).
			With("jsonrpc_code", strconv.FormatInt(refused.Code, 10)).Because(err)
	}
	if ended := c.ended(ctx, k); ended != nil {
		return ended
	}
	if fault.Is(err, fault.UpstreamUnauthenticated) {
		c.o.Suspect(k.upstream.Name)
		return c.wantsLogin(k, err)
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.With("server", k.upstream.Name)
	}
	return k.fault(fault.SessionClosed, "the call of tool %q was lost on the way to or from server %q, its outcome is unknown: %s",
		k.tool.Name, k.upstream.Name, c.o.Redact(err.Error())).Because(err)
}

// advice is the next step after a refusal.
func advice(code int64) string {
	switch code {
	case jsonrpc.CodeInvalidParams:
		return "; compare the arguments with the tool's input_schema_json in ListTools"
	case jsonrpc.CodeMethodNotFound:
		return "; RefreshServers with force reads its tools anew"
	default:
		return "; the words are the server's, and so is the remedy"
	}
}

// broken is the error of an answer that is no result, or none that can be shown as the caller wants it.
func (k *call) broken(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Reason() == fault.PayloadTooLarge {
		return f.With("server", k.upstream.Name)
	}
	return k.fault(fault.UpstreamProtocol, "server %q answered tool %q with something that cannot be handed over, which only a change of that server mends: %v",
		k.upstream.Name, k.tool.Name, err)
}

// lost is the error of a submit whose outcome nobody knows: what went wrong, and where the record of it is.
func (k *call) lost(err error, id string) error {
	f := k.fault(cmp.Or(fault.ReasonOf(err), fault.UpstreamError),
		"%s; whether the task was started is unknown: task %s records that as failed, and GetTask shows it", err.Error(), id)
	if cause, ok := errors.AsType[*fault.Error](err); ok {
		for key, value := range cause.Metadata() {
			f = f.With(key, value)
		}
	}
	return f.With("task_id", id).Because(err)
}

// unstored is the error of a submit that the server accepted and of which taskworker has not said whether it is stored.
func (k *call) unstored(err error, id string) error {
	return fault.Of(fault.Unknown, "server %q took the task, but taskworker has not confirmed that it is stored: ask GetTask for %s before you submit again (%v)",
		k.upstream.Name, id, err).With("server", k.upstream.Name).With("task_id", id).Because(err)
}
