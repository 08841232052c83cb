// Package fault is the vocabulary of errors that cross a boundary.
//
// A [Reason] names what went wrong in a way that programs may test, and fixes the [Kind], which pkg/rpc turns
// into a gRPC status code. Nouns define their sentinels with [New]; the layers between add context with
// fmt.Errorf and %w; only pkg/rpc turns the result into a status, and the client side of pkg/rpc turns it
// back, so a caller sees the same reason whether the callee runs in its own process or not.
//
// What is lost at the boundary: the wrapped cause. It is logged where it happened and never sent.
package fault

import (
	"errors"
	"fmt"
	"maps"
	"time"
)

// Error is a failure with a message for people and a reason for programs.
// The message names the thing, the cause and the next step, and never contains a credential value.
// An Error is immutable: its methods return changed copies.
type Error struct {
	kind       Kind
	reason     Reason
	message    string
	metadata   map[string]string
	violations []Violation
	retryIn    time.Duration
	cause      error
}

// Violation is one invalid field of a request: Field is its path, Description says what is wrong with it.
type Violation struct {
	Field       string
	Description string
}

// New returns an error for reason, whose kind it takes. The message is formatted as by fmt.Sprintf.
func New(reason Reason, format string, args ...any) *Error {
	return &Error{kind: reason.Kind(), reason: reason, message: fmt.Sprintf(format, args...)}
}

// Of returns an error that has a kind but no reason of its own, such as a missing token.
func Of(kind Kind, format string, args ...any) *Error {
	return &Error{kind: kind, message: fmt.Sprintf(format, args...)}
}

// Error returns the message for people. The cause is not part of it.
func (e *Error) Error() string { return e.message }

// Unwrap returns the cause given to [Error.Because], or nil.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is a fault of the same kind and reason, so that a sentinel matches every
// error made for the same reason, on this side of the wire or the other.
// A fault without a reason matches itself alone.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	if !ok {
		return false
	}
	if e.reason == "" {
		return e == t
	}
	return e.reason == t.reason
}

// Kind returns the class of the failure.
func (e *Error) Kind() Kind { return e.kind }

// Reason returns what programs test, or "" where the error has only a kind.
func (e *Error) Reason() Reason { return e.reason }

// Metadata returns the facts attached with [Error.With]. The caller must not change the map.
func (e *Error) Metadata() map[string]string { return e.metadata }

// Violations returns the invalid fields attached with [Error.WithViolations].
func (e *Error) Violations() []Violation { return e.violations }

// RetryDelay returns how long a caller should wait before it tries again; zero means nothing is known.
func (e *Error) RetryDelay() time.Duration { return e.retryIn }

// With returns a copy that carries the fact key=value for programs, such as server=github.
func (e *Error) With(key, value string) *Error {
	c := *e
	c.metadata = maps.Clone(e.metadata)
	if c.metadata == nil {
		c.metadata = map[string]string{}
	}
	c.metadata[key] = value
	return &c
}

// WithViolations returns a copy that lists invalid fields.
func (e *Error) WithViolations(v ...Violation) *Error {
	c := *e
	c.violations = v
	return &c
}

// RetryIn returns a copy that tells the caller to wait d before it tries again.
func (e *Error) RetryIn(d time.Duration) *Error {
	c := *e
	c.retryIn = d
	return &c
}

// Because returns a copy that wraps cause, for logs and errors.Is in this process.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// ReasonOf returns the reason of the first fault in err's tree, or "".
func ReasonOf(err error) Reason {
	if f, ok := errors.AsType[*Error](err); ok {
		return f.reason
	}
	return ""
}

// KindOf returns the kind of the first fault in err's tree, or [Internal].
func KindOf(err error) Kind {
	if f, ok := errors.AsType[*Error](err); ok {
		return f.kind
	}
	return Internal
}

// Is reports whether err's tree holds a fault with this reason.
func Is(err error, reason Reason) bool { return reason != "" && ReasonOf(err) == reason }
