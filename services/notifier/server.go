package notifier

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

// server serves NotifierService.
type server struct {
	notifierv1.UnsafeNotifierServiceServer
	s *Service
}

// storeFault returns what a caller is told of an error of the store.
func storeFault(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fault.New(fault.NotReady, "the notifier's database does not answer: try again, and see the notifier's log").Because(err)
}

// ListNotifications lists deliveries, newest first.
func (r *server) ListNotifications(ctx context.Context, req *notifierv1.ListNotificationsRequest) (*notifierv1.ListNotificationsResponse, error) {
	size, err := pageSize(req.GetPageSize(), 50)
	if err != nil {
		return nil, err
	}
	statuses, err := statuses("statuses", req.GetStatuses())
	if err != nil {
		return nil, err
	}
	here := token{List: "notifications", Filter: []string{req.GetSink(), req.GetTaskId()}}
	for _, s := range statuses {
		here.Filter = append(here.Filter, string(s))
	}
	from, err := after("page_token", req.GetPageToken(), here)
	if err != nil {
		return nil, err
	}
	page, err := r.s.store.List(ctx, notification.Filter{
		Statuses: statuses, Sink: req.GetSink(), TaskID: req.GetTaskId(), Limit: size, After: from,
	})
	if err != nil {
		return nil, storeFault(err)
	}
	out := &notifierv1.ListNotificationsResponse{}
	for _, n := range page.Notifications {
		out.Notifications = append(out.Notifications, notificationMessage(n))
	}
	if page.Next != "" {
		here.After = page.Next
		out.NextPageToken = here.String()
	}
	return out, nil
}

// GetNotification returns one delivery with its attempts.
func (r *server) GetNotification(ctx context.Context, req *notifierv1.GetNotificationRequest) (*notifierv1.GetNotificationResponse, error) {
	if req.GetNotificationId() == "" {
		return nil, invalid("notification_id", "is missing")
	}
	n, err := r.s.store.Get(ctx, req.GetNotificationId())
	if err != nil {
		return nil, storeFault(err)
	}
	return &notifierv1.GetNotificationResponse{Notification: notificationMessage(n)}, nil
}

// RedriveNotification makes deliveries due again, in the caller's name.
func (r *server) RedriveNotification(ctx context.Context, req *notifierv1.RedriveNotificationRequest) (*notifierv1.RedriveNotificationResponse, error) {
	caller, _ := authn.Acting(ctx)
	redrive := notification.Redrive{Actor: caller.Name, DryRun: req.GetDryRun()}
	switch target := req.GetTarget().(type) {
	case *notifierv1.RedriveNotificationRequest_NotificationId:
		if target.NotificationId == "" {
			return nil, invalid("notification_id", "is empty: name a notification, or give a filter")
		}
		n, err := r.s.store.Get(ctx, target.NotificationId)
		if err != nil {
			return nil, storeFault(err)
		}
		if _, err := r.s.sinks.find(n.Sink); err != nil {
			return nil, err
		}
		redrive.ID = target.NotificationId
	case *notifierv1.RedriveNotificationRequest_Filter:
		f := target.Filter
		states, err := statuses("filter.statuses", f.GetStatuses())
		if err != nil {
			return nil, err
		}
		if len(states) == 0 {
			states = []notification.Status{notification.DeadLetter}
		}
		if f.GetSink() != "" {
			if _, err := r.s.sinks.find(f.GetSink()); err != nil {
				return nil, err
			}
		}
		redrive.Filter = notification.Filter{Statuses: states, Sink: f.GetSink()}
		if since := f.GetSinceTime(); since != nil {
			if !since.IsValid() {
				return nil, invalid("filter.since_time", "is not a time")
			}
			redrive.Filter.Since = since.AsTime()
		}
	default:
		return nil, invalid("target", "is missing: give notification_id or filter")
	}
	count, err := r.redrive(ctx, redrive)
	if err != nil {
		return nil, err
	}
	return &notifierv1.RedriveNotificationResponse{Count: count}, nil
}

func (r *server) redrive(ctx context.Context, redrive notification.Redrive) (int64, error) {
	count, err := r.s.store.Redrive(ctx, redrive)
	if count > 0 && !redrive.DryRun {
		r.s.log.InfoContext(ctx, "redriven", "actor", redrive.Actor, "count", count, "notification_id", redrive.ID, "sink", redrive.Filter.Sink)
		r.s.due(ctx)
	}
	if err != nil {
		return count, storeFault(err)
	}
	return count, nil
}

