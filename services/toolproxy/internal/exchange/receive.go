package exchange

import (
	"errors"

	"github.com/toolherd/toolherd/services/toolproxy/internal/eventstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// Receive delivers the messages of a stream that many calls share, until it ends, and returns why and whether any
// came. An event above the limit is discarded, and dropped is told what can be known of it: one call fails, not the
// stream.
func Receive(c *Client, r *eventstream.Reader, deliver func(msg []byte), dropped func(*jsonrpc.Head, error)) (any bool, err error) {
	for {
		ev, err := r.Next()
		if errors.Is(err, eventstream.ErrTooLarge) {
			any = true
			var head jsonrpc.Head
			head.Write(ev.Data)
			if err := r.Skip(head.Write); err != nil {
				return any, err
			}
			dropped(&head, c.TooLarge("a call"))
			continue
		}
		if err != nil {
			return any, err
		}
		if ev.Name == "message" {
			any = true
			deliver(ev.Data)
		}
	}
}

// Deliver is a link.Sink for receivers that take nothing but messages.
type Deliver func(msg []byte)

var _ link.Sink = Deliver(nil)

// Deliver passes on msg.
func (d Deliver) Deliver(msg []byte) { d(msg) }

// DeliverFor passes on msg. A failure without an id, which means the request on whose stream it came, gets its id.
func (d Deliver) DeliverFor(request jsonrpc.ID, msg []byte) {
	m, err := jsonrpc.Parse(msg)
	if err == nil && m.Kind == jsonrpc.Failure && m.ID == nil {
		if e, err := jsonrpc.DecodeError(m.Error); err == nil {
			msg = jsonrpc.AppendError(nil, request, e)
		}
	}
	d(msg)
}

// Drop tells the caller whose answer was discarded with a failure in the server's stead.
func (d Deliver) Drop(head *jsonrpc.Head, err error) {
	if head.Answers() {
		d(jsonrpc.AppendError(nil, head.ID(), &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: err.Error()}))
	}
}
