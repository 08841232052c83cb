package toolproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	"github.com/toolherd/toolherd/services/toolproxy"
)

// far is a taskworker and a notifier that only remember who asked for what.
type far struct {
	taskv1.UnimplementedTaskServiceServer
	notifierv1.UnimplementedNotifierServiceServer

	mu       sync.Mutex
	seen     []string
	deadline time.Duration
	ended    chan struct{} // closed when the stream of WatchTask has ended
}

func (f *far) saw(ctx context.Context, what string) {
	caller, _ := authn.FromContext(ctx)
	acting, _ := authn.Acting(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, fmt.Sprintf("%s by %s for %s of %q", what, caller.Name, acting.Name, acting.UserID))
	f.deadline = 0
	if end, ok := ctx.Deadline(); ok {
		f.deadline = time.Until(end)
	}
}

func (f *far) last() (string, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.seen) == 0 {
		return "", 0
	}
	return f.seen[len(f.seen)-1], f.deadline
}

func (f *far) GetTask(ctx context.Context, q *taskv1.GetTaskRequest) (*taskv1.GetTaskResponse, error) {
	f.saw(ctx, "GetTask")
	if q.GetTaskId() == "missing" {
		return nil, fault.New(fault.TaskNotFound, "no task %q", q.GetTaskId()).With("task_id", q.GetTaskId()).RetryIn(3 * time.Second).
			WithViolations(fault.Violation{Field: "task_id", Description: "is unknown"})
	}
	return &taskv1.GetTaskResponse{Task: &taskv1.Task{TaskId: q.GetTaskId()}}, nil
}

func (f *far) ListTasks(ctx context.Context, _ *taskv1.ListTasksRequest) (*taskv1.ListTasksResponse, error) {
	f.saw(ctx, "ListTasks")
	return &taskv1.ListTasksResponse{NextPageToken: "next"}, nil
}

func (f *far) CancelTask(ctx context.Context, _ *taskv1.CancelTaskRequest) (*taskv1.CancelTaskResponse, error) {
	f.saw(ctx, "CancelTask")
	return &taskv1.CancelTaskResponse{}, nil
}

func (f *far) AnswerTask(ctx context.Context, _ *taskv1.AnswerTaskRequest) (*taskv1.AnswerTaskResponse, error) {
	f.saw(ctx, "AnswerTask")
	return &taskv1.AnswerTaskResponse{}, nil
}

func (f *far) GetTaskResult(_ *taskv1.GetTaskResultRequest, s grpc.ServerStreamingServer[taskv1.GetTaskResultResponse]) error {
	f.saw(s.Context(), "GetTaskResult")
	for i := range 3 {
		if err := s.Send(&taskv1.GetTaskResultResponse{Data: []byte{byte('a' + i)}, Last: i == 2}); err != nil {
			return err
		}
	}
	return nil
}

// WatchTask sends one state and goes on until it is ended.
func (f *far) WatchTask(q *taskv1.WatchTaskRequest, s grpc.ServerStreamingServer[taskv1.WatchTaskResponse]) error {
	f.saw(s.Context(), "WatchTask")
	if q.GetTaskId() == "missing" {
		return fault.New(fault.TaskNotFound, "no task %q", q.GetTaskId())
	}
	defer close(f.ended)
	if err := s.Send(&taskv1.WatchTaskResponse{Task: &taskv1.Task{Version: 1}}); err != nil {
		return err
	}
	<-s.Context().Done()
	return context.Cause(s.Context())
}

func (f *far) WatchEvents(_ *notifierv1.WatchEventsRequest, s grpc.ServerStreamingServer[notifierv1.WatchEventsResponse]) error {
	f.saw(s.Context(), "WatchEvents")
	return s.Send(&notifierv1.WatchEventsResponse{})
}

func (f *far) AckEvent(ctx context.Context, _ *notifierv1.AckEventRequest) (*notifierv1.AckEventResponse, error) {
	f.saw(ctx, "AckEvent")
	return &notifierv1.AckEventResponse{}, nil
}

