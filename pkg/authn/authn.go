// Package authn says who calls and for whom.
//
// A [Principal] is the caller that a listener recognised: by a token of tokens.yaml, or because the listener takes
// everyone who can reach it. Its roles decide which RPCs it may call, and [Principal.Resolve] decides for which user
// it may call them. Where a toolproxy forwards a call, [Acting] is the principal it forwards it for. [Tokens] is the
// content of tokens.yaml.
//
// The package never sees a token's text longer than it takes to hash it, and keeps no token.
// Which roles an RPC admits is written in the protos and enforced by pkg/rpc.
package authn

import (
	"context"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/toolherd/toolherd/pkg/fault"
)

// Role is what a caller may be to Toolherd. The values are those of tokens.yaml.
type Role string

// The roles. The last three are service roles: only processes of Toolherd itself hold them.
const (
	Agent     Role = "agent"     // calls tools and follows its own tasks
	Operator  Role = "operator"  // configures, watches and repairs
	Worker    Role = "worker"    // a taskworker
	Toolproxy Role = "toolproxy" // a toolproxy
	Notifier  Role = "notifier"  // a notifier
)

// Roles returns every role, in the order of the protos.
func Roles() []Role { return []Role{Agent, Operator, Worker, Toolproxy, Notifier} }

// Service reports whether r is a service role.
func (r Role) Service() bool { return r == Worker || r == Toolproxy || r == Notifier }

// Principal is a recognised caller. The zero value is a caller without any right.
type Principal struct {
	Name          string // of the token; for logs and stored with tasks
	Roles         []Role
	UserID        string // the only user it speaks for; "" means none is fixed
	ActAsAny      bool   // it may speak for any user
	Authenticated bool   // false for callers of a listener without authentication
}

// Anonymous returns the caller of a listener without authentication, which is bound to loopback: agent and operator,
// for any user, and never a service.
func Anonymous() Principal {
	return Principal{Name: "anonymous", Roles: []Role{Agent, Operator}, ActAsAny: true}
}

// Internal returns the caller of an in-process listener that only this process can reach: every role, any user.
func Internal() Principal {
	return Principal{Name: "internal", Roles: Roles(), ActAsAny: true, Authenticated: true}
}

// Has reports whether p holds r.
func (p Principal) Has(r Role) bool { return slices.Contains(p.Roles, r) }

// ActsForAny reports whether p may name any user: it says so itself, or it is a service, whose requests were resolved
// by the process that took them from the user.
func (p Principal) ActsForAny() bool {
	return p.UserID == "" && (p.ActAsAny || slices.ContainsFunc(p.Roles, Role.Service))
}

type contextKey struct{}

// NewContext returns a context that carries the caller. Only the edge that recognised the caller sets it.
func NewContext(ctx context.Context, p *Principal) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns the caller of the call that ctx belongs to; false means that none was recognised.
func FromContext(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(contextKey{}).(*Principal)
	if !ok {
		return Principal{}, false
	}
	return *p, true
}

type actingKey struct{}

// NewActing returns a context that says whom its call is for, where that is not the caller itself: the principal that a
// forwarding toolproxy recognised. Only the edge that checked the forwarder sets it.
func NewActing(ctx context.Context, p *Principal) context.Context {
	return context.WithValue(ctx, actingKey{}, p)
}

// Acting returns whom the call that ctx belongs to is for: the principal that a toolproxy forwards it for, else the
// caller itself. False means that no caller was recognised. What a call may see and change is decided by this principal,
// never by the caller that carried it.
func Acting(ctx context.Context) (Principal, bool) {
	if p, ok := ctx.Value(actingKey{}).(*Principal); ok {
		return *p, true
	}
	return FromContext(ctx)
}

// MaxScopeBytes is how long a user or thread id may be.
const MaxScopeBytes = 128

// DefaultID is the user, and the thread, of a call that names none.
const DefaultID = "default"

// Scope says for whom and in which conversation a call is made. It is a tuple: two scopes are the same where both
// fields are, and no joined string stands for one.
type Scope struct {
	UserID   string
	ThreadID string
}

// Resolve returns the scope that a call of p with the wanted scope runs in. Neither field of the result is empty.
//
//	caller                          user_id empty     user_id given
//	token with user_id              that user         the same user, else FORBIDDEN
//	act_as: any, service, loopback  default           any
//	token with neither              default           default, else FORBIDDEN
//
// An empty thread_id is the thread "default". An id longer than 128 bytes, or with a control character or invalid
// UTF-8 in it, is INVALID_ARGUMENTS.
func (p Principal) Resolve(want Scope) (Scope, error) {
	if err := checkID("scope.user_id", want.UserID); err != nil {
		return Scope{}, err
	}
	if err := checkID("scope.thread_id", want.ThreadID); err != nil {
		return Scope{}, err
	}
	got := want
	if got.ThreadID == "" {
		got.ThreadID = DefaultID
	}
	own := p.UserID
	if own == "" {
		own = DefaultID
	}
	switch {
	case got.UserID == "":
		got.UserID = own
	case got.UserID != own && !p.ActsForAny():
		return Scope{}, fault.New(fault.Forbidden,
			"token %q speaks for user %q only, not for %q: leave scope.user_id empty, or give the token `act_as: any` in tokens.yaml",
			p.Name, own, got.UserID)
	}
	return got, nil
}

func checkID(field, id string) error {
	var wrong string
	switch {
	case len(id) > MaxScopeBytes:
		wrong = "is longer than 128 bytes"
	case !utf8.ValidString(id):
		wrong = "is not valid UTF-8"
	case strings.ContainsFunc(id, unicode.IsControl):
		wrong = "contains a control character"
	default:
		return nil
	}
	return fault.New(fault.InvalidArguments, "%s %s", field, wrong).
		WithViolations(fault.Violation{Field: field, Description: wrong})
}
