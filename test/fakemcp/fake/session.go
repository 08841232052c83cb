package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/toolherd/toolherd/test/rawrpc"
)

const toolsChanged = "notifications/tools/list_changed"

// Session is one client's conversation: a pair of stdio streams or an HTTP session.
type Session struct {
	srv *Server
	id  string // "" over stdio

	mu        sync.Mutex
	protocol  string // agreed on by initialize
	ready     bool   // notifications/initialized came
	client    json.RawMessage
	counter   int64
	running   map[string]*call
	listeners map[string]func() error // subscriptions/listen streams by request id
	push      func([]byte) error      // for messages that belong to no request; nil without a stream
	asked     int64
	asks      map[string]chan rawrpc.Message
	ended     chan struct{}
}

// Incoming says how a message came and where what belongs to it goes.
type Incoming struct {
	// Send writes a message that belongs to the request. It is safe for concurrent use.
	Send func([]byte) error
	// Header has the HTTP headers of the request, nil over stdio.
	Header http.Header
	// Alone marks a request without a session, which may skip initialize.
	Alone bool
	// HangUp says that the request is cancelled when ctx ends, as in 2026-07-28 over HTTP.
	HangUp bool
}

// Open starts a session whose messages without a request go to push. End it with [Session.Close].
func (s *Server) Open(push func([]byte) error) *Session {
	ses := &Session{
		srv: s, push: push, running: map[string]*call{}, listeners: map[string]func() error{},
		asks: map[string]chan rawrpc.Message{}, ended: make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	s.sessions[fmt.Sprintf("local-%d", s.serial)] = ses
	return ses
}

// Close cancels what the session still runs.
func (ses *Session) Close() {
	ses.srv.mu.Lock()
	maps.DeleteFunc(ses.srv.sessions, func(_ string, other *Session) bool { return other == ses })
	if ses.version() != "" {
		ses.srv.stats.SessionsClosed++
	}
	ses.srv.mu.Unlock()
	ses.end()
}

func (ses *Session) end() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	select {
	case <-ses.ended:
	default:
		close(ses.ended)
	}
	for _, c := range ses.running {
		c.cancel(errEnded)
	}
}

// Handle takes one message of the client. It blocks until a request is answered and returns the
// response, or nil when there is none: for a notification, a response and a cancelled request.
func (ses *Session) Handle(ctx context.Context, m rawrpc.Message, in *Incoming) []byte {
	return ses.handle(ctx, m, in, func() {})
}

// handle is Handle; it calls begun once a cancel would find the request.
func (ses *Session) handle(ctx context.Context, m rawrpc.Message, in *Incoming, begun func()) []byte {
	switch {
	case m.IsResponse():
		ses.answered(m)
		return nil
	case !m.IsRequest():
		ses.notified(m)
		return nil
	}
	connection := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &call{srv: ses.srv, ses: ses, msg: m, params: rawrpc.Members(m.Params), in: in, cancel: cancel}
	if m.Method == "tools/call" {
		c.args = c.params["arguments"]
		if err := json.Unmarshal(c.params["name"], &c.tool); err != nil {
			c.tool = "" // answered as an unknown tool
		}
	}
	ok := ses.begin(c)
	begun()
	if !ok {
		return rawrpc.Failure(m.ID, rawrpc.Errorf(rawrpc.CodeInvalidRequest, "id %s is in use, or the session has ended", m.ID))
	}
	defer ses.finish(c)
	response := c.answer(ctx)
	if in.HangUp && connection.Err() != nil {
		ses.srv.cancelled(c, "", "disconnect")
	}
	return response
}

// begin registers a request; it fails for an id that is in use.
func (ses *Session) begin(c *call) bool {
	id := string(c.msg.ID)
	ses.srv.mu.Lock()
	closed := ses.srv.closed
	ses.srv.stats.Requests[c.msg.Method]++
	if c.tool != "" {
		ses.srv.stats.Calls[c.tool]++
	}
	if !closed {
		ses.srv.calls.Add(1)
		ses.srv.stats.InFlight++
	}
	ses.srv.mu.Unlock()
	if closed {
		return false
	}
	ses.mu.Lock()
	_, used := ses.running[id]
	if !used {
		ses.running[id] = c
	}
	select {
	case <-ses.ended:
		c.cancel(errEnded)
	default:
	}
	ses.mu.Unlock()
	if used {
		ses.srv.violated("id %s is used twice at a time", id)
		ses.srv.count(func(s *Stats) { s.InFlight-- })
		ses.srv.calls.Done()
	}
	return !used
}

