package rpc_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// witness is a TaskService that remembers whom its calls were for.
type witness struct {
	taskv1.UnimplementedTaskServiceServer
	caller, acting authn.Principal
}

func (w *witness) saw(ctx context.Context) {
	w.caller, _ = authn.FromContext(ctx)
	w.acting, _ = authn.Acting(ctx)
}

func (w *witness) GetTask(ctx context.Context, _ *taskv1.GetTaskRequest) (*taskv1.GetTaskResponse, error) {
	w.saw(ctx)
	return &taskv1.GetTaskResponse{}, nil
}

func (w *witness) WatchTask(_ *taskv1.WatchTaskRequest, st grpc.ServerStreamingServer[taskv1.WatchTaskResponse]) error {
	w.saw(st.Context())
	return nil
}

// far is a server with a TaskService and one token per kind of caller.
type far struct {
	*witness
	client taskv1.TaskServiceClient
	token  map[string]string
	log    *logged
}

func newFar(t *testing.T) *far {
	t.Helper()
	f := &far{witness: &witness{}, token: map[string]string{}, log: &logged{}}
	var file strings.Builder
	for name, roles := range map[string]string{"agent": "agent", "operator": "operator", "worker": "worker, agent", "proxy": "toolproxy"} {
		text, sum := authn.NewToken()
		f.token[name] = text
		fmt.Fprintf(&file, "- {name: %s, sha256: %s, roles: [%s]}\n", name, sum, roles)
	}
	s := newServer(t, rpc.ServerOptions{Tokens: tokens(t, file.String()), Log: f.log.log()})
	taskv1.RegisterTaskServiceServer(s, f.witness)
	l := rpc.NewLoopback()
	serve(t, s, l.Listener())
	conn, err := l.Dial(rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	f.client = taskv1.NewTaskServiceClient(conn)
	return f
}

// get calls GetTask with the token of this name and, if not empty, this value of the metadata that names a principal.
func (f *far) get(ctx context.Context, token string, acting ...string) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+f.token[token])
	for _, a := range acting {
		ctx = metadata.AppendToOutgoingContext(ctx, "toolherd-acting", a)
	}
	f.witness.caller, f.witness.acting = authn.Principal{}, authn.Principal{}
	_, err := f.client.GetTask(ctx, &taskv1.GetTaskRequest{})
	return err
}

func TestAToolproxyForwardsCallsForThePrincipalItRecognised(t *testing.T) {
	f := newFar(t)
	for _, p := range []authn.Principal{
		{Name: "laptop", Roles: []authn.Role{authn.Agent}, UserID: "alice", Authenticated: true},
		{Name: "ops & \"co\" = é\n", Roles: []authn.Role{authn.Agent, authn.Operator}, ActAsAny: true, Authenticated: true},
		{Name: "ci", Roles: []authn.Role{authn.Operator}, Authenticated: true},
		{Name: strings.Repeat("é", 64), Roles: []authn.Role{authn.Agent}, UserID: strings.Repeat("é", 64), Authenticated: true},
		authn.Anonymous(),
	} {
		ctx, err := rpc.ActFor(authn.NewContext(t.Context(), &p))
		if err != nil {
			t.Fatalf("%q: %v", p.Name, err)
		}
		if err := f.get(ctx, "proxy"); err != nil {
			t.Fatalf("%q: %v", p.Name, err)
		}
		if d := cmp.Diff(p, f.acting); d != "" {
			t.Errorf("%q arrives changed:\n%s", p.Name, d)
		}
		if f.caller.Name != "proxy" {
			t.Errorf("the caller of a forwarded call is %q", f.caller.Name)
		}

		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+f.token["proxy"])
		f.acting = authn.Principal{}
		stream, err := f.client.WatchTask(ctx, &taskv1.WatchTaskRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err == nil {
			t.Fatal("the stream has a message")
		}
		if d := cmp.Diff(p, f.acting); d != "" {
			t.Errorf("%q arrives changed at a stream:\n%s", p.Name, d)
		}
	}
	if err := f.get(t.Context(), "proxy"); err != nil || f.acting.Name != "proxy" {
		t.Errorf("a toolproxy that names nobody: %v, acting %+v", err, f.acting)
	}
}

// Whoever is no toolproxy cannot become somebody else.
func TestNamingAPrincipalIsIgnoredFromOtherCallers(t *testing.T) {
	f := newFar(t)
	forged := url.Values{"name": {"root"}, "role": {"operator"}, "act_as": {"any"}, "authenticated": {"true"}}.Encode()
	for _, caller := range []string{"agent", "operator", "worker"} {
		for _, value := range []string{forged, "name=x&role=toolproxy", "%", strings.Repeat("x", 4<<10)} {
			if err := f.get(t.Context(), caller, value); err != nil {
				t.Errorf("%s: %v", caller, err)
			}
			if f.acting.Name != caller || f.acting.ActAsAny {
				t.Errorf("%s acts as %+v", caller, f.acting)
			}
		}
	}

	s := newServer(t, rpc.ServerOptions{Log: new(logged).log()})
	open := &witness{}
	taskv1.RegisterTaskServiceServer(s, open)
	l := rpc.NewLoopback()
	serve(t, s, l.Listener())
	ctx := metadata.AppendToOutgoingContext(t.Context(), "toolherd-acting", forged)
	if _, err := taskv1.NewTaskServiceClient(plainLoopback(t, l)).GetTask(ctx, &taskv1.GetTaskRequest{}); err != nil {
		t.Fatal(err)
	}
	if open.acting.Name != "anonymous" {
		t.Errorf("a stranger at an open listener acts as %+v", open.acting)
	}
}

