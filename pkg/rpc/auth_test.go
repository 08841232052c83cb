package rpc_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	agentv1 "github.com/toolherd/toolherd/proto/gen/toolherd/agent/v1"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	interceptorv1 "github.com/toolherd/toolherd/proto/gen/toolherd/interceptor/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// registerAll registers every service of the contract, none of them built.
func registerAll(s grpc.ServiceRegistrar) {
	agentv1.RegisterAgentRuntimeServiceServer(s, agentv1.UnimplementedAgentRuntimeServiceServer{})
	credentialv1.RegisterCredentialServiceServer(s, credentialv1.UnimplementedCredentialServiceServer{})
	interceptorv1.RegisterInterceptorServiceServer(s, interceptorv1.UnimplementedInterceptorServiceServer{})
	notifierv1.RegisterNotifierServiceServer(s, notifierv1.UnimplementedNotifierServiceServer{})
	registryv1.RegisterRegistryServiceServer(s, registryv1.UnimplementedRegistryServiceServer{})
	taskv1.RegisterTaskIntakeServiceServer(s, taskv1.UnimplementedTaskIntakeServiceServer{})
	taskv1.RegisterTaskServiceServer(s, taskv1.UnimplementedTaskServiceServer{})
	toolproxyv1.RegisterBackgroundToolServiceServer(s, toolproxyv1.UnimplementedBackgroundToolServiceServer{})
	toolproxyv1.RegisterToolProxyServiceServer(s, toolproxyv1.UnimplementedToolProxyServiceServer{})
}

// contract returns every method of Toolherd with its roles, as the descriptors have them.
func contract(t *testing.T) map[string][]string {
	t.Helper()
	methods := map[string][]string{}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(f.Package()), "toolherd.") {
			return true
		}
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				name := fmt.Sprintf("/%s/%s", service.FullName(), m.Name())
				roles, _ := proto.GetExtension(m.Options(), corev1.E_Roles).([]corev1.Role)
				if len(roles) == 0 {
					t.Errorf("%s declares no roles", name)
				}
				for _, r := range roles {
					methods[name] = append(methods[name], strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_")))
				}
			}
		}
		return true
	})
	if len(methods) < 40 {
		t.Fatalf("only %d methods are linked", len(methods))
	}
	return methods
}

// probe calls a method with an empty message and any number of authorization values.
func probe(t *testing.T, conn *grpc.ClientConn, method string, authorization ...string) *status.Status {
	t.Helper()
	ctx := t.Context()
	for _, a := range authorization {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", a)
	}
	// A stream that is closed after one message is also how a unary method is called, and it suits all four shapes.
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&emptypb.Empty{}); err != nil {
		t.Logf("%s: refused before the message was sent", method)
	}
	stream.CloseSend()
	return status.Convert(stream.RecvMsg(&emptypb.Empty{}))
}

// OPS-002: on every RPC of the contract, no or an unknown token is UNAUTHENTICATED and a wrong role PERMISSION_DENIED.
func TestEveryMethodIsClosedToWrongCallers(t *testing.T) {
	token := map[string]string{}
	var file strings.Builder
	for _, role := range authn.Roles() {
		text, sum := authn.NewToken()
		token[string(role)] = text
		fmt.Fprintf(&file, "- {name: %s-token, sha256: %s, roles: [%s]}\n", role, sum, role)
	}
	s := newServer(t, rpc.ServerOptions{Tokens: tokens(t, file.String()), Log: new(logged).log()})
	registerAll(s)
	l := rpc.NewLoopback()
	serve(t, s, l.Listener())
	conn := plainLoopback(t, l)

	for method, roles := range contract(t) {
		for name, authorization := range map[string][]string{
			"no token":      nil,
			"unknown token": {"Bearer thd_unknown"},
			"no scheme":     {token["agent"]},
			"basic scheme":  {"Basic " + token["agent"]},
			"two tokens":    {"Bearer " + token["agent"], "Bearer " + token["operator"]},
		} {
			if st := probe(t, conn, method, authorization...); st.Code() != codes.Unauthenticated {
				t.Errorf("%s with %s: %v, want UNAUTHENTICATED", method, name, st)
			}
		}
		for role, text := range token {
			st := probe(t, conn, method, "bearer "+text)
			if slices.Contains(roles, role) {
				if st.Code() != codes.Unimplemented {
					t.Errorf("%s as %s: %v, want to reach the stub", method, role, st)
				}
				continue
			}
			if st.Code() != codes.PermissionDenied || !strings.Contains(st.Message(), roles[0]) ||
				!strings.Contains(st.Message(), strings.TrimPrefix(method, "/")) || !strings.Contains(st.Message(), role+"-token") {
				t.Errorf("%s as %s: %v, want PERMISSION_DENIED that names method, role and token", method, role, st)
			}
			if !strings.Contains(st.Proto().String(), "FORBIDDEN") {
				t.Errorf("%s as %s: no reason FORBIDDEN in %v", method, role, st.Proto())
			}
		}
	}
	for _, open := range []string{"/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
		if st := probe(t, conn, open); st.Code() != codes.Unauthenticated {
			t.Errorf("%s without a token: %v", open, st)
		}
		for role, text := range token {
			if st := probe(t, conn, open, "Bearer "+text); st.Code() == codes.Unauthenticated || st.Code() == codes.PermissionDenied {
				t.Errorf("%s as %s: %v", open, role, st)
			}
		}
	}
}

