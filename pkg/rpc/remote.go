package rpc

import (
	"context"
	"io"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/toolherd/toolherd/pkg/fault"
)

// outcome is what a client knows about a call that failed.
type outcome struct {
	target     string // for messages
	method     string // "package.Service/Method"
	limit      int    // of messages, in bytes
	sent       bool   // the request may have reached the server
	idempotent bool
}

// fault turns the error of a call into the fault that the server returned, or into one that says what became of the
// call. It returns io.EOF and nil unchanged.
func (o outcome) fault(ctx context.Context, err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // grpc returns io.EOF itself, never wrapped
		return err
	}
	st, ok := status.FromError(err)
	if !ok {
		return err // not from gRPC: an error of the stream's user
	}
	info, retry, violations := detailsOf(st)
	f := o.plain(ctx, st)
	if info != nil {
		f = withReason(info, st)
		for k, v := range info.GetMetadata() {
			f = f.With(k, v)
		}
	}
	if d := retry.GetRetryDelay(); d != nil {
		f = f.RetryIn(d.AsDuration())
	}
	if len(violations) > 0 {
		f = f.WithViolations(violations...)
	}
	return f
}

// withReason returns the fault of a reason. A reason that this process does not know, from a newer peer, keeps the kind
// of its code, which says whether to retry, and becomes metadata.
func withReason(info *errdetails.ErrorInfo, st *status.Status) *fault.Error {
	reason := fault.Reason(info.GetReason())
	kind := kindOf(st.Code())
	switch {
	case reason == "":
		return fault.Of(kind, "%s", st.Message())
	case reason.Kind() == fault.Unknown && kind != fault.Unknown:
		return fault.Of(kind, "%s", st.Message()).With("reason", string(reason))
	default:
		return fault.New(reason, "%s", st.Message())
	}
}

func detailsOf(st *status.Status) (info *errdetails.ErrorInfo, retry *errdetails.RetryInfo, vs []fault.Violation) {
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == domain {
				info = d
			}
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				vs = append(vs, fault.Violation{Field: v.GetField(), Description: v.GetDescription()})
			}
		}
	}
	return info, retry, vs
}

// plain returns the fault of a status without a reason of ours: from this process's gRPC library, from a proxy on the
// way, or from a server that is not Toolherd.
func (o outcome) plain(ctx context.Context, st *status.Status) *fault.Error {
	switch st.Code() {
	case codes.Canceled:
		f := fault.Of(fault.Canceled, "call of %s was cancelled", o.method)
		if ctx.Err() != nil {
			f = f.Because(ctx.Err())
		}
		return f
	case codes.DeadlineExceeded:
		return fault.New(fault.Timeout, "%s at %s did not answer in time", o.method, o.target).Because(context.DeadlineExceeded)
	case codes.Unavailable:
		if o.sent && !o.idempotent {
			return fault.Of(fault.Unknown, "the connection to %s was lost while %s ran: whether it took effect is unknown (%s)",
				o.target, o.method, st.Message())
		}
		return fault.New(fault.NotReady, "%s cannot be reached: is it running? (%s)", o.target, st.Message())
	case codes.ResourceExhausted:
		if tooLarge(st) {
			return fault.New(fault.PayloadTooLarge,
				"%s: a message is above the limit of %d bytes: raise max_message_bytes on both sides (%s)",
				o.method, o.limit, st.Message())
		}
	default:
	}
	return fault.Of(kindOf(st.Code()), "%s", st.Message())
}

// tooLarge reports whether a status is gRPC's own about a message above a limit. The text is all that tells it from
// other exhausted resources.
func tooLarge(st *status.Status) bool {
	return st.Code() == codes.ResourceExhausted && strings.Contains(st.Message(), "larger than max")
}
