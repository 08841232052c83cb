package call

import (
	"cmp"
	"context"
	"runtime/debug"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/pkg/run"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

const (
	maxChunk      = 1 << 20 // bytes of an outcome, or of a progress or log message, in one message
	maxEvents     = 64      // progress and log messages that wait for a slow reader
	maxEventBytes = 4 << 20 // of them in all
)

// Stream makes the call like [Caller.Call] and passes what happens to send: progress and log messages as they come, then
// the outcome in pieces. A send that blocks holds up nothing but itself: past a limit the oldest messages are dropped and
// counted, and so is one that is too large by itself. An error of send cancels the call.
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
		response, callErr = c.Call(ctx, r, Listener{Progress: q.progress, Log: q.log, Dropped: q.drop})
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
	events  []event
	bytes   int   // of events
	dropped int64 // since the last event that was sent
}

type event struct {
	*toolproxyv1.StreamCallToolResponse

	size int // in bytes
}

func (q *queue) progress(p *toolproxyv1.Progress) {
	q.put(&toolproxyv1.StreamCallToolResponse{Event: &toolproxyv1.StreamCallToolResponse_Progress{Progress: p}})
}

func (q *queue) log(m *toolproxyv1.LogMessage) {
	q.put(&toolproxyv1.StreamCallToolResponse{Event: &toolproxyv1.StreamCallToolResponse_Log{Log: m}})
}

func (q *queue) put(r *toolproxyv1.StreamCallToolResponse) {
	e := event{r, proto.Size(r)}
	q.mu.Lock()
	defer q.mu.Unlock()
	if e.size > maxChunk {
		q.dropped++
		return
	}
	for len(q.events) == maxEvents || q.bytes+e.size > maxEventBytes {
		q.pop()
		q.dropped++
	}
	q.events = append(q.events, e)
	q.bytes += e.size
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// pop removes the oldest event. The caller holds the lock.
func (q *queue) pop() *toolproxyv1.StreamCallToolResponse {
	e := q.events[0]
	q.events = slices.Delete(q.events, 0, 1)
	q.bytes -= e.size
	return e.StreamCallToolResponse
}

// drop counts a message that never came this far.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropped++
}

// take removes the oldest event and tells it how many were dropped before it.
func (q *queue) take() *toolproxyv1.StreamCallToolResponse {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return nil
	}
	e := q.pop()
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