func (ses *Session) finish(c *call) {
	ses.mu.Lock()
	delete(ses.running, string(c.msg.ID))
	ses.mu.Unlock()
	ses.srv.count(func(s *Stats) { s.InFlight-- })
	ses.srv.calls.Done()
}

func (ses *Session) notified(m rawrpc.Message) {
	ses.srv.count(func(s *Stats) { s.Notifications[m.Method]++ })
	switch m.Method {
	case "notifications/initialized":
		ses.mu.Lock()
		ses.ready = true
		ses.mu.Unlock()
	case "notifications/cancelled":
		ses.mu.Lock()
		c := ses.running[string(m.Member("requestId"))]
		ses.mu.Unlock()
		if c == nil {
			ses.srv.count(func(s *Stats) { s.LateCancels++ })
			return
		}
		if c.msg.Method == "initialize" {
			ses.srv.violated("initialize cancelled")
		}
		ses.srv.cancelled(c, rawrpc.Text(m.Params, "reason"), "notification")
		c.cancel(errCancelled)
	}
}

func (s *Server) cancelled(c *call, reason, by string) {
	s.count(func(st *Stats) {
		st.Cancelled = append(st.Cancelled, Cancelled{
			Tool: c.tool, Method: c.msg.Method, RequestID: slices.Clone(c.msg.ID), Reason: reason, By: by,
		})
	})
}

// ask sends a request to the client and waits for the answer.
func (ses *Session) ask(ctx context.Context, c *call, method string, params json.RawMessage) (rawrpc.Message, error) {
	ses.mu.Lock()
	ses.asked++
	id := rawrpc.Quote(fmt.Sprintf("fake-%d", ses.asked))
	answer := make(chan rawrpc.Message, 1)
	ses.asks[string(id)] = answer
	ses.mu.Unlock()
	defer func() {
		ses.mu.Lock()
		delete(ses.asks, string(id))
		ses.mu.Unlock()
	}()
	if err := c.in.Send(rawrpc.Request(id, method, params)); err != nil {
		return rawrpc.Message{}, fmt.Errorf("ask %s: %w", method, err)
	}
	select {
	case m := <-answer:
		return m, nil
	case <-ctx.Done():
		return rawrpc.Message{}, context.Cause(ctx)
	}
}

func (ses *Session) answered(m rawrpc.Message) {
	ses.mu.Lock()
	answer := ses.asks[string(m.ID)]
	delete(ses.asks, string(m.ID))
	ses.mu.Unlock()
	if answer == nil {
		ses.srv.violated("an answer to request %s, which was not asked", m.ID)
		return
	}
	answer <- m
}

// changed tells every client that the tools are others now, and returns how many were told.
func (s *Server) changed() int {
	s.mu.Lock()
	sessions := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	told := 0
	for _, ses := range sessions {
		ses.mu.Lock()
		var sends []func() error
		if push := ses.push; push != nil && ses.ready {
			sends = append(sends, func() error { return push(rawrpc.Notification(toolsChanged, nil)) })
		}
		sends = slices.AppendSeq(sends, maps.Values(ses.listeners))
		ses.mu.Unlock()
		for _, send := range sends {
			if send() == nil {
				told++
			}
		}
	}
	return told
}

func (ses *Session) version() string {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.protocol
}

func (ses *Session) confirmed() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.ready
}

func (ses *Session) initialized(version string, capabilities json.RawMessage) {
	ses.mu.Lock()
	ses.protocol, ses.client = version, capabilities
	ses.mu.Unlock()
	ses.srv.count(func(s *Stats) { s.SessionsOpened++ })
}

// can reports whether the client declared a capability.
func (c *call) can(capability string) bool {
	if c.modern {
		return rawrpc.Member(rawrpc.Member(c.params["_meta"], rawrpc.MetaCapabilities), capability) != nil
	}
	c.ses.mu.Lock()
	defer c.ses.mu.Unlock()
	return rawrpc.Member(c.ses.client, capability) != nil
}

func (ses *Session) subscribe(id string, send func() error) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.listeners[id] = send
}

func (ses *Session) unsubscribe(id string) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	delete(ses.listeners, id)
}
