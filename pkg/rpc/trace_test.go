package rpc_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

func TestOneTraceSpansBothSidesOfACall(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	var inHandler trace.SpanContext
	impl := tool{
		call: func(ctx context.Context, _ *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
			inHandler = trace.SpanContextFromContext(ctx)
			return nil, fault.New(fault.ToolNotFound, "no such tool")
		},
		stream: func(grpc.ServerStreamingServer[toolproxyv1.StreamCallToolResponse]) error { return nil },
	}
	conn, stop := inProcess(t, impl, rpc.ServerOptions{Log: new(logged).log(), Tracing: tracing}, rpc.ClientOptions{Tracing: tracing})
	ctx, root := tracing.Tracer("test").Start(t.Context(), "root")
	client := toolproxyv1.NewToolProxyServiceClient(conn)
	if _, err := client.CallTool(ctx, &toolproxyv1.CallToolRequest{}); !fault.Is(err, fault.ToolNotFound) {
		t.Fatal(err)
	}
	health(t, conn, "")
	stream, err := client.StreamCallTool(ctx, &toolproxyv1.StreamCallToolRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	root.End()
	conn.Close()
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	parents := map[trace.SpanID]string{root.SpanContext().SpanID(): "root"}
	for _, s := range spans.Ended() {
		parents[s.SpanContext().SpanID()] = s.SpanKind().String() + " " + s.Name()
	}
	var got []string
	for _, s := range spans.Ended() {
		if strings.HasPrefix(s.Name(), "grpc.health") {
			t.Errorf("health is traced: %v %s", s.SpanKind(), s.Name())
		}
		if s.SpanContext().TraceID() != root.SpanContext().TraceID() || s.Name() == "root" {
			continue
		}
		got = append(got, s.SpanKind().String()+" "+s.Name()+" in "+parents[s.Parent().SpanID()]+" "+s.Status().Description)
	}
	slices.Sort(got)
	const service = "toolherd.toolproxy.v1.ToolProxyService/"
	want := []string{
		"client " + service + "CallTool in internal root no such tool",
		"client " + service + "StreamCallTool in internal root ",
		"server " + service + "CallTool in client " + service + "CallTool no such tool",
		"server " + service + "StreamCallTool in client " + service + "StreamCallTool ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	if inHandler.TraceID() != root.SpanContext().TraceID() || inHandler.SpanID() == root.SpanContext().SpanID() {
		t.Errorf("the handler ran in %v", inHandler)
	}
}

func TestTraceContextPassesThroughWithoutATracer(t *testing.T) {
	var inHandler trace.SpanContext
	impl := tool{call: func(ctx context.Context, _ *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
		inHandler = trace.SpanContextFromContext(ctx)
		return &toolproxyv1.CallToolResponse{}, nil
	}}
	conn, _ := inProcess(t, impl, rpc.ServerOptions{Log: new(logged).log()}, rpc.ClientOptions{})
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	ctx := trace.ContextWithSpanContext(t.Context(), parent)
	if _, err := toolproxyv1.NewToolProxyServiceClient(conn).CallTool(ctx, &toolproxyv1.CallToolRequest{}); err != nil {
		t.Fatal(err)
	}
	if inHandler.TraceID() != parent.TraceID() || !inHandler.IsSampled() {
		t.Errorf("the handler ran in %+v", inHandler)
	}
}

func TestCallsAreCountedByMethodAndCode(t *testing.T) {
	registry := prometheus.NewRegistry()
	impl := tool{call: func(context.Context, *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
		return nil, fault.New(fault.ToolNotFound, "no such tool")
	}}
	for _, name := range []string{"public", "internal"} { // two servers of one process
		conn, _ := inProcess(t, impl, rpc.ServerOptions{Name: name, Log: new(logged).log(), Metrics: registry}, rpc.ClientOptions{})
		client := toolproxyv1.NewToolProxyServiceClient(conn)
		for range 3 {
			if _, err := client.CallTool(t.Context(), &toolproxyv1.CallToolRequest{}); !fault.Is(err, fault.ToolNotFound) {
				t.Fatal(err)
			}
		}
		if _, err := client.ListServers(t.Context(), &toolproxyv1.ListServersRequest{}); err != nil {
			t.Fatal(err)
		}
		// Whatever a stranger makes up must not become a label.
		for _, method := range []string{"/a.b/C", "/toolherd.toolproxy.v1.ToolProxyService/Nope"} {
			if err := conn.Invoke(t.Context(), method, &toolproxyv1.CallToolRequest{}, &toolproxyv1.CallToolResponse{}); fault.KindOf(err) != fault.Unimplemented {
				t.Fatal(err)
			}
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "toolherd_rpc_server_duration_seconds" && labels["server"] == "public" && len(labels) == 3 {
				got[labels["method"]+" "+labels["code"]] = m.GetHistogram().GetSampleCount()
			}
		}
	}
	want := map[string]uint64{
		"toolherd.toolproxy.v1.ToolProxyService/CallTool NOT_FOUND": 3,
		"toolherd.toolproxy.v1.ToolProxyService/ListServers OK":     1,
		"unknown UNIMPLEMENTED":                                     2,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// Reflection shows the whole contract at every address, by its fixed names, in both of its versions.
func TestReflectionDescribesServicesOfOtherProcesses(t *testing.T) {
	conn, _ := inProcess(t, tool{}, rpc.ServerOptions{Log: new(logged).log()}, rpc.ClientOptions{})
	want := []string{
		"grpc.health.v1.Health",
		"grpc.reflection.v1.ServerReflection",
		"grpc.reflection.v1alpha.ServerReflection",
		"toolherd.agent.v1.AgentRuntimeService",
		"toolherd.credential.v1.CredentialService",
		"toolherd.interceptor.v1.InterceptorService",
		"toolherd.notifier.v1.NotifierService",
		"toolherd.registry.v1.RegistryService",
		"toolherd.task.v1.TaskIntakeService",
		"toolherd.task.v1.TaskService",
		"toolherd.toolproxy.v1.BackgroundToolService",
		"toolherd.toolproxy.v1.ToolProxyService",
	}

	v1, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(r *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
		t.Helper()
		if err := v1.Send(r); err != nil {
			t.Fatal(err)
		}
		answer, err := v1.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	var got []string
	list := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	for _, s := range list.GetListServicesResponse().GetService() {
		got = append(got, s.GetName())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
	for _, symbol := range append(want, "google.rpc.ErrorInfo", "toolherd.agent.v1.AgentRuntimeService.StartRun") {
		answer := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol}})
		if len(answer.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("%s is not described: %v", symbol, answer.GetErrorResponse())
		}
	}

	alpha, err := reflectionv1alpha.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := alpha.Send(&reflectionv1alpha.ServerReflectionRequest{MessageRequest: &reflectionv1alpha.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	answer, err := alpha.Recv()
	if err != nil || len(answer.GetListServicesResponse().GetService()) != len(want) {
		t.Errorf("v1alpha lists %v, %v", answer, err)
	}
}
