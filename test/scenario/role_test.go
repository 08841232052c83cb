package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	_ "github.com/toolherd/toolherd/proto/gen/toolherd/agent/v1"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/interceptor/v1"
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// contract lists the services and RPCs whose names scripts and users depend on, and which program of a split deployment
// serves them; agents and extensions implement the last two.
func contract() map[string]struct{ program, rpcs string } {
	return map[string]struct{ program, rpcs string }{
		"toolherd.registry.v1.RegistryService": {registry, `GetConfig ReplaceConfig SetServerEnabled PutServer DeleteServer ValidateConfig
			ListServers GetSnapshot ListSnapshots DiffSnapshots ActivateSnapshot ReleaseActivation WatchSnapshots ListProjects TrustProject RevokeProject`},
		"toolherd.credential.v1.CredentialService":    {registry, `BeginLogin CompleteLogin Logout ListCredentials GetAccessToken ResolveSecrets`},
		"toolherd.toolproxy.v1.ToolProxyService":      {toolproxy, `ListServers WatchServers RefreshServers ListTools SearchTools CallTool StreamCallTool GetPromptSection ListSessions ResetSessions`},
		"toolherd.toolproxy.v1.BackgroundToolService": {toolproxy, `GetRemoteTask UpdateRemoteTask CancelRemoteTask`},
		"toolherd.task.v1.TaskService":                {taskworker, `GetTask GetTaskResult ListTasks WatchTask CancelTask AnswerTask`},
		"toolherd.task.v1.TaskIntakeService":          {taskworker, `ReserveTask RenewReservation CommitTask AbandonTask`},
		"toolherd.notifier.v1.NotifierService":        {notifier, `ListNotifications GetNotification RedriveNotification WatchEvents AckEvent ListSinks ResumeSink`},
		"toolherd.agent.v1.AgentRuntimeService":       {"", `StartRun GetRun`},
		"toolherd.interceptor.v1.InterceptorService":  {"", `InterceptCall`},
	}
}

// forwards reports whether a program passes calls of a service on to the program that has it.
func forwards(program, service string) bool {
	return program == toolproxy && (service == "toolherd.task.v1.TaskService" || service == "toolherd.notifier.v1.NotifierService")
}

// method is an RPC of the contract.
type method struct {
	service string
	program string // of a split deployment
	desc    protoreflect.MethodDescriptor
	roles   []string
}

func (m method) name() string { return fmt.Sprintf("/%s/%s", m.service, m.desc.Name()) }

// internal reports whether only services may call it.
func (m method) internal() bool {
	return !slices.Contains(m.roles, "agent") && !slices.Contains(m.roles, "operator")
}

// methods returns every RPC, from the descriptors; those and the contract must name the same.
func methods(t *testing.T) []method {
	t.Helper()
	var all []method
	seen := map[string][]string{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(file.Package()), "toolherd.") {
			return true
		}
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			name := string(service.FullName())
			for j := range service.Methods().Len() {
				m := method{service: name, program: contract()[name].program, desc: service.Methods().Get(j)}
				declared, _ := proto.GetExtension(m.desc.Options(), corev1.E_Roles).([]corev1.Role)
				for _, role := range declared {
					m.roles = append(m.roles, strings.ToLower(strings.TrimPrefix(role.String(), "ROLE_")))
				}
				if len(m.roles) == 0 {
					t.Errorf("%s declares no roles", m.name())
				}
				all = append(all, m)
				seen[name] = append(seen[name], string(m.desc.Name()))
			}
		}
		return true
	})
	for name, s := range contract() {
		want := strings.Fields(s.rpcs)
		slices.Sort(want)
		got := seen[name]
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", name, got, want)
		}
		delete(seen, name)
	}
	if len(seen) > 0 {
		t.Errorf("services that the contract does not have: %v", slices.Collect(maps.Keys(seen)))
	}
	return all
}

