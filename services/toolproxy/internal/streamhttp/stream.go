package streamhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/services/toolproxy/internal/eventstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
)

// stream reads the events that answer a request. A stream of a legacy server that breaks is asked for again behind
// the last event, if the server numbers them.
func (p *post) stream(resp *http.Response) error {
	r := p.w.readers.Get().(*eventstream.Reader)
	defer func() {
		r.Reset(nil)
		p.w.readers.Put(r)
	}()
	again := resumption{wait: backoff.New(backoff.Config{Base: resumeBase, Cap: resumeCap, Jitter: 0.5})}
	for {
		body := p.watched(resp.Body)
		r.Reset(body)
		answered, err := p.events(r)
		if answered {
			if err != nil {
				_ = body.Close()
				return err
			}
			p.leave(body, false)
			return nil
		}
		_ = body.Close()
		if errors.Is(err, eventstream.ErrTooLarge) {
			return p.w.client.TooLarge(p.what)
		}
		if errors.Is(err, io.EOF) {
			err = errors.New("the stream ended")
		}
		again.note(r)
		if resp, err = p.resume(&again, err); err != nil { //nolint:bodyclose // the next round closes it
			return err
		}
	}
}

// events delivers until the answer, which it reports, or until the stream ends, for which it returns the reason.
func (p *post) events(r *eventstream.Reader) (answered bool, err error) {
	for {
		ev, err := r.Next()
		if err != nil {
			return false, err
		}
		if ev.Name != "message" {
			continue
		}
		if exchange.Answers(ev.Data, p.m.ID) {
			return true, p.deliver(ev.Data)
		}
		p.w.sink.DeliverFor(p.m.ID, ev.Data)
	}
}

// resumption is how often and when a broken stream is asked for again.
type resumption struct {
	lastID  string // behind which to go on
	retry   time.Duration
	wait    *backoff.Backoff
	attempt int // since the last event with a new id
}

func (a *resumption) note(r *eventstream.Reader) {
	if id := r.LastID(); id != "" && id != a.lastID {
		a.lastID = id
		a.attempt = 0
		a.wait.Reset()
	}
	if d := r.Retry(); d > 0 {
		a.retry = d
	}
}

// delay is what the server asked for, else the back-off.
func (a *resumption) delay() time.Duration {
	if a.retry > 0 {
		return min(a.retry, resumeCap)
	}
	return a.wait.Next()
}

// resume asks for the rest of a stream. cause is why it ended, and what the caller hears where there is no rest.
func (p *post) resume(a *resumption, cause error) (*http.Response, error) {
	if a.lastID == "" || p.w.state.Load().modern {
		return nil, p.w.client.Lost(p.what, cause)
	}
	for ; a.attempt < p.w.maxResumes; a.attempt++ {
		if err := backoff.Sleep(p.f.ctx, a.delay()); err != nil {
			return nil, p.w.client.Lost(p.what, err)
		}
		h := p.w.sessionHeader()
		h["Accept"] = acceptSSE
		h[exchange.LastEventIDHeader] = []string{a.lastID}
		resp, err := p.w.client.Do(p.f.ctx, &exchange.Request{Method: http.MethodGet, What: p.what, Protocol: h})
		if err != nil {
			cause = err
			continue
		}
		if resp.StatusCode == http.StatusOK && exchange.MediaType(resp) == "text/event-stream" {
			a.attempt++ // until an event moves on, this was one
			return resp, nil
		}
		_ = resp.Body.Close()
		cause = fmt.Errorf("the rest of the stream was refused with HTTP %d", resp.StatusCode)
		if resp.StatusCode < http.StatusInternalServerError && resp.StatusCode != http.StatusTooManyRequests {
			break
		}
	}
	return nil, p.w.client.Lost(p.what, cause)
}

// watched ends the exchange when nothing comes for too long, if there is such a limit.
func (p *post) watched(body io.ReadCloser) io.ReadCloser {
	if p.w.eventIdle <= 0 {
		return body
	}
	return &watched{
		ReadCloser: body,
		limit:      p.w.eventIdle,
		timer:      time.AfterFunc(p.w.eventIdle, func() { p.f.cancel(errIdle) }),
	}
}

type watched struct {
	io.ReadCloser
	limit time.Duration
	timer *time.Timer
}

func (b *watched) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.timer.Reset(b.limit)
	}
	return n, err
}

func (b *watched) Close() error {
	b.timer.Stop()
	return b.ReadCloser.Close()
}

// listen keeps the stream on which the server sends what belongs to no call.
func (w *Wire) listen(ctx context.Context) {
	select {
	case <-w.opened:
	case <-ctx.Done():
		return
	}
	log := w.client.Log().With("server", w.client.Server())
	r := eventstream.NewReader(nil, w.client.MaxMessageBytes())
	wait := backoff.New(backoff.Config{Base: listenBase, Cap: listenCap, Jitter: 0.5})
	var lastID string
	for {
		end := w.listenOnce(ctx, r, &lastID)
		if ctx.Err() != nil {
			return
		}
		if end.forGood {
			log.DebugContext(ctx, "server offers no standing stream", "err", end.err)
			return
		}
		if end.advanced {
			wait.Reset()
		}
		delay := max(wait.Next(), min(r.Retry(), listenCap))
		log.DebugContext(ctx, "standing stream ended", "err", end.err, "next_in", delay)
		if backoff.Sleep(ctx, delay) != nil {
			return
		}
	}
}

const (
	listenBase = time.Second
	listenCap  = 30 * time.Second
)

// streamEnd says how a standing stream ended.
type streamEnd struct {
	err      error
	advanced bool // a message or a new event id came
	forGood  bool // another try would not do better
}

// listenOnce opens the standing stream and delivers what comes until it ends.
func (w *Wire) listenOnce(ctx context.Context, r *eventstream.Reader, lastID *string) (end streamEnd) {
	h := w.sessionHeader()
	h["Accept"] = acceptSSE
	if *lastID != "" {
		h[exchange.LastEventIDHeader] = []string{*lastID}
	}
	resp, err := w.client.Do(ctx, &exchange.Request{Method: http.MethodGet, What: "the standing stream", Protocol: h, Own: true})
	if err != nil {
		return streamEnd{err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || exchange.MediaType(resp) != "text/event-stream" {
		return streamEnd{err: fmt.Errorf("HTTP %d, content type %q", resp.StatusCode, resp.Header.Get("Content-Type")), forGood: !worthRetrying(resp.StatusCode)}
	}
	r.Reset(resp.Body)
	advanced, err := exchange.Receive(w.client, r, w.sink.Deliver, w.sink.Drop)
	if id := r.LastID(); id != "" && id != *lastID {
		*lastID = id
		advanced = true
	}
	return streamEnd{err: err, advanced: advanced}
}

// worthRetrying reports whether a standing stream that was refused with this status may be offered later: a login
// may be renewed and a load may pass, but a server without such a stream (405 by the protocol, other codes in
// practice) will not grow one.
func worthRetrying(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return status >= http.StatusInternalServerError && status != http.StatusNotImplemented
}
