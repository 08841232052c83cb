package link

import (
	"context"
	"errors"

	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// Wire is one transport to one MCP server. Send and Close may be called concurrently, before Run and after it.
type Wire interface {
	// Send sends one message, which has no line end in it. The wire may keep msg. An answer may be delivered
	// before Send returns, or on another goroutine; over HTTP Send returns only when the answer's stream has
	// ended, with an error if there was no answer in it. An error concerns this message alone, unless the wire ends; where the wire has ended, or is about
	// to, and the message was not sent, it matches ErrEnded. When ctx ends Send returns soon.
	Send(ctx context.Context, msg []byte) error

	// Run receives until the wire ends, and returns why. It passes each message to deliver, which may be called
	// concurrently, does not block, and keeps msg. When ctx ends Run closes the wire. Run is called once.
	Run(ctx context.Context, deliver func(msg []byte)) error

	// Close ends the wire and every Send in progress, and waits for that until ctx ends.
	Close(ctx context.Context) error
}

// SinkWire is a Wire that can say more about what it receives than its bytes. A Link calls RunSink in place of Run.
type SinkWire interface {
	Wire
	RunSink(ctx context.Context, sink Sink) error
}

// Sink takes what a SinkWire receives. Its methods may be called concurrently and do not block.
type Sink interface {
	// Deliver takes a message. The sink keeps msg.
	Deliver(msg []byte)

	// DeliverFor takes a message that came on the stream which answers the request with this id, over HTTP: a log
	// message in it belongs to that call, and so does an error without an id.
	DeliverFor(request jsonrpc.ID, msg []byte)

	// Drop reports a message that the wire had to discard, of which only the head is known. If it answers a call,
	// that call fails with err; if it is a request, the server is told.
	Drop(head *jsonrpc.Head, err error)
}

// ErrEnded is matched by the error of a Send whose message was not sent because the wire has ended.
var ErrEnded = errors.New("the wire has ended")

// ErrNotSent is matched by the error of a call that provably never reached the server: it may be repeated on
// another session.
var ErrNotSent = errors.New("the call was not sent")