// call calls the RPC with an empty message and returns how that ended, or began to answer.
func (m method) call(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: m.desc.IsStreamingServer()}, m.name())
	if err == nil {
		err = stream.SendMsg(dynamicpb.NewMessage(m.desc.Input()))
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = stream.RecvMsg(dynamicpb.NewMessage(m.desc.Output()))
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// byRole reports whether the caller's role was refused. What an RPC itself refuses, such as an agent who would end
// everybody's sessions, does not name the method.
func (f failure) byRole() bool {
	return f.Code == codes.PermissionDenied && f.Reason == "FORBIDDEN" && f.Metadata["method"] != ""
}

// OPS-002, OPS-003, OPS-004: every RPC of every program knows its callers: without a token, or with an unknown one, it is
// UNAUTHENTICATED, with another role PERMISSION_DENIED; with the right role it gets past that, and if it is not built it says
// what is missing. What is for services only is not on the public listener of the all-in-one, whatever the token.
func TestEveryRPCAdmitsItsRolesAndNobodyElse(t *testing.T) {
	t.Parallel()
	all := methods(t)
	split := New(t, Split, Options{Workers: 1, Notifiers: 1})
	one := New(t, SQLite, Options{Authenticated: true})
	for program, h := range map[string]*Herd{registry: split, toolproxy: split, taskworker: split, notifier: split, up: one} {
		t.Run(program, func(t *testing.T) {
			listed := reflected(t, h.Conn(t, program, "agent"))
			for _, m := range all {
				if !slices.Contains(listed, m.service) {
					checkForeign(t, h, program, m)
					continue
				}
				served := m.program == program || forwards(program, m.service) || program == up && m.program != "" && !m.internal()
				for _, token := range append(roles(), "", "thd_unknown") {
					f := reasonOf(m.call(t.Context(), h.Conn(t, program, token)))
					switch {
					case !slices.Contains(roles(), token):
						if f.Code != codes.Unauthenticated {
							t.Errorf("%s with token %q: %v, want UNAUTHENTICATED", m.name(), token, f)
						}
					case !slices.Contains(m.roles, token):
						if !f.byRole() {
							t.Errorf("%s as %s: %v, want PERMISSION_DENIED", m.name(), token, f)
						}
					case f.byRole(), f.Code == codes.Unauthenticated, f.Code == codes.DeadlineExceeded, f.Code == codes.Internal:
						t.Errorf("%s as %s, which it admits: %v", m.name(), token, f)
					case f.Code == codes.Unimplemented:
						if vague := len(f.Message) < 30 || strings.Contains(f.Message, "unknown") || strings.HasPrefix(f.Message, "method "); vague {
							t.Errorf("%s does not say what is missing: %s", m.name(), f.Message)
						}
						if !served && !strings.Contains(f.Message, "not served") {
							t.Errorf("%s is not on this listener, and says: %s", m.name(), f.Message)
						}
					case !served:
						t.Errorf("%s as %s is served by %s: %v", m.name(), token, program, f)
					}
				}
			}
		})
	}
}

// OPS-001, OPS-003: whoever reaches a listener without tokens is agent and operator and never a service.
func TestWithoutTokensCallersAreAgentAndOperator(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{})
	for _, m := range methods(t) {
		f := reasonOf(m.call(t.Context(), h.Conn(t, up, "")))
		if f.byRole() != m.internal() || f.Code == codes.Unauthenticated {
			t.Errorf("%s, for %v: %v", m.name(), m.roles, f)
		}
	}
}

// checkForeign calls an RPC of a service that a program does not know: with a token there is nothing, without one not even
// that is told.
func checkForeign(t *testing.T, h *Herd, program string, m method) {
	t.Helper()
	if program == up || m.program == program {
		t.Errorf("%s does not list %s", program, m.service)
	}
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "agent": codes.Unimplemented, "toolproxy": codes.Unimplemented} {
		if f := reasonOf(m.call(t.Context(), h.Conn(t, program, token))); f.Code != want {
			t.Errorf("%s of another program as %q: %v, want %v", m.name(), token, f, want)
		}
	}
}

// reflected lists the services of ours that reflection shows.
func reflected(t *testing.T, conn *grpc.ClientConn) []string {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range answer.GetListServicesResponse().GetService() {
		if strings.HasPrefix(s.GetName(), "toolherd.") {
			got = append(got, s.GetName())
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("reflection ends with %v", err)
	}
	return got
}
