package streamhttp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange/exchangetest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// BenchmarkCallBesideTheSDK measures calls through a link over this wire beside calls of the SDK's client to the same
// SDK server, in turns, and reports how many times the SDK's throughput ours is.
func BenchmarkCallBesideTheSDK(b *testing.B) {
	for _, form := range []struct {
		name    string
		options mcp.StreamableHTTPOptions
	}{{"events", mcp.StreamableHTTPOptions{}}, {"json", mcp.StreamableHTTPOptions{JSONResponse: true}}} {
		for _, c := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/concurrent=%d", form.name, c), func(b *testing.B) { besideSDK(b, form.options, c, `{"a":1}`) })
		}
	}
	b.Run("events/1MB", func(b *testing.B) {
		besideSDK(b, mcp.StreamableHTTPOptions{MaxRequestBodyBytes: 4 << 20}, 1, `{"a":"`+strings.Repeat("x", 1<<20)+`"}`)
	})
}

func besideSDK(b *testing.B, o mcp.StreamableHTTPOptions, concurrent int, arguments string) {
	b.Helper()
	s := exchangetest.NewMCPServer(nil)
	srv := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &o))
	defer srv.Close()

	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := client.Connect(b.Context(), &mcp.StreamableClientTransport{
		Endpoint: srv.URL, DisableStandaloneSSE: true,
		HTTPClient: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}},
	}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		b.Fatal(err)
	}
	defer session.Close()

	l := link.New(newWire(b, srv.URL), link.Options{Server: "srv"})
	ended := make(chan error, 1)
	running, stop := context.WithCancel(b.Context())
	go func() { ended <- l.Run(running) }()
	defer func() { stop(); <-ended }()
	if _, err := l.Call(b.Context(), "initialize", []byte(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)); err != nil {
		b.Fatal(err)
	}
	if err := l.Notify(b.Context(), "notifications/initialized", nil); err != nil {
		b.Fatal(err)
	}

	const calls = 200
	params := []byte(`{"name":"echo","arguments":` + arguments + `}`)
	var spent, cpu [2]time.Duration
	for b.Loop() {
		for who, call := range []func(context.Context) error{
			func(ctx context.Context) error {
				_, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: json.RawMessage(arguments)})
				return err
			},
			func(ctx context.Context) error {
				_, err := l.Call(ctx, "tools/call", params)
				return err
			},
		} {
			begin, used := time.Now(), cpuTime(b)
			repeat(b, calls, concurrent, call)
			spent[who] += time.Since(begin)
			cpu[who] += cpuTime(b) - used
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(calls*b.N)/spent[0].Seconds(), "sdk-calls/s")
	b.ReportMetric(float64(calls*b.N)/spent[1].Seconds(), "our-calls/s")
	b.ReportMetric(spent[0].Seconds()/spent[1].Seconds(), "x-sdk")
	b.ReportMetric(float64(cpu[0].Microseconds())/float64(calls*b.N), "sdk-cpu-us/call")
	b.ReportMetric(float64(cpu[1].Microseconds())/float64(calls*b.N), "our-cpu-us/call")
}

// cpuTime is the processor time of this process, client and server alike: on a busy machine it says more than the clock.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func repeat(b *testing.B, calls, concurrent int, call func(context.Context) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(calls))
	var wg sync.WaitGroup
	for range concurrent {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(b.Context()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
