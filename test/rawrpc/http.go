package rawrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"sync"
)

// StatusError is an HTTP answer that carries no JSON-RPC message.
type StatusError struct {
	Code   int
	Header http.Header
	Body   string // at most 64 KiB
}

func (e *StatusError) Error() string { return fmt.Sprintf("http status %d: %.200s", e.Code, e.Body) }

// HTTP is a direct client over streamable HTTP, without a standing GET stream.
type HTTP struct {
	o      ClientOptions
	url    string
	client *http.Client

	mu      sync.Mutex
	next    int64
	header  http.Header // sent with each request
	session string
	version string // agreed on by initialize
}

// NewHTTP makes a client of the endpoint url. Header goes with every request.
func NewHTTP(url string, header http.Header, o ClientOptions) *HTTP {
	h := header.Clone()
	if h == nil {
		h = http.Header{}
	}
	return &HTTP{o: o, url: url, header: h, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

type headerKey struct{}

// WithHeader returns a context whose calls carry header besides the client's own.
func WithHeader(ctx context.Context, header http.Header) context.Context {
	return context.WithValue(ctx, headerKey{}, header)
}

// SessionID returns the id that the server gave, "" without one.
func (c *HTTP) SessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// SetSessionID makes the client use another session, for tests that lose or steal one.
func (c *HTTP) SetSessionID(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = id
}

// Call implements [Caller]. An HTTP error without a JSON-RPC message is a *[StatusError].
func (c *HTTP) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	c.mu.Lock()
	c.next++
	id := ID(c.next)
	c.mu.Unlock()
	params = c.o.params(params)
	resp, err := c.post(ctx, Message{ID: id, Method: method, Params: params}, Request(id, method, params))
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	defer resp.Body.Close()
	if s := resp.Header.Get("Mcp-Session-Id"); s != "" && method == "initialize" {
		c.SetSessionID(s)
	}
	answer, err := c.answer(ctx, resp, id)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	result, err := answer.outcome()
	if err == nil && method == "initialize" {
		c.mu.Lock()
		c.version = Text(result, "protocolVersion")
		c.mu.Unlock()
	}
	return result, err
}

// Notify implements [Caller].
func (c *HTTP) Notify(ctx context.Context, method string, params json.RawMessage) error {
	return c.deliver(ctx, Message{Method: method, Params: params}, Notification(method, params))
}

// Close implements [Caller]: it deletes the session, if there is one.
func (c *HTTP) Close() error {
	defer c.client.CloseIdleConnections()
	if c.SessionID() == "" {
		return nil
	}
	req, err := http.NewRequest(http.MethodDelete, c.url, nil)
	if err != nil {
		return err
	}
	c.headers(req, Message{})
	resp, err := c.client.Do(req)
	if err != nil {
		return fmt.Errorf("delete session: %w", err)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// Listen opens the standing GET stream, calls yield for each message on it and returns when the stream
// ends, ctx ends or yield returns false.
func (c *HTTP) Listen(ctx context.Context, yield func(Message) bool) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return err
	}
	c.headers(req, Message{})
	req.Header.Set("Accept", "text/event-stream")
	resp, err := c.client.Do(req)
	if err != nil {
		return fmt.Errorf("open stream: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return statusError(resp)
	}
	return Events(resp.Body, func(e Event) bool {
		m, err := Parse(e.Data)
		return err != nil || yield(m)
	})
}

// deliver posts a message that has no answer.
func (c *HTTP) deliver(ctx context.Context, m Message, body []byte) error {
	resp, err := c.post(ctx, m, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return statusError(resp)
	}
	return nil
}

func (c *HTTP) post(ctx context.Context, m Message, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	c.headers(req, m)
	return c.client.Do(req)
}

func (c *HTTP) headers(req *http.Request, m Message) {
	c.mu.Lock()
	maps.Copy(req.Header, c.header.Clone())
	session, version := c.session, c.version
	c.mu.Unlock()
	if extra, ok := req.Context().Value(headerKey{}).(http.Header); ok {
		maps.Copy(req.Header, extra)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	if c.o.Modern {
		version = V20260728
		req.Header.Set("Mcp-Method", m.Method)
		if name := Text(m.Params, "name"); m.Method == "tools/call" {
			req.Header.Set("Mcp-Name", name)
		}
	}
	if version != "" {
		req.Header.Set("Mcp-Protocol-Version", version)
	}
}

// answer reads resp up to the message that answers id; on the way it shows and answers the others.
func (c *HTTP) answer(ctx context.Context, resp *http.Response, id json.RawMessage) (Message, error) {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch kind {
	case "application/json":
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return Message{}, fmt.Errorf("read answer: %w", err)
		}
		m, err := Parse(body)
		if err != nil {
			return Message{}, &StatusError{Code: resp.StatusCode, Header: resp.Header, Body: string(body)}
		}
		return m, nil
	case "text/event-stream":
		var answer *Message
		var failed error
		err := Events(resp.Body, func(e Event) bool {
			m, err := Parse(e.Data)
			switch {
			case err != nil:
				return true // an empty event opens some streams
			case m.IsResponse():
				if string(m.ID) == string(id) {
					answer = &m
				}
				return answer == nil
			}
			if c.o.OnMessage != nil {
				c.o.OnMessage(m)
			}
			if m.IsRequest() {
				failed = c.deliver(ctx, Message{}, c.o.reply(m))
			}
			return failed == nil
		})
		if err := errors.Join(err, failed); err != nil {
			return Message{}, err
		}
		if answer == nil {
			return Message{}, ErrClosed
		}
		return *answer, nil
	}
	return Message{}, statusError(resp)
}

func statusError(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return errors.Join(&StatusError{Code: resp.StatusCode, Header: resp.Header, Body: string(body)}, err)
}
