package scenario

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/toolherd/toolherd/test/partners"
	"github.com/toolherd/toolherd/test/rawrpc"
)

const callerSpan = "00f067aa0ba902b7"

// OPS-008: the caller's trace goes on to the MCP server, whatever the transport and version, and log lines name it; no log
// holds arguments or results, at any level.
func TestOneTraceGoesThroughAllHops(t *testing.T) {
	servers := map[string]any{
		"stdio": partners.Fake(t).Entry(), "modern": partners.Fake(t, "-protocol", rawrpc.V20260728).Entry(),
		"web":  map[string]any{"url": partners.FakeHTTP(t).URL},
		"json": map[string]any{"url": partners.FakeHTTP(t, "-protocol", rawrpc.V20260728, "-json").URL},
	}
	Each(t, Options{Servers: servers, Idle: true}, func(t *testing.T, h *Herd) {
		spans := newCollector(t)
		h.o.Args = []string{"--log-level", "debug", "--log-format", "json", "--otlp-endpoint", "http://" + spans.address}
		h.LaunchAll(t)
		h.SettledOK(t, "stdio", "modern", "web", "json")
		last := map[string]string{} // the span that the server saw, by trace
		n := 0
		for server := range servers {
			n++
			trace, span := fmt.Sprintf("4bf92f3577b34da6a3ce929d0e0e47%02d", n), callerSpan
			ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+trace+"-"+span+"-01", "tracestate", "vendor=scenario")
			call := Call{Tool: server + "_meta", Arguments: `{"secret_argument":"argument-marker"}`, View: viewJSON}
			out, err := h.Tools(t).CallTool(ctx, call.Request())
			if err != nil {
				t.Fatal(err)
			}
			meta := structured(out.GetResult().GetResultJson())
			part := strings.Split(rawrpc.Text(meta, "traceparent"), "-")
			if len(part) != 4 || part[0] != "00" || part[1] != trace || part[2] == span || len(part[2]) != 16 || part[3] != "01" {
				t.Errorf("%s got the traceparent %q, want a span of its own in trace %s", server, strings.Join(part, "-"), trace)
			}
			last[trace] = part[2]
			if got := rawrpc.Text(meta, "tracestate"); got != "vendor=scenario" {
				t.Errorf("%s got the tracestate %q", server, got)
			}
			line := map[string]any{}
			Eventually(t, "a log line has the trace", func() bool {
				for text := range strings.Lines(h.Proxy.Stderr()) {
					if strings.Contains(text, trace) && json.Unmarshal([]byte(text), &line) == nil {
						return true
					}
				}
				return false
			})
			if line["trace_id"] != trace || line["msg"] == "" || line["level"] == "" || line["time"] == "" {
				t.Errorf("the log line is %v", line)
			}
			// What a caller without a trace gets is one of ours.
			own := structured(h.JSON(t, Call{Tool: server + "_meta"}))
			if got := rawrpc.Text(own, "traceparent"); len(got) != 55 || strings.Contains(got, trace) {
				t.Errorf("%s got the traceparent %q for a caller without a trace", server, got)
			}
			if got := h.JSON(t, Call{Tool: server + "_echo", Arguments: `{"x":"result-marker"}`}); !strings.Contains(got, "result-marker") {
				t.Errorf("%s answers %s", server, got)
			}
			if _, err := h.Do(t, Call{Tool: server + "_sleep", Arguments: `{"ms":"argument-marker"}`}); err == nil {
				t.Error("an argument of the wrong type is accepted")
			}
		}
		h.StopAll(t) // which exports what is left
		for trace, span := range last {
			// From the server's point of view back to the caller, each hop has a span of its own.
			path := spans.path(trace, span)
			if len(path) < 2 || path[len(path)-1].parent != callerSpan || !strings.HasSuffix(path[len(path)-1].name, "ToolProxyService/CallTool") {
				t.Errorf("the spans of trace %s from the server back to the caller are %+v", trace, path)
			}
		}
		where := h.written(t)
		where["the exported spans"] = spans.bytes()
		for place, text := range where {
			for _, marker := range []string{"argument-marker", "result-marker"} {
				if strings.Contains(text, marker) {
					t.Errorf("%s is in %s", marker, place)
				}
			}
		}
		for _, name := range h.programs() {
			for line := range strings.Lines(h.started[name].Stderr()) {
				if !strings.HasPrefix(line, "ready ") && !json.Valid([]byte(line)) {
					t.Errorf("%s logs a line that is no JSON: %s", name, line)
				}
			}
		}
	})
}
