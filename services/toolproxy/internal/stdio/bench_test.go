//go:build linux

package stdio

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// sdkServer is an echo server of the SDK: its result's text is its argument's, or as long as asked for.
func sdkServer() {
	s := mcp.NewServer(&mcp.Implementation{Name: "echo", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "echo", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var args struct {
				Text string `json:"text"`
				Size int    `json:"size"`
			}
			if err := json.Unmarshal(r.Params.Arguments, &args); err != nil {
				return nil, err
			}
			text := cmp.Or(strings.Repeat("x", args.Size), args.Text)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
		})
	_ = s.Run(context.Background(), &mcp.StdioTransport{})
}

const initialize = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`

// ours returns a call over link and stdio.
func ours(b *testing.B, l *Launcher) func(args string) error {
	b.Helper()
	r := open(b, l, serverSpec("sdk"), link.Options{})
	r.must(b, "initialize", initialize)
	if err := r.Notify(b.Context(), "notifications/initialized", nil); err != nil {
		b.Fatal(err)
	}
	return func(args string) error {
		_, err := r.Call(b.Context(), "tools/call", json.RawMessage(`{"name":"echo","arguments":`+args+`}`))
		return err
	}
}

// theirs returns a call over the SDK's client and its command transport.
func theirs(b *testing.B) func(args string) error {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), self)
	cmd.Env = append(os.Environ(), mode+"=sdk")
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := client.Connect(b.Context(), &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = session.Close() })
	return func(args string) error {
		_, err := session.CallTool(b.Context(), &mcp.CallToolParams{Name: "echo", Arguments: json.RawMessage(args)})
		return err
	}
}

// sample is what one round measured.
type sample struct {
	p50, p99 time.Duration
	rate     float64       // calls per second
	cpu      time.Duration // that this process used for each call; it holds on a busy machine too
}

func measure(b *testing.B, call func(string) error, args string, concurrency int, d time.Duration) sample {
	b.Helper()
	times := make([][]time.Duration, concurrency)
	cpu := cpuTime(b)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range concurrency {
		wg.Go(func() {
			for time.Since(began) < d {
				start := time.Now()
				if err := call(args); err != nil {
					b.Error(err)
					return
				}
				times[i] = append(times[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	cpu = cpuTime(b) - cpu
	all := slices.Concat(times...)
	if len(all) == 0 {
		b.Fatal("no call came back")
	}
	slices.Sort(all)
	return sample{all[len(all)/2], all[len(all)*99/100], float64(len(all)) / took.Seconds(), cpu / time.Duration(len(all))}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// median takes each figure's median over the rounds.
func median(rounds []sample) sample {
	pick := func(figure func(sample) float64) float64 {
		var all []float64
		for _, s := range rounds {
			all = append(all, figure(s))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return sample{
		p50:  time.Duration(pick(func(s sample) float64 { return float64(s.p50) })),
		p99:  time.Duration(pick(func(s sample) float64 { return float64(s.p99) })),
		rate: pick(func(s sample) float64 { return s.rate }),
		cpu:  time.Duration(pick(func(s sample) float64 { return float64(s.cpu) })),
	}
}

// BenchmarkBesideTheSDK calls the same echo server over link and stdio and over the SDK's client, in turns.
func BenchmarkBesideTheSDK(b *testing.B) {
	const rounds, length = 7, 300 * time.Millisecond
	l := launcher()
	our, their := ours(b, l), theirs(b)
	for _, c := range []struct {
		name, args  string
		concurrency int
	}{
		{"small", `{"text":"hi"}`, 1},
		{"small", `{"text":"hi"}`, 16},
		{"10KiB", `{"text":"` + strings.Repeat("x", 10<<10) + `"}`, 16},
		{"1MBResult", `{"size":1000000}`, 1},
	} {
		b.Run(fmt.Sprintf("%s/c=%d", c.name, c.concurrency), func(b *testing.B) {
			for b.Loop() {
				var us, them []sample
				for range rounds {
					us = append(us, measure(b, our, c.args, c.concurrency, length))
					them = append(them, measure(b, their, c.args, c.concurrency, length))
				}
				u, t := median(us), median(them)
				b.ReportMetric(float64(u.p50.Microseconds()), "our-p50-µs")
				b.ReportMetric(float64(t.p50.Microseconds()), "sdk-p50-µs")
				b.ReportMetric(float64(u.p99.Microseconds()), "our-p99-µs")
				b.ReportMetric(float64(t.p99.Microseconds()), "sdk-p99-µs")
				b.ReportMetric(u.rate, "our-calls/s")
				b.ReportMetric(t.rate, "sdk-calls/s")
				b.ReportMetric(float64(u.cpu.Nanoseconds())/1e3, "our-cpu-µs/call")
				b.ReportMetric(float64(t.cpu.Nanoseconds())/1e3, "sdk-cpu-µs/call")
				b.ReportMetric(u.rate/t.rate, "rate-ratio")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func BenchmarkCall(b *testing.B) {
	call := ours(b, launcher())
	b.ReportAllocs()
	for b.Loop() {
		if err := call(`{"text":"hi"}`); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCallParallel(b *testing.B) {
	call := ours(b, launcher())
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := call(`{"text":"hi"}`); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkIdleSession reports what this process holds for a session that was used and does nothing.
func BenchmarkIdleSession(b *testing.B) {
	const sessions = 50
	l := launcher()
	held := func() (bytes uint64, files, threads int) {
		runtime.GC()
		runtime.GC() // what sync.Pool held survives one
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fds, _ := os.ReadDir("/proc/self/fd")
		tasks, _ := os.ReadDir("/proc/self/task")
		return m.HeapAlloc + m.StackInuse, len(fds), len(tasks)
	}
	for b.Loop() {
		bytes, files, threads := held()
		for range sessions {
			r := open(b, l, serverSpec("server"), link.Options{})
			r.must(b, "echo", `{"pad":"`+strings.Repeat("x", 100_000)+`"}`)
		}
		bytes2, files2, threads2 := held()
		b.ReportMetric(float64(bytes2-bytes)/sessions/1024, "KiB/session")
		b.ReportMetric(float64(files2-files)/sessions, "files/session")
		b.ReportMetric(float64(threads2-threads)/sessions, "threads/session")
	}
}
