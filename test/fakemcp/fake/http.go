package fake

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/toolherd/toolherd/test/rawrpc"
)

const sessionHeader = "Mcp-Session-Id"

// Handler serves streamable HTTP on /mcp, the older SSE transport on /sse, and for the test
//
//	GET  /fake/stats             the counts
//	POST /fake/forget            forget every session
//	POST /fake/next?status=503   answer the next request to /mcp with that status; repeat for more
//
// A request to /mcp with the header X-Fake-Status is answered with that status and does nothing else;
// X-Fake-Body and X-Fake-Authenticate (WWW-Authenticate) go with it.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", s.streamable)
	mux.HandleFunc("GET /sse", s.sseStream)
	mux.HandleFunc("POST /sse/messages", s.sseMessage)
	mux.HandleFunc("GET /fake/stats", func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, "application/json", rawrpc.JSON(s.Stats()))
	})
	mux.HandleFunc("POST /fake/forget", func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, "text/plain", fmt.Append(nil, s.ForgetSessions(), "\n"))
	})
	mux.HandleFunc("POST /fake/next", func(w http.ResponseWriter, r *http.Request) {
		status, err := strconv.Atoi(r.URL.Query().Get("status"))
		if err != nil || status < 200 || status > 599 {
			http.Error(w, "status is not 200 to 599", http.StatusBadRequest)
			return
		}
		s.FailNext(status)
	})
	return mux
}

// FailNext answers the next requests to /mcp with these statuses, one each.
func (s *Server) FailNext(statuses ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = append(s.next, statuses...)
}

// ForgetSessions drops every HTTP session as a restart would, ends their streams and returns how many
// there were.
func (s *Server) ForgetSessions() int {
	s.mu.Lock()
	var lost []*Session
	maps.DeleteFunc(s.sessions, func(_ string, ses *Session) bool {
		if ses.id == "" {
			return false
		}
		lost = append(lost, ses)
		return true
	})
	s.stats.SessionsLost += len(lost)
	s.lost = append(s.lost, lost...)
	s.mu.Unlock()
	for _, ses := range lost {
		ses.lose()
	}
	return len(lost)
}

func write(w http.ResponseWriter, status int, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone needs no answer
}

// fail answers with an error that belongs to no request.
func fail(w http.ResponseWriter, status, code int, format string, args ...any) {
	write(w, status, "application/json", rawrpc.Failure(nil, rawrpc.Errorf(code, format, args...)))
}

func (s *Server) streamable(w http.ResponseWriter, r *http.Request) {
	s.count(func(c *Stats) { c.HTTPRequests[r.Method]++ })
	if s.steered(w, r) {
		return
	}
	switch {
	case r.Method == http.MethodPost:
		s.post(w, r)
	case r.Method == http.MethodGet && !s.o.Stateless && s.legacy():
		s.stream(w, r)
	case r.Method == http.MethodDelete && !s.o.Stateless && s.legacy():
		if ses := s.lookup(w, r); ses != nil {
			ses.Close()
			w.WriteHeader(http.StatusNoContent)
		}
	default:
		w.Header().Set("Allow", "POST")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	}
}

// steered answers as the test asked and reports whether it did.
func (s *Server) steered(w http.ResponseWriter, r *http.Request) bool {
	status, err := strconv.Atoi(r.Header.Get("X-Fake-Status"))
	if err != nil {
		s.mu.Lock()
		if len(s.next) > 0 {
			status, s.next = s.next[0], s.next[1:]
		}
		s.mu.Unlock()
	}
	if status < 200 || status > 599 {
		return false
	}
	if a := r.Header.Get("X-Fake-Authenticate"); a != "" {
		w.Header().Set("WWW-Authenticate", a)
	}
	body := r.Header.Get("X-Fake-Body")
	if body == "" {
		body = http.StatusText(status) + "\n"
	}
	write(w, status, "text/plain; charset=utf-8", []byte(body))
	return true
}

