// Package fake is a well-behaved MCP server that a test can steer and question.
//
// It speaks protocol 2025-06-18, 2025-11-25 and 2026-07-28 over stdio, streamable HTTP (stateful or
// stateless, answers as event streams or as JSON) and the older SSE transport, and writes its JSON-RPC
// by hand: what the tools `echo` and `raw` return is on the wire byte for byte what the test gave.
// It never breaks the protocol, package evil does; but it watches the client do so, see [Stats].
//
// A test uses it in process ([New], [Server.Open], [Listen]) or as the command fakemcp. Everything a
// test may want to do in between is a tool (`counter`, `sleep`, `list_changed`, `exit`, …) or, over
// HTTP, an X-Fake header or a path below /fake (see [Server.Handler]).
package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// Options steer a [Server]. The zero value is a server of both legacy versions with every tool.
type Options struct {
	// Name is the server's own name; "fake" when empty.
	Name string
	// Versions are the protocol versions spoken; 2025-06-18 and 2025-11-25 when empty.
	Versions []string
	// Instructions go into the answer to initialize or server/discover.
	Instructions string
	// Only, when not empty, names the tools to offer.
	Only []string
	// Filler is the number of tools filler_0000, filler_0001, … that come after the others.
	Filler int
	// PageSize is the number of tools on a page of tools/list; 0 puts all on one.
	PageSize int
	// Stateless gives out no session ids over HTTP: each request stands alone.
	Stateless bool
	// JSON answers HTTP requests with application/json instead of an event stream, which leaves no
	// room for progress and log messages: they are dropped.
	JSON bool
	// Prime opens each event stream with an empty event and a comment, as some SDKs do.
	Prime bool
	// LostStatus is the HTTP status for an unknown session id; 404 when 0.
	LostStatus int
	// LostBody is the body of that answer.
	LostBody string
	// Exit ends the process for the tool `exit`; nil leaves that tool out.
	Exit func(code int)
	// Stderr is where the tool `stderr` writes; nil leaves that tool out.
	Stderr io.Writer
	// Journal is the file that keeps the jobs, see [Record]; empty keeps them in memory.
	Journal string
	// PrivateJobs makes a process know the jobs alone that it started itself; the journal is written all the same.
	PrivateJobs bool
}

// Server is one fake server: a process's worth of tools, sessions and counts.
type Server struct {
	o     Options
	jobs  *jobs
	calls sync.WaitGroup // running requests of all sessions

	mu       sync.Mutex
	closed   bool
	tools    []tool
	stats    Stats
	sessions map[string]*Session // HTTP sessions by id, others by number
	lost     []*Session          // forgotten, but perhaps with running calls
	serial   int
	next     []int // statuses of the next HTTP requests
}

// New makes a server. Close ends what it still runs.
func New(o Options) *Server {
	if o.Name == "" {
		o.Name = "fake"
	}
	if len(o.Versions) == 0 {
		o.Versions = []string{rawrpc.V20250618, rawrpc.V20251125}
	}
	if o.LostStatus == 0 {
		o.LostStatus = 404
	}
	if o.LostBody == "" {
		o.LostBody = "session not found"
	}
	s := &Server{o: o, jobs: newJobs(o), sessions: map[string]*Session{}, stats: newStats()}
	for _, t := range builtin() {
		switch {
		case len(o.Only) > 0 && !slices.Contains(o.Only, t.name):
		case t.name == "exit" && o.Exit == nil:
		case t.name == "stderr" && o.Stderr == nil:
		default:
			s.tools = append(s.tools, t)
		}
	}
	for i := range o.Filler {
		s.tools = append(s.tools, filler(i))
	}
	return s
}

// Close cancels running calls, ends the standing streams and waits for the calls.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	sessions := slices.AppendSeq(s.lost, maps.Values(s.sessions))
	clear(s.sessions)
	s.mu.Unlock()
	for _, ses := range sessions {
		ses.end()
	}
	s.calls.Wait()
	if err := s.jobs.close(); err != nil {
		s.violated("close the journal of jobs: %v", err)
	}
}

