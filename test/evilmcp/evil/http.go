package evil

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/rawrpc"
)

// httpServer serves one mode on streamable HTTP.
type httpServer struct {
	m   Mode
	o   Options
	srv *fake.Server

	mu       sync.Mutex
	sessions map[string]*fake.Session
	seen     map[string]int
}

// httpRequest is one request that a mode answers over HTTP.
type httpRequest struct {
	*request
	r *http.Request
	s *httpServer
}

// Handler serves a mode at /mcp, stateful. A process mode cannot be served. Call end when no request
// runs any more. Beside it, /evil/seen tells as JSON how often each method came, `response` for answers of
// the client; /trap is for redirects to end in: /evil/seen counts it as `trap`, with the HTTP method and
// the Authorization header that came along.
func Handler(m Mode, o Options) (h http.Handler, end func(), err error) {
	if m.process != nil {
		return nil, nil, fmt.Errorf("the mode %s is for stdio only", m.Name)
	}
	s := &httpServer{m: m, o: m.with(o), srv: honest(nil), sessions: map[string]*fake.Session{}, seen: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", s.serve)
	mux.HandleFunc("/trap", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen[strings.TrimSpace("trap "+r.Method+" "+r.Header.Get("Authorization"))]++
		s.mu.Unlock()
	})
	mux.HandleFunc("GET /evil/seen", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = w.Write(rawrpc.JSON(s.seen)) // the test sees what is missing
	})
	return mux, s.srv.Close, nil
}

const sessionHeader = "Mcp-Session-Id"

func (s *httpServer) serve(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		s.post(w, r)
	case http.MethodGet:
		s.get(w, r)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// get serves the standing stream, which triggers the modes on GET.
func (s *httpServer) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	before := s.seen[http.MethodGet]
	s.seen[http.MethodGet]++
	s.mu.Unlock()
	if s.o.On == http.MethodGet {
		s.m.wire(w, &httpRequest{request: &request{o: s.o, seen: before}, r: r, s: s})
		return
	}
	http.Error(w, "no stream here", http.StatusMethodNotAllowed)
}

func (s *httpServer) post(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	m, err := rawrpc.Parse(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ses := s.session(w, r, m)
	if ses == nil {
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	key := m.Method
	if m.IsResponse() {
		key = "response"
	}
	s.mu.Lock()
	before := s.seen[key]
	s.seen[key]++
	s.mu.Unlock()
	answer := ses.Handle(context.WithoutCancel(r.Context()), m, &fake.Incoming{Send: func([]byte) error { return nil }, Header: r.Header})
	if answer == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	q := &request{o: s.o, msg: m, honest: answer, seen: before}
	switch {
	case !s.o.triggers(m):
		s.write(w, answer)
	case s.m.wire != nil:
		s.m.wire(w, &httpRequest{request: q, r: r, s: s})
	default:
		s.write(w, s.m.frames(q)...)
	}
}

// session finds or makes the session of a message.
func (s *httpServer) session(w http.ResponseWriter, r *http.Request, m rawrpc.Message) *fake.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Method != "initialize" {
		return s.sessions[r.Header.Get(sessionHeader)]
	}
	id := rand.Text()
	ses := s.srv.Open(nil)
	s.sessions[id] = ses
	w.Header().Set(sessionHeader, id)
	return ses
}

// alias makes id another name of the session that w is about to announce.
func (s *httpServer) alias(w http.ResponseWriter, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[id] = s.sessions[w.Header().Get(sessionHeader)]
	w.Header().Set(sessionHeader, id)
}

// write answers with frames: as events, or one frame as JSON when the options say so.
func (s *httpServer) write(w http.ResponseWriter, frames ...[]byte) {
	if s.o.JSON && len(frames) == 1 {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(frames[0]) // here and below: a client that is gone is no concern
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	for _, f := range frames {
		if _, err := w.Write(rawrpc.Event{Name: "message", Data: f}.Bytes()); err != nil {
			return
		}
		flush(w)
	}
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }
