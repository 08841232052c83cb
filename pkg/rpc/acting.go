package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"unicode/utf8"

	"google.golang.org/grpc/metadata"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
)

// actingKey is the metadata by which a toolproxy names the principal that it forwards a call for: one form-encoded value
//
//	name=laptop&role=agent&user_id=alice&authenticated=true
//
// It holds no secret. A server reads it from callers with the role toolproxy only.
const actingKey = "toolherd-acting"

// maxActingBytes bounds that value. It has room for a name and a user id of 128 bytes each, however they are escaped.
const maxActingBytes = 2 << 10

// ActFor returns a context whose outgoing calls are made for the principal that the call of ctx is for, as
// [authn.Acting] says: for a process that forwards calls which another one answers. The package doc says when the server at
// the other end honours that; its handlers then find the principal by authn.Acting.
//
// Service roles stay behind, since a token of Toolherd's own processes is for the process it was given to. Errors:
// FORBIDDEN for a principal that is neither agent nor operator, INVALID_ARGUMENTS for one with a name that is too long.
func ActFor(ctx context.Context) (context.Context, error) {
	p, ok := authn.Acting(ctx)
	if !ok {
		return nil, errors.New("forward a call: its caller is not known")
	}
	value, err := encodeActing(p)
	if err != nil {
		return nil, err
	}
	return metadata.AppendToOutgoingContext(ctx, actingKey, value), nil
}

func encodeActing(p authn.Principal) (string, error) {
	v := url.Values{"name": {p.Name}}
	for _, r := range p.Roles {
		if !r.Service() {
			v.Add("role", string(r))
		}
	}
	if len(v["role"]) == 0 {
		return "", fault.New(fault.Forbidden,
			"caller %q is neither agent nor operator: calls are forwarded for those only, so ask the service itself", p.Name)
	}
	if p.UserID != "" {
		v.Set("user_id", p.UserID)
	}
	if p.ActAsAny {
		v.Set("act_as", "any")
	}
	if p.Authenticated {
		v.Set("authenticated", "true")
	}
	value := v.Encode()
	if len(value) > maxActingBytes {
		return "", fault.New(fault.InvalidArguments,
			"the name of the caller's token is too long for a forwarded call: give it a name of at most 128 bytes in tokens.yaml")
	}
	return value, nil
}

// acting returns the principal that a call is forwarded for, or nil if it names none or caller may not name one.
func acting(ctx context.Context, caller *authn.Principal) (*authn.Principal, error) {
	if !caller.Has(authn.Toolproxy) {
		return nil, nil
	}
	values := metadata.ValueFromIncomingContext(ctx, actingKey)
	if len(values) == 0 {
		return nil, nil
	}
	p, err := decodeActing(values)
	if err != nil {
		return nil, fault.New(fault.InvalidArguments, "the metadata %s is not usable: %v", actingKey, err)
	}
	return p, nil
}

func decodeActing(values []string) (*authn.Principal, error) {
	if len(values) > 1 {
		return nil, errors.New("it is given more than once")
	}
	if len(values[0]) > maxActingBytes {
		return nil, fmt.Errorf("it is longer than %d bytes", maxActingBytes)
	}
	v, err := url.ParseQuery(values[0])
	if err != nil {
		return nil, errors.New("it is not form-encoded")
	}
	for key, each := range v {
		if key != "role" && len(each) > 1 {
			return nil, fmt.Errorf("%q is given more than once", key)
		}
		if slices.ContainsFunc(each, func(s string) bool { return !utf8.ValidString(s) }) {
			return nil, fmt.Errorf("%q is not valid UTF-8", key)
		}
	}
	p := &authn.Principal{Name: v.Get("name"), UserID: v.Get("user_id")}
	if p.Name == "" {
		return nil, errors.New("it has no name")
	}
	for _, name := range v["role"] {
		r := authn.Role(name)
		if r != authn.Agent && r != authn.Operator {
			return nil, fmt.Errorf("role %q is neither agent nor operator", name)
		}
		p.Roles = append(p.Roles, r)
	}
	if len(p.Roles) == 0 {
		return nil, errors.New("it has no role")
	}
	switch act := v.Get("act_as"); {
	case act == "any" && p.UserID == "":
		p.ActAsAny = true
	case act != "":
		return nil, errors.New("act_as is not `any`, or stands beside user_id")
	}
	switch v.Get("authenticated") {
	case "true":
		p.Authenticated = true
	case "":
	default:
		return nil, errors.New("authenticated is not `true`")
	}
	// The user id is held against the bounds of a scope.
	if _, err := p.Resolve(authn.Scope{UserID: p.UserID}); err != nil {
		return nil, err
	}
	return p, nil
}
