package taskworker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

type remoteSnapshot = toolproxyv1.RemoteTaskSnapshot

// asked is a call that a remote got.
type asked struct {
	kind     string // poll or cancel
	handle   string
	at       time.Time
	deadline time.Time
	ref      *toolproxyv1.RemoteTaskRef
	holdFor  time.Duration
}

// answer is what a remote does with a call. Returning neither is an acknowledgement, or a broken poll.
type answer func(ctx context.Context, a asked) (*remoteSnapshot, error)

// remote is a toolproxy in this process, whose remote tasks do what the test says. Without a word they work.
type remote struct {
	mu       sync.Mutex
	poll     map[string]answer // by handle
	cancel   map[string]answer
	log      []asked
	running  map[string]int // calls under way, by handle
	overlaps int            // calls that began while another of their task was under way
	most     int            // calls under way at once
}

func newRemote() *remote {
	return &remote{poll: map[string]answer{}, cancel: map[string]answer{}, running: map[string]int{}}
}

func (r *remote) onPoll(handle string, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.poll[handle] = a
}

func (r *remote) onCancel(handle string, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancel[handle] = a
}

// calls returns the calls of one kind for a handle so far.
func (r *remote) calls(kind, handle string) []asked {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []asked
	for _, a := range r.log {
		if a.kind == kind && a.handle == handle {
			out = append(out, a)
		}
	}
	return out
}

// awaitCalls waits until there were so many calls.
func (r *remote) awaitCalls(t testing.TB, kind, handle string, n int) []asked {
	t.Helper()
	var got []asked
	eventually(t, func() error {
		if got = r.calls(kind, handle); len(got) >= n {
			return nil
		}
		return fmt.Errorf("%d calls to %s %s, want %d", len(got), kind, handle, n)
	})
	return got
}

func (r *remote) do(ctx context.Context, a asked) (*remoteSnapshot, error) {
	a.handle, a.at = string(a.ref.GetHandle()), time.Now()
	a.deadline, _ = ctx.Deadline()
	r.mu.Lock()
	r.log = append(r.log, a)
	f := r.poll[a.handle]
	if a.kind == "cancel" {
		f = r.cancel[a.handle]
	}
	if r.running[a.handle] > 0 {
		r.overlaps++
	}
	r.running[a.handle]++
	total := 0
	for _, n := range r.running {
		total += n
	}
	r.most = max(r.most, total)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running[a.handle]--
	}()
	switch {
	case f != nil:
		return f(ctx, a)
	case a.kind == "cancel":
		return nil, nil
	default:
		return &remoteSnapshot{Status: working}, nil
	}
}

// GetRemoteTask implements the client.
func (r *remote) GetRemoteTask(ctx context.Context, q *toolproxyv1.GetRemoteTaskRequest, _ ...grpc.CallOption) (*toolproxyv1.GetRemoteTaskResponse, error) {
	s, err := r.do(ctx, asked{kind: "poll", ref: q.GetRef(), holdFor: q.GetHoldFor().AsDuration()})
	return &toolproxyv1.GetRemoteTaskResponse{Snapshot: s}, err
}

// UpdateRemoteTask implements the client.
func (r *remote) UpdateRemoteTask(ctx context.Context, q *toolproxyv1.UpdateRemoteTaskRequest, _ ...grpc.CallOption) (*toolproxyv1.UpdateRemoteTaskResponse, error) {
	s, err := r.do(ctx, asked{kind: "answer", ref: q.GetRef()})
	return &toolproxyv1.UpdateRemoteTaskResponse{Snapshot: s}, err
}

// CancelRemoteTask implements the client.
func (r *remote) CancelRemoteTask(ctx context.Context, q *toolproxyv1.CancelRemoteTaskRequest, _ ...grpc.CallOption) (*toolproxyv1.CancelRemoteTaskResponse, error) {
	s, err := r.do(ctx, asked{kind: "cancel", ref: q.GetRef()})
	return &toolproxyv1.CancelRemoteTaskResponse{Snapshot: s}, err
}

// says answers every call with the same snapshot.
func says(s *remoteSnapshot) answer {
	return func(context.Context, asked) (*remoteSnapshot, error) { return s, nil }
}

// fails answers every call with the same error.
func fails(err error) answer {
	return func(context.Context, asked) (*remoteSnapshot, error) { return nil, err }
}

// hangs answers no call before it is cancelled.
func hangs(ctx context.Context, _ asked) (*remoteSnapshot, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// inTurn answers each call with the next answer, the last one for ever.
func inTurn(answers ...answer) answer {
	var mu sync.Mutex
	return func(ctx context.Context, a asked) (*remoteSnapshot, error) {
		mu.Lock()
		f := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		mu.Unlock()
		return f(ctx, a)
	}
}

func done(result string) *remoteSnapshot {
	return &remoteSnapshot{Status: completed, ResultJson: result}
}

func busy(after time.Duration) *remoteSnapshot {
	return &remoteSnapshot{Status: working, PollAfter: durationpb.New(after)}
}
