package rpc

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/fault"
)

// domain is the ErrorInfo.domain of our reasons.
const domain = "toolherd"

// Bounds of an error on the wire. A status travels twice in the trailers, once percent-encoded and once in base64,
// and gRPC libraries outside Go drop an answer whose trailers pass 8 KiB.
const (
	maxMessageCost  = 4 << 10
	maxDetailBytes  = 1 << 10
	truncatedMarker = " … (cut)"
)

// codeOf returns the status code of a kind. This switch is the table of DESIGN §4.
func codeOf(k fault.Kind) codes.Code {
	switch k {
	case fault.NotFound:
		return codes.NotFound
	case fault.FailedPrecondition:
		return codes.FailedPrecondition
	case fault.PermissionDenied:
		return codes.PermissionDenied
	case fault.Unauthenticated:
		return codes.Unauthenticated
	case fault.InvalidArgument:
		return codes.InvalidArgument
	case fault.Aborted:
		return codes.Aborted
	case fault.ResourceExhausted:
		return codes.ResourceExhausted
	case fault.DeadlineExceeded:
		return codes.DeadlineExceeded
	case fault.Unavailable:
		return codes.Unavailable
	case fault.Unknown:
		return codes.Unknown
	case fault.Unimplemented:
		return codes.Unimplemented
	case fault.Canceled:
		return codes.Canceled
	case fault.Internal:
	}
	return codes.Internal
}

// kindOf is the inverse of codeOf. Codes that we never send get the nearest kind.
func kindOf(c codes.Code) fault.Kind {
	switch c {
	case codes.NotFound:
		return fault.NotFound
	case codes.FailedPrecondition, codes.AlreadyExists:
		return fault.FailedPrecondition
	case codes.PermissionDenied:
		return fault.PermissionDenied
	case codes.Unauthenticated:
		return fault.Unauthenticated
	case codes.InvalidArgument, codes.OutOfRange:
		return fault.InvalidArgument
	case codes.Aborted:
		return fault.Aborted
	case codes.ResourceExhausted:
		return fault.ResourceExhausted
	case codes.DeadlineExceeded:
		return fault.DeadlineExceeded
	case codes.Unavailable:
		return fault.Unavailable
	case codes.Unimplemented:
		return fault.Unimplemented
	case codes.Canceled:
		return fault.Canceled
	case codes.Internal, codes.DataLoss:
		return fault.Internal
	case codes.OK, codes.Unknown:
	}
	return fault.Unknown
}

// classify returns the fault that err stands for at the edge of the call that ctx belongs to, or false where err is
// nobody's message to a caller: our own mistake.
func classify(ctx context.Context, err error) (*fault.Error, bool) {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f, true
	}
	ended := ctx.Err()
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(ended, context.DeadlineExceeded):
		return fault.New(fault.Timeout, "the call's deadline passed").Because(err), true
	case errors.Is(err, context.Canceled), ended != nil:
		// A driver interrupted by the caller's cancel says so in words of its own; nobody waits for them.
		return fault.Of(fault.Canceled, "the call was cancelled").Because(err), true
	}
	return nil, false
}

// statusOf returns the status of a fault, with everything that a remote caller may know about it.
func statusOf(f *fault.Error, redact func(string) string) *status.Status {
	st := status.New(codeOf(f.Kind()), clip(redact(f.Error())))
	var details []protoadapt.MessageV1
	if f.Reason() != "" || len(f.Metadata()) > 0 {
		details = append(details, &errdetails.ErrorInfo{
			Reason:   string(f.Reason()),
			Domain:   domain,
			Metadata: clipMetadata(f.Metadata(), redact),
		})
	}
	if f.RetryDelay() > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.RetryDelay())})
	}
	if v := clipViolations(f.Violations(), redact); len(v) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: v})
	}
	if len(details) == 0 {
		return st
	}
	if detailed, err := st.WithDetails(details...); err == nil {
		return detailed
	}
	return st
}

// clip bounds a message by what it costs in the trailers and makes it valid UTF-8, without which the details
// could not be encoded.
func clip(message string) string {
	message = strings.ToValidUTF8(message, "\uFFFD")
	cost := 0
	for i := range len(message) {
		if message[i] < ' ' || message[i] > '~' || message[i] == '%' {
			cost += 4 // %XX and a third more than the byte
		} else {
			cost += 2
		}
		if cost > maxMessageCost {
			for i > 0 && !utf8.RuneStart(message[i]) {
				i--
			}
			return message[:i] + truncatedMarker
		}
	}
	return message
}

func clipMetadata(m map[string]string, redact func(string) string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	left := maxDetailBytes
	for _, key := range slices.Sorted(maps.Keys(m)) {
		value := strings.ToValidUTF8(redact(m[key]), "\uFFFD")
		if left -= len(key) + len(value); left < 0 {
			break
		}
		out[strings.ToValidUTF8(key, "\uFFFD")] = value
	}
	return out
}

func clipViolations(vs []fault.Violation, redact func(string) string) []*errdetails.BadRequest_FieldViolation {
	var out []*errdetails.BadRequest_FieldViolation
	left := maxDetailBytes
	for _, v := range vs {
		field := strings.ToValidUTF8(v.Field, "\uFFFD")
		description := strings.ToValidUTF8(redact(v.Description), "\uFFFD")
		if left -= len(field) + len(description); left < 0 {
			break
		}
		out = append(out, &errdetails.BadRequest_FieldViolation{Field: field, Description: description})
	}
	return out
}

// Unimplemented is what a method answers that is declared but not built; what names it and says what is missing, such
// as "SearchTools: search is not built yet".
func Unimplemented(what string) error { return fault.Of(fault.Unimplemented, "%s", what) }