// ListSinks lists the configured sinks, by name.
func (r *server) ListSinks(ctx context.Context, req *notifierv1.ListSinksRequest) (*notifierv1.ListSinksResponse, error) {
	size, err := pageSize(req.GetPageSize(), 100)
	if err != nil {
		return nil, err
	}
	here := token{List: "sinks"}
	from, err := after("page_token", req.GetPageToken(), here)
	if err != nil {
		return nil, err
	}
	rest := r.s.sinks.places
	if from != "" {
		i, found := slices.BinarySearchFunc(rest, from, func(p place, name string) int { return cmp.Compare(p.name, name) })
		if found {
			i++
		}
		rest = rest[i:]
	}
	out := &notifierv1.ListSinksResponse{}
	if len(rest) > size {
		rest = rest[:size]
		here.After = rest[size-1].name
		out.NextPageToken = here.String()
	}
	if out.Sinks, err = r.describe(ctx, rest); err != nil {
		return nil, err
	}
	return out, nil
}

func (r *server) describe(ctx context.Context, places []place) ([]*notifierv1.Sink, error) {
	names := make([]string, len(places))
	for i, p := range places {
		names[i] = p.name
	}
	states, err := r.s.store.SinkStates(ctx, names)
	if err != nil {
		return nil, storeFault(err)
	}
	out := make([]*notifierv1.Sink, len(places))
	for i, p := range places {
		s := states[p.name]
		out[i] = &notifierv1.Sink{
			Name: p.name, Type: p.kind, Paused: s.Paused, PauseReason: s.PauseReason, PendingCount: s.Pending, DeadLetterCount: s.DeadLetters,
		}
	}
	return out, nil
}

// ResumeSink takes up a paused sink again, and delivers again what was recorded since a time.
func (r *server) ResumeSink(ctx context.Context, req *notifierv1.ResumeSinkRequest) (*notifierv1.ResumeSinkResponse, error) {
	p, err := r.s.sinks.find(req.GetName())
	if err != nil {
		return nil, err
	}
	since := req.GetSinceTime()
	if since != nil && !since.IsValid() {
		return nil, invalid("since_time", "is not a time")
	}
	if err := r.s.store.SetPaused(ctx, p.name, false, ""); err != nil {
		return nil, storeFault(err)
	}
	caller, _ := authn.Acting(ctx)
	r.s.log.InfoContext(ctx, "sink is resumed", "actor", caller.Name, "sink", p.name)
	if since != nil {
		again := notification.Redrive{Actor: caller.Name, Filter: notification.Filter{Sink: p.name, Since: since.AsTime()}}
		if _, err := r.redrive(ctx, again); err != nil {
			return nil, err
		}
	}
	r.s.due(ctx)
	described, err := r.describe(ctx, []place{p})
	if err != nil {
		return nil, err
	}
	return &notifierv1.ResumeSinkResponse{Sink: described[0]}, nil
}

var statusMessages = map[notifierv1.NotificationStatus]notification.Status{
	notifierv1.NotificationStatus_NOTIFICATION_STATUS_PENDING:     notification.Pending,
	notifierv1.NotificationStatus_NOTIFICATION_STATUS_CLAIMED:     notification.Claimed,
	notifierv1.NotificationStatus_NOTIFICATION_STATUS_DISPATCHED:  notification.Dispatched,
	notifierv1.NotificationStatus_NOTIFICATION_STATUS_RETRY:       notification.Retry,
	notifierv1.NotificationStatus_NOTIFICATION_STATUS_DELIVERED:   notification.Delivered,
	notifierv1.NotificationStatus_NOTIFICATION_STATUS_DEAD_LETTER: notification.DeadLetter,
}

// statuses returns the states of a request, in order and each once.
func statuses(field string, asked []notifierv1.NotificationStatus) ([]notification.Status, error) {
	var out []notification.Status
	for _, a := range asked {
		s, ok := statusMessages[a]
		if !ok {
			return nil, invalid(field, "has "+a.String()+", which is not a state")
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func statusMessage(s notification.Status) notifierv1.NotificationStatus {
	for message, status := range statusMessages {
		if status == s {
			return message
		}
	}
	return notifierv1.NotificationStatus_NOTIFICATION_STATUS_UNSPECIFIED
}

func notificationMessage(n *notification.Notification) *notifierv1.Notification {
	m := &notifierv1.Notification{
		NotificationId: n.ID, EventId: n.EventID, TaskId: n.TaskID, EventVersion: n.EventVersion, WaitingEventVersion: n.WaitingVersion,
		Sink: n.Sink, Status: statusMessage(n.Status), AttemptCount: int32(n.AttemptCount), LastError: n.LastError,
		NextAttemptTime: timeMessage(n.NextAttempt), CreateTime: timeMessage(n.Created), DeliverTime: timeMessage(n.Delivered),
		RedriveTime: timeMessage(n.RedriveTime), RedriveActor: n.RedriveActor,
		Scope: scopeMessage(n.Scope),
	}
	for _, a := range n.Attempts {
		m.Attempts = append(m.Attempts, &notifierv1.DeliveryAttempt{
			Time: timeMessage(a.Time), Outcome: a.Outcome, Status: a.Status, Excerpt: a.Excerpt, EventVersion: a.EventVersion,
		})
	}
	return m
}
