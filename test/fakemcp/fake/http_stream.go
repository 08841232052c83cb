package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// stream serves the standing GET of a session; a session has one at a time.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	ses := s.lookup(w, r)
	if ses == nil {
		return
	}
	out := &stream{w: w}
	if !ses.attach(out.event) {
		fail(w, http.StatusConflict, rawrpc.CodeServer, "the session has a stream already")
		return
	}
	defer ses.detach()
	defer out.end()
	startEvents(w)
	out.comment()
	s.hold(r.Context(), ses)
}

// hold keeps a standing stream open until the client or the session ends it.
func (s *Server) hold(ctx context.Context, ses *Session) {
	s.count(func(c *Stats) { c.Streams++ })
	defer s.count(func(c *Stats) { c.Streams-- })
	select {
	case <-ctx.Done():
	case <-ses.ended:
	}
}

// sseStream opens a session of the older SSE transport, which lives as long as its stream.
func (s *Server) sseStream(w http.ResponseWriter, r *http.Request) {
	s.count(func(c *Stats) { c.HTTPRequests[r.Method]++ })
	ses := s.openHTTP()
	defer ses.Close()
	out := &stream{w: w}
	defer out.end()
	ses.attach(out.event)
	startEvents(w)
	out.put(rawrpc.Event{Name: "endpoint", Data: []byte("/sse/messages?session=" + ses.id)}.Bytes())
	s.hold(r.Context(), ses)
}

// sseMessage takes a message of the older SSE transport; the answer goes to the stream.
func (s *Server) sseMessage(w http.ResponseWriter, r *http.Request) {
	s.count(func(c *Stats) { c.HTTPRequests[r.Method]++ })
	if s.steered(w, r) {
		return
	}
	s.mu.Lock()
	ses := s.sessions[r.URL.Query().Get("session")]
	s.mu.Unlock()
	if ses == nil {
		http.Error(w, s.o.LostBody, s.o.LostStatus)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	m, err := rawrpc.Parse(body)
	if err != nil {
		s.violated("a body that is no message: %v", err)
		fail(w, http.StatusBadRequest, rawrpc.CodeParse, "%v", err)
		return
	}
	ses.mu.Lock()
	send := ses.push
	ses.mu.Unlock()
	w.WriteHeader(http.StatusAccepted)
	if err := http.NewResponseController(w).Flush(); err != nil || send == nil {
		return
	}
	if response := ses.Handle(context.WithoutCancel(r.Context()), m, &Incoming{Send: send, Header: r.Header.Clone()}); response != nil {
		_ = send(response) // the stream may be gone
	}
}

// attach makes send the way for messages without a request; it fails when there is one already.
func (ses *Session) attach(send func([]byte) error) bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.push != nil {
		return false
	}
	ses.push = send
	return true
}

func (ses *Session) detach() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.push = nil
}

// lose ends the streams of a forgotten session; its running calls go on to their end.
func (ses *Session) lose() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	select {
	case <-ses.ended:
	default:
		close(ses.ended)
	}
}

// stream writes events to a standing response until its handler ends it.
type stream struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	done bool
}

func (st *stream) event(msg []byte) error {
	return st.put(rawrpc.Event{Name: "message", Data: msg}.Bytes())
}

func (st *stream) comment() { _ = st.put([]byte(": ok\n\n")) }

func (st *stream) put(b []byte) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.done {
		return errNoRoom
	}
	if _, err := st.w.Write(b); err != nil {
		return err
	}
	return http.NewResponseController(st.w).Flush()
}

func (st *stream) end() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.done = true
}

// HTTP is a [Server] that listens.
type HTTP struct {
	*Server
	// URL is the streamable endpoint, SSEURL the older one, Base the root without a slash.
	URL, SSEURL, Base string

	http   *http.Server
	served chan error
}

// Listen serves s on addr, host:port, until [HTTP.Close].
func Listen(ctx context.Context, addr string, s *Server) (*HTTP, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	base := "http://" + l.Addr().String()
	h := &HTTP{Server: s, URL: base + "/mcp", SSEURL: base + "/sse", Base: base, served: make(chan error, 1)}
	h.http = &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 30 * time.Second,
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				s.count(func(c *Stats) { c.Connections++ })
			}
		},
	}
	go func() { h.served <- h.http.Serve(l) }() // Close waits for it
	return h, nil
}

// Close stops listening, cuts the connections and ends the server's calls.
func (h *HTTP) Close() error {
	err := h.http.Close()
	if served := <-h.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	h.Server.Close()
	return err
}