func (f *far) ListNotifications(ctx context.Context, _ *notifierv1.ListNotificationsRequest) (*notifierv1.ListNotificationsResponse, error) {
	f.saw(ctx, "ListNotifications")
	return &notifierv1.ListNotificationsResponse{}, nil
}

func (f *far) GetNotification(ctx context.Context, _ *notifierv1.GetNotificationRequest) (*notifierv1.GetNotificationResponse, error) {
	f.saw(ctx, "GetNotification")
	return &notifierv1.GetNotificationResponse{}, nil
}

func (f *far) RedriveNotification(ctx context.Context, _ *notifierv1.RedriveNotificationRequest) (*notifierv1.RedriveNotificationResponse, error) {
	f.saw(ctx, "RedriveNotification")
	return &notifierv1.RedriveNotificationResponse{}, nil
}

func (f *far) ListSinks(ctx context.Context, _ *notifierv1.ListSinksRequest) (*notifierv1.ListSinksResponse, error) {
	f.saw(ctx, "ListSinks")
	return &notifierv1.ListSinksResponse{}, nil
}

func (f *far) ResumeSink(ctx context.Context, _ *notifierv1.ResumeSinkRequest) (*notifierv1.ResumeSinkResponse, error) {
	f.saw(ctx, "ResumeSink")
	return &notifierv1.ResumeSinkResponse{}, nil
}

// split is a toolproxy of a split deployment, with tokens on both sides.
type split struct {
	*far

	tasks  map[string]taskv1.TaskServiceClient // by the name of the token
	events map[string]notifierv1.NotifierServiceClient
	stop   func() // ends toolproxy's server
}

