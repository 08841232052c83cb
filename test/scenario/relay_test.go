package scenario

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// What a relay does with a call.
type relayed int

const (
	passes  relayed = iota
	lost            // it is made, and its answer lost
	refused         // it is not made
	hangs           // nothing happens until the caller gives up
)

// relay stands between two programs of a split Herd and passes gRPC calls on as they are, except those that a test wants
// otherwise.
type relay struct {
	address string

	mu    sync.Mutex
	rules map[string]func(n int) relayed // by method
	calls map[string]int
}

// newRelay starts a relay in front of a program, whose address every other program is told instead of the program's own.
// Programs that run already do not notice.
func (h *Herd) newRelay(t testing.TB, program string) *relay {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(h.authority.Cert, h.authority.Key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{address: l.Addr().String(), rules: map[string]func(int) relayed{}, calls: map[string]int{}}
	backend, err := grpc.NewClient(h.addresses[program], grpc.WithTransportCredentials(credentials.NewTLS(h.authority.client())),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(verbatim{})))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(verbatim{}),
		grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}})),
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { return r.handle(s, backend) }))
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		ended := <-done
		if errors.Is(ended, grpc.ErrServerStopped) { // before it began to serve
			ended = nil
		}
		if err := errors.Join(ended, backend.Close()); err != nil {
			t.Errorf("the relay ends with %v", err)
		}
	})
	h.peers[program] = r.address
	return r
}

// when says what happens to the calls of a method, counted from 1.
func (r *relay) when(method string, rule func(n int) relayed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules[method] = rule
}

// count returns how many calls of a method came.
func (r *relay) count(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[method]
}

func (r *relay) next(method string) relayed {
	r.mu.Lock()
	r.calls[method]++
	n, rule := r.calls[method], r.rules[method]
	r.mu.Unlock()
	if rule == nil {
		return passes
	}
	return rule(n) // which may make calls that come by here
}

func (r *relay) handle(server grpc.ServerStream, backend *grpc.ClientConn) error {
	method, _ := grpc.MethodFromServerStream(server)
	fate := r.next(method)
	switch fate {
	case refused:
		return status.New(codes.Unavailable, "the relay refuses the call").Err()
	case hangs:
		<-server.Context().Done()
		return server.Context().Err()
	case passes, lost: // both reach the far side
	}
	incoming, _ := metadata.FromIncomingContext(server.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(server.Context(), incoming))
	defer cancel()
	client, err := backend.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() { // ends with the call
		for {
			var message mem.BufferSlice
			if err := server.RecvMsg(&message); err != nil {
				_ = client.CloseSend()
				return
			}
			if client.SendMsg(&message) != nil {
				return // the far side has said why
			}
		}
	}()
	for {
		var message mem.BufferSlice
		err := client.RecvMsg(&message)
		switch {
		case fate == lost:
			return status.New(codes.Unavailable, "the relay lost the answer").Err()
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := server.SendMsg(&message); err != nil {
			return err
		}
	}
}

// verbatim passes messages on without looking into them.
type verbatim struct{}

func (verbatim) Marshal(v any) (mem.BufferSlice, error) { return *v.(*mem.BufferSlice), nil }

func (verbatim) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

func (verbatim) Name() string { return "proto" }
