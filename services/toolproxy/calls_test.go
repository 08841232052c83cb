package toolproxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/fault"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy"
)

// peers runs a toolproxy with one peer and waits until it is OK.
func peers(t *testing.T, more string, env ...string) *proxy {
	t.Helper()
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{"peer": peerEntry(t, more, env...)})
	p.awaitOK(t, "peer")
	return p
}

// CALL-001: an answer holds one outcome, and how it came about.
// CALL-002: arguments_json goes on token for token.
func TestCall(t *testing.T) {
	p := peers(t, "")
	text, info := p.text(t, "peer_echo", `{"n": 9007199254740993, "x":1.10}`)
	if text != `{"n": 9007199254740993, "x":1.10}` {
		t.Errorf("the server got %s", text)
	}
	if info.GetServer() != "peer" || info.GetOriginalName() != "echo" || info.GetSnapshotId() == "" || info.GetSessionId() == "" ||
		!info.GetSessionStartTime().IsValid() || info.GetEra() != "2025-11-25" || info.GetAttempt() != 1 ||
		info.GetDeadlineSource() != "caller" || info.GetDuration().AsDuration() <= 0 || info.GetSynthetic() {
		t.Errorf("info is %v", info)
	}
}

// CALL-003, CALL-004: both views of what a real server sends.
func TestViews(t *testing.T) {
	p := peers(t, "")
	const raw = `{"z":1e400,"content":[{"type":"text","text":"BAD\u00e9"},{"type":"new"}],"structuredContent":{"b":9007199254740993,"a":1.10},"isError":true,"_meta":{"k":1}}`
	arguments, err := json.Marshal(map[string]string{"json": raw})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.call(t, "peer_result", string(arguments), func(r *toolproxyv1.CallToolRequest) { r.View = toolproxyv1.ResultView_RESULT_VIEW_JSON })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.ReplaceAll(raw, "BAD", "\uFFFD"), r.GetResult().GetResultJson()); diff != "" {
		t.Error(diff)
	}
	if len(r.GetResult().GetContent()) != 0 || r.GetResult().GetIsError() {
		t.Errorf("view JSON fills more: %v", r.GetResult())
	}
	r, err = p.call(t, "peer_result", string(arguments))
	if err != nil {
		t.Fatal(err)
	}
	got := r.GetResult()
	if !got.GetIsError() || got.GetStructuredContentJson() != `{"b":9007199254740993,"a":1.10}` || got.GetMetaJson() != `{"k":1}` ||
		got.GetContent()[0].GetText().GetText() != "\uFFFDé" || got.GetContent()[1].GetOtherJson() != `{"type":"new"}` || got.GetResultJson() != "" {
		t.Errorf("view TYPED is %v", got)
	}
}

// CALL-014: an ordinary call with a repeated request_id runs again.
func TestRequestIDDoesNotDeduplicateOrdinaryCalls(t *testing.T) {
	p := peers(t, "")
	id := func(r *toolproxyv1.CallToolRequest) { r.RequestId = "same" }
	if text, _ := p.text(t, "peer_count", "{}", id); text != "1" {
		t.Errorf("first: %s", text)
	}
	if text, _ := p.text(t, "peer_count", "{}", id); text != "2" {
		t.Errorf("second: %s", text)
	}
}

// SESS-001: a real process is the caller's own by user and thread, and keeps its state.
func TestEachScopeHasItsProcess(t *testing.T) {
	p := peers(t, "")
	for _, tc := range []struct{ user, thread, want string }{
		{"a:b", "c", "1"}, {"a:b", "c", "2"}, {"a", "b:c", "1"}, {"a:b", "d", "1"}, {"", "", "1"}, {"default", "default", "2"},
	} {
		if text, _ := p.text(t, "peer_count", "{}", scoped(tc.user, tc.thread)); text != tc.want {
			t.Errorf("%q/%q counts %s, want %s", tc.user, tc.thread, text, tc.want)
		}
	}
}

// SESS-015: a process that dies during a call costs that call; the next one starts a new session, which CallInfo shows.
func TestProcessThatDies(t *testing.T) {
	p := peers(t, "")
	_, before := p.text(t, "peer_echo", "{}")
	_, err := p.call(t, "peer_die", "{}")
	if !fault.Is(err, fault.SessionClosed) || !strings.Contains(err.Error(), "code 7") || !strings.Contains(err.Error(), `"peer"`) {
		t.Errorf("error is %v", err)
	}
	text, after := p.text(t, "peer_count", "{}")
	if text != "1" || before.GetSessionId() == after.GetSessionId() || !after.GetSessionStartTime().AsTime().After(before.GetSessionStartTime().AsTime()) {
		t.Errorf("count %s, sessions %v and %v", text, before, after)
	}
}