// modern reports whether the server speaks 2026-07-28, legacy whether it speaks an older version.
func (s *Server) modern() bool { return slices.Contains(s.o.Versions, rawrpc.V20260728) }

func (s *Server) legacy() bool {
	return slices.ContainsFunc(s.o.Versions, func(v string) bool { return v < rawrpc.V20260728 })
}

// newestLegacy is the version offered to a client that asks for an unknown one.
func (s *Server) newestLegacy() string {
	best := ""
	for _, v := range s.o.Versions {
		if v < rawrpc.V20260728 {
			best = max(best, v)
		}
	}
	return best
}

// errCancelled ends a call that the client gave up; errEnded one whose session or server ends.
var (
	errCancelled = errors.New("cancelled by the client")
	errEnded     = errors.New("the session ends")
)

// call is one request in the hands of a method or tool.
type call struct {
	srv    *Server
	ses    *Session
	msg    rawrpc.Message
	params map[string]json.RawMessage
	tool   string            // of tools/call
	args   json.RawMessage   // of tools/call, nil when absent
	in     *Incoming         // how it came
	modern bool              // it follows 2026-07-28
	cancel func(cause error) // ends ctx of the call
}

// notify sends a notification that belongs to the call; one that has no way to go is dropped.
func (c *call) notify(method string, params json.RawMessage) error {
	if err := c.in.Send(rawrpc.Notification(method, params)); !errors.Is(err, errNoRoom) {
		return err
	}
	return nil
}

// answer runs one request and returns the response, nil when the client does not want it any more.
func (c *call) answer(ctx context.Context) []byte {
	result, e := c.method(ctx)
	if errors.Is(context.Cause(ctx), errCancelled) {
		return nil
	}
	if e != nil {
		return rawrpc.Failure(c.msg.ID, e)
	}
	return rawrpc.Result(c.msg.ID, result)
}

func (c *call) method(ctx context.Context) (json.RawMessage, *rawrpc.Error) {
	if e := c.admit(); e != nil {
		return nil, e
	}
	switch {
	case c.msg.Method == "initialize" && !c.modern:
		return c.initialize()
	case c.msg.Method == "ping" && !c.modern:
		return json.RawMessage("{}"), nil
	case c.msg.Method == "logging/setLevel" && !c.modern:
		return json.RawMessage("{}"), nil
	case c.msg.Method == "server/discover" && c.modern:
		return c.discover(), nil
	case c.msg.Method == "subscriptions/listen" && c.modern:
		return c.listen(ctx)
	case c.msg.Method == "tools/list":
		return c.list()
	case c.msg.Method == "tools/call":
		return c.run(ctx)
	}
	return nil, rawrpc.Errorf(rawrpc.CodeMethodNotFound, "method not found: %s", c.msg.Method)
}

// admit decides whether the request may run in its session and finds out which version it follows.
func (c *call) admit() *rawrpc.Error {
	meta := c.params["_meta"]
	version := rawrpc.Text(meta, rawrpc.MetaVersion)
	switch {
	case version != "" && c.srv.modern():
		if version != rawrpc.V20260728 {
			return c.unsupported(version)
		}
		if rawrpc.Member(meta, rawrpc.MetaCapabilities) == nil {
			return rawrpc.Errorf(rawrpc.CodeInvalidParams, "missing _meta member %q", rawrpc.MetaCapabilities)
		}
		c.modern = true
		c.srv.met(rawrpc.Member(meta, rawrpc.MetaClientInfo), version)
		return nil
	case !c.srv.legacy():
		if c.msg.Method == "initialize" {
			return c.unsupported(rawrpc.Text(c.msg.Params, "protocolVersion"))
		}
		return rawrpc.Errorf(rawrpc.CodeInvalidParams, "missing _meta member %q", rawrpc.MetaVersion)
	case c.msg.Method == "initialize", c.msg.Method == "ping", c.in.Alone:
		return nil
	case c.ses.version() == "":
		if c.msg.Method == "server/discover" {
			return nil // answered as an unknown method
		}
		c.srv.violated("%s before initialize", c.msg.Method)
		return rawrpc.Errorf(rawrpc.CodeInvalidRequest, "%s before initialize", c.msg.Method)
	case !c.ses.confirmed():
		c.srv.violated("%s before notifications/initialized", c.msg.Method)
	}
	return nil
}

