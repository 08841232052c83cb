package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/follow"
	"github.com/toolherd/toolherd/pkg/backoff"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// Whose the task is, and as whom its events are taken.
const (
	user, thread = "ada", "demo"
	group        = "demo"
)

func scope() *corev1.Scope { return &corev1.Scope{UserId: user, ThreadId: thread} }

// patience bounds each wait for something that should come soon.
const patience = 20 * time.Second

// pause is how often something is looked for.
const pause = 50 * time.Millisecond

// eventually asks f until it is true.
func eventually(ctx context.Context, what string, f func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		done, err := f(ctx)
		if err != nil || done {
			return err
		}
		if backoff.Sleep(ctx, pause) != nil {
			return fmt.Errorf("%s did not happen within %s", what, patience)
		}
	}
}

// show prints the line for grpcurl that does what follows.
func (s *story) show(method string, req proto.Message) error {
	encoded, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(req)
	if err != nil {
		return err
	}
	var compact any // protojson varies its spaces
	if err := json.Unmarshal(encoded, &compact); err != nil {
		return err
	}
	if encoded, err = json.Marshal(compact); err != nil {
		return err
	}
	s.say("$ grpcurl -plaintext -d '%s' %s %s", encoded, s.address, method)
	return nil
}

const (
	tools  = "toolherd.toolproxy.v1.ToolProxyService/"
	tasks  = "toolherd.task.v1.TaskService/"
	events = "toolherd.notifier.v1.NotifierService/"
)

func (s *story) listTools(ctx context.Context) error {
	req := &toolproxyv1.ListToolsRequest{Scope: scope()}
	if err := s.show(tools+"ListTools", req); err != nil {
		return err
	}
	var list *toolproxyv1.ListToolsResponse
	err := s.whileStarting(ctx, req, &list)
	if err != nil {
		return err
	}
	var names []string
	for _, t := range list.GetTools() {
		names = append(names, t.GetName())
	}
	s.say("%s", strings.Join(names, ", "))
	return nil
}

// whileStarting lists the tools until the server has had its first start and tasks are taken in.
func (s *story) whileStarting(ctx context.Context, req *toolproxyv1.ListToolsRequest, out **toolproxyv1.ListToolsResponse) error {
	return eventually(ctx, "the first start of the tool server", func(ctx context.Context) (bool, error) {
		list, err := toolproxyv1.NewToolProxyServiceClient(s.conn).ListTools(ctx, req)
		if err != nil {
			return false, err
		}
		*out = list
		for _, srv := range list.GetServers() {
			switch srv.GetStatus() {
			case corev1.ServerStatus_SERVER_STATUS_OK:
				return list.GetTasksAvailable(), nil
			case corev1.ServerStatus_SERVER_STATUS_STARTING:
			default:
				return false, fmt.Errorf("the tool server is not well: %s", srv.GetReason())
			}
		}
		return false, nil
	})
}

func (s *story) callTool(ctx context.Context, name string, arguments map[string]any) (*toolproxyv1.CallToolResponse, error) {
	encoded, err := structpb.NewStruct(arguments)
	if err != nil {
		return nil, err
	}
	req := &toolproxyv1.CallToolRequest{Name: name, Scope: scope(), Args: &toolproxyv1.CallToolRequest_Arguments{Arguments: encoded}}
	if err := s.show(tools+"CallTool", req); err != nil {
		return nil, err
	}
	return toolproxyv1.NewToolProxyServiceClient(s.conn).CallTool(ctx, req)
}

func (s *story) call(ctx context.Context) error {
	out, err := s.callTool(ctx, "demo_add", map[string]any{"a": 2, "b": 40})
	if err != nil {
		return err
	}
	if got := out.GetResult().GetStructuredContentJson(); got != `{"sum":42}` {
		return fmt.Errorf("2 + 40 came to %q", got)
	}
	s.say("%s", out.GetResult().GetStructuredContentJson())
	return nil
}

func (s *story) submit(ctx context.Context) error {
	out, err := s.callTool(ctx, "demo_start_report", map[string]any{"topic": "herding tools", "seconds": seconds})
	if err != nil {
		return err
	}
	s.taskID = out.GetTask().GetTaskId()
	if s.taskID == "" {
		return fmt.Errorf("the answer is no task but %q", out.GetResult().GetContent())
	}
	s.say("%s  %q", s.taskID, out.GetTask().GetTaskName())
	return nil
}

