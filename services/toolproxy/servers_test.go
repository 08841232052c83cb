package toolproxy_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy"
)

const (
	statusOK       = corev1.ServerStatus_SERVER_STATUS_OK
	statusError    = corev1.ServerStatus_SERVER_STATUS_ERROR
	statusStarting = corev1.ServerStatus_SERVER_STATUS_STARTING
)

// STAT-006: before the first snapshot everything that needs one is NOT_READY, and so is the service.
func TestNotReadyBeforeTheFirstSnapshot(t *testing.T) {
	p := start(t, toolproxy.Config{})
	_, callErr := p.call(t, "a_b", "{}")
	_, toolsErr := p.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{})
	_, serversErr := p.ListServers(t.Context(), &toolproxyv1.ListServersRequest{})
	for i, err := range []error{callErr, toolsErr, serversErr, p.service.Ready(t.Context())} {
		if !fault.Is(err, fault.NotReady) {
			t.Errorf("%d: %v", i, err)
		}
	}
	p.registry.publish(t, nil)
	await(t, "the service is ready", func() bool { return p.service.Ready(t.Context()) == nil })
	if _, err := p.call(t, "a_b", "{}"); !fault.Is(err, fault.ToolNotFound) {
		t.Errorf("with an empty snapshot: %v", err)
	}
}

// STAT-007: a command that is not there is an error at once, with the PATH that was searched; a child that exits gives its
// exit code and its last words, redacted.
// STAT-001: what is not OK says why; the retry is announced.
// STAT-005: others are not held up; readiness does not wait.
func TestServersThatFail(t *testing.T) {
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{
		"good":    peerEntry(t, ""),
		"missing": `{"command":"no-such-command-anywhere","env":{"PATH":"/nowhere/bin"}}`,
		"gone":    `{"command":"/no/such/bin"}`,
		"exits":   peerEntry(t, "", "PEER_START", "exit", "PEER_TOKEN", "tok-0123456789"),
		"hangs":   peerEntry(t, `,"session_init_timeout":2`, "PEER_START", "hang"),
		"null":    peerEntry(t, "", "PEER_LIST", "null"),
	})
	p.awaitOK(t, "good")
	if err := p.service.Ready(t.Context()); err != nil {
		t.Errorf("ready: %v", err)
	}
	for name, parts := range map[string][]string{
		"missing": {"no-such-command-anywhere", "/nowhere/bin"},
		"gone":    {"/no/such/bin"},
		"exits":   {"code 3", "cannot find my configuration"},
		"hangs":   {"session_init_timeout", "2 s"},
		"null":    {"null"},
	} {
		s := p.awaitStatus(t, name, statusError)
		for _, part := range parts {
			if !strings.Contains(s.GetReason(), part) {
				t.Errorf("%s: reason %q lacks %q", name, s.GetReason(), part)
			}
		}
		if strings.Contains(s.GetReason(), "tok-0123456789") {
			t.Errorf("%s: reason %q shows a secret", name, s.GetReason())
		}
		if !s.GetSinceTime().IsValid() || !s.GetNextRetryTime().IsValid() {
			t.Errorf("%s: %v", name, s)
		}
		if _, err := p.call(t, name+"_echo", "{}"); !fault.Is(err, fault.ServerError) || !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("%s: a call gives %v", name, err)
		}
	}
	if s := p.server(t, "good"); s.GetReason() != "" || s.GetToolCount() != 8 || s.GetTransport() != "stdio" || s.GetSource() != "test.json" {
		t.Errorf("good is %v", s)
	}
}

