package streamhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// Header values that never change; they are shared and must not be written to.
var (
	typeJSON   = []string{"application/json"}
	acceptBoth = []string{"application/json, text/event-stream"}
	acceptSSE  = []string{"text/event-stream"}
)

// Send posts one message and, if it is a request, delivers what the server says to it until the answer is among it.
// An error concerns this message alone; [exchange.NotRun] says whether it may be repeated.
func (w *Wire) Send(ctx context.Context, msg []byte) error {
	m, err := jsonrpc.Parse(msg)
	if err != nil {
		return fmt.Errorf("send: %w", errors.Join(err, link.ErrNotSent))
	}
	f, err := w.begin(ctx)
	if err != nil {
		return err
	}
	p := post{w: w, f: f, m: &m, what: m.Method}
	if m.Method == "" {
		p.what = "an answer"
	}
	err = p.run(msg)
	if !p.drained {
		w.end(f)
	}
	return p.explain(ctx, err)
}

// post is one message on its way.
type post struct {
	w    *Wire
	f    *flight
	m    *jsonrpc.Message
	what string // for error messages

	sessionID string // that the answer to initialize brought
	drained   bool   // the flight was handed to a goroutine that reads the rest of its stream
}

func (p *post) run(msg []byte) error {
	r := &exchange.Request{Method: http.MethodPost, What: p.what, Protocol: p.w.messageHeader(p.m), Body: msg}
	r.InSession = r.Protocol[exchange.SessionIDHeader] != nil
	resp, err := p.w.client.Do(p.f.ctx, r)
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		answer, err := p.w.client.Refusal(p.m, r, resp)
		if err != nil {
			return err
		}
		return p.deliver(answer)
	}
	if p.m.Kind != jsonrpc.Request {
		p.w.accepted(p.m)
		p.leave(resp.Body, resp.ContentLength == 0)
		return nil
	}
	if p.m.Method == "initialize" {
		if p.sessionID = resp.Header.Get(exchange.SessionIDHeader); !visible(p.sessionID) {
			p.leave(resp.Body, true)
			return p.w.client.BrokeProtocol(p.what, "a session id that is too long or not visible ASCII")
		}
	}
	switch t := exchange.MediaType(resp); {
	case resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent:
		p.leave(resp.Body, true)
		return p.w.client.BrokeProtocol(p.what, "HTTP %d, which promises no answer", resp.StatusCode)
	case t == "text/event-stream":
		return p.stream(resp)
	case t == "application/json":
		return p.json(resp)
	default:
		p.leave(resp.Body, true)
		return p.w.client.BrokeProtocol(p.what, "content type %q; application/json or text/event-stream is expected", resp.Header.Get("Content-Type"))
	}
}

func visible(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return len(id) <= 1024
}

// json takes an answer that is a whole body.
func (p *post) json(resp *http.Response) error {
	body, err := p.w.client.Body(p.what, resp)
	_ = resp.Body.Close()
	if err != nil {
		return err
	}
	body = bytes.TrimSpace(body)
	if !exchange.Answers(body, p.m.ID) {
		if len(body) == 0 {
			return p.w.client.BrokeProtocol(p.what, "an empty body")
		}
		return p.w.client.BrokeProtocol(p.what, "a body that is not the JSON-RPC answer to it")
	}
	return p.deliver(body)
}

// deliver passes on the answer.
func (p *post) deliver(answer []byte) error {
	s := p.w.state.Load()
	if s.sessionID != "" && len(answer) < 4096 && bytes.Contains(answer, []byte("-32001")) {
		if err := p.w.client.LostInBand(p.what, answer); err != nil {
			return err
		}
	}
	if p.m.Method == "initialize" {
		// Before the answer is passed on: the next message may be sent by whoever gets it.
		p.w.settle(answer, p.sessionID)
	}
	p.w.sink.DeliverFor(p.m.ID, answer)
	return nil
}

// leave gives up the rest of a body: closes it, or reads it on a goroutine of the wire so that its connection can
// be used again. The caller's context no longer matters for that.
func (p *post) leave(body io.ReadCloser, empty bool) {
	w := p.w
	if empty || !w.mayDrain() {
		_ = body.Close()
		return
	}
	p.f.detach()
	p.drained = true
	w.running.Go(func() {
		timer := time.AfterFunc(drainTimeout, func() { p.f.cancel(errIdle) })
		exchange.Drain(body)
		timer.Stop()
		w.mu.Lock()
		w.drains--
		w.mu.Unlock()
		w.end(p.f)
	})
}

func (w *Wire) mayDrain() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.drains >= maxDrains {
		return false
	}
	w.drains++
	return true
}

// explain says why a message failed whose exchange was cut from this side.
func (p *post) explain(ctx context.Context, err error) error {
	if err == nil || p.f.ctx.Err() == nil || p.drained {
		return err
	}
	if r := fault.ReasonOf(err); r != "" && r != fault.SessionClosed || errors.Is(err, ErrSessionLost) {
		return err // it had an outcome before
	}
	switch cause := context.Cause(p.f.ctx); {
	case errors.Is(cause, errIdle):
		return p.w.client.Lost(p.what, errIdle)
	case errors.Is(cause, errClosed):
		return p.w.client.Lost(p.what, errors.New("the session was closed"))
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", p.what, ctx.Err())
	default:
		return err
	}
}

// messageHeader returns the protocol's headers for a message.
func (w *Wire) messageHeader(m *jsonrpc.Message) http.Header {
	s := w.state.Load()
	if m.Method == "initialize" {
		// It opens a session, so it belongs to none; what server/discover left does not count either.
		s = &state{}
		w.state.Store(s)
	} else if m.Kind == jsonrpc.Request && s.version == "" {
		if v := exchange.ModernVersion(m); v != "" {
			s = &state{modern: true, version: v}
			w.state.Store(s)
		}
	}
	h := w.header(s)
	h["Content-Type"] = typeJSON
	h["Accept"] = acceptBoth
	if s.modern {
		version := s.version
		if v := exchange.ModernVersion(m); v != "" {
			version = v
		}
		exchange.Mirror(h, m, version)
	}
	return h
}

// sessionHeader returns the protocol's headers for requests that are no message.
func (w *Wire) sessionHeader() http.Header { return w.header(w.state.Load()) }

func (w *Wire) header(s *state) http.Header {
	h := make(http.Header, 6)
	if s.version != "" {
		h[exchange.ProtocolVersionHeader] = []string{s.version}
	}
	if s.sessionID != "" {
		h[exchange.SessionIDHeader] = []string{s.sessionID}
	}
	return h
}

// settle takes what the answer to initialize agreed on.
func (w *Wire) settle(answer []byte, sessionID string) {
	m, err := jsonrpc.Parse(answer)
	if err != nil || m.Kind != jsonrpc.Response {
		return
	}
	version, _ := jsonrpc.String(jsonrpc.Member(m.Result, "protocolVersion"))
	if !visible(version) {
		version = ""
	}
	w.state.Store(&state{version: version, sessionID: sessionID})
}

// accepted notes that the server took a message that has no answer.
func (w *Wire) accepted(m *jsonrpc.Message) {
	if m.Method == "notifications/initialized" && !w.state.Load().modern {
		w.once.Do(func() { close(w.opened) })
	}
}