func TestAPrincipalThatIsNotUsableIsRefused(t *testing.T) {
	f := newFar(t)
	good := "name=a&role=agent"
	for name, values := range map[string][]string{
		"twice":                    {good, good},
		"above the bound":          {good + "&x=" + strings.Repeat("x", 2<<10)},
		"not form-encoded":         {"name=%zz&role=agent"},
		"no name":                  {"role=agent"},
		"an empty name":            {"name=&role=agent"},
		"two names":                {"name=a&name=b&role=agent"},
		"a name that is not UTF-8": {"name=%ff&role=agent"},
		"no role":                  {"name=a"},
		"a service role":           {"name=a&role=agent&role=toolproxy"},
		"an unknown role":          {"name=a&role=root"},
		"a bound user for any":     {"name=a&role=agent&user_id=u&act_as=any"},
		"an unknown act_as":        {"name=a&role=agent&act_as=some"},
		"a bad flag":               {"name=a&role=agent&authenticated=yes"},
		"a control character":      {"name=a&role=agent&user_id=a%0ab"},
		"a long user":              {"name=a&role=agent&user_id=" + strings.Repeat("x", 129)},
	} {
		err := f.get(t.Context(), "proxy", values...)
		if !fault.Is(err, fault.InvalidArguments) || !strings.Contains(err.Error(), "toolherd-acting") {
			t.Errorf("%s: %v", name, err)
		}
		if f.acting.Name != "" {
			t.Errorf("%s: a handler ran for %+v", name, f.acting)
		}
	}
	if err := f.get(t.Context(), "proxy", good); err != nil {
		t.Errorf("%s: %v", good, err)
	}
}

// A service's token is for the process it was given to: it cannot be forwarded, and neither can a call without a caller.
func TestServiceRolesAreNotForwarded(t *testing.T) {
	f := newFar(t)
	both := authn.Principal{Name: "odd", Roles: []authn.Role{authn.Worker, authn.Agent, authn.Toolproxy}, UserID: "alice"}
	ctx, err := rpc.ActFor(authn.NewContext(t.Context(), &both))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.get(ctx, "proxy"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]authn.Role{authn.Agent}, f.acting.Roles); d != "" {
		t.Errorf("roles:\n%s", d)
	}
	if _, err := rpc.ActFor(authn.NewContext(t.Context(), &authn.Principal{Name: "w", Roles: []authn.Role{authn.Worker}})); !fault.Is(err, fault.Forbidden) {
		t.Errorf("a worker is forwarded: %v", err)
	}
	long := authn.Principal{Name: strings.Repeat("é", 1<<10), Roles: []authn.Role{authn.Agent}}
	if _, err := rpc.ActFor(authn.NewContext(t.Context(), &long)); !fault.Is(err, fault.InvalidArguments) {
		t.Errorf("a name without end is forwarded: %v", err)
	}
	if _, err := rpc.ActFor(t.Context()); err == nil {
		t.Error("a call without a caller is forwarded")
	}
}

// Whom a call is for decides whether it is admitted: a toolproxy lends nobody its own roles, and passes on those of others.
func TestTheRolesOfThePrincipalAdmitAForwardedCall(t *testing.T) {
	text, sum := authn.NewToken()
	var out logged
	s := newServer(t, rpc.ServerOptions{Tokens: tokens(t, "- {name: proxy, sha256: "+sum+", roles: [toolproxy]}"), Log: out.log()})
	registerAll(s)
	l := rpc.NewLoopback()
	serve(t, s, l.Listener())
	conn, err := l.Dial(rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	bare := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+text)
	as := func(roles ...authn.Role) context.Context {
		ctx, err := rpc.ActFor(authn.NewContext(bare, &authn.Principal{Name: "somebody", Roles: roles}))
		if err != nil {
			t.Fatal(err)
		}
		return ctx
	}
	list := func(ctx context.Context) error {
		_, err := notifierv1.NewNotifierServiceClient(conn).ListNotifications(ctx, &notifierv1.ListNotificationsRequest{})
		return err
	}
	reserve := func(ctx context.Context) error {
		_, err := taskv1.NewTaskIntakeServiceClient(conn).ReserveTask(ctx, &taskv1.ReserveTaskRequest{})
		return err
	}
	get := func(ctx context.Context) error {
		_, err := registryv1.NewRegistryServiceClient(conn).GetConfig(ctx, &registryv1.GetConfigRequest{})
		return err
	}
	reached := func(err error) bool { return fault.KindOf(err) == fault.Unimplemented }
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"an operator's method, for an operator":            {list(as(authn.Operator)), true},
		"an operator's method, for an agent":               {list(as(authn.Agent)), false},
		"an operator's method, for nobody":                 {list(bare), false},
		"a toolproxy's method, for nobody":                 {reserve(bare), true},
		"a toolproxy's method, where naming has no effect": {reserve(as(authn.Agent)), true},
		"a service that is not forwarded, for an operator": {get(as(authn.Operator)), false},
	} {
		if reached(tt.err) != tt.want || !tt.want && !fault.Is(tt.err, fault.Forbidden) {
			t.Errorf("%s: %v", name, tt.err)
		}
	}
	if !strings.Contains(out.String(), "proxy (somebody)") {
		t.Errorf("the log does not say for whom:\n%s", out.String())
	}
}
