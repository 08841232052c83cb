package notifier

import (
	"cmp"
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

const (
	// watchPoll bounds how long a stream goes without a look, for hints that were lost.
	watchPoll = 2 * time.Second
	// watchBatch is how many events a reader has at once without having acknowledged one.
	watchBatch = 32
	maxGroup   = 128 // bytes of a group's name
	// releaseTimeout bounds the last statement of a stream, during a shutdown too.
	releaseTimeout = 2 * time.Second
)

// WatchEvents sends the events of a stream sink that the group has not acknowledged, and then those that come.
func (r *server) WatchEvents(req *notifierv1.WatchEventsRequest, stream grpc.ServerStreamingServer[notifierv1.WatchEventsResponse]) error {
	ctx := stream.Context()
	w, err := r.watcher(ctx, req)
	if err != nil {
		return err
	}
	hints, stop := r.s.bus.Subscribe(notification.TopicDue)
	defer stop()
	defer r.release(ctx, w)
	silence := time.NewTimer(r.s.config.Heartbeat)
	defer silence.Stop()
	for {
		events, err := r.s.store.Next(ctx, w.request)
		if err != nil {
			return storeFault(err)
		}
		for _, e := range events {
			if err := stream.Send(w.message(e)); err != nil {
				return err
			}
		}
		if len(events) > 0 {
			silence.Reset(r.s.config.Heartbeat)
		}
		if len(events) == w.request.Limit {
			continue
		}
		poll := time.NewTimer(min(watchPoll, r.s.config.StreamLease))
		select {
		case <-ctx.Done():
		case <-rpc.Draining(ctx):
		case <-hints:
		case <-poll.C:
		case <-silence.C:
			silence.Reset(r.s.config.Heartbeat)
			err = stream.Send(&notifierv1.WatchEventsResponse{ResumeToken: w.token()})
		}
		poll.Stop()
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case isClosed(rpc.Draining(ctx)):
			return nil
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// watcher is a reader of a stream sink.
type watcher struct {
	request notification.StreamRequest
	place   token // without After
	highest int64 // sequence number seen
}

// release gives up what a reader that leaves has read and not acknowledged, so that the next one need not wait for it.
func (r *server) release(ctx context.Context, w *watcher) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	n, err := r.s.store.Release(ctx, w.request.Sink, w.request.Group, w.request.Consumer)
	if err != nil {
		r.s.log.DebugContext(ctx, "leases of a reader run out by themselves", "err", err)
	}
	if n > 0 {
		r.s.due(ctx)
	}
}

// watcher checks who asks for what.
func (r *server) watcher(ctx context.Context, req *notifierv1.WatchEventsRequest) (*watcher, error) {
	caller, ok := authn.Acting(ctx)
	if !ok {
		return nil, fault.Of(fault.Unauthenticated, "the caller is not known")
	}
	sink, err := r.s.sinks.stream(req.GetSink(), caller)
	if err != nil {
		return nil, err
	}
	scope, err := watchScope(caller, req.GetScope())
	if err != nil {
		return nil, err
	}
	group, err := groupOf(req.GetGroup(), caller)
	if err != nil {
		return nil, err
	}
	w := &watcher{
		request: notification.StreamRequest{
			Sink: sink.name, Group: group, Consumer: rand.Text(), Scope: scope, Limit: watchBatch, Lease: r.s.config.StreamLease,
		},
		place: token{List: "events", Filter: []string{sink.name, group, scope.UserID, scope.ThreadID}},
	}
	from, err := after("resume_token", req.GetResumeToken(), w.place)
	if err != nil || from == "" {
		return w, err
	}
	w.highest, err = strconv.ParseInt(from, 10, 64)
	if err != nil || w.highest < 0 {
		return nil, invalid("resume_token", "is not one that was given out here: begin without it")
	}
	w.request.After = w.highest
	return w, nil
}

// message is what is sent for an event.
func (w *watcher) message(e notification.StreamEvent) *notifierv1.WatchEventsResponse {
	w.highest = max(w.highest, e.Sequence)
	return &notifierv1.WatchEventsResponse{
		Event: &notifierv1.Event{
			EventId: e.Event.ID, TaskId: e.Event.TaskID, EventVersion: e.Event.Version, EventJson: string(e.Event.Body),
			CreateTime: timeMessage(e.Event.Created),
		},
		ResumeToken: w.token(),
	}
}

func (w *watcher) token() string {
	t := w.place
	t.After = strconv.FormatInt(w.highest, 10)
	return t.String()
}

// isOperator reports whether a caller may see everybody's events. A toolproxy that names nobody is no operator: what it asks
// for is for some agent.
func isOperator(caller authn.Principal) bool {
	return caller.Has(authn.Operator) && !caller.Has(authn.Toolproxy)
}

// watchScope returns whose events a caller gets: its own scope, which it has to name, or any for an operator. Zero parts of
// the result choose all.
func watchScope(caller authn.Principal, asked *corev1.Scope) (authn.Scope, error) {
	operator := isOperator(caller)
	if asked == nil && !operator {
		return authn.Scope{}, invalid("scope", "is missing: say whose events, by user_id and thread_id; only operators may leave it out")
	}
	want := authn.Scope{UserID: asked.GetUserId(), ThreadID: asked.GetThreadId()}
	scope, err := caller.Resolve(want)
	if operator && !fault.Is(err, fault.InvalidArguments) {
		return want, nil
	}
	return scope, err
}

func groupOf(asked string, caller authn.Principal) (string, error) {
	group := cmp.Or(asked, caller.Name)
	if len(group) > maxGroup || !utf8.ValidString(group) || strings.ContainsFunc(group, unicode.IsControl) {
		return "", invalid("group", "must be text of at most 128 bytes without control characters")
	}
	return group, nil
}

// AckEvent marks an event as delivered for a group.
func (r *server) AckEvent(ctx context.Context, req *notifierv1.AckEventRequest) (*notifierv1.AckEventResponse, error) {
	caller, ok := authn.Acting(ctx)
	if !ok {
		return nil, fault.Of(fault.Unauthenticated, "the caller is not known")
	}
	if req.GetEventId() == "" {
		return nil, invalid("event_id", "is missing")
	}
	sink, err := r.s.sinks.stream(req.GetSink(), caller)
	if err != nil {
		return nil, err
	}
	group, err := groupOf(req.GetGroup(), caller)
	if err != nil {
		return nil, err
	}
	if err := r.s.store.Ack(ctx, sink.name, group, req.GetEventId(), ackScope(caller)); err != nil {
		return nil, storeFault(err)
	}
	return &notifierv1.AckEventResponse{}, nil
}

// ackScope returns whose events a caller may acknowledge: those of the users that it speaks for. Zero parts are any.
func ackScope(caller authn.Principal) authn.Scope {
	if isOperator(caller) || caller.ActsForAny() {
		return authn.Scope{}
	}
	return authn.Scope{UserID: cmp.Or(caller.UserID, authn.DefaultID)}
}

func notAStream(p place) error {
	return fault.New(fault.SinkUnknown, "sink %q is of type %s and is not read: name one of type stream, or leave it out for the built-in one", p.name, p.kind).
		With("sink", p.name)
}

func notAllowed(p place, caller authn.Principal) error {
	return fault.New(fault.Forbidden, "sink %q is not for caller %q: its allowed_roles in toolherd.yaml say for whom", p.name, caller.Name).
		With("sink", p.name)
}

func scopeMessage(s authn.Scope) *corev1.Scope {
	return &corev1.Scope{UserId: s.UserID, ThreadId: s.ThreadID}
}

func timeMessage(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
