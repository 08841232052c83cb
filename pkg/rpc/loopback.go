package rpc

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// loopbackBuffer is what one direction of an in-process connection holds, in bytes.
const loopbackBuffer = 256 << 10

// Loopback joins a server and connections inside one process. Nothing outside the process can reach it, so a server
// on its listener may be a Peer.
type Loopback struct {
	listener *bufconn.Listener
}

// NewLoopback returns a loopback that waits for a server.
func NewLoopback() *Loopback { return &Loopback{listener: bufconn.Listen(loopbackBuffer)} }

// Listener returns the listener for [Server.Serve], which closes it.
func (l *Loopback) Listener() net.Listener { return l.listener }

// Dial returns a connection to the server. The options' TLS and Token are not used.
func (l *Loopback) Dial(o ClientOptions) (*grpc.ClientConn, error) {
	o.TLS, o.Token = nil, nil
	return dial("passthrough:///in-process", o, l.Dialer())
}

// Dialer is for connections that [grpc.NewClient] makes: with it any passthrough target is the server.
func (l *Loopback) Dialer() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.listener.DialContext(ctx) })
}