// CALL-006, CALL-008: a JSON-RPC error keeps code and message, names server and next step, and shows no credential.
func TestRefusal(t *testing.T) {
	p := peers(t, "")
	_, err := p.call(t, "peer_fail", "{}")
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Reason() != fault.UpstreamError || e.Metadata()["jsonrpc_code"] != "-32042" || !strings.Contains(err.Error(), "no such thing") ||
		!strings.Contains(err.Error(), `"peer"`) || e.Metadata()["server"] != "peer" {
		t.Errorf("error is %v", err)
	}
	if strings.Contains(err.Error(), "abcdef123456") {
		t.Errorf("message %q shows a credential", err)
	}
}

// CALL-011: the caller's cancel reaches a real server, and the session goes on.
// CALL-009: expiry is TIMEOUT.
func TestCancelAndTimeout(t *testing.T) {
	p := peers(t, "")
	file := filepath.Join(t.TempDir(), "cancelled")
	arguments, err := json.Marshal(map[string]string{"file": file})
	if err != nil {
		t.Fatal(err)
	}
	text, session := p.text(t, "peer_count", "{}")
	if text != "1" {
		t.Fatalf("count %s", text)
	}
	started := time.Now()
	_, err = p.call(t, "peer_wait", string(arguments), func(r *toolproxyv1.CallToolRequest) {
		r.Timeout = durationpb.New(200 * time.Millisecond)
	})
	if !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "request.timeout") || time.Since(started) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(started), err)
	}
	await(t, "the server hears of the timeout", func() bool { _, err := os.Stat(file); return err == nil })

	file += "2"
	if arguments, err = json.Marshal(map[string]string{"file": file}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = p.CallTool(ctx, &toolproxyv1.CallToolRequest{Name: "peer_wait", Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: string(arguments)}})
	if !fault.Is(err, fault.Timeout) {
		t.Errorf("error is %v", err)
	}
	await(t, "the server hears of the caller's deadline", func() bool { _, err := os.Stat(file); return err == nil })
	if text, again := p.text(t, "peer_count", "{}"); text != "2" || again.GetSessionId() != session.GetSessionId() {
		t.Errorf("the session did not go on: %s", text)
	}
}

// CALL-009: progress keeps a call alive beyond its tool_call_timeout.
func TestProgressExtendsTheTimeout(t *testing.T) {
	p := peers(t, `,"tool_call_timeout":0.6`)
	if text, _ := p.text(t, "peer_work", `{"steps":6,"pause_ms":250}`); text != "done" {
		t.Errorf("text is %s", text)
	}
	if _, err := p.call(t, "peer_work", `{"steps":1,"pause_ms":3000}`); !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "server.tool_call_timeout") {
		t.Errorf("error is %v", err)
	}
}

// CALL-012: progress and log messages as they come, then the outcome in chunks. CALL-028: also one above 4 MiB.
func TestStreamCallTool(t *testing.T) {
	p := peers(t, "")
	progress, logs, got := p.stream(t, "peer_work", `{"steps":3,"pause_ms":5}`)
	if progress != 3 || logs != 3 || got.GetResult().GetContent()[0].GetText().GetText() != "done" {
		t.Errorf("%d progress, %d logs, %v", progress, logs, got)
	}
	big := `{"content":[{"type":"text","text":"` + strings.Repeat("x", 5<<20) + `"}]}`
	arguments, err := json.Marshal(map[string]string{"json": big})
	if err != nil {
		t.Fatal(err)
	}
	_, _, got = p.stream(t, "peer_result", string(arguments))
	if n := len(got.GetResult().GetContent()[0].GetText().GetText()); n != 5<<20 {
		t.Errorf("a large result has %d bytes", n)
	}
	if got.GetInfo().GetServer() != "peer" {
		t.Errorf("info is %v", got.GetInfo())
	}
}

