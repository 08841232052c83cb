// Package notifier owns the delivery of task events: back-off, dead letter, redrive.
//
// This version serves the contract only. Every RPC answers UNIMPLEMENTED and says what is missing; there are no tasks yet
// whose events it could deliver. The service keeps no state and is ready as soon as it runs.
//
// A notifier never reads a task table: events reach it through the outbox.
package notifier

import (
	"context"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/rpc"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
)

// Service is a notifier.
type Service struct{}

// New returns a notifier. It starts nothing.
func New() *Service { return &Service{} }

// Register adds its RPCs.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	notifierv1.RegisterNotifierServiceServer(r, notifications{})
}

// Ready reports nil: this version depends on nothing.
func (s *Service) Ready(context.Context) error { return nil }

// Run returns when ctx ends.
func (s *Service) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

var errNoEvents = rpc.Unimplemented("task events are not part of this version: there are no durable tasks yet")

type notifications struct {
	notifierv1.UnimplementedNotifierServiceServer
}

func (notifications) ListNotifications(context.Context, *notifierv1.ListNotificationsRequest) (*notifierv1.ListNotificationsResponse, error) {
	return nil, errNoEvents
}

func (notifications) GetNotification(context.Context, *notifierv1.GetNotificationRequest) (*notifierv1.GetNotificationResponse, error) {
	return nil, errNoEvents
}

func (notifications) RedriveNotification(context.Context, *notifierv1.RedriveNotificationRequest) (*notifierv1.RedriveNotificationResponse, error) {
	return nil, errNoEvents
}

func (notifications) WatchEvents(*notifierv1.WatchEventsRequest, grpc.ServerStreamingServer[notifierv1.WatchEventsResponse]) error {
	return errNoEvents
}

func (notifications) AckEvent(context.Context, *notifierv1.AckEventRequest) (*notifierv1.AckEventResponse, error) {
	return nil, errNoEvents
}

func (notifications) ListSinks(context.Context, *notifierv1.ListSinksRequest) (*notifierv1.ListSinksResponse, error) {
	return nil, errNoEvents
}

func (notifications) ResumeSink(context.Context, *notifierv1.ResumeSinkRequest) (*notifierv1.ResumeSinkResponse, error) {
	return nil, errNoEvents
}
