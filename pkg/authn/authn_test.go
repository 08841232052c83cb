package authn_test

import (
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
)

func TestResolve(t *testing.T) {
	alice := authn.Principal{Name: "alice-laptop", Roles: []authn.Role{authn.Agent}, UserID: "alice", Authenticated: true}
	anyone := authn.Principal{Name: "runtime", Roles: []authn.Role{authn.Agent}, ActAsAny: true, Authenticated: true}
	nobody := authn.Principal{Name: "ci", Roles: []authn.Role{authn.Agent}, Authenticated: true}
	worker := authn.Principal{Name: "worker", Roles: []authn.Role{authn.Worker}, Authenticated: true}
	boundWorker := authn.Principal{Name: "odd", Roles: []authn.Role{authn.Worker}, UserID: "alice", Authenticated: true}

	for name, tt := range map[string]struct {
		caller authn.Principal
		want   authn.Scope
		got    authn.Scope
		reason fault.Reason
	}{
		"a user token fills the user":              {caller: alice, got: authn.Scope{UserID: "alice", ThreadID: "default"}},
		"a user token keeps the thread":            {caller: alice, want: authn.Scope{ThreadID: "t"}, got: authn.Scope{UserID: "alice", ThreadID: "t"}},
		"a user token may repeat its user":         {caller: alice, want: authn.Scope{UserID: "alice"}, got: authn.Scope{UserID: "alice", ThreadID: "default"}},
		"a user token is refused another user":     {caller: alice, want: authn.Scope{UserID: "bob"}, reason: fault.Forbidden},
		"a user token is refused the default user": {caller: alice, want: authn.Scope{UserID: "default"}, reason: fault.Forbidden},
		"act_as any names any user":                {caller: anyone, want: authn.Scope{UserID: "bob", ThreadID: "t"}, got: authn.Scope{UserID: "bob", ThreadID: "t"}},
		"act_as any without a user is default":     {caller: anyone, got: authn.Scope{UserID: "default", ThreadID: "default"}},
		"a plain token is the default user":        {caller: nobody, got: authn.Scope{UserID: "default", ThreadID: "default"}},
		"a plain token is refused another user":    {caller: nobody, want: authn.Scope{UserID: "bob"}, reason: fault.Forbidden},
		"loopback names any user":                  {caller: authn.Anonymous(), want: authn.Scope{UserID: "bob"}, got: authn.Scope{UserID: "bob", ThreadID: "default"}},
		"a service passes on any user":             {caller: worker, want: authn.Scope{UserID: "bob"}, got: authn.Scope{UserID: "bob", ThreadID: "default"}},
		"a service token with a user is bound":     {caller: boundWorker, want: authn.Scope{UserID: "bob"}, reason: fault.Forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tt.caller.Resolve(tt.want)
			if fault.ReasonOf(err) != tt.reason {
				t.Fatalf("error %v, want reason %q", err, tt.reason)
			}
			if got != tt.got {
				t.Errorf("scope %+v, want %+v", got, tt.got)
			}
		})
	}
}

// SESS-003
func TestResolveBoundsIDs(t *testing.T) {
	caller := authn.Anonymous()
	long := strings.Repeat("é", 64) // 128 bytes
	if got, err := caller.Resolve(authn.Scope{UserID: long, ThreadID: long}); err != nil || got.UserID != long || got.ThreadID != long {
		t.Errorf("128 bytes are refused or changed: %+v, %v", got, err)
	}
	if got, err := caller.Resolve(authn.Scope{}); err != nil || (got != authn.Scope{UserID: "default", ThreadID: "default"}) {
		t.Errorf("an empty scope is %+v, %v", got, err)
	}
	for name, id := range map[string]string{
		"129 bytes":     long + "x",
		"newline":       "a\nb",
		"NUL":           "a\x00",
		"DEL":           "a\x7f",
		"C1 control":    "a\u0085b",
		"invalid UTF-8": "a\xff",
	} {
		for field, scope := range map[string]authn.Scope{
			"scope.user_id":   {UserID: id},
			"scope.thread_id": {ThreadID: id},
		} {
			_, err := caller.Resolve(scope)
			f, ok := err.(*fault.Error)
			if !ok || f.Reason() != fault.InvalidArguments || len(f.Violations()) != 1 || f.Violations()[0].Field != field {
				t.Errorf("%s in %s: error %v, want INVALID_ARGUMENTS for that field", name, field, err)
			}
		}
	}
}

func TestContextCarriesThePrincipal(t *testing.T) {
	if _, ok := authn.FromContext(t.Context()); ok {
		t.Error("a bare context has a principal")
	}
	p := authn.Internal()
	got, ok := authn.FromContext(authn.NewContext(t.Context(), &p))
	if !ok || got.Name != "internal" || !got.Has(authn.Worker) {
		t.Errorf("got %+v, %v", got, ok)
	}
}

func TestACallIsForItsCallerUnlessItIsForwarded(t *testing.T) {
	if _, ok := authn.Acting(t.Context()); ok {
		t.Error("a bare context acts for somebody")
	}
	proxy := authn.Principal{Name: "proxy", Roles: []authn.Role{authn.Toolproxy}, Authenticated: true}
	ctx := authn.NewContext(t.Context(), &proxy)
	if got, ok := authn.Acting(ctx); !ok || got.Name != "proxy" {
		t.Errorf("not forwarded: %+v, %v", got, ok)
	}
	alice := authn.Principal{Name: "laptop", Roles: []authn.Role{authn.Agent}, UserID: "alice", Authenticated: true}
	ctx = authn.NewActing(ctx, &alice)
	if got, ok := authn.Acting(ctx); !ok || got.Name != "laptop" || got.UserID != "alice" {
		t.Errorf("forwarded: %+v, %v", got, ok)
	}
	if got, ok := authn.FromContext(ctx); !ok || got.Name != "proxy" {
		t.Errorf("the caller of a forwarded call: %+v, %v", got, ok)
	}
}
