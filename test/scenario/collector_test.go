package scenario

import (
	"encoding/hex"
	"fmt"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// collector takes spans by OTLP over gRPC, as bytes: it needs four fields of the format and no code for the rest.
type collector struct {
	address string

	mu       sync.Mutex
	received []byte
	spans    map[string]span // by trace and span id
}

type span struct{ name, parent string }

// rawCodec leaves messages as they are.
type rawCodec struct{}

// Name implements encoding.Codec.
func (rawCodec) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// Unmarshal implements encoding.Codec.
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func newCollector(t testing.TB) *collector {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{address: l.Addr().String(), spans: map[string]span{}}
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(c.export))
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("collector: %v", err)
		}
	})
	return c
}

// export answers opentelemetry.proto.collector.trace.v1.TraceService/Export.
func (c *collector) export(_ any, stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received = append(c.received, request...)
	for _, resourceSpans := range fields(request, 1) {
		for _, scopeSpans := range fields(resourceSpans, 2) {
			for _, raw := range fields(scopeSpans, 2) {
				id := func(field protowire.Number) string { return hex.EncodeToString(one(raw, field)) }
				c.spans[id(1)+"/"+id(2)] = span{name: string(one(raw, 5)), parent: id(4)}
			}
		}
	}
	return stream.SendMsg(new([]byte))
}

// fields returns the values of a length-delimited field of a message.
func fields(message []byte, wanted protowire.Number) [][]byte {
	var found [][]byte
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			panic(fmt.Sprintf("no protobuf message: %v", protowire.ParseError(n)))
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			panic(fmt.Sprintf("no protobuf message: %v", protowire.ParseError(n)))
		}
		if number == wanted && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			found = append(found, value)
		}
		message = message[n:]
	}
	return found
}

func one(message []byte, wanted protowire.Number) []byte {
	if found := fields(message, wanted); len(found) > 0 {
		return found[0]
	}
	return nil
}

// path returns a span of a trace, its parent, and so on, as far as they were exported.
func (c *collector) path(trace, id string) []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var path []span
	for s, ok := c.spans[trace+"/"+id]; ok && len(path) < 100; s, ok = c.spans[trace+"/"+s.parent] {
		path = append(path, s)
	}
	return path
}

// bytes returns all that was received.
func (c *collector) bytes() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.received)
}
