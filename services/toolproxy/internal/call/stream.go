package call

import (
	"cmp"
	"context"
	"runtime/debug"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/pkg/run"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

const (
	maxChunk  = 1 << 20 // bytes of an outcome in one message
	maxEvents = 64      // progress and log messages that wait for a slow reader
)

// Stream makes the call like [Caller.Call] and passes what happens to send: progress and log messages as they come, then
// the outcome in pieces. A send that blocks holds up nothing but itself: past a limit the oldest messages are dropped and
// counted. An error of send cancels the call.
func (c *Caller) Stream(ctx context.Context, r *toolproxyv1.CallToolRequest, send func(*toolproxyv1.StreamCallToolResponse) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		q        = &queue{ready: make(chan struct{}, 1)}
		done     = make(chan struct{})
		response *toolproxyv1.CallToolResponse
		callErr  error
		running  sync.WaitGroup
	)
	running.Go(func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				callErr = &run.PanicError{Value: v, Stack: debug.Stack()}
			}
		}()
		response, callErr = c.Call(ctx, r, Listener{Progress: q.progress, Log: q.log})
	})
	defer running.Wait()

	for {
		select {
		case <-q.ready:
		case <-done:
		}
		if err := q.flush(send); err != nil {
			cancel(err)
			return err
		}
		select {
		case <-done:
			if err := q.flush(send); err != nil || callErr != nil {
				return cmp.Or(callErr, err)
			}
			return sendOutcome(response, send)
		default:
		}
	}
}

func sendOutcome(r *toolproxyv1.CallToolResponse, send func(*toolproxyv1.StreamCallToolResponse) error) error {
	encoded, err := proto.Marshal(r)
	if err != nil {
		return err
	}
	for {
		n := min(len(encoded), maxChunk)
		chunk := &toolproxyv1.OutcomeChunk{Data: encoded[:n], Last: n == len(encoded)}
		if err := send(&toolproxyv1.StreamCallToolResponse{Event: &toolproxyv1.StreamCallToolResponse_Outcome{Outcome: chunk}}); err != nil {
			return err
		}
		if chunk.Last {
			return nil
		}
		encoded = encoded[n:]
	}
}

// queue holds the events that wait for the reader.
type queue struct {
	ready chan struct{} // holds one: there is something to send

	mu      sync.Mutex
	events  []*toolproxyv1.StreamCallToolResponse
	dropped int64 // since the last event that was sent
}

func (q *queue) progress(p *toolproxyv1.Progress) {
	q.put(&toolproxyv1.StreamCallToolResponse{Event: &toolproxyv1.StreamCallToolResponse_Progress{Progress: p}})
}

func (q *queue) log(m *toolproxyv1.LogMessage) {
	q.put(&toolproxyv1.StreamCallToolResponse{Event: &toolproxyv1.StreamCallToolResponse_Log{Log: m}})
}

func (q *queue) put(e *toolproxyv1.StreamCallToolResponse) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == maxEvents {
		q.events = append(q.events[:0], q.events[1:]...)
		q.dropped++
	}
	q.events = append(q.events, e)
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take removes the oldest event and tells it how many were dropped before it.
func (q *queue) take() *toolproxyv1.StreamCallToolResponse {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return nil
	}
	e := q.events[0]
	q.events = append(q.events[:0], q.events[1:]...)
	switch event := e.GetEvent().(type) {
	case *toolproxyv1.StreamCallToolResponse_Progress:
		event.Progress.Dropped = q.dropped
	case *toolproxyv1.StreamCallToolResponse_Log:
		event.Log.Dropped = q.dropped
	}
	q.dropped = 0
	return e
}

func (q *queue) flush(send func(*toolproxyv1.StreamCallToolResponse) error) error {
	for e := q.take(); e != nil; e = q.take() {
		if err := send(e); err != nil {
			return err
		}
	}
	return nil
}
