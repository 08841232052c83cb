package rawrpc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// ErrClosed is the error of calls that were waiting, or came, when the peer's stream ended.
var ErrClosed = errors.New("the peer closed the stream")

// Caller is a direct client of one MCP server: [Stdio] or [HTTP].
type Caller interface {
	// Call sends a request and returns the result object byte for byte. The server's error answer is
	// returned as *[Error].
	Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	// Notify sends a notification.
	Notify(ctx context.Context, method string, params json.RawMessage) error
	// Close ends the session and waits for what the client started.
	Close() error
}

// ClientOptions are what both clients have in common.
type ClientOptions struct {
	// OnMessage, when set, sees the server's notifications and requests, one at a time, before anything
	// that the server sent after them on the same stream is delivered.
	OnMessage func(Message)
	// Answer answers a server's request; nil answers -32601. It must not call the client.
	Answer func(Message) (json.RawMessage, *Error)
	// Modern adds the `_meta` members that protocol 2026-07-28 asks of each request.
	Modern bool
	// Capabilities is the client capabilities object, `{}` when nil.
	Capabilities json.RawMessage
}

// Protocol versions.
const (
	V20250618 = "2025-06-18"
	V20251125 = "2025-11-25"
	V20260728 = "2026-07-28"
)

// Names of `_meta` members of protocol 2026-07-28.
const (
	MetaVersion        = "io.modelcontextprotocol/protocolVersion"
	MetaClientInfo     = "io.modelcontextprotocol/clientInfo"
	MetaCapabilities   = "io.modelcontextprotocol/clientCapabilities"
	MetaLogLevel       = "io.modelcontextprotocol/logLevel"
	MetaServerInfo     = "io.modelcontextprotocol/serverInfo"
	MetaSubscriptionID = "io.modelcontextprotocol/subscriptionId"
)

const clientInfo = `{"name":"rawrpc","version":"1.0.0"}`

func (o ClientOptions) capabilities() json.RawMessage {
	if o.Capabilities == nil {
		return json.RawMessage("{}")
	}
	return o.Capabilities
}

// params adds what the protocol version asks for.
func (o ClientOptions) params(params json.RawMessage) json.RawMessage {
	if !o.Modern {
		return params
	}
	meta := Member(params, "_meta")
	if Member(meta, MetaVersion) != nil {
		return params
	}
	meta = Prepend(meta, MetaCapabilities, o.capabilities())
	meta = Prepend(meta, MetaClientInfo, json.RawMessage(clientInfo))
	meta = Prepend(meta, MetaVersion, Quote(V20260728))
	if Member(params, "_meta") == nil {
		return Prepend(params, "_meta", meta)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(params, &members); err != nil {
		return params
	}
	members["_meta"] = meta
	return JSON(members)
}

// reply answers a server's request.
func (o ClientOptions) reply(m Message) []byte {
	if o.Answer == nil {
		return Failure(m.ID, Errorf(CodeMethodNotFound, "no such method: %s", m.Method))
	}
	result, e := o.Answer(m)
	if e != nil {
		return Failure(m.ID, e)
	}
	return Result(m.ID, result)
}

// Initialize opens a session of a version before 2026-07-28 and returns the server's result.
func Initialize(ctx context.Context, c Caller, version string, capabilities json.RawMessage) (json.RawMessage, error) {
	o := ClientOptions{Capabilities: capabilities}
	params := fmt.Appendf(nil, `{"protocolVersion":%s,"capabilities":%s,"clientInfo":%s}`, Quote(version), o.capabilities(), clientInfo)
	result, err := c.Call(ctx, "initialize", params)
	if err != nil {
		return nil, fmt.Errorf("initialize: %w", err)
	}
	if err := c.Notify(ctx, "notifications/initialized", nil); err != nil {
		return nil, fmt.Errorf("confirm initialize: %w", err)
	}
	return result, nil
}

// CallParams encodes the params of tools/call; nil arguments are left out.
func CallParams(tool string, arguments json.RawMessage) json.RawMessage {
	b := append([]byte(`{"name":`), Quote(tool)...)
	if arguments != nil {
		b = append(append(b, `,"arguments":`...), arguments...)
	}
	return append(b, '}')
}

// Stdio is a direct client over a pair of line streams.
type Stdio struct {
	o    ClientOptions
	in   io.WriteCloser
	done chan struct{} // closed by read

	write sync.Mutex // one line at a time

	mu      sync.Mutex
	next    int64
	waiting map[string]chan Message
	err     error // why the stream ended
}

// NewStdio makes a client that writes to in and reads from out, which must end once in is closed.
func NewStdio(out io.Reader, in io.WriteCloser, o ClientOptions) *Stdio {
	c := &Stdio{o: o, in: in, done: make(chan struct{}), waiting: map[string]chan Message{}}
	go c.read(out) // ends with out; Close waits for it
	return c
}

// Call implements [Caller]. When ctx ends it sends notifications/cancelled and returns the cause at once.
func (c *Stdio) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	c.mu.Lock()
	c.next++
	id := ID(c.next)
	answer := make(chan Message, 1)
	c.waiting[string(id)] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, string(id))
		c.mu.Unlock()
	}()

	if err := c.send(Request(id, method, c.o.params(params))); err != nil {
		return nil, fmt.Errorf("send %s: %w", method, err)
	}
	select {
	case m := <-answer:
		return m.outcome()
	case <-ctx.Done():
		cause := context.Cause(ctx)
		cancelled := fmt.Appendf(nil, `{"requestId":%s,"reason":%s}`, id, Quote(cause.Error()))
		return nil, errors.Join(cause, c.send(Notification("notifications/cancelled", cancelled)))
	case <-c.done:
		select {
		case m := <-answer: // it came before the end
			return m.outcome()
		default:
		}
		return nil, fmt.Errorf("call %s: %w: %w", method, ErrClosed, c.err)
	}
}

// Notify implements [Caller].
func (c *Stdio) Notify(_ context.Context, method string, params json.RawMessage) error {
	return c.send(Notification(method, params))
}

// Send writes one raw line, for tests that need a message no client would send.
func (c *Stdio) Send(line []byte) error { return c.send(line) }

// Done is closed when the server's stream has ended.
func (c *Stdio) Done() <-chan struct{} { return c.done }

// Close implements [Caller]: it closes the server's input and waits for the end of its output.
func (c *Stdio) Close() error {
	err := c.in.Close()
	<-c.done
	if errors.Is(err, os.ErrClosed) {
		return nil // the end of the process closed it
	}
	return err
}

func (c *Stdio) send(line []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	_, err := c.in.Write(append(line, '\n'))
	return err
}

func (c *Stdio) read(out io.Reader) {
	defer close(c.done)
	r := bufio.NewReaderSize(out, 64<<10)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			c.err = err
			return
		}
		m, err := Parse(line)
		if err != nil {
			continue // noise between messages
		}
		if m.IsResponse() {
			c.mu.Lock()
			answer := c.waiting[string(m.ID)]
			delete(c.waiting, string(m.ID))
			c.mu.Unlock()
			if answer != nil {
				answer <- m
			}
			continue
		}
		if c.o.OnMessage != nil {
			c.o.OnMessage(m)
		}
		if m.IsRequest() {
			if err := c.send(c.o.reply(m)); err != nil {
				c.err = err
				return
			}
		}
	}
}
