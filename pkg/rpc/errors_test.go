package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// table is DESIGN §4.
func table() map[codes.Code]string {
	return map[codes.Code]string{
		codes.NotFound: "THREAD_GONE TOOL_NOT_FOUND SERVER_NOT_FOUND TASK_NOT_FOUND SNAPSHOT_NOT_FOUND NOTIFICATION_NOT_FOUND SINK_UNKNOWN",
		codes.FailedPrecondition: "SERVER_DISABLED SERVER_UNTRUSTED SERVER_ERROR UPSTREAM_UNAUTHENTICATED TASK_TERMINAL TASKS_UNAVAILABLE " +
			"ANSWER_UNSUPPORTED CREDENTIAL_ILLEGAL LAUNCH_POLICY",
		codes.PermissionDenied:  "CREDENTIAL_MISSING FORBIDDEN",
		codes.InvalidArgument:   "INVALID_ARGUMENTS CONFIG_INVALID MASKED_VALUE PAYLOAD_TOO_LARGE",
		codes.Aborted:           "THREAD_BUSY SESSION_CLOSED CONFIG_CONFLICT REQUEST_IN_PROGRESS REQUEST_ID_CONFLICT RESERVATION_EXPIRED DUPLICATE_REMOTE_TASK",
		codes.ResourceExhausted: "SESSION_LIMIT RATE_LIMITED",
		codes.DeadlineExceeded:  "TIMEOUT",
		codes.Unavailable:       "NO_WORKER CIRCUIT_OPEN NOT_READY",
		codes.Unknown:           "UPSTREAM_ERROR UPSTREAM_PROTOCOL",
	}
}

// The reasons of the table, of the proto enum and of pkg/fault are the same.
func TestReasonsArePinnedToTheContract(t *testing.T) {
	want := map[string]bool{}
	for _, reasons := range table() {
		for r := range strings.FieldsSeq(reasons) {
			want[r] = true
		}
	}
	enum := map[string]bool{}
	for value, name := range corev1.Reason_name {
		if value != 0 {
			enum[strings.TrimPrefix(name, "REASON_")] = true
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), "../fault/reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	inFault := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Reason" {
			reason, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Error(err)
			}
			inFault[reason] = true
		}
		return true
	})
	if diff := cmp.Diff(want, enum); diff != "" {
		t.Errorf("toolherd.core.v1.Reason differs from the table (-table +enum):\n%s", diff)
	}
	if diff := cmp.Diff(want, inFault); diff != "" {
		t.Errorf("pkg/fault differs from the table (-table +fault):\n%s", diff)
	}
}

// tcp serves impl on TCP and returns a connection that knows nothing of this package.
func tcp(t *testing.T, impl toolproxyv1.ToolProxyServiceServer, o rpc.ServerOptions) (plain *grpc.ClientConn, address string) {
	t.Helper()
	s := newServer(t, o)
	toolproxyv1.RegisterToolProxyServiceServer(s, impl)
	l := listen(t)
	serve(t, s, l)
	plain, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { plain.Close() })
	return plain, l.Addr().String()
}

// CALL-006: every reason travels as ErrorInfo of domain toolherd with its code, and comes back as the same fault.
func TestEveryReasonTravelsBothWays(t *testing.T) {
	var current *fault.Error
	impl := tool{call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
		return nil, fmt.Errorf("call tool: %w", current)
	}}
	plain, address := tcp(t, impl, rpc.ServerOptions{})
	ours := dial(t, address, rpc.ClientOptions{})

	for code, reasons := range table() {
		for name := range strings.FieldsSeq(reasons) {
			t.Run(name, func(t *testing.T) {
				current = fault.New(fault.Reason(name), "server %q: next step", "github").
					With("server", "github").RetryIn(1500 * time.Millisecond).
					WithViolations(fault.Violation{Field: "scope.user_id", Description: "is too long"}).
					Because(errors.New("a secret of the inside"))

				_, err := toolproxyv1.NewToolProxyServiceClient(plain).CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
				st := status.Convert(err)
				if st.Code() != code || st.Message() != `server "github": next step` {
					t.Errorf("on the wire: %v, want code %v", st, code)
				}
				if strings.Contains(st.Proto().String(), "secret of the inside") {
					t.Errorf("the cause was sent: %v", st.Proto())
				}
				var kinds []string
				for _, d := range st.Details() {
					switch d := d.(type) {
					case *errdetails.ErrorInfo:
						kinds = append(kinds, "ErrorInfo")
						if d.GetDomain() != "toolherd" || d.GetReason() != name || d.GetMetadata()["server"] != "github" {
							t.Errorf("ErrorInfo is %v", d)
						}
					case *errdetails.RetryInfo:
						kinds = append(kinds, "RetryInfo")
						if d.GetRetryDelay().AsDuration() != 1500*time.Millisecond {
							t.Errorf("RetryInfo is %v", d)
						}
					case *errdetails.BadRequest:
						kinds = append(kinds, "BadRequest")
						if v := d.GetFieldViolations(); len(v) != 1 || v[0].GetField() != "scope.user_id" || v[0].GetDescription() != "is too long" {
							t.Errorf("BadRequest is %v", d)
						}
					}
				}
				if diff := cmp.Diff([]string{"ErrorInfo", "RetryInfo", "BadRequest"}, kinds); diff != "" {
					t.Errorf("details (-want +got):\n%s", diff)
				}

				_, err = toolproxyv1.NewToolProxyServiceClient(ours).CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
				f, ok := errors.AsType[*fault.Error](err)
				if !ok {
					t.Fatalf("our client got %T %v, want a fault", err, err)
				}
				if !errors.Is(f, current) || f.Kind() != current.Kind() || f.Error() != current.Error() || f.RetryDelay() != current.RetryDelay() {
					t.Errorf("our client got %v of kind %v", f, f.Kind())
				}
				if diff := cmp.Diff(current.Metadata(), f.Metadata()); diff != "" {
					t.Errorf("metadata (-sent +received):\n%s", diff)
				}
				if diff := cmp.Diff(current.Violations(), f.Violations()); diff != "" {
					t.Errorf("violations (-sent +received):\n%s", diff)
				}
			})
		}
	}
}