// lookup finds the session of a request; without one it answers and returns nil.
func (s *Server) lookup(w http.ResponseWriter, r *http.Request) *Session {
	id := r.Header.Get(sessionHeader)
	if id == "" {
		s.violated("%s without %s", r.Method, sessionHeader)
		fail(w, http.StatusBadRequest, rawrpc.CodeServer, "%s header is required", sessionHeader)
		return nil
	}
	s.mu.Lock()
	ses := s.sessions[id]
	s.mu.Unlock()
	if ses == nil {
		http.Error(w, s.o.LostBody, s.o.LostStatus)
		return nil
	}
	s.version(r, ses)
	return ses
}

// version checks the header that a client must send once a version is agreed on.
func (s *Server) version(r *http.Request, ses *Session) {
	agreed := ses.version()
	if got := r.Header.Get("Mcp-Protocol-Version"); agreed != "" && got != agreed {
		s.violated("%s with Mcp-Protocol-Version %q in a session of %s", r.Method, got, agreed)
	}
}

// openHTTP starts a session with an id of its own.
func (s *Server) openHTTP() *Session {
	ses := s.Open(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.sessions, func(_ string, other *Session) bool { return other == ses })
	ses.id = rand.Text()
	s.sessions[ses.id] = ses
	return ses
}

func (s *Server) post(w http.ResponseWriter, r *http.Request) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		s.violated("POST with Content-Type %q", r.Header.Get("Content-Type"))
		http.Error(w, "Content-Type must be application/json", http.StatusUnsupportedMediaType)
		return
	}
	if accept := strings.Join(r.Header.Values("Accept"), ","); !strings.Contains(accept, "*/*") &&
		(!strings.Contains(accept, "application/json") || !strings.Contains(accept, "text/event-stream")) {
		s.violated("POST with Accept %q", accept)
		http.Error(w, "Accept must name application/json and text/event-stream", http.StatusNotAcceptable)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	m, err := rawrpc.Parse(body)
	if err != nil {
		s.violated("a body that is no message: %v", err)
		code := rawrpc.CodeParse
		if errors.Is(err, rawrpc.ErrBatch) {
			code = rawrpc.CodeInvalidRequest
		}
		fail(w, http.StatusBadRequest, code, "%v", err)
		return
	}
	if m.Method == "tools/call" && rawrpc.Text(m.Params, "name") == "http_status" && s.statusTool(w, m) {
		return
	}
	ses, in := s.conversation(w, r, m)
	if ses == nil {
		return
	}
	if in.Alone {
		defer ses.Close()
	}
	if !m.IsRequest() {
		ses.Handle(r.Context(), m, in)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if m.Method == "initialize" && ses.id != "" {
		w.Header().Set(sessionHeader, ses.id)
	}
	reply := &reply{w: w, json: s.o.JSON && m.Method != "subscriptions/listen", prime: s.o.Prime}
	in.Send = reply.event
	ctx := r.Context()
	if !in.HangUp {
		ctx = context.WithoutCancel(ctx) // before 2026-07-28 hanging up is no cancel
	}
	reply.finish(ses.Handle(ctx, m, in), in.HangUp)
}

// statusTool answers a call of http_status, which never becomes a JSON-RPC answer.
func (s *Server) statusTool(w http.ResponseWriter, m rawrpc.Message) bool {
	var in struct {
		Status  int               `json:"status"`
		Body    string            `json:"body"`
		Headers map[string]string `json:"headers"`
	}
	if err := json.Unmarshal(m.Member("arguments"), &in); err != nil || in.Status < 200 || in.Status > 599 {
		return false
	}
	s.count(func(c *Stats) { c.Requests[m.Method]++; c.Calls["http_status"]++ })
	w.Header().Set("Content-Type", "text/plain")
	for name, value := range in.Headers {
		w.Header().Set(name, value)
	}
	w.WriteHeader(in.Status)
	_, _ = io.WriteString(w, in.Body)
	return true
}

// conversation finds out whose request it is; without an answer to that it answers itself and returns
// nil.
func (s *Server) conversation(w http.ResponseWriter, r *http.Request, m rawrpc.Message) (*Session, *Incoming) {
	in := &Incoming{Header: r.Header.Clone()}
	header := r.Header.Get("Mcp-Protocol-Version")
	meta := rawrpc.Text(m.Member("_meta"), rawrpc.MetaVersion)
	modern := s.modern() && (header >= rawrpc.V20260728 || meta != "")
	if (modern || !s.legacy()) && m.IsRequest() {
		if e := mirrored(r.Header, m, header, meta); e != nil {
			s.violated("%s", e.Message)
			write(w, http.StatusBadRequest, "application/json", rawrpc.Failure(m.ID, e))
			return nil, nil
		}
	}
	switch {
	case modern || !s.legacy():
		in.Alone, in.HangUp = true, true
		return s.Open(nil), in
	case header != "" && !slices.Contains(s.o.Versions, header):
		fail(w, http.StatusBadRequest, rawrpc.CodeServer, "Bad Request: Unsupported protocol version: %s", header)
		return nil, nil
	case s.o.Stateless:
		in.Alone = true
		return s.Open(nil), in
	case m.Method == "initialize":
		if id := r.Header.Get(sessionHeader); id != "" {
			s.violated("initialize with %s %q", sessionHeader, id)
		}
		return s.openHTTP(), in
	}
	return s.lookup(w, r), in
}

// mirrored checks the headers that 2026-07-28 repeats from the body.
func mirrored(h http.Header, m rawrpc.Message, header, meta string) *rawrpc.Error {
	if header != meta {
		return rawrpc.Errorf(rawrpc.CodeHeaderMismatch, "Mcp-Protocol-Version is %q, the body says %q", header, meta)
	}
	if meta == "" {
		return nil // told by the session
	}
	if got := h.Get("Mcp-Method"); got != m.Method {
		return rawrpc.Errorf(rawrpc.CodeHeaderMismatch, "Mcp-Method is %q, the body says %q", got, m.Method)
	}
	if got, want := h.Get("Mcp-Name"), rawrpc.Text(m.Params, "name"); m.Method == "tools/call" && got != want {
		return rawrpc.Errorf(rawrpc.CodeHeaderMismatch, "Mcp-Name is %q, the body says %q", got, want)
	}
	return nil
}

// reply writes the answer to one POST: events as they come, or one JSON body.
type reply struct {
	w     http.ResponseWriter
	json  bool
	prime bool

	mu   sync.Mutex
	open bool  // the event stream has begun
	done bool  // nothing may be written any more
	err  error // of the first write that failed
}

var errNoRoom = errors.New("the answer has ended or has no room for it")

// event sends a message on the event stream, which it opens.
func (r *reply) event(msg []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return errNoRoom
	}
	if r.json {
		return errNoRoom
	}
	if !r.open {
		r.open = true
		startEvents(r.w)
		if r.prime {
			r.put("data: \n\n: prime\n\n")
		}
	}
	r.put(string(rawrpc.Event{Name: "message", Data: msg}.Bytes()))
	return r.err
}