// follow watches the task to its end, and kills and restarts the toolherd on the way.
func (s *story) follow(ctx context.Context) error {
	if err := s.show(tasks+"WatchTask", &taskv1.WatchTaskRequest{TaskId: s.taskID, Scope: scope()}); err != nil {
		return err
	}
	view := follow.NewView(indented{s.Out}, s.Rewrite)
	killed := false
	task, err := follow.Watch{
		Client: taskv1.NewTaskServiceClient(s.conn), TaskID: s.taskID, Scope: scope(), Patience: patience,
		Show: func(t *taskv1.Task) error {
			if err := view.Show(t); err != nil {
				return err
			}
			p := t.GetProgress()
			if killed || p.GetTotal() == 0 || p.GetCurrent() < p.GetTotal()/4 {
				return nil
			}
			killed = true
			return errors.Join(view.Done(), s.killAndRestart(ctx))
		},
	}.Run(ctx)
	if err := errors.Join(err, view.Done()); err != nil {
		return err
	}
	switch {
	case task.GetStatus() != corev1.TaskStatus_TASK_STATUS_COMPLETED:
		return fmt.Errorf("the task is %s: %s %s", follow.Word(task), task.GetFailureReason(), task.GetError())
	case !killed:
		return errors.New("the task had ended before anything could be killed")
	}
	s.say("%s", task.GetResultJson())
	return s.submittedOnce()
}

func (s *story) killAndRestart(ctx context.Context) error {
	pid := s.herd.pid()
	s.say("$ kill -9 %d", pid)
	s.herd.kill()
	began := time.Now()
	if err := s.startHerd(ctx, s.address); err != nil {
		return err
	}
	s.say("toolherd is gone, and back after %d ms as process %d; the tool server noticed nothing", time.Since(began).Milliseconds(), s.herd.pid())
	return nil
}

// submittedOnce looks into the tool server's own records.
func (s *story) submittedOnce() error {
	jobs, err := filepath.Glob(filepath.Join(s.dir, "reports", "*.json"))
	if err != nil {
		return err
	}
	if len(jobs) != 1 {
		return fmt.Errorf("the tool server was asked for %d reports, want 1", len(jobs))
	}
	s.say("the tool server was asked for one report, once")
	return nil
}

func (s *story) notified(ctx context.Context) error {
	event, err := s.takeEvent(ctx)
	if err != nil {
		return err
	}
	client := notifierv1.NewNotifierServiceClient(s.conn)
	ack := &notifierv1.AckEventRequest{EventId: event.GetEventId(), Group: group}
	if err := s.show(events+"AckEvent", ack); err != nil {
		return err
	}
	if _, err := client.AckEvent(ctx, ack); err != nil {
		return err
	}
	list := &notifierv1.ListNotificationsRequest{TaskId: s.taskID}
	if err := s.show(events+"ListNotifications", list); err != nil {
		return err
	}
	return eventually(ctx, "the delivery of the event", func(ctx context.Context) (bool, error) {
		got, err := client.ListNotifications(ctx, list)
		if err != nil || len(got.GetNotifications()) == 0 {
			return false, err
		}
		n := got.GetNotifications()[0]
		if n.GetStatus() != notifierv1.NotificationStatus_NOTIFICATION_STATUS_DELIVERED {
			return false, nil
		}
		s.say("%s  %s to sink %q", n.GetEventId(), strings.ToLower(strings.TrimPrefix(n.GetStatus().String(), "NOTIFICATION_STATUS_")), n.GetSink())
		return true, nil
	})
}

// takeEvent waits for the event that says how the task ended.
func (s *story) takeEvent(ctx context.Context) (*notifierv1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req := &notifierv1.WatchEventsRequest{Group: group, Scope: scope()}
	if err := s.show(events+"WatchEvents", req); err != nil {
		return nil, err
	}
	stream, err := notifierv1.NewNotifierServiceClient(s.conn).WatchEvents(ctx, req)
	if err != nil {
		return nil, err
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("no event of the task came: %w", err)
		}
		event := msg.GetEvent()
		if event.GetTaskId() != s.taskID {
			continue
		}
		var body struct {
			Status string `json:"status"`
		}
		if err := json.Unmarshal([]byte(event.GetEventJson()), &body); err != nil {
			return nil, fmt.Errorf("the event is no JSON: %w", err)
		}
		if body.Status != "completed" {
			return nil, fmt.Errorf("the event says %q, want completed", body.Status)
		}
		s.say("%s  %s", event.GetEventId(), body.Status)
		return event, nil
	}
}