func TestKindsWithoutAReasonTravelBothWays(t *testing.T) {
	var current *fault.Error
	impl := tool{call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
		return nil, current
	}}
	plain, address := tcp(t, impl, rpc.ServerOptions{})
	ours := dial(t, address, rpc.ClientOptions{})
	for kind, code := range map[fault.Kind]codes.Code{
		fault.Internal:        codes.Internal,
		fault.NotFound:        codes.NotFound,
		fault.InvalidArgument: codes.InvalidArgument,
		fault.Unknown:         codes.Unknown,
		fault.Unimplemented:   codes.Unimplemented,
		fault.Canceled:        codes.Canceled,
	} {
		current = fault.Of(kind, "words")
		_, err := toolproxyv1.NewToolProxyServiceClient(plain).CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
		if status.Code(err) != code {
			t.Errorf("kind %v is %v on the wire, want %v", kind, status.Code(err), code)
		}
		_, err = toolproxyv1.NewToolProxyServiceClient(ours).CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
		if fault.KindOf(err) != kind || fault.ReasonOf(err) != "" {
			t.Errorf("kind %v came back as %v of kind %v", kind, err, fault.KindOf(err))
		}
	}
}

func TestUnclassifiedErrorsAreLoggedOnceAndHidden(t *testing.T) {
	for name, call := range map[string]func() error{
		"error":                    func() error { return errors.New("dsn postgres://u:hunter2@db") },
		"panic":                    func() error { panic("dsn postgres://u:hunter2@db") },
		"wrapped foreign status":   func() error { return fmt.Errorf("x: %w", status.Error(codes.NotFound, "hunter2")) },
		"a peer refused our token": func() error { return fault.Of(fault.Unauthenticated, "unknown token hunter2") },
	} {
		t.Run(name, func(t *testing.T) {
			var out logged
			impl := tool{call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
				return nil, call()
			}}
			conn, _ := inProcess(t, impl, rpc.ServerOptions{Name: "toolproxy", Log: out.log()}, rpc.ClientOptions{})
			client := toolproxyv1.NewToolProxyServiceClient(conn)
			_, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
			if fault.KindOf(err) != fault.Internal || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "toolproxy") {
				t.Errorf("the caller got %v", err)
			}
			if n := strings.Count(out.String(), "level=ERROR"); n != 1 || !strings.Contains(out.String(), "hunter2") {
				t.Errorf("%d errors logged, want one with the cause:\n%s", n, out.String())
			}
			if _, err := client.ListServers(t.Context(), &toolproxyv1.ListServersRequest{}); err != nil {
				t.Errorf("the server does not go on: %v", err)
			}
		})
	}
}

func TestAPanicInAStreamIsContained(t *testing.T) {
	var out logged
	impl := tool{stream: func(grpc.ServerStreamingServer[toolproxyv1.StreamCallToolResponse]) error { panic("boom") }}
	conn, _ := inProcess(t, impl, rpc.ServerOptions{Log: out.log()}, rpc.ClientOptions{})
	stream, err := toolproxyv1.NewToolProxyServiceClient(conn).StreamCallTool(t.Context(), &toolproxyv1.StreamCallToolRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); fault.KindOf(err) != fault.Internal {
		t.Errorf("the caller got %v", err)
	}
	if !strings.Contains(out.String(), "errors_test.go") {
		t.Errorf("the log lacks the stack:\n%s", out.String())
	}
}

