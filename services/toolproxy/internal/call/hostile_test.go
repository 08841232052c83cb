package call_test

import (
	"errors"
	"fmt"
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

// A result of many tiny blocks takes a hundred times its size when it is taken apart; as JSON it takes what it takes.
func TestResultOfTooManyBlocksIsHandedOverAsJSONOnly(t *testing.T) {
	server := onCall(func(p *wiretest.Process, m jsonrpc.Message) {
		p.Reply(m.ID, `{"content":[`+strings.Repeat("0,", 150_000)+`0]}`)
	})
	with(t, server, func(t *testing.T, f *fixture) {
		_, err := f.Call(as(t.Context()), echo(), call.Listener{})
		e, ok := errors.AsType[*fault.Error](err)
		if !ok || e.Reason() != fault.PayloadTooLarge || e.Metadata()["server"] != "s" || !strings.Contains(err.Error(), "RESULT_VIEW_JSON") {
			t.Errorf("view TYPED: %v", err)
		}
		r, err := f.Call(as(t.Context()), echo(func(r *toolproxyv1.CallToolRequest) {
			r.View = toolproxyv1.ResultView_RESULT_VIEW_JSON
		}), call.Listener{})
		if err != nil || len(r.GetResult().GetResultJson()) < 300_000 {
			t.Errorf("view JSON: %v", err)
		}
	})
}

// CALL-012: what a server says meanwhile never makes a message that a client with gRPC's default limit cannot take, nor
// does it pile up in memory for a slow reader.
func TestLargeEventsAreDropped(t *testing.T) {
	server := onCall(func(p *wiretest.Process, m jsonrpc.Message) {
		token := jsonrpc.Member(jsonrpc.Member(m.Params, "_meta"), "progressToken")
		go func() {
			p.Notify("notifications/message", `{"level":"info","data":"`+strings.Repeat("x", 5<<20)+`"}`)
			for range 20 {
				p.Notify("notifications/message", `{"level":"info","data":"`+strings.Repeat("y", 900<<10)+`"}`)
			}
			p.Notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":1}`, token))
			p.Reply(m.ID, `{"content":[]}`)
		}()
	})
	with(t, server, func(t *testing.T, f *fixture) {
		var bytes, events, dropped int64
		release, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- f.Stream(as(t.Context()), echo(), func(r *toolproxyv1.StreamCallToolResponse) error {
				<-release
				if r.GetOutcome() == nil {
					events++
					bytes += int64(proto.Size(r))
				}
				if proto.Size(r) > 2<<20 {
					t.Errorf("a message of %d bytes", proto.Size(r))
				}
				dropped += r.GetProgress().GetDropped() + r.GetLog().GetDropped()
				return nil
			})
		}()
		synctest.Wait()
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if bytes > 8<<20 || events == 0 || events+dropped != 22 {
			t.Errorf("%d events of %d bytes came, %d were dropped", events, bytes, dropped)
		}
	})
}
