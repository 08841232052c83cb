// Package taskworker owns durable tasks: their intake, leases, polling, cancelling, answering and results.
//
// This version serves the contract only. Every RPC answers UNIMPLEMENTED and says what is missing, so that clients can
// be written against it, and no agent is told that durable tasks are available. The service keeps no state and is ready
// as soon as it runs.
//
// A taskworker never talks MCP and holds no secret: it reaches remote tasks through toolproxy alone.
package taskworker

import (
	"context"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/rpc"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// Service is a taskworker.
type Service struct{}

// New returns a taskworker. It starts nothing.
func New() *Service { return &Service{} }

// Register adds the RPCs that agents and operators may call.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	taskv1.RegisterTaskServiceServer(r, tasks{})
}

// RegisterInternal adds all RPCs, those that only toolproxy may call included.
func (s *Service) RegisterInternal(r grpc.ServiceRegistrar) {
	s.Register(r)
	taskv1.RegisterTaskIntakeServiceServer(r, intake{})
}

// Ready reports nil: this version depends on nothing.
func (s *Service) Ready(context.Context) error { return nil }

// Run returns when ctx ends.
func (s *Service) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

var errNoTasks = rpc.Unimplemented("durable tasks are not part of this version: tools are called with ToolProxyService.CallTool and answer at once")

type tasks struct {
	taskv1.UnimplementedTaskServiceServer
}

func (tasks) GetTask(context.Context, *taskv1.GetTaskRequest) (*taskv1.GetTaskResponse, error) {
	return nil, errNoTasks
}

func (tasks) GetTaskResult(*taskv1.GetTaskResultRequest, grpc.ServerStreamingServer[taskv1.GetTaskResultResponse]) error {
	return errNoTasks
}

func (tasks) ListTasks(context.Context, *taskv1.ListTasksRequest) (*taskv1.ListTasksResponse, error) {
	return nil, errNoTasks
}

func (tasks) WatchTask(*taskv1.WatchTaskRequest, grpc.ServerStreamingServer[taskv1.WatchTaskResponse]) error {
	return errNoTasks
}

func (tasks) CancelTask(context.Context, *taskv1.CancelTaskRequest) (*taskv1.CancelTaskResponse, error) {
	return nil, errNoTasks
}

func (tasks) AnswerTask(context.Context, *taskv1.AnswerTaskRequest) (*taskv1.AnswerTaskResponse, error) {
	return nil, errNoTasks
}

type intake struct {
	taskv1.UnimplementedTaskIntakeServiceServer
}

func (intake) ReserveTask(context.Context, *taskv1.ReserveTaskRequest) (*taskv1.ReserveTaskResponse, error) {
	return nil, errNoTasks
}

func (intake) RenewReservation(context.Context, *taskv1.RenewReservationRequest) (*taskv1.RenewReservationResponse, error) {
	return nil, errNoTasks
}

func (intake) CommitTask(context.Context, *taskv1.CommitTaskRequest) (*taskv1.CommitTaskResponse, error) {
	return nil, errNoTasks
}

func (intake) AbandonTask(context.Context, *taskv1.AbandonTaskRequest) (*taskv1.AbandonTaskResponse, error) {
	return nil, errNoTasks
}
