package link

import (
	"context"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

const (
	maxNotifications = 256
	maxOutgoing      = 1024
	maxInbound       = 16              // requests of the server that are answered at once
	sendTimeout      = 5 * time.Second // of what the link sends by itself
	maxPreview       = 120             // characters of a skipped line that are logged
)

// sink is the link as its wire sees it.
type sink struct{ l *Link }

func (s sink) Deliver(msg []byte)                        { s.l.receive(nil, msg) }
func (s sink) DeliverFor(request jsonrpc.ID, msg []byte) { s.l.receive(request, msg) }
func (s sink) Drop(head *jsonrpc.Head, err error)        { s.l.drop(head, err) }

// receive takes one message. stream is the request on whose stream it came, if the wire knows.
func (l *Link) receive(stream jsonrpc.ID, msg []byte) {
	m, err := jsonrpc.Parse(msg)
	if err != nil {
		l.broken(&m, msg, err)
		return
	}
	switch m.Kind {
	case jsonrpc.Response:
		l.answer(m.ID, reply{result: m.Result})
	case jsonrpc.Failure:
		id := m.ID
		if id == nil {
			id = stream
		}
		e, err := jsonrpc.DecodeError(m.Error)
		if err != nil {
			l.answer(id, reply{err: l.protocolError(err)})
			return
		}
		l.answer(id, reply{err: e})
	case jsonrpc.Notification:
		l.notified(stream, m.Method, m.Params)
	case jsonrpc.Request:
		l.asked(&m)
	case jsonrpc.Invalid: // comes with an error
	}
}

func (l *Link) answer(id jsonrpc.ID, r reply) {
	c := l.take(id)
	if c == nil {
		l.late.Add(1)
		return
	}
	c.reply <- r
}

func (l *Link) protocolError(err error) error {
	return fault.New(fault.UpstreamProtocol, "server %q sent an answer that breaks the protocol: %v", l.opts.Server, err)
}

// broken takes what is no JSON-RPC message. Its caller is told if it is recognisably the answer to a call.
func (l *Link) broken(m *jsonrpc.Message, msg []byte, err error) {
	if m.Answers() {
		if c := l.take(m.ID); c != nil {
			c.reply <- reply{err: l.protocolError(err)}
			return
		}
	}
	l.skipped.Add(1)
	l.log.Debug("skipped output that is not JSON-RPC", "bytes", len(msg), "preview", preview(msg), "err", err)
}

// preview is the beginning of a banner. Of JSON, which may hold results, it shows nothing.
func preview(msg []byte) string {
	if len(msg) > 0 && (msg[0] == '{' || msg[0] == '[') {
		return ""
	}
	line := strings.ToValidUTF8(string(msg[:min(len(msg), utf8.UTFMax*maxPreview)]), "\uFFFD")
	if runes := []rune(line); len(runes) > maxPreview {
		return string(runes[:maxPreview]) + "…"
	}
	return line
}

func (l *Link) drop(head *jsonrpc.Head, err error) {
	if head.Answers() {
		if c := l.take(head.ID()); c != nil {
			c.reply <- reply{err: err}
			return
		}
	}
	l.log.Warn("discarded a message of the server", "err", err)
	if head.Asks() {
		l.post(outgoing{msg: jsonrpc.AppendError(nil, head.ID(), &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "the request is too large",
		})})
	}
}

// notified routes a notification: to the call it belongs to, else to the handler.
func (l *Link) notified(stream jsonrpc.ID, method string, params json.RawMessage) {
	switch method {
	case "notifications/progress":
		l.progressed(params)
	case "notifications/cancelled":
		l.cancelled(params)
	case "notifications/message":
		if c := l.logReader(stream); c != nil {
			l.queue(c, event{log: true, params: params})
			return
		}
		l.dispatch(notification{method, params})
	default:
		l.dispatch(notification{method, params})
	}
}

func (l *Link) progressed(params json.RawMessage) {
	token, ok := jsonrpc.Int(jsonrpc.Member(params, "progressToken"))
	c := l.find(token)
	if !ok || c == nil {
		l.late.Add(1)
		return
	}
	if c.opts.OnActivity != nil {
		c.opts.OnActivity()
	}
	if c.opts.OnProgress != nil {
		l.queue(c, event{params: params})
	}
}

// logReader returns the call that a log message belongs to, if there is one and it listens.
func (l *Link) logReader(stream jsonrpc.ID) *call {
	if id, ok := stream.Int(); ok {
		if c := l.find(id); c != nil && c.opts.OnLog != nil {
			return c
		}
		return nil
	}
	if l.opts.Shared {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var only *call
	for _, c := range l.calls {
		if c.opts.OnLog == nil {
			continue
		}
		if only != nil {
			return nil
		}
		only = c
	}
	return only
}

// asked answers a request of the server.
func (l *Link) asked(m *jsonrpc.Message) {
	switch {
	case m.Method == "ping":
		l.post(outgoing{msg: jsonrpc.AppendResult(nil, m.ID, json.RawMessage(`{}`))})
	case l.opts.OnRequest == nil:
		l.refuse(m.ID, jsonrpc.CodeMethodNotFound, "method not found")
	default:
		l.handle(m)
	}
}

func (l *Link) refuse(id jsonrpc.ID, code int64, why string) {
	l.post(outgoing{msg: jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: code, Message: why})})
}

// question is a request of the server that is being answered. Its fields are guarded by Link.mu.
type question struct {
	cancel    context.CancelFunc // nil before its goroutine runs
	cancelled bool               // the server no longer waits
}

// handle runs OnRequest on a goroutine of its own.
func (l *Link) handle(m *jsonrpc.Message) {
	id, method, params := m.ID, m.Method, m.Params
	q := &question{}
	l.mu.Lock()
	twice := l.inbound[string(id)] != nil
	full := len(l.inbound) == maxInbound
	if !twice && !full {
		l.inbound[string(id)] = q
	}
	l.mu.Unlock()
	switch {
	case twice:
		l.refuse(id, jsonrpc.CodeInvalidRequest, "a request with this id is being answered")
		return
	case full:
		l.refuse(id, jsonrpc.CodeInternal, "too many requests at once")
		return
	}
	l.spawn("answer "+method, func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		l.mu.Lock()
		q.cancel = cancel
		if q.cancelled {
			cancel()
		}
		l.mu.Unlock()

		result, failure := l.opts.OnRequest(ctx, method, params)

		l.mu.Lock()
		delete(l.inbound, string(id))
		unwanted := q.cancelled
		l.mu.Unlock()
		switch {
		case unwanted:
		case failure != nil:
			l.post(outgoing{msg: jsonrpc.AppendError(nil, id, failure)})
		default:
			l.post(outgoing{msg: jsonrpc.AppendResult(nil, id, result)})
		}
	})
}

func (l *Link) cancelled(params json.RawMessage) {
	id := jsonrpc.Member(params, "requestId")
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.inbound[string(id)]
	if q == nil {
		return
	}
	q.cancelled = true
	if q.cancel != nil {
		q.cancel()
	}
}
