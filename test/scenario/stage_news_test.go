package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
)

// News is what a sink was told, each time that it was told.
type News struct {
	Sink    string
	EventID string // as the sink's own envelope has it
	Body    NewsBody
	Raw     string
	Time    time.Time // of its arrival
}

// NewsBody is the part of an event that scenarios look at.
type NewsBody struct {
	EventID      string          `json:"event_id"`
	TaskID       string          `json:"task_id"`
	EventVersion int64           `json:"event_version"`
	TaskName     string          `json:"task_name"`
	Status       string          `json:"status"`
	Result       json.RawMessage `json:"result_preview"`
	Error        string          `json:"error"`
	Input        json.RawMessage `json:"input_required"`
}

func news(t testing.TB, sink, eventID, raw string, at time.Time) News {
	t.Helper()
	n := News{Sink: sink, EventID: eventID, Raw: raw, Time: at}
	if err := json.Unmarshal([]byte(raw), &n.Body); err != nil {
		t.Fatalf("sink %s was told %s: %v", sink, raw, err)
	}
	return n
}

// Told returns what the webhook and the agent runtime were told so far, in order.
func (s *Stage) Told(t testing.TB) []News {
	t.Helper()
	var all []News
	for _, r := range s.Hook.Deliveries() {
		if r.Refused != "" {
			t.Fatalf("a webhook was refused: %s", r.Refused)
		}
		var envelope struct{ Data json.RawMessage }
		if err := json.Unmarshal([]byte(r.Body), &envelope); err != nil {
			t.Fatalf("a webhook's body is %s: %v", r.Body, err)
		}
		all = append(all, news(t, hookSink, r.WebhookID, string(envelope.Data), r.Time))
	}
	for _, r := range s.Runtime.Starts() {
		// The key is the event and the dispatch attempt.
		event, attempt, ok := cutLast(r.IdempotencyKey, ":")
		if !ok || attempt == "" {
			t.Errorf("a start has the key %q", r.IdempotencyKey)
		}
		all = append(all, news(t, runtimeSink, event, r.EventJSON, r.Time))
	}
	return all
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// Follower reads a stream sink and acknowledges what it reads, over restarts of whom it reads from, until its test ends.
type Follower struct {
	mu   sync.Mutex
	news []News
}

// Told returns what it has read, in order.
func (f *Follower) Told() []News {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]News(nil), f.news...)
}

// Follow follows a stream sink as an agent with a scope, or, without one, as an operator.
func (s *Stage) Follow(t testing.TB, sink string, scope *corev1.Scope) *Follower {
	t.Helper()
	f := &Follower{}
	client := s.Events(t)
	if scope == nil {
		client = s.Notifications(t)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		group := fmt.Sprintf("%s-%s", sink, scope.GetUserId())
		for ctx.Err() == nil {
			f.follow(ctx, t, client, &notifierv1.WatchEventsRequest{Sink: sink, Group: group, Scope: scope})
			select {
			case <-time.After(100 * time.Millisecond): // it is being started again
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return f
}

// follow reads until the stream ends.
func (f *Follower) follow(ctx context.Context, t testing.TB, client notifierv1.NotifierServiceClient, request *notifierv1.WatchEventsRequest) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // or the stream would go on without a reader, and hold what it gets
	stream, err := client.WatchEvents(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		e := m.GetEvent()
		if e == nil {
			continue
		}
		n := News{Sink: request.GetSink(), EventID: e.GetEventId(), Raw: e.GetEventJson(), Time: time.Now()}
		if err := json.Unmarshal([]byte(n.Raw), &n.Body); err != nil {
			t.Errorf("sink %s was told %s: %v", n.Sink, n.Raw, err)
			return
		}
		f.mu.Lock()
		f.news = append(f.news, n)
		f.mu.Unlock()
		if _, err := client.AckEvent(ctx, &notifierv1.AckEventRequest{EventId: e.GetEventId(), Sink: request.GetSink(), Group: request.GetGroup()}); err != nil {
			return
		}
	}
}

// AwaitNews waits until told has news of a task in a state, and returns the first.
func AwaitNews(t testing.TB, told func() []News, id string, want taskStatus) News {
	t.Helper()
	var found News
	Eventually(t, fmt.Sprintf("a sink is told that task %s is %s", id, want), func() bool {
		for _, n := range told() {
			if n.Body.TaskID == id && n.Body.Status == want.String() {
				found = n
				return true
			}
		}
		return false
	})
	if e := fmt.Sprintf("%s:%d", id, found.Body.EventVersion); found.EventID != e || found.Body.EventID != "" && found.Body.EventID != e {
		t.Errorf("the event of task %s has the ids %q and %q, want %q", id, found.EventID, found.Body.EventID, e)
	}
	return found
}