// tokenFile writes tokens of these roles, by name, and returns them with the file.
func tokenFile(t *testing.T, lines map[string]string) (map[string]string, *authn.Tokens) {
	t.Helper()
	texts := map[string]string{}
	var file strings.Builder
	for name, rest := range lines {
		text, sum := authn.NewToken()
		texts[name] = text
		fmt.Fprintf(&file, "- {name: %s, sha256: %s, %s}\n", name, sum, rest)
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := authn.OpenTokens(path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return texts, tokens
}

// serveWith serves with tokens on loopback, and returns how to connect with one of them.
func serveWith(t *testing.T, tokens *authn.Tokens, register func(grpc.ServiceRegistrar)) (connect func(token string) *grpc.ClientConn, stop func()) {
	t.Helper()
	server, err := rpc.NewServer(rpc.ServerOptions{Log: quiet(), Tokens: tokens, DrainTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	register(server)
	address, stop := listen(t, server)
	t.Cleanup(stop)
	return func(token string) *grpc.ClientConn {
		conn, err := rpc.Dial(address, rpc.ClientOptions{Token: func() (string, error) { return token, nil }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}, stop
}

func startSplit(t *testing.T) *split {
	t.Helper()
	s := &split{far: &far{ended: make(chan struct{})}, tasks: map[string]taskv1.TaskServiceClient{}, events: map[string]notifierv1.NotifierServiceClient{}}
	peers, peerTokens := tokenFile(t, map[string]string{"proxy": "roles: [toolproxy]"})
	toPeers, _ := serveWith(t, peerTokens, func(r grpc.ServiceRegistrar) {
		taskv1.RegisterTaskServiceServer(r, s.far)
		notifierv1.RegisterNotifierServiceServer(r, s.far)
	})
	peer := toPeers(peers["proxy"])
	p := startWith(t, toolproxy.Config{}, newRegistry(), func(d *toolproxy.Deps) {
		d.Tasks, d.Events, d.Forward = taskv1.NewTaskServiceClient(peer), notifierv1.NewNotifierServiceClient(peer), true
	})
	t.Cleanup(p.stop)
	callers, tokens := tokenFile(t, map[string]string{
		"ann": "roles: [agent], user_id: ann", "op": "roles: [operator], act_as: any", "worker": "roles: [worker]", "proxy": "roles: [toolproxy]",
	})
	connect, stop := serveWith(t, tokens, p.service.Register)
	s.stop = stop
	for name, token := range callers {
		conn := connect(token)
		s.tasks[name], s.events[name] = taskv1.NewTaskServiceClient(conn), notifierv1.NewNotifierServiceClient(conn)
	}
	return s
}

// OPS-009, the part of toolproxy: every RPC of both services reaches its service, for the principal that toolproxy
// recognised.
func TestOneAddressIsEnough(t *testing.T) {
	s := startSplit(t)
	ctx := t.Context()
	type calls map[string]func() error
	drain := func(recv func() error) error {
		for {
			if err := recv(); err != nil {
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
		}
	}
	tasks, events := s.tasks["ann"], s.events["ann"]
	agents := calls{
		"GetTask":    func() error { _, err := tasks.GetTask(ctx, &taskv1.GetTaskRequest{}); return err },
		"ListTasks":  func() error { _, err := tasks.ListTasks(ctx, &taskv1.ListTasksRequest{}); return err },
		"CancelTask": func() error { _, err := tasks.CancelTask(ctx, &taskv1.CancelTaskRequest{}); return err },
		"AnswerTask": func() error { _, err := tasks.AnswerTask(ctx, &taskv1.AnswerTaskRequest{}); return err },
		"AckEvent":   func() error { _, err := events.AckEvent(ctx, &notifierv1.AckEventRequest{}); return err },
		"GetTaskResult": func() error {
			stream, err := tasks.GetTaskResult(ctx, &taskv1.GetTaskResultRequest{})
			if err != nil {
				return err
			}
			var got string
			err = drain(func() error { m, err := stream.Recv(); got += string(m.GetData()); return err })
			if got != "abc" {
				t.Errorf("the result is %q", got)
			}
			return err
		},
		"WatchEvents": func() error {
			stream, err := events.WatchEvents(ctx, &notifierv1.WatchEventsRequest{})
			if err != nil {
				return err
			}
			return drain(func() error { _, err := stream.Recv(); return err })
		},
	}
	for name, call := range agents {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, _ := s.last(); got != name+` by proxy for ann of "ann"` {
			t.Errorf("%s arrives as %s", name, got)
		}
	}
	events = s.events["op"]
	operators := calls{
		"ListNotifications": func() error {
			_, err := events.ListNotifications(ctx, &notifierv1.ListNotificationsRequest{})
			return err
		},
		"GetNotification": func() error { _, err := events.GetNotification(ctx, &notifierv1.GetNotificationRequest{}); return err },
		"RedriveNotification": func() error {
			_, err := events.RedriveNotification(ctx, &notifierv1.RedriveNotificationRequest{})
			return err
		},
		"ListSinks":  func() error { _, err := events.ListSinks(ctx, &notifierv1.ListSinksRequest{}); return err },
		"ResumeSink": func() error { _, err := events.ResumeSink(ctx, &notifierv1.ResumeSinkRequest{}); return err },
	}
	for name, call := range operators {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, _ := s.last(); got != name+` by proxy for op of ""` {
			t.Errorf("%s arrives as %s", name, got)
		}
	}
	if n := len(agents) + len(operators) + 1; n != len(taskv1.TaskService_ServiceDesc.Methods)+len(taskv1.TaskService_ServiceDesc.Streams)+
		len(notifierv1.NotifierService_ServiceDesc.Methods)+len(notifierv1.NotifierService_ServiceDesc.Streams) {
		t.Errorf("%d RPCs are tested, WatchTask included; there are others", n)
	}
}

func TestAForwardedCallCarriesDeadlineErrorAndNothingElse(t *testing.T) {
	s := startSplit(t)
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
	defer cancel()
	// What the caller says about itself does not travel.
	ctx = metadata.AppendToOutgoingContext(ctx, "toolherd-acting", "name=root&role=operator&act_as=any")
	if _, err := s.tasks["ann"].GetTask(ctx, &taskv1.GetTaskRequest{TaskId: "t"}); err != nil {
		t.Fatal(err)
	}
	if got, deadline := s.last(); got != `GetTask by proxy for ann of "ann"` || deadline <= 0 || deadline > 7*time.Second {
		t.Errorf("%s within %v", got, deadline)
	}
	_, err := s.tasks["ann"].GetTask(t.Context(), &taskv1.GetTaskRequest{TaskId: "missing"})
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Reason() != fault.TaskNotFound || f.Error() != `no task "missing"` || f.RetryDelay() != 3*time.Second {
		t.Fatalf("the error arrives as %v", err)
	}
	if diff := cmp.Diff(map[string]string{"task_id": "missing"}, f.Metadata()); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]fault.Violation{{Field: "task_id", Description: "is unknown"}}, f.Violations()); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
	stream, err := s.tasks["ann"].WatchTask(t.Context(), &taskv1.WatchTaskRequest{TaskId: "missing"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !fault.Is(err, fault.TaskNotFound) {
		t.Errorf("the error of a stream arrives as %v", err)
	}
	// Services have their own way; those that may not call at all do not get far.
	if _, err := s.tasks["proxy"].GetTask(t.Context(), &taskv1.GetTaskRequest{}); !fault.Is(err, fault.Forbidden) {
		t.Errorf("a toolproxy: %v", err)
	}
	if _, err := s.tasks["worker"].GetTask(t.Context(), &taskv1.GetTaskRequest{}); !fault.Is(err, fault.Forbidden) {
		t.Errorf("a worker: %v", err)
	}
	if _, err := s.events["ann"].ListSinks(t.Context(), &notifierv1.ListSinksRequest{}); !fault.Is(err, fault.Forbidden) {
		t.Errorf("an agent that asks for what is an operator's: %v", err)
	}
	if got, _ := s.last(); got != `WatchTask by proxy for ann of "ann"` {
		t.Errorf("what was refused arrived: %s", got)
	}
}

func TestAForwardedWatchEndsWithItsWatcher(t *testing.T) {
	for name, end := range map[string]func(s *split, cancel func()){
		"the watcher leaves":   func(_ *split, cancel func()) { cancel() },
		"toolproxy shuts down": func(s *split, _ func()) { go s.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			s := startSplit(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := s.tasks["ann"].WatchTask(ctx, &taskv1.WatchTaskRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if m, err := stream.Recv(); err != nil || m.GetTask().GetVersion() != 1 {
				t.Fatalf("the first state: %v, %v", m, err)
			}
			end(s, cancel)
			_, err = stream.Recv()
			switch {
			case name == "the watcher leaves" && fault.KindOf(err) != fault.Canceled, name != "the watcher leaves" && !fault.Is(err, fault.NotReady):
				t.Errorf("the watch ends with %v", err)
			}
			select {
			case <-s.ended:
			case <-time.After(10 * time.Second):
				t.Error("taskworker still sends")
			}
		})
	}
}

func TestAServiceThatCannotBeReachedIsNotReady(t *testing.T) {
	conn, err := rpc.Dial("127.0.0.1:1", rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p := startWith(t, toolproxy.Config{}, newRegistry(), func(d *toolproxy.Deps) {
		d.Tasks, d.Events, d.Forward = taskv1.NewTaskServiceClient(conn), notifierv1.NewNotifierServiceClient(conn), true
	})
	t.Cleanup(p.stop)
	if _, err := taskv1.NewTaskServiceClient(p.conn).GetTask(t.Context(), &taskv1.GetTaskRequest{}); !fault.Is(err, fault.NotReady) {
		t.Errorf("a task: %v", err)
	}
	stream, err := notifierv1.NewNotifierServiceClient(p.conn).WatchEvents(t.Context(), &notifierv1.WatchEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !fault.Is(err, fault.NotReady) {
		t.Errorf("events: %v", err)
	}
}