func TestContextErrorsKeepTheirMeaning(t *testing.T) {
	var current error
	impl := tool{call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
		return nil, fmt.Errorf("query: %w", current)
	}}
	var out logged
	conn, _ := inProcess(t, impl, rpc.ServerOptions{Log: out.log()}, rpc.ClientOptions{})
	client := toolproxyv1.NewToolProxyServiceClient(conn)
	current = context.Canceled
	if _, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{}); fault.KindOf(err) != fault.Canceled {
		t.Errorf("Canceled came back as %v", err)
	}
	current = context.DeadlineExceeded
	if _, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{}); !fault.Is(err, fault.Timeout) {
		t.Errorf("DeadlineExceeded came back as %v", err)
	}
	if strings.Contains(out.String(), "level=ERROR") {
		t.Errorf("context errors are nobody's fault:\n%s", out.String())
	}
}

func TestErrorsFitIntoTrailers(t *testing.T) {
	long := strings.Repeat("日本語 \xff%", 10_000)
	impl := tool{call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
		f := fault.New(fault.UpstreamError, "%s", long).With("b", long).With("a", "kept")
		for range 100 {
			f = f.WithViolations(append(f.Violations(), fault.Violation{Field: "f", Description: strings.Repeat("x", 100)})...)
		}
		return nil, f
	}}
	plain, _ := tcp(t, impl, rpc.ServerOptions{})
	conn, err := grpc.NewClient(plain.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithMaxHeaderListSize(8<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = toolproxyv1.NewToolProxyServiceClient(conn).CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
	st := status.Convert(err)
	if st.Code() != codes.Unknown || !strings.HasPrefix(st.Message(), "日本語 \uFFFD%") || !strings.HasSuffix(st.Message(), "(cut)") {
		t.Fatalf("got %v with %d bytes", st.Code(), len(st.Message()))
	}
	info, ok := st.Details()[0].(*errdetails.ErrorInfo)
	if !ok || info.GetReason() != "UPSTREAM_ERROR" || info.GetMetadata()["a"] != "kept" {
		t.Errorf("details are %v", st.Details())
	}
}

func TestMessagesAreRedacted(t *testing.T) {
	impl := tool{call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
		return nil, fault.New(fault.ServerError, "exit 1: hunter2").With("stderr", "hunter2").
			WithViolations(fault.Violation{Field: "f", Description: "hunter2"})
	}}
	conn, _ := inProcess(t, impl, rpc.ServerOptions{
		Redact: func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") },
	}, rpc.ClientOptions{})
	_, err := toolproxyv1.NewToolProxyServiceClient(conn).CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
	f, _ := errors.AsType[*fault.Error](err)
	if err.Error() != "exit 1: ***" || f.Metadata()["stderr"] != "***" || f.Violations()[0].Description != "***" {
		t.Errorf("got %v, %v, %v", err, f.Metadata(), f.Violations())
	}
}

func TestMessagesAboveTheLimitAreTooLarge(t *testing.T) {
	big := strings.Repeat("x", 64<<10)
	impl := tool{call: func(ctx context.Context, r *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
		if r.GetName() == "big answer" {
			return answers{result: big}.CallTool(ctx, r)
		}
		return &toolproxyv1.CallToolResponse{}, nil
	}}
	for name, limits := range map[string]struct{ server, client int }{
		"the server's": {server: 32 << 10},
		"the client's": {client: 32 << 10},
	} {
		conn, _ := inProcess(t, impl, rpc.ServerOptions{MaxMessageBytes: limits.server}, rpc.ClientOptions{MaxMessageBytes: limits.client})
		client := toolproxyv1.NewToolProxyServiceClient(conn)
		for what, request := range map[string]*toolproxyv1.CallToolRequest{
			"request": {Name: "x", RequestState: big},
			"answer":  {Name: "big answer"},
		} {
			_, err := client.CallTool(t.Context(), request)
			if !fault.Is(err, fault.PayloadTooLarge) || !strings.Contains(err.Error(), "max_message_bytes") {
				t.Errorf("%s above %s limit: %v, want PAYLOAD_TOO_LARGE that names the setting", what, name, err)
			}
		}
		if _, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{}); err != nil {
			t.Errorf("the connection does not survive: %v", err)
		}
	}
}

// An error of a newer peer keeps what its code says about retrying.
func TestUnknownReasonsKeepTheirKind(t *testing.T) {
	st, err := status.New(codes.Unavailable, "words").WithDetails(&errdetails.ErrorInfo{Domain: "toolherd", Reason: "FROM_THE_FUTURE"})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	toolproxyv1.RegisterToolProxyServiceServer(server, tool{
		call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
			return nil, st.Err()
		},
	})
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() { server.Stop(); <-served }()
	conn := dial(t, l.Addr().String(), rpc.ClientOptions{})
	_, err = toolproxyv1.NewToolProxyServiceClient(conn).CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind() != fault.Unavailable || f.Metadata()["reason"] != "FROM_THE_FUTURE" {
		t.Errorf("got %v", err)
	}
}