func (r *reply) put(s string) {
	if r.err != nil {
		return
	}
	if _, r.err = io.WriteString(r.w, s); r.err == nil {
		r.err = http.NewResponseController(r.w).Flush()
	}
}

func startEvents(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
}

// finish sends the response, nil when there is none. Protocol 2026-07-28 gives some errors a status of
// their own.
func (r *reply) finish(response []byte, modern bool) {
	r.mu.Lock()
	open := r.open
	r.mu.Unlock()
	status := http.StatusOK
	if modern && !open {
		status = modernStatus(response)
	}
	switch {
	case response == nil && !open:
		startEvents(r.w) // a stream that ends without the answer
	case response == nil:
	case r.json || status != http.StatusOK:
		write(r.w, status, "application/json", response)
	default:
		_ = r.event(response) // the client may be gone
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = true
}

func modernStatus(response []byte) int {
	m, err := rawrpc.Parse(response)
	if err != nil || m.Error == nil {
		return http.StatusOK
	}
	var e rawrpc.Error
	if err := json.Unmarshal(m.Error, &e); err != nil {
		return http.StatusOK
	}
	switch {
	case e.Code == rawrpc.CodeMethodNotFound:
		return http.StatusNotFound
	case e.Code == rawrpc.CodeUnsupportedVersion, strings.HasPrefix(e.Message, "missing _meta"):
		return http.StatusBadRequest
	}
	return http.StatusOK
}