func (c *call) unsupported(version string) *rawrpc.Error {
	e := rawrpc.Errorf(rawrpc.CodeUnsupportedVersion, "unsupported protocol version %q", version)
	e.Data = rawrpc.JSON(map[string]any{"supported": c.srv.o.Versions, "requested": version})
	return e
}

func (c *call) initialize() (json.RawMessage, *rawrpc.Error) {
	if c.ses.version() != "" {
		c.srv.violated("a second initialize in one session")
		return nil, rawrpc.Errorf(rawrpc.CodeInvalidRequest, "the session is initialized already")
	}
	version := rawrpc.Text(c.msg.Params, "protocolVersion")
	if !slices.Contains(c.srv.o.Versions, version) || version >= rawrpc.V20260728 {
		version = c.srv.newestLegacy()
	}
	c.ses.initialized(version, c.params["capabilities"])
	c.srv.met(c.params["clientInfo"], version)
	return fmt.Appendf(nil, `{"protocolVersion":%s,"capabilities":%s,"serverInfo":%s%s}`,
		rawrpc.Quote(version), capabilities, c.srv.info(), c.srv.instructions()), nil
}

func (c *call) discover() json.RawMessage {
	return fmt.Appendf(nil, `{"resultType":"complete","ttlMs":0,"cacheScope":"private","supportedVersions":%s,"capabilities":%s,"_meta":{%s:%s}%s}`,
		rawrpc.JSON(c.srv.o.Versions), capabilities, rawrpc.Quote(rawrpc.MetaServerInfo), c.srv.info(), c.srv.instructions())
}

const capabilities = `{"tools":{"listChanged":true},"logging":{}}`

func (s *Server) info() json.RawMessage {
	return fmt.Appendf(nil, `{"name":%s,"version":"1.0.0"}`, rawrpc.Quote(s.o.Name))
}

func (s *Server) instructions() json.RawMessage {
	if s.o.Instructions == "" {
		return nil
	}
	return fmt.Appendf(nil, `,"instructions":%s`, rawrpc.Quote(s.o.Instructions))
}

// listen serves subscriptions/listen until the client ends it.
func (c *call) listen(ctx context.Context) (json.RawMessage, *rawrpc.Error) {
	wanted := c.params["notifications"]
	if wanted == nil {
		return nil, rawrpc.Errorf(rawrpc.CodeInvalidParams, "missing member notifications")
	}
	tools := string(rawrpc.Member(wanted, "toolsListChanged")) == "true"
	agreed := "{}"
	if tools {
		agreed = `{"toolsListChanged":true}`
	}
	meta := fmt.Appendf(nil, `{%s:%s}`, rawrpc.Quote(rawrpc.MetaSubscriptionID), c.msg.ID)
	ack := fmt.Appendf(nil, `{"_meta":%s,"notifications":%s}`, meta, agreed)
	if tools {
		c.ses.subscribe(string(c.msg.ID), func() error {
			return c.notify(toolsChanged, fmt.Appendf(nil, `{"_meta":%s}`, meta))
		})
		defer c.ses.unsubscribe(string(c.msg.ID))
	}
	if err := c.notify("notifications/subscriptions/acknowledged", ack); err != nil {
		return nil, rawrpc.Errorf(rawrpc.CodeInternal, "acknowledge: %v", err)
	}
	if tools {
		<-ctx.Done()
	}
	return fmt.Appendf(nil, `{"resultType":"complete","_meta":%s}`, meta), nil
}
