package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/partners"
	"github.com/toolherd/toolherd/test/rawrpc"
)

// structured returns the structured content of a result in view JSON.
func structured(result string) json.RawMessage {
	return rawrpc.Member(json.RawMessage(result), "structuredContent")
}

// stats asks a fake server what it has seen, in the scope default.
func (h *Herd) stats(t testing.TB, server string) fake.Stats {
	t.Helper()
	var s fake.Stats
	if err := json.Unmarshal(structured(h.JSON(t, Call{Tool: server + "_stats"})), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// SESS-023, CALL-012: results up to the limit arrive whole, one above it fails its call alone and says which
// limit, and a client with gRPC's default limits gets a large one as a stream.
func TestLargeResultsArriveOrFailAlone(t *testing.T) {
	url := partners.FakeHTTP(t).URL
	servers := map[string]any{"stdio": partners.Fake(t).Entry(), "http": map[string]any{"url": url}}
	Each(t, Options{Servers: servers}, func(t *testing.T, h *Herd) {
		h.SettledOK(t, "stdio", "http")
		for _, server := range []string{"stdio", "http"} {
			before := string(rawrpc.Member(structured(h.JSON(t, Call{Tool: server + "_counter"})), "session"))
			for _, size := range []int{70_000, 5 << 20} {
				result := h.JSON(t, Call{Tool: server + "_big", Arguments: fmt.Sprintf(`{"bytes":%d}`, size)})
				if want := `{"content":[{"type":"text","text":"` + strings.Repeat("a", size) + `"}]}`; result != want {
					t.Errorf("%s: %d bytes arrive as %d bytes %.80s…", server, size, len(result), result)
				}
			}
			_, err := h.Do(t, Call{Tool: server + "_big", Arguments: `{"bytes":20971520}`})
			if f := reasonOf(err); f.Reason != "PAYLOAD_TOO_LARGE" || !strings.Contains(f.Message, "max_message_bytes") || !strings.Contains(f.Message, server) {
				t.Errorf("%s: a result of 20 MiB ends with %v", server, f)
			}
			after := structured(h.JSON(t, Call{Tool: server + "_counter"}))
			if got := string(rawrpc.Member(after, "session")); got != before || string(rawrpc.Member(after, "count")) != "2" {
				t.Errorf("%s: after the large results the session is %s, it was %s", server, after, before)
			}
		}
		checkStreamed(t, h)
	})
}

// checkStreamed gets 5 MiB with a client that takes messages up to gRPC's default of 4 MiB.
func checkStreamed(t *testing.T, h *Herd) {
	t.Helper()
	call := Call{Tool: "stdio_big", Arguments: `{"bytes":5242880}`, View: viewJSON}.Request()
	small := grpc.MaxCallRecvMsgSize(4 << 20)
	stream, err := h.Tools(t).StreamCallTool(t.Context(), &toolproxyv1.StreamCallToolRequest{Call: call}, small)
	if err != nil {
		t.Fatal(err)
	}
	var encoded []byte
	for last := false; ; {
		msg, err := stream.Recv()
		if err == io.EOF && last {
			break
		}
		if err != nil || last {
			t.Fatalf("the stream goes on with %v, %v; the last piece came: %t", msg, err, last)
		}
		piece := msg.GetOutcome()
		if n := len(piece.GetData()); n > 1<<20 {
			t.Errorf("a piece of %d bytes", n)
		}
		encoded, last = append(encoded, piece.GetData()...), piece.GetLast()
	}
	out := &toolproxyv1.CallToolResponse{}
	if err := proto.Unmarshal(encoded, out); err != nil || len(out.GetResult().GetResultJson()) < 5<<20 {
		t.Errorf("the pieces decode to %d bytes of result, %v", len(out.GetResult().GetResultJson()), err)
	}
}

// running starts a call and returns a function that waits for its result.
func (h *Herd) running(t testing.TB, c Call) (wait func() (*toolproxyv1.CallToolResponse, error)) {
	t.Helper()
	type outcome struct {
		out *toolproxyv1.CallToolResponse
		err error
	}
	done := make(chan outcome, 1)
	tools := h.Tools(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	go func() {
		out, err := tools.CallTool(ctx, c.Request())
		done <- outcome{out, err}
	}()
	return func() (*toolproxyv1.CallToolResponse, error) {
		o := <-done
		return o.out, o.err
	}
}

// CALL-024, SESS-015: what one caller gets refused on a shared HTTP session is that caller's alone.
func TestARefusedCallLeavesARunningOneOnItsSessionAlone(t *testing.T) {
	for _, version := range []string{rawrpc.V20251125, rawrpc.V20260728} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			h := New(t, SQLite, Options{Servers: map[string]any{"web": map[string]any{"url": partners.FakeHTTP(t, "-protocol", version).URL}}})
			h.SettledOK(t, "web")
			wait := h.running(t, Call{Tool: "web_sleep", Arguments: `{"ms":2500}`, View: viewJSON})
			Eventually(t, "the long call runs", func() bool { return h.stats(t, "web").Calls["sleep"] == 1 })
			for _, status := range []int{400, 401, 403, 404, 413, 500, 503} {
				_, err := h.Do(t, Call{Tool: "web_http_status", Arguments: fmt.Sprintf(`{"status":%d,"body":"no"}`, status)})
				if f := reasonOf(err); err == nil || f.Domain != "toolherd" || !strings.Contains(f.Message, "web") {
					t.Errorf("status %d ends the call with %v", status, f)
				}
				if f := reasonOf(err); status == 401 && f.Reason != "UPSTREAM_UNAUTHENTICATED" {
					t.Errorf("status 401 ends the call with %v", f)
				}
				if got := h.JSON(t, Call{Tool: "web_echo", Arguments: `{"n":4}`}); !strings.Contains(got, `{"n":4}`) {
					t.Errorf("after status %d another call gets %s", status, got)
				}
			}
			out, err := wait()
			if err != nil || !strings.Contains(out.GetResult().GetResultJson(), `"slept_ms":2500`) || out.GetInfo().GetAttempt() != 1 {
				t.Errorf("the long call got %v, %v", out, err)
			}
			s := h.stats(t, "web")
			if s.Calls["sleep"] != 1 {
				t.Errorf("the server ran the long call %d times", s.Calls["sleep"])
			}
			if len(s.Violations) > 0 {
				t.Errorf("Toolherd broke the protocol: %v", s.Violations)
			}
		})
	}
}

