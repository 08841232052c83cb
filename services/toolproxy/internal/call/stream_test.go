package call_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/pkg/fault"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/call"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

// worker reports progress and log messages n times, then answers with a text of so many bytes.
func worker(n, size int) *wiretest.Server {
	return onCall(func(p *wiretest.Process, m jsonrpc.Message) {
		token := jsonrpc.Member(jsonrpc.Member(m.Params, "_meta"), "progressToken")
		go func() {
			for i := range n {
				p.Notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":%d,"total":%d,"message":"m%d"}`, token, i+1, n, i+1))
				p.Notify("notifications/message", fmt.Sprintf(`{"level":"info","logger":"l","data":{"i":%d}}`, i+1))
			}
			p.Reply(m.ID, `{"content":[{"type":"text","text":"`+strings.Repeat("x", size)+`"}]}`)
		}()
	})
}

// CALL-012: progress and log messages as they come, then one outcome equal to CallTool's in chunks of at most 1 MiB.
func TestStream(t *testing.T) {
	const size = 3<<20 + 17
	with(t, worker(3, size), func(t *testing.T, f *fixture) {
		var progress, logs []string
		var encoded []byte
		last := 0
		err := f.Stream(as(t.Context()), echo(), func(r *toolproxyv1.StreamCallToolResponse) error {
			switch e := r.GetEvent().(type) {
			case *toolproxyv1.StreamCallToolResponse_Progress:
				progress = append(progress, fmt.Sprint(e.Progress.GetProgress(), "/", e.Progress.GetTotal(), e.Progress.GetMessage(), e.Progress.GetDropped()))
			case *toolproxyv1.StreamCallToolResponse_Log:
				logs = append(logs, e.Log.GetLevel()+e.Log.GetLogger()+e.Log.GetDataJson())
			case *toolproxyv1.StreamCallToolResponse_Outcome:
				if len(e.Outcome.GetData()) > 1<<20 {
					t.Errorf("a chunk has %d bytes", len(e.Outcome.GetData()))
				}
				encoded = append(encoded, e.Outcome.GetData()...)
				if e.Outcome.GetLast() {
					last++
				}
			}
			if len(encoded) > 0 && len(progress) < 3 {
				t.Error("the outcome came before the progress")
			}
			return nil
		})
		if err != nil || last != 1 {
			t.Fatalf("error %v, %d last chunks", err, last)
		}
		if fmt.Sprint(progress) != "[1/3m10 2/3m20 3/3m30]" || fmt.Sprint(logs) != `[infol{"i":1} infol{"i":2} infol{"i":3}]` {
			t.Errorf("progress %v, logs %v", progress, logs)
		}
		var got toolproxyv1.CallToolResponse
		if err := proto.Unmarshal(encoded, &got); err != nil {
			t.Fatal(err)
		}
		plain, err := f.Call(as(t.Context()), echo(), call.Listener{})
		if err != nil || !proto.Equal(plain.GetResult(), got.GetResult()) || len(got.GetResult().GetContent()[0].GetText().GetText()) != size {
			t.Errorf("outcome differs from CallTool's, %v", err)
		}
		if got.GetInfo().GetSessionId() != plain.GetInfo().GetSessionId() {
			t.Errorf("info is %v", got.GetInfo())
		}
	})
}

// CALL-013: a slow reader blocks nobody else; the oldest messages are dropped and counted.
func TestSlowReaderBlocksNobody(t *testing.T) {
	const n = 400
	with(t, worker(n, 1), func(t *testing.T, f *fixture) {
		var received, dropped int64
		release := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- f.Stream(as(t.Context()), echo(), func(r *toolproxyv1.StreamCallToolResponse) error {
				<-release
				if r.GetOutcome() == nil {
					received++
				}
				dropped += r.GetProgress().GetDropped() + r.GetLog().GetDropped()
				return nil
			})
		}()
		synctest.Wait()
		if _, err := f.Call(as(t.Context()), echo(), call.Listener{}); err != nil {
			t.Errorf("another call on the same session: %v", err)
		}
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if received+dropped != 2*n || dropped == 0 || received == 0 {
			t.Errorf("%d received, %d dropped of %d", received, dropped, 2*n)
		}
	})
}

func TestReaderThatGoesAwayCancelsTheCall(t *testing.T) {
	server := onCall(func(p *wiretest.Process, m jsonrpc.Message) {
		token := jsonrpc.Member(jsonrpc.Member(m.Params, "_meta"), "progressToken")
		p.Notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":1}`, token))
	})
	with(t, server, func(t *testing.T, f *fixture) {
		gone := errors.New("gone")
		if err := f.Stream(as(t.Context()), echo(), func(*toolproxyv1.StreamCallToolResponse) error { return gone }); !errors.Is(err, gone) {
			t.Errorf("error is %v", err)
		}
		synctest.Wait()
		if seen := server.Processes()[0].Seen(); !slices.Contains(seen, "notifications/cancelled") {
			t.Errorf("the server heard %q", seen)
		}
	})
}

func TestStreamReportsTheCallsError(t *testing.T) {
	with(t, onCall(func(p *wiretest.Process, m jsonrpc.Message) { p.Refuse(m.ID, -1, "no") }), func(t *testing.T, f *fixture) {
		err := f.Stream(as(t.Context()), echo(), func(r *toolproxyv1.StreamCallToolResponse) error {
			t.Errorf("sent %v", r)
			return nil
		})
		if !fault.Is(err, fault.UpstreamError) {
			t.Errorf("error is %v", err)
		}
	})
}