// STAT-003: a list of tools carries the status of every server, also on each page and with a filter.
// NAME-013: and its tools in the order of code points, the same from call to call.
// NAME-014: with schemas as the server sent them.
func TestListTools(t *testing.T) {
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{
		"b": peerEntry(t, ""), "a": peerEntry(t, `,"tool_name_prefix":false,"allowedTools":["echo","count"]`),
		"broken": `{"command":"/no/such/bin"}`,
	})
	p.awaitOK(t, "a", "b")
	p.awaitStatus(t, "broken", statusError)
	all, err := p.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"b_count", "b_die", "b_echo", "b_environ", "b_fail", "b_result", "b_wait", "b_work", "count", "echo"}
	if diff := cmp.Diff(want, names(all)); diff != "" {
		t.Error(diff)
	}
	echo := all.GetTools()[2]
	if echo.GetInputSchemaJson() != `{"type":"object","properties":{"n":{"maximum":9007199254740993}}}` || echo.GetMetaJson() != `{"k":1.10}` ||
		echo.GetAnnotationsJson() != `{"readOnlyHint":true}` || echo.GetServer() != "b" || echo.GetOriginalName() != "echo" || echo.GetOutputSchemaJson() != "" {
		t.Errorf("echo is %v", echo)
	}
	var paged []string
	token := ""
	for {
		page, err := p.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{PageSize: 3, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.GetServers()) != 3 || len(page.GetTools()) > 3 || page.GetTasksAvailable() {
			t.Errorf("page has %d servers, %d tools", len(page.GetServers()), len(page.GetTools()))
		}
		paged = append(paged, names(page)...)
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if diff := cmp.Diff(want, paged); diff != "" {
		t.Error(diff)
	}
	only, err := p.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{Servers: []string{"a"}})
	if err != nil || len(only.GetTools()) != 2 || len(only.GetServers()) != 3 {
		t.Errorf("filtered: %v, %v", names(only), err)
	}
	for want, r := range map[fault.Reason]*toolproxyv1.ListToolsRequest{
		fault.ServerNotFound:   {Servers: []string{"nobody"}},
		fault.InvalidArguments: {PageSize: -1},
	} {
		if _, err := p.ListTools(t.Context(), r); !fault.Is(err, want) {
			t.Errorf("%v: %v", r, err)
		}
	}
	for _, bad := range []string{"?", "AAAA", token + "x"} {
		if _, err := p.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{PageToken: bad}); !fault.Is(err, fault.InvalidArguments) {
			t.Errorf("token %q: %v", bad, err)
		}
	}
}

func names(r *toolproxyv1.ListToolsResponse) []string {
	var out []string
	for _, tool := range r.GetTools() {
		out = append(out, tool.GetName())
	}
	return out
}