func (p *proxy) stream(t *testing.T, name, arguments string) (progress, logs int, out *toolproxyv1.CallToolResponse) {
	t.Helper()
	s, err := p.StreamCallTool(t.Context(), &toolproxyv1.StreamCallToolRequest{Call: &toolproxyv1.CallToolRequest{
		Name: name, Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: arguments},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var encoded []byte
	done := false
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case done:
			t.Error("something came after the outcome")
		case r.GetProgress() != nil:
			progress++
		case r.GetLog() != nil:
			logs++
		default:
			if n := len(r.GetOutcome().GetData()); n > 1<<20 {
				t.Errorf("a chunk of %d bytes", n)
			}
			encoded = append(encoded, r.GetOutcome().GetData()...)
			done = r.GetOutcome().GetLast()
		}
	}
	out = &toolproxyv1.CallToolResponse{}
	if err := proto.Unmarshal(encoded, out); err != nil || !done {
		t.Fatalf("outcome complete: %v, %v", done, err)
	}
	return progress, logs, out
}

// SESS-023: lines that are no JSON-RPC are skipped; a message above the limit, in either direction, fails its own call with
// the name of the limit; the session goes on after both.
func TestNoiseAndOversize(t *testing.T) {
	p := start(t, toolproxy.Config{MaxMessageBytes: 1 << 20})
	p.registry.publish(t, map[string]string{"peer": peerEntry(t, "", "PEER_NOISE", "1")})
	p.awaitOK(t, "peer")
	p.text(t, "peer_count", "{}")
	for name, arguments := range map[string]string{
		"the request": `{"json":"` + strings.Repeat("y", 1<<20) + `"}`,
		"the answer":  `{"json":"{\"content\":[],\"x\":\"GROW\"}"}`,
	} {
		_, err := p.call(t, "peer_result", arguments)
		if !fault.Is(err, fault.PayloadTooLarge) || !strings.Contains(err.Error(), "max_message_bytes") || !strings.Contains(err.Error(), "1048576") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if text, _ := p.text(t, "peer_count", "{}"); text != "2" {
		t.Errorf("the session did not go on: %s", text)
	}
}

// CALL-025: with snapshot and session there, a call asks nobody else.
func TestCallsAskNobodyElse(t *testing.T) {
	p := peers(t, "")
	p.registry.mu.Lock()
	before := p.registry.calls
	p.registry.mu.Unlock()
	for range 20 {
		p.text(t, "peer_echo", "{}")
	}
	p.registry.mu.Lock()
	defer p.registry.mu.Unlock()
	if p.registry.calls != before {
		t.Errorf("the registry was asked %d times", p.registry.calls-before)
	}
}

// CALL-015: a server of 2026-07-28 is spoken to in that version, one of before in its own.
// CALL-016: also where it exits or hangs on the question, which is then remembered.
func TestErasOfRealProcesses(t *testing.T) {
	p := start(t, toolproxy.Config{})
	starts := func(name string) string { return filepath.Join(t.TempDir(), name) }
	files := map[string]string{"modern": starts("modern"), "exits": starts("exits"), "hangs": starts("hangs"), "pinned": starts("pinned")}
	p.registry.publish(t, map[string]string{
		"modern": peerEntry(t, "", "PEER_ERA", "modern", "PEER_STARTS", files["modern"]),
		"exits":  peerEntry(t, "", "PEER_DISCOVER", "exit", "PEER_STARTS", files["exits"]),
		"hangs":  peerEntry(t, `,"session_init_timeout":6`, "PEER_DISCOVER", "hang", "PEER_STARTS", files["hangs"]),
		"pinned": peerEntry(t, `,"era":"legacy"`, "PEER_DISCOVER", "exit", "PEER_STARTS", files["pinned"]),
	})
	p.awaitOK(t, "modern", "exits", "hangs", "pinned")
	for name, want := range map[string]struct {
		era    string
		starts int // of discovery's session and one more
	}{"modern": {"2026-07-28", 2}, "exits": {"2025-11-25", 3}, "hangs": {"2025-11-25", 3}, "pinned": {"2025-11-25", 2}} {
		if _, info := p.text(t, name+"_echo", "{}", scoped("u", "t")); info.GetEra() != want.era {
			t.Errorf("%s speaks %s, want %s", name, info.GetEra(), want.era)
		}
		if started, err := os.ReadFile(files[name]); err != nil || len(started) != want.starts {
			t.Errorf("%s was started %d times, want %d, %v", name, len(started), want.starts, err)
		}
	}
}
