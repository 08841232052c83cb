package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// NotRun reports whether err proves that the server did not act on the message: it was never sent, or refused
// before anything was executed. Only then may it be sent again.
func NotRun(err error) bool {
	if errors.Is(err, link.ErrNotSent) || errors.Is(err, link.ErrEnded) {
		return true
	}
	e, ok := errors.AsType[interface {
		error
		NotRun() bool
	}](err)
	return ok && e.NotRun()
}

// StatusError says that the server answered one message with an HTTP status >= 400 instead of an answer.
// It unwraps to a fault whose reason suits the status.
type StatusError struct {
	Server string      // the MCP server's name
	What   string      // the method of the message, or what else was asked for
	Code   int         // the HTTP status
	Header http.Header // WWW-Authenticate and Retry-After of the answer, if any
	Body   string      // the beginning of the answer's body on one line, credentials removed; may be empty
}

// Error says what was asked and what came back.
func (e *StatusError) Error() string {
	msg := fmt.Sprintf("server %q answered %s with HTTP %d %s", e.Server, e.What, e.Code, cmp.Or(http.StatusText(e.Code), "(unknown status)"))
	if e.Body != "" {
		msg += ": " + e.Body
	}
	return msg
}

// NotRun reports whether the server refused the message before it executed anything, which only 401 promises.
func (e *StatusError) NotRun() bool { return e.Code == http.StatusUnauthorized }

// Unwrap returns the fault.
func (e *StatusError) Unwrap() error {
	f := fault.New(e.reason(), "%s", e.Error()).With("http_status", strconv.Itoa(e.Code))
	if d := retryAfter(e.Header.Get("Retry-After")); d > 0 {
		f = f.RetryIn(d)
	}
	return f
}

func (e *StatusError) reason() fault.Reason {
	switch e.Code {
	case http.StatusUnauthorized:
		return fault.UpstreamUnauthenticated
	case http.StatusForbidden:
		if e.Header.Get("Www-Authenticate") != "" {
			return fault.UpstreamUnauthenticated // another or a wider login would do
		}
		return fault.Forbidden
	case http.StatusRequestEntityTooLarge:
		return fault.PayloadTooLarge
	case http.StatusTooManyRequests:
		return fault.RateLimited
	default:
		return fault.UpstreamProtocol
	}
}

// retryAfter reads the seconds form; a date says nothing about our clock.
func retryAfter(v string) time.Duration {
	s, err := strconv.ParseUint(strings.TrimSpace(v), 10, 32)
	if err != nil {
		return 0
	}
	return min(time.Duration(s)*time.Second, 24*time.Hour)
}

// ErrSessionLost is matched by every [SessionLostError].
var ErrSessionLost = errors.New("the MCP session is gone")

// SessionLostError says that the server no longer knows the session that a message was sent in. A new session
// must be opened; the message may be repeated there only if [NotRun] is true. Others' messages in flight are not
// touched.
type SessionLostError struct {
	Server    string
	What      string // the method of the message
	Code      int    // the HTTP status
	Detail    string // what the server said, credentials removed; may be empty
	Untouched bool   // the server provably did not execute the message
}

// Error says that the session is gone and what is known of the message.
func (e *SessionLostError) Error() string {
	outcome := "whether it ran is unknown"
	if e.Untouched {
		outcome = "it was not executed"
	}
	msg := fmt.Sprintf("server %q no longer knows the session in which %s was sent (HTTP %d); %s", e.Server, e.What, e.Code, outcome)
	if e.Detail != "" {
		msg += ": " + e.Detail
	}
	return msg
}

// Is reports whether target is [ErrSessionLost].
func (e *SessionLostError) Is(target error) bool { return target == ErrSessionLost }

// NotRun returns Untouched.
func (e *SessionLostError) NotRun() bool { return e.Untouched }

// Unwrap returns the fault SESSION_CLOSED.
func (e *SessionLostError) Unwrap() error { return fault.New(fault.SessionClosed, "%s", e.Error()) }

// speaksOfSession reports whether text, from an error, says that a session does not exist (any more).
func speaksOfSession(text string) bool {
	text = strings.ToLower(text)
	if strings.Contains(text, "not initialized") {
		return true
	}
	if !strings.Contains(text, "session") {
		return false
	}
	for _, w := range []string{
		"not found", "no valid", "invalid", "unknown", "expired", "terminated", "closed", "missing", "no longer",
		"not exist", "doesn't exist", "no session", "not active", "not connected", "unrecognized",
	} {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// namesLostSession is the stricter reading for an answer that came with HTTP 200: a tool may have sessions of its
// own and say that one of them is not found.
func namesLostSession(code int64, message string) bool {
	if code != -32001 {
		return false
	}
	message = strings.ToLower(strings.Trim(message, " ."))
	return slices.Contains([]string{
		"session not found", "session expired", "session terminated", "session has been terminated", "unknown session",
		"invalid session id", "session does not exist",
	}, message)
}
