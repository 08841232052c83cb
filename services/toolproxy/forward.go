package toolproxy

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// forwarder serves TaskService and NotifierService by handing each call on, for the principal that was recognised here,
// with its deadline and its end. Answers and errors come back as they are.
type forwarder struct {
	tasks  taskv1.TaskServiceClient
	events notifierv1.NotifierServiceClient
}

func (f *forwarder) register(r grpc.ServiceRegistrar) {
	taskv1.RegisterTaskServiceServer(r, &taskForwarder{to: f.tasks})
	notifierv1.RegisterNotifierServiceServer(r, &eventForwarder{to: f.events})
}

// pass hands on a call of one answer.
func pass[Q, R any](ctx context.Context, q *Q, call func(context.Context, *Q, ...grpc.CallOption) (*R, error)) (*R, error) {
	ctx, err := rpc.ActFor(ctx)
	if err != nil {
		return nil, err
	}
	return call(ctx, q)
}

// relay hands on a call of many answers. It ends with the call, or with the server that took it.
func relay[Q, R any](
	q *Q, out grpc.ServerStreamingServer[R], open func(context.Context, *Q, ...grpc.CallOption) (grpc.ServerStreamingClient[R], error),
) error {
	ctx, err := rpc.ActFor(out.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := untilDraining(ctx, cancel)
	defer stop()
	in, err := open(ctx, q)
	for err == nil {
		var m *R
		if m, err = in.Recv(); err == nil {
			err = out.Send(m)
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(context.Cause(ctx), errDraining):
		return fault.New(fault.NotReady, "toolproxy is shutting down; watch again")
	default:
		return err
	}
}

var errDraining = errors.New("the server is draining")

// untilDraining cancels a stream when its server begins to shut down. The returned function waits for what it started.
func untilDraining(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-rpc.Draining(ctx):
			cancel(errDraining)
		case <-done:
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

type taskForwarder struct {
	taskv1.UnimplementedTaskServiceServer

	to taskv1.TaskServiceClient
}

func (f *taskForwarder) GetTask(ctx context.Context, q *taskv1.GetTaskRequest) (*taskv1.GetTaskResponse, error) {
	return pass(ctx, q, f.to.GetTask)
}

func (f *taskForwarder) GetTaskResult(q *taskv1.GetTaskResultRequest, out grpc.ServerStreamingServer[taskv1.GetTaskResultResponse]) error {
	return relay(q, out, f.to.GetTaskResult)
}

func (f *taskForwarder) ListTasks(ctx context.Context, q *taskv1.ListTasksRequest) (*taskv1.ListTasksResponse, error) {
	return pass(ctx, q, f.to.ListTasks)
}

func (f *taskForwarder) WatchTask(q *taskv1.WatchTaskRequest, out grpc.ServerStreamingServer[taskv1.WatchTaskResponse]) error {
	return relay(q, out, f.to.WatchTask)
}

func (f *taskForwarder) CancelTask(ctx context.Context, q *taskv1.CancelTaskRequest) (*taskv1.CancelTaskResponse, error) {
	return pass(ctx, q, f.to.CancelTask)
}

func (f *taskForwarder) AnswerTask(ctx context.Context, q *taskv1.AnswerTaskRequest) (*taskv1.AnswerTaskResponse, error) {
	return pass(ctx, q, f.to.AnswerTask)
}

type eventForwarder struct {
	notifierv1.UnimplementedNotifierServiceServer

	to notifierv1.NotifierServiceClient
}

func (f *eventForwarder) ListNotifications(ctx context.Context, q *notifierv1.ListNotificationsRequest) (*notifierv1.ListNotificationsResponse, error) {
	return pass(ctx, q, f.to.ListNotifications)
}

func (f *eventForwarder) GetNotification(ctx context.Context, q *notifierv1.GetNotificationRequest) (*notifierv1.GetNotificationResponse, error) {
	return pass(ctx, q, f.to.GetNotification)
}

func (f *eventForwarder) RedriveNotification(
	ctx context.Context, q *notifierv1.RedriveNotificationRequest,
) (*notifierv1.RedriveNotificationResponse, error) {
	return pass(ctx, q, f.to.RedriveNotification)
}

func (f *eventForwarder) WatchEvents(q *notifierv1.WatchEventsRequest, out grpc.ServerStreamingServer[notifierv1.WatchEventsResponse]) error {
	return relay(q, out, f.to.WatchEvents)
}

func (f *eventForwarder) AckEvent(ctx context.Context, q *notifierv1.AckEventRequest) (*notifierv1.AckEventResponse, error) {
	return pass(ctx, q, f.to.AckEvent)
}

func (f *eventForwarder) ListSinks(ctx context.Context, q *notifierv1.ListSinksRequest) (*notifierv1.ListSinksResponse, error) {
	return pass(ctx, q, f.to.ListSinks)
}

func (f *eventForwarder) ResumeSink(ctx context.Context, q *notifierv1.ResumeSinkRequest) (*notifierv1.ResumeSinkResponse, error) {
	return pass(ctx, q, f.to.ResumeSink)
}
