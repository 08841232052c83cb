// Package wiretest is an MCP server in memory, for tests: link.Wires without processes or sockets, so that they run inside
// synctest. By default it is a well-behaved server of 2025-11-25; its fields change that.
package wiretest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// Server makes processes: each Dial gives one. Set its fields before the first Dial.
type Server struct {
	// Version is what initialize agrees on; empty means 2025-11-25.
	Version string
	// Modern makes server/discover offer 2026-07-28, and initialize fail.
	Modern bool
	// Tools is the JSON array of tools; empty means one tool, echo.
	Tools string
	// DialError makes Dial fail.
	DialError error
	// SendError, if set, makes the sending of a message fail, as HTTP does with a status, where it returns an error.
	SendError func(p *Process, m jsonrpc.Message) error
	// Handle, if set, sees each message first and returns true if it dealt with it.
	Handle func(p *Process, m jsonrpc.Message) bool

	mu        sync.Mutex
	processes []*Process
}

// Dial starts a process.
func (s *Server) Dial(context.Context) (link.Wire, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.DialError != nil {
		return nil, s.DialError
	}
	p := &Process{Server: s, Number: len(s.processes) + 1, out: make(chan []byte, 1024), ended: make(chan struct{})}
	s.processes = append(s.processes, p)
	return p, nil
}

// Processes returns all processes that were started.
func (s *Server) Processes() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Process(nil), s.processes...)
}

// Alive returns how many processes have not ended.
func (s *Server) Alive() int {
	n := 0
	for _, p := range s.Processes() {
		if !p.Ended() {
			n++
		}
	}
	return n
}

// Process is one connection to the server. It implements link.Wire.
type Process struct {
	Server *Server
	Number int // counted from 1

	out   chan []byte
	ended chan struct{}

	mu     sync.Mutex
	seen   []string // methods received
	reason error
}

// Send handles one message of the client.
func (p *Process) Send(_ context.Context, msg []byte) error {
	m, err := jsonrpc.Parse(msg)
	if err != nil {
		return err
	}
	p.mu.Lock()
	dead := p.reason != nil
	if m.Method != "" {
		p.seen = append(p.seen, m.Method)
	}
	p.mu.Unlock()
	if dead {
		return link.ErrEnded
	}
	if p.Server.SendError != nil {
		if err := p.Server.SendError(p, m); err != nil {
			return err
		}
	}
	if p.Server.Handle != nil && p.Server.Handle(p, m) {
		return nil
	}
	if m.Kind == jsonrpc.Request {
		p.answer(m)
	}
	return nil
}

func (p *Process) answer(m jsonrpc.Message) {
	s := p.Server
	switch m.Method {
	case "initialize":
		if s.Modern {
			p.Refuse(m.ID, -32601, "method not found")
			return
		}
		version := s.Version
		if version == "" {
			version = "2025-11-25"
		}
		p.Reply(m.ID, fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"}}`, version))
	case "server/discover":
		if !s.Modern {
			p.Refuse(m.ID, -32601, "method not found")
			return
		}
		p.Reply(m.ID, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`)
	case "tools/list":
		tools := s.Tools
		if tools == "" {
			tools = `[{"name":"echo","inputSchema":{"type":"object"}}]`
		}
		p.Reply(m.ID, `{"tools":`+tools+`}`)
	case "tools/call":
		arguments, _ := json.Marshal(string(jsonrpc.Member(m.Params, "arguments")))
		p.Reply(m.ID, fmt.Sprintf(`{"content":[{"type":"text","text":%s}]}`, arguments))
	default:
		p.Refuse(m.ID, -32601, "method not found")
	}
}

// Reply sends a result.
func (p *Process) Reply(id jsonrpc.ID, result string) {
	p.Emit(string(jsonrpc.AppendResult(nil, id, json.RawMessage(result))))
}

// Refuse sends a JSON-RPC error.
func (p *Process) Refuse(id jsonrpc.ID, code int64, message string) {
	p.Emit(string(jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: code, Message: message})))
}

// Notify sends a notification.
func (p *Process) Notify(method, params string) {
	p.Emit(string(jsonrpc.AppendNotification(nil, method, json.RawMessage(params))))
}

// Emit sends a line as it is.
func (p *Process) Emit(line string) { p.out <- []byte(line) }

// Exit ends the process for this reason.
func (p *Process) Exit(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason == nil {
		p.reason = reason
		close(p.ended)
	}
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.ended }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reason != nil
}

// Seen returns the methods that the process received, in order.
func (p *Process) Seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.seen...)
}

// Run delivers what the process sends until it ends.
func (p *Process) Run(ctx context.Context, deliver func([]byte)) error {
	for {
		select {
		case msg := <-p.out:
			deliver(msg)
		case <-ctx.Done():
			p.Exit(context.Cause(ctx))
			return context.Cause(ctx)
		case <-p.ended:
			for {
				select {
				case msg := <-p.out:
					deliver(msg)
				default:
					p.mu.Lock()
					defer p.mu.Unlock()
					return p.reason
				}
			}
		}
	}
}

// Close ends the process.
func (p *Process) Close(context.Context) error {
	p.Exit(errors.New("stdin was closed"))
	return nil
}