// OPS-001, the part about callers: without authentication they are agent and operator and never a service.
func TestCallersOfAnOpenListenerAreNeverServices(t *testing.T) {
	s := newServer(t, rpc.ServerOptions{Log: new(logged).log()})
	registerAll(s)
	l := rpc.NewLoopback()
	serve(t, s, l.Listener())
	conn := plainLoopback(t, l)
	for method, roles := range contract(t) {
		want := codes.PermissionDenied
		if slices.Contains(roles, "agent") || slices.Contains(roles, "operator") {
			want = codes.Unimplemented
		}
		// A token does not help: nobody looks at it.
		if st := probe(t, conn, method, "Bearer x"); st.Code() != want {
			t.Errorf("%s: %v, want %v", method, st, want)
		}
	}
}

func TestPeersHoldEveryRole(t *testing.T) {
	s := newServer(t, rpc.ServerOptions{Peer: true, Log: new(logged).log()})
	registerAll(s)
	l := rpc.NewLoopback()
	serve(t, s, l.Listener())
	conn := plainLoopback(t, l)
	for method := range contract(t) {
		if st := probe(t, conn, method); st.Code() != codes.Unimplemented {
			t.Errorf("%s: %v, want to reach the stub", method, st)
		}
	}
}

// A public server does not have the methods of services, whatever the token.
func TestAPublicServerHasNoInternalMethods(t *testing.T) {
	text, sum := authn.NewToken()
	s := newServer(t, rpc.ServerOptions{
		Public: true, Log: new(logged).log(),
		Tokens: tokens(t, "- {name: all, sha256: "+sum+", roles: [agent, operator, worker, toolproxy, notifier]}"),
	})
	registerAll(s)
	l := rpc.NewLoopback()
	serve(t, s, l.Listener())
	conn := plainLoopback(t, l)
	internal := 0
	for method, roles := range contract(t) {
		st := probe(t, conn, method, "Bearer "+text)
		if st.Code() != codes.Unimplemented {
			t.Errorf("%s: %v", method, st)
		}
		serviceOnly := !slices.Contains(roles, "agent") && !slices.Contains(roles, "operator")
		if said := strings.Contains(st.Message(), "internal to Toolherd"); said != serviceOnly {
			t.Errorf("%s for %v: %v", method, roles, st)
		}
		if serviceOnly {
			internal++
		}
	}
	if internal < 10 {
		t.Errorf("only %d internal methods found", internal)
	}
}