// CALL-011: a caller's cancel and its deadline reach the server at once, and the session carries the next call.
func TestCancelAndDeadlineReachTheServer(t *testing.T) {
	t.Parallel()
	servers := map[string]any{"stdio": partners.Fake(t).Entry()}
	for name, version := range map[string]string{"old": rawrpc.V20251125, "new": rawrpc.V20260728} {
		servers[name] = map[string]any{"url": partners.FakeHTTP(t, "-protocol", version).URL}
	}
	h := New(t, SQLite, Options{Servers: servers})
	h.SettledOK(t, "stdio", "old", "new")
	for name := range servers {
		t.Run(name, func(t *testing.T) {
			session := h.session(t, name)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			tools := h.Tools(t)
			go func() {
				_, err := tools.CallTool(ctx, Call{Tool: name + "_sleep", Arguments: `{"ms":60000}`}.Request())
				ended <- err
			}()
			Eventually(t, "the call runs", func() bool { return h.stats(t, name).Calls["sleep"] == 1 })
			cancel()
			if err := <-ended; reasonOf(err).Code.String() != "Canceled" {
				t.Errorf("the cancelled call ends with %v", err)
			}
			EventuallyWithin(t, 5*time.Second, "the server hears of the cancel", func() bool { return len(h.stats(t, name).Cancelled) == 1 })

			_, err := h.Do(t, Call{Tool: name + "_sleep", Arguments: `{"ms":60000}`, Timeout: 300 * time.Millisecond})
			if reasonOf(err).Code.String() != "DeadlineExceeded" {
				t.Errorf("the call with a deadline ends with %v", err)
			}
			EventuallyWithin(t, 5*time.Second, "the server hears of the deadline", func() bool { return len(h.stats(t, name).Cancelled) == 2 })
			s := h.stats(t, name)
			// A subscription stays open for the whole session; the call of stats is the other one.
			if n := s.InFlight - s.Requests["subscriptions/listen"]; n != 1 || len(s.Violations) > 0 {
				t.Errorf("the server still runs %d calls besides this one; breaches of the protocol: %v", n-1, s.Violations)
			}
			if after := h.session(t, name); after != session {
				t.Errorf("the session is %s, it was %s", after, session)
			}
		})
	}
}

// session returns the id of the session that carries calls of the scope default.
func (h *Herd) session(t testing.TB, server string) string {
	t.Helper()
	out, err := h.Do(t, Call{Tool: server + "_echo"})
	if err != nil {
		t.Fatal(err)
	}
	return out.GetInfo().GetSessionId()
}

// SESS-024: a server that stops reading is killed, its callers get an error, others are served meanwhile.
func TestAServerThatStopsReadingIsKilled(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Servers: map[string]any{"deaf": partners.Evil(t, "deaf").Entry(), "good": partners.Fake(t).Entry()}})
	h.SettledOK(t, "deaf", "good")
	was := h.Processes()
	first := h.running(t, Call{Tool: "deaf_echo"})
	// More than a pipe holds.
	second := h.running(t, Call{Tool: "deaf_echo", Arguments: `{"text":"` + strings.Repeat("x", 1<<20) + `"}`})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, wait := range []func() (*toolproxyv1.CallToolResponse, error){first, second} {
			if _, err := wait(); reasonOf(err).Reason != "SESSION_CLOSED" {
				t.Errorf("the call ends with %v", err)
			}
		}
	}()
	calls := 0
	Eventually(t, "the callers of the deaf server are freed", func() bool {
		started := time.Now()
		h.JSON(t, Call{Tool: "good_echo"})
		if d := time.Since(started); d > 5*time.Second {
			t.Errorf("the good server took %s meanwhile", d)
		}
		calls++
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	if calls < 10 {
		t.Errorf("only %d calls of the good server fit in", calls)
	}
	for _, p := range was {
		if strings.Contains(p.Command, "deaf") && p.Alive() {
			t.Errorf("the deaf server still runs: %v", p)
		}
	}
}