// CALL-028: pages of a list end before 3 MiB.
func TestPagesAreBoundedInBytes(t *testing.T) {
	var tools []string
	description := strings.Repeat("d", 900<<10)
	for i := range 5 {
		tools = append(tools, fmt.Sprintf(`{"name":"t%d","description":%q,"inputSchema":{"type":"object"}}`, i, description))
	}
	file := filepath.Join(t.TempDir(), "tools")
	if err := os.WriteFile(file, []byte("["+strings.Join(tools, ",")+"]"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{"big": peerEntry(t, "", "PEER_TOOLS_FILE", file)})
	p.awaitOK(t, "big")
	seen, pages, token := 0, 0, ""
	for {
		page, err := p.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		bytes := 0
		for _, tool := range page.GetTools() {
			bytes += len(tool.GetDescription())
		}
		if bytes > 3<<20 {
			t.Errorf("a page has %d bytes", bytes)
		}
		pages++
		seen += len(page.GetTools())
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if seen != 5 || pages != 2 {
		t.Errorf("%d tools on %d pages", seen, pages)
	}
}

// STAT-002: WatchServers sends the full state first, then every change live.
func TestWatchServers(t *testing.T) {
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{"kept": peerEntry(t, ""), "bad": `{"command":"/no/such/bin"}`})
	p.awaitOK(t, "kept")
	p.awaitStatus(t, "bad", statusError)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := p.WatchServers(ctx, &toolproxyv1.WatchServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := w.Recv()
	if err != nil || !first.GetFull() || len(first.GetServers()) != 2 || first.GetSnapshotId() == "" || first.GetRevision() != 1 {
		t.Fatalf("first message %v, %v", first, err)
	}
	p.registry.publish(t, map[string]string{"kept": peerEntry(t, ""), "new": peerEntry(t, "")})
	var statuses []corev1.ServerStatus
	removed := false
	for len(statuses) == 0 || statuses[len(statuses)-1] != statusOK {
		r, err := w.Recv()
		if err != nil || r.GetFull() {
			t.Fatalf("%v, %v", r, err)
		}
		removed = removed || cmp.Equal(r.GetRemoved(), []string{"bad"})
		for _, s := range r.GetServers() {
			switch s.GetName() {
			case "new":
				statuses = append(statuses, s.GetStatus())
			default:
				t.Errorf("%v changed", s)
			}
		}
	}
	if !removed || !cmp.Equal(statuses, []corev1.ServerStatus{statusStarting, statusOK}) {
		t.Errorf("removed %v, new became %v", removed, statuses)
	}
}

// CRED-021: an entry that uses a layer or an interceptor that is not built is in ERROR and is never called without it.
// CRED-018: interceptors that cannot be resolved stop http and sse servers, unless they may be skipped.
func TestWhatIsNotBuiltIsRefused(t *testing.T) {
	p := start(t, toolproxy.Config{SkipInterceptors: []string{"optional:one"}})
	entries := map[string]string{
		"oauth":    `{"url":"https://127.0.0.1:1/","oauth":{"token_url":"https://127.0.0.1:1/","client_id":"c","client_secret":"s"}}`,
		"auth":     `{"url":"https://127.0.0.1:1/","auth":"oauth"}`,
		"user":     `{"url":"https://127.0.0.1:1/","user_auth":{"users":{"u":"v"}}}`,
		"context":  `{"url":"https://127.0.0.1:1/","headers_from_context":{"headers":{"X":"k"}}}`,
		"users":    peerEntry(t, `,"allowed_users":["u"]`),
		"roles":    peerEntry(t, `,"allowed_roles":["r"]`),
		"toolsets": peerEntry(t, `,"task_toolsets":[{"name":"n","submit_tool":"a","status_tool":"b","cancel_tool":"c"}]`),
		"plain":    peerEntry(t, ""),
		"http":     `{"url":"http://127.0.0.1:1/"}`,
		"sse":      `{"url":"http://127.0.0.1:1/","type":"sse"}`,
	}
	s := &registryv1.Snapshot{InterceptorsJson: `["optional:one","module:attr"]`}
	for name, raw := range entries {
		s.Servers = append(s.Servers, entry(t, name, raw))
	}
	p.registry.publishSnapshot(s)
	p.awaitOK(t, "plain")
	for name := range entries {
		if name == "plain" {
			continue
		}
		got := p.server(t, name)
		if got.GetStatus() != statusError || got.GetNextRetryTime() != nil || got.GetReason() == "" {
			t.Errorf("%s is %v", name, got)
		}
		if _, err := p.call(t, name+"_echo", "{}"); !fault.Is(err, fault.ServerError) {
			t.Errorf("%s: a call gives %v", name, err)
		}
	}
	if r := p.server(t, "http").GetReason(); !strings.Contains(r, "module:attr") || strings.Contains(r, "optional:one") {
		t.Errorf("reason is %q", r)
	}
	for _, raw := range []string{`"optional:one"`, `["optional:one"]`, ``} {
		p.registry.publishSnapshot(&registryv1.Snapshot{InterceptorsJson: raw, Servers: []*registryv1.ServerEntry{entry(t, "http", entries["http"])}})
		await(t, "the interceptors are skipped", func() bool {
			r := p.server(t, "http").GetReason()
			return !strings.Contains(r, "interceptor")
		})
	}
	for _, raw := range []string{`"other"`, `[7]`, `{"a":1}`} {
		p.registry.publishSnapshot(&registryv1.Snapshot{InterceptorsJson: raw, Servers: []*registryv1.ServerEntry{entry(t, "http", entries["http"])}})
		await(t, "the interceptors count", func() bool {
			s := p.server(t, "http")
			return s.GetStatus() == statusError && strings.Contains(strings.ToLower(s.GetReason()), "interceptor")
		})
	}
}

// SESS-029: with many replicas, stdio servers that are not shared are in ERROR.
func TestManyReplicasTakeSharedStdioServersOnly(t *testing.T) {
	p := start(t, toolproxy.Config{Replicas: "many"})
	p.registry.publish(t, map[string]string{"own": peerEntry(t, ""), "shared": peerEntry(t, `,"session_scope":"shared"`)})
	p.awaitOK(t, "shared")
	if s := p.server(t, "own"); s.GetStatus() != statusError || !strings.Contains(s.GetReason(), "replicas") {
		t.Errorf("own is %v", s)
	}
}

func TestRegistryVerdictsAreShown(t *testing.T) {
	p := start(t, toolproxy.Config{})
	disabled, untrusted, broken := entry(t, "disabled", peerEntry(t, "")), entry(t, "untrusted", peerEntry(t, "")), entry(t, "broken", `{"command":7}`)
	disabled.State = registryv1.EntryState_ENTRY_STATE_DISABLED
	untrusted.State, untrusted.FixCommand = registryv1.EntryState_ENTRY_STATE_UNTRUSTED, "toolherd trust"
	broken.State, broken.Reason = registryv1.EntryState_ENTRY_STATE_ERROR, "command: must be text"
	file := &registryv1.ServerEntry{Name: "<config:.mcp.json>", State: registryv1.EntryState_ENTRY_STATE_ERROR, Reason: "line 3"}
	stale := entry(t, "stale", peerEntry(t, ""))
	stale.Stale, stale.Reason = true, "the new entry is broken"
	p.registry.publishSnapshot(&registryv1.Snapshot{Servers: []*registryv1.ServerEntry{disabled, untrusted, broken, file, stale}})
	p.awaitOK(t, "stale")
	for name, want := range map[string]corev1.ServerStatus{
		"disabled": corev1.ServerStatus_SERVER_STATUS_DISABLED, "untrusted": corev1.ServerStatus_SERVER_STATUS_UNTRUSTED,
		"broken": statusError, "<config:.mcp.json>": statusError,
	} {
		if s := p.server(t, name); s.GetStatus() != want || s.GetReason() == "" {
			t.Errorf("%s is %v", name, s)
		}
	}
	if s := p.server(t, "<config:.mcp.json>"); s.GetTransport() != "config" || s.GetReason() != "line 3" {
		t.Errorf("the file is %v", s)
	}
	if s := p.server(t, "stale"); !s.GetStale() || s.GetReason() != "" || !strings.Contains(fmt.Sprint(s.GetWarnings()), "the new entry is broken") {
		t.Errorf("stale is %v", s)
	}
	if s := p.server(t, "untrusted"); s.GetFixCommand() != "toolherd trust" {
		t.Errorf("untrusted is %v", s)
	}
	sessions, err := p.ListSessions(t.Context(), &toolproxyv1.ListSessionsRequest{})
	if err != nil || len(sessions.GetSessions()) != 1 {
		t.Errorf("sessions are %v, %v", sessions, err)
	}
}

// OPS-011: killed and restarted, with nothing kept, it serves the same tools.
func TestRestartServesTheSame(t *testing.T) {
	r := newRegistry()
	r.publish(t, map[string]string{"b": peerEntry(t, ""), "a": peerEntry(t, "")})
	var lists [2]*toolproxyv1.ListToolsResponse
	for i := range lists {
		p := startWith(t, toolproxy.Config{}, r)
		p.awaitOK(t, "a", "b")
		var err error
		if lists[i], err = p.ListTools(t.Context(), &toolproxyv1.ListToolsRequest{}); err != nil {
			t.Error(err)
		}
		if text, _ := p.text(t, "a_count", "{}"); text != "1" {
			t.Errorf("run %d: a session survived: %s", i, text)
		}
		p.stop()
	}
	if diff := cmp.Diff(names(lists[0]), names(lists[1])); diff != "" || len(lists[0].GetTools()) != 16 {
		t.Errorf("tools differ: %s", diff)
	}
}

// An orderly end of the service leaves no process, grandchildren included; what an end by force leaves is package watchdog's.
func TestNoProcessOutlivesTheService(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	p := startWith(t, toolproxy.Config{}, newRegistry())
	p.registry.publish(t, map[string]string{"peer": peerEntry(t, "", "PEER_CHILD", file)})
	p.awaitOK(t, "peer")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := strconv.Atoi(string(content))
	if err != nil {
		t.Fatal(err)
	}
	sessions, err := p.ListSessions(t.Context(), &toolproxyv1.ListSessionsRequest{})
	if err != nil || len(sessions.GetSessions()) != 1 {
		t.Fatalf("sessions %v, %v", sessions, err)
	}
	s := sessions.GetSessions()[0]
	if s.GetPid() == 0 || s.GetServer() != "peer" || s.GetScope().GetUserId() != "default" || s.GetEra() != "2025-11-25" || s.GetResidentBytes() == 0 {
		t.Errorf("session is %v", s)
	}
	started := time.Now()
	p.stop()
	if took := time.Since(started); took > 9*time.Second {
		t.Errorf("the end took %v", took)
	}
	for _, pid := range []int{int(s.GetPid()), grandchild} {
		if runs(pid) {
			t.Errorf("process %d is alive", pid)
		}
	}
}

// runs reports whether a process exists and is no zombie.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}