func TestUndeclaredMethodsAreClosedToEveryone(t *testing.T) {
	var out logged
	s := newServer(t, rpc.ServerOptions{Peer: true, Log: out.log()})
	reached := false
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "elsewhere.v1.Undeclared",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Do", Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
			reached = true
			return &emptypb.Empty{}, nil
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true, Handler: func(any, grpc.ServerStream) error {
			reached = true
			return nil
		}}},
	}, struct{}{})
	l := rpc.NewLoopback()
	serve(t, s, l.Listener())
	conn := plainLoopback(t, l)
	for _, method := range []string{"/elsewhere.v1.Undeclared/Do", "/elsewhere.v1.Undeclared/Watch"} {
		if st := probe(t, conn, method); st.Code() != codes.PermissionDenied || !strings.Contains(st.Message(), "declares no roles") {
			t.Errorf("%s: %v", method, st)
		}
		if !strings.Contains(out.String(), strings.TrimPrefix(method, "/")) {
			t.Errorf("registering %s gave no warning", method)
		}
	}
	if reached {
		t.Error("a handler was reached")
	}
}

func TestUnknownMethodsSayWhere(t *testing.T) {
	text, sum := authn.NewToken()
	s := newServer(t, rpc.ServerOptions{Tokens: tokens(t, "- {name: a, sha256: "+sum+", roles: [agent]}"), Log: new(logged).log()})
	toolproxyv1.RegisterToolProxyServiceServer(s, tool{})
	l := rpc.NewLoopback()
	serve(t, s, l.Listener())
	conn := plainLoopback(t, l)
	for method, want := range map[string]struct {
		code codes.Code
		text string
	}{
		"/toolherd.task.v1.TaskService/GetTask":               {codes.Unimplemented, "another service of Toolherd"},
		"/toolherd.registry.v1.RegistryService/GetConfig":     {codes.PermissionDenied, "operator"},
		"/toolherd.task.v1.TaskIntakeService/ReserveTask":     {codes.PermissionDenied, "toolproxy"},
		"/toolherd.toolproxy.v1.ToolProxyService/Call":        {codes.Unimplemented, "unknown method"},
		"/toolherd.toolproxy.v1.CallToolRequest/Call":         {codes.Unimplemented, "unknown method"},
		"/nowhere.v1.Service/Call":                            {codes.Unimplemented, "grpcurl"},
		"/toolherd.toolproxy.v1.ToolProxyService/ListServers": {codes.OK, ""},
	} {
		if st := probe(t, conn, method); st.Code() != codes.Unauthenticated {
			t.Errorf("%s without a token: %v", method, st)
		}
		st := probe(t, conn, method, "Bearer "+text)
		if st.Code() != want.code || !strings.Contains(st.Message(), want.text) {
			t.Errorf("%s: %v, want %v with %q", method, st, want.code, want.text)
		}
	}
}

func TestHandlersSeeTheirCaller(t *testing.T) {
	text, sum := authn.NewToken()
	var seen authn.Principal
	impl := tool{call: func(ctx context.Context, _ *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
		seen, _ = authn.FromContext(ctx)
		_, err := seen.Resolve(authn.Scope{UserID: "bob"})
		return nil, err
	}}
	conn, _ := inProcess(t, impl, rpc.ServerOptions{
		Log:    new(logged).log(),
		Tokens: tokens(t, "- {name: laptop, sha256: "+sum+", roles: [agent], user_id: alice}"),
	}, rpc.ClientOptions{})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+text)
	_, err := toolproxyv1.NewToolProxyServiceClient(conn).CallTool(ctx, &toolproxyv1.CallToolRequest{})
	if !fault.Is(err, fault.Forbidden) || seen.Name != "laptop" || seen.UserID != "alice" {
		t.Errorf("error %v, caller %+v", err, seen)
	}
}

// A body is not read before the caller is known: it would be memory for strangers.
func TestStrangersAreRefusedBeforeTheirBodyIsRead(t *testing.T) {
	_, sum := authn.NewToken()
	s := newServer(t, rpc.ServerOptions{Tokens: tokens(t, "- {name: a, sha256: "+sum+", roles: [agent]}"), Log: new(logged).log()})
	toolproxyv1.RegisterToolProxyServiceServer(s, tool{})
	l := rpc.NewLoopback()
	serve(t, s, l.Listener())
	conn := plainLoopback(t, l)
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/toolherd.toolproxy.v1.ToolProxyService/CallTool")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&emptypb.Empty{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a body: %v", err)
	}
	if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the connection does not survive: %v", err)
	}
}

// plainLoopback returns a connection that knows nothing of this package.
func plainLoopback(t *testing.T, l *rpc.Loopback) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()), l.Dialer())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
