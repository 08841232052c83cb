package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/partners"
	"github.com/toolherd/toolherd/test/rawrpc"
)

// partner is a server that a direct client is compared on: what it says directly, and how Toolherd gets to it.
type partner struct {
	name    string
	version string                            // of the direct client
	entry   func(t *testing.T) map[string]any // for Toolherd, once for each Herd
	direct  func(t *testing.T) rawrpc.Caller
	calls   []toolCall
}

type toolCall struct{ tool, arguments string }

// answers is what a direct client got.
type answers struct {
	tools   map[string]json.RawMessage // definitions by name
	results []answer                   // of the partner's calls
}

// answer is the result of a call, or the JSON-RPC error.
type answer struct {
	result string
	failed *rawrpc.Error
}

// CALL-026, CALL-003, CALL-004, NAME-014, NAME-001: what comes through Toolherd is what a direct client gets, apart from the
// prefix of the names, in every topology.
func TestToolsAndResultsEqualThoseOfADirectClient(t *testing.T) {
	t.Parallel()
	all := parityPartners(t)
	direct := map[string]answers{}
	for _, p := range all {
		direct[p.name] = askDirectly(t, p)
	}
	t.Run("through Toolherd", func(t *testing.T) {
		Each(t, Options{Idle: true}, func(t *testing.T, h *Herd) {
			servers := map[string]any{}
			for _, p := range all {
				servers[p.name] = p.entry(t)
			}
			h.Write(t, servers)
			h.LaunchAll(t)
			h.SettledOK(t, slices.Collect(maps.Keys(servers))...)
			visible := map[string]map[string]*toolproxyv1.Tool{}
			for _, tool := range h.ListTools(t, &toolproxyv1.ListToolsRequest{}) {
				if visible[tool.GetServer()] == nil {
					visible[tool.GetServer()] = map[string]*toolproxyv1.Tool{}
				}
				visible[tool.GetServer()][tool.GetOriginalName()] = tool
			}
			for _, p := range all {
				t.Run(p.name, func(t *testing.T) {
					compareTools(t, p, direct[p.name].tools, visible[p.name])
					compareResults(t, h, p, direct[p.name].results)
				})
			}
		})
	})
}

func parityPartners(t *testing.T) []partner {
	dir := t.TempDir()
	for name, content := range map[string]string{"a.txt": "one\ntwo\nthree\n", "sub/ü b.json": `{"n":1.10}`} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	stdio := func(name, version string, c partners.Command, calls []toolCall) partner {
		return partner{
			name: name, version: version, calls: calls,
			entry: func(*testing.T) map[string]any { return c.Entry() },
			direct: func(t *testing.T) rawrpc.Caller {
				t.Helper()
				return partners.Raw(t, c, version, rawrpc.ClientOptions{})
			},
		}
	}
	http := func(name, version, url string, calls []toolCall) partner {
		return partner{
			name: name, version: version, calls: calls,
			entry: func(*testing.T) map[string]any { return map[string]any{"url": url} },
			direct: func(t *testing.T) rawrpc.Caller {
				t.Helper()
				return partners.RawHTTP(t, url, version, rawrpc.ClientOptions{})
			},
		}
	}
	memory := func(t *testing.T) partners.Command {
		t.Helper()
		return partners.Memory(t, filepath.Join(t.TempDir(), "graph.json"))
	}
	modern := func(n int) string { return []string{rawrpc.V20250618, rawrpc.V20251125, rawrpc.V20260728}[n] }
	all := []partner{
		stdio("everything", rawrpc.V20251125, partners.Everything(t), everythingCalls()),
		http("everything-http", rawrpc.V20251125, partners.EverythingHTTP(t), everythingCalls()),
		stdio("filesystem", rawrpc.V20251125, partners.Filesystem(t, dir), filesystemCalls(dir)),
		{
			name: "memory", version: rawrpc.V20251125, calls: memoryCalls(),
			entry: func(t *testing.T) map[string]any { return memory(t).Entry() },
			direct: func(t *testing.T) rawrpc.Caller {
				t.Helper()
				return partners.Raw(t, memory(t), rawrpc.V20251125, rawrpc.ClientOptions{})
			},
		},
		withEra(stdio("modern-ts", rawrpc.V20260728, partners.ModernTS(t), []toolCall{{"echo", `{"text":"<é>\u2028"}`}, {"add", `{"a":1.5,"b":-2}`}, {"add", `{"a":"x"}`}}), "modern"),
		http("fake-http", rawrpc.V20251125, partners.FakeHTTP(t).URL, fakeCalls()),
		http("fake-http-json", rawrpc.V20250618, partners.FakeHTTP(t, "-json", "-stateless", "-protocol", rawrpc.V20250618).URL, fakeCalls()),
		http("fake-http-modern", rawrpc.V20260728, partners.FakeHTTP(t, "-protocol", rawrpc.V20260728, "-prime").URL, fakeCalls()),
	}
	for n, name := range []string{"fake-june", "fake-november", "fake-modern"} {
		all = append(all, stdio(name, modern(n), partners.Fake(t, "-protocol", modern(n), "-page", "7", "-filler", "3"), fakeCalls()))
	}
	return all
}

// withEra pins the era of a server that speaks both and that node may start too slowly for a probe.
func withEra(p partner, era string) partner {
	entry := p.entry
	p.entry = func(t *testing.T) map[string]any {
		t.Helper()
		e := entry(t)
		e["era"] = era
		return e
	}
	return p
}

func everythingCalls() []toolCall {
	return []toolCall{
		{"echo", `{"message":"grüße <&> \"q\" \\ \u2028"}`},
		{"get-sum", `{"a":0.1,"b":0.2}`},
		{"get-sum", `{"a":"no number"}`},
		{"get-annotated-message", `{"messageType":"error","includeImage":true}`},
		{"get-resource-links", `{"count":3}`},
		{"get-structured-content", `{"location":"Chicago"}`},
		{"get-tiny-image", `{}`},
		{"trigger-long-running-operation", `{"duration":0.2,"steps":2}`},
	}
}

func filesystemCalls(dir string) []toolCall {
	path := func(elem ...string) string {
		return string(rawrpc.Quote(filepath.Join(append([]string{dir}, elem...)...)))
	}
	return []toolCall{
		{"list_allowed_directories", `{}`},
		{"list_directory", `{"path":` + path() + `}`},
		{"directory_tree", `{"path":` + path() + `}`},
		{"search_files", `{"path":` + path() + `,"pattern":"**/*.json"}`},
		{"read_text_file", `{"path":` + path("a.txt") + `,"head":2}`},
		{"read_multiple_files", `{"paths":[` + path("a.txt") + `,` + path("sub", "ü b.json") + `,` + path("missing") + `]}`},
		{"read_text_file", `{"path":"/etc/passwd"}`},
		{"read_text_file", `{}`},
	}
}

func memoryCalls() []toolCall {
	return []toolCall{
		{"read_graph", `{}`},
		{"create_entities", `{"entities":[{"name":"Ada","entityType":"person","observations":["wrote <notes>","born 1815"]},{"name":"Engine","entityType":"machine","observations":[]}]}`},
		{"create_relations", `{"relations":[{"from":"Ada","to":"Engine","relationType":"programmed"}]}`},
		{"search_nodes", `{"query":"ada"}`},
		{"open_nodes", `{"names":["Engine","nobody"]}`},
		{"read_graph", ``},
		{"add_observations", `{"observations":[{"entityName":"nobody","contents":["x"]}]}`},
	}
}

// fakeCalls has what careless code changes: numbers, key order, escapes, unknown members, bytes that are no text.
func fakeCalls() []toolCall {
	literal := func(s string) toolCall {
		return toolCall{"raw", `{"literal":` + string(rawrpc.Quote(s)) + `}`}
	}
	return []toolCall{
		{"echo", ``},
		{"echo", `{ "z" : 9007199254740993,"a":[1.10, 1e400,-0, 1E+2],"e":"\u00e9\/\ud83d\ude00\ud800 <&>\u2028","nul":"\u0000","":null }`},
		{"blocks", `{}`},
		{"structured_error", `{}`},
		{"structured_value", `{"value":[1.0,{"b":1,"a":2}]}`},
		{"structured_value", `{"value":null}`},
		{"fail", `{"message":"no such thing"}`},
		{"big", `{"bytes":70000}`},
		{"strange_meta", `{"x":1}`},
		{"_strange-name.v2", `{"deep":[[[{"k":[]}]]]}`},
		literal(`{"x-first":{"b":1,"a":1.10},"content":[],"n":9007199254740993,"f":1e400}`),
		literal(`{"content":[{"type":"text","text":"\ud800 lone, \u0000 nul"}],"structuredContent":{"k":18446744073709551616}}`),
		{"raw", `{"base64":"` + fake.Base64([]byte("{\"content\":[{\"type\":\"text\",\"text\":\"a\xff\xfeb\xc3(\"}]}")) + `"}`},
		{"raw", `{"error":{"code":-32042,"message":"not today","data":{"why":[1.10]}}}`},
	}
}

// askDirectly asks a partner everything over a connection of its own.
func askDirectly(t *testing.T, p partner) answers {
	t.Helper()
	client := p.direct(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got := answers{tools: map[string]json.RawMessage{}}
	for params := json.RawMessage(nil); ; {
		result, err := client.Call(ctx, "tools/list", params)
		if err != nil {
			t.Fatalf("%s: list tools directly: %v", p.name, err)
		}
		var page struct{ Tools []json.RawMessage }
		if err := json.Unmarshal(result, &page); err != nil {
			t.Fatal(err)
		}
		for _, tool := range page.Tools {
			got.tools[rawrpc.Text(tool, "name")] = tool
		}
		cursor := rawrpc.Member(result, "nextCursor")
		if cursor == nil {
			break
		}
		params = json.RawMessage(`{"cursor":` + string(cursor) + `}`)
	}
	for _, c := range p.calls {
		arguments := json.RawMessage(c.arguments)
		if c.arguments == "" {
			arguments = json.RawMessage("{}") // Toolherd always sends an object
		}
		result, err := client.Call(ctx, "tools/call", rawrpc.CallParams(c.tool, arguments))
		failed, ok := errors.AsType[*rawrpc.Error](err)
		if err != nil && !ok {
			t.Fatalf("%s: call %s directly: %v", p.name, c.tool, err)
		}
		got.results = append(got.results, answer{string(result), failed})
	}
	return got
}

func compareTools(t *testing.T, p partner, direct map[string]json.RawMessage, got map[string]*toolproxyv1.Tool) {
	t.Helper()
	if diff := cmp.Diff(slices.Sorted(maps.Keys(direct)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Fatalf("names of tools (- direct, + Toolherd):\n%s", diff)
	}
	illegal := regexp.MustCompile(`[^A-Za-z0-9_-]`)
	for name, definition := range direct {
		want := &toolproxyv1.Tool{
			Name: p.name + "_" + illegal.ReplaceAllString(name, "_"), OriginalName: name, Server: p.name,
			Title: rawrpc.Text(definition, "title"), Description: rawrpc.Text(definition, "description"),
			InputSchemaJson:  string(rawrpc.Member(definition, "inputSchema")),
			OutputSchemaJson: string(rawrpc.Member(definition, "outputSchema")),
			AnnotationsJson:  string(rawrpc.Member(definition, "annotations")),
			MetaJson:         string(rawrpc.Member(definition, "_meta")),
		}
		if diff := cmp.Diff(want, got[name], protocmp.Transform()); diff != "" {
			t.Errorf("tool %s (- direct, + Toolherd):\n%s", name, diff)
		}
	}
}

func compareResults(t *testing.T, h *Herd, p partner, direct []answer) {
	t.Helper()
	for i, c := range p.calls {
		visible := p.name + "_" + strings.ReplaceAll(c.tool, ".", "_")
		want := direct[i]
		call := Call{Tool: visible, Arguments: c.arguments, View: toolproxyv1.ResultView_RESULT_VIEW_JSON}
		out, err := h.Do(t, call)
		if want.failed != nil {
			// CALL-008: code and message are kept.
			if r := reasonOf(err); r.Reason != "UPSTREAM_ERROR" || !strings.Contains(r.Message, want.failed.Message) || r.Metadata["jsonrpc_code"] != string(rawrpc.ID(int64(want.failed.Code))) {
				t.Errorf("%s %s: got %v, want the server's %v", c.tool, c.arguments, r, want.failed)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %s: %v", c.tool, c.arguments, err)
			continue
		}
		want.result = strings.ToValidUTF8(want.result, "\uFFFD")
		if diff := cmp.Diff(&toolproxyv1.ToolResult{ResultJson: want.result}, out.GetResult(), protocmp.Transform()); diff != "" {
			t.Errorf("%s %s in view JSON (- direct, + Toolherd):\n%s", c.tool, c.arguments, diff)
		}
		if i > 0 && p.name == "memory" {
			continue // asking twice changes the answer
		}
		call.View = toolproxyv1.ResultView_RESULT_VIEW_UNSPECIFIED
		if out, err = h.Do(t, call); err != nil {
			t.Errorf("%s %s: %v", c.tool, c.arguments, err)
			continue
		}
		if diff := cmp.Diff(typed(t, want.result), out.GetResult(), protocmp.Transform()); diff != "" {
			t.Errorf("%s %s in view TYPED (- direct, + Toolherd):\n%s", c.tool, c.arguments, diff)
		}
	}
}

// CALL-026: Toolherd introduces itself, whoever its own client is.
func TestToolherdIntroducesItself(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Servers: map[string]any{
		"legacy": partners.Fake(t).Entry(), "modern": partners.Fake(t, "-protocol", rawrpc.V20260728).Entry(),
	}})
	h.SettledOK(t, "legacy", "modern")
	for server, era := range map[string]string{"legacy": rawrpc.V20251125, "modern": rawrpc.V20260728} {
		result := json.RawMessage(h.JSON(t, Call{Tool: server + "_stats"}))
		client := rawrpc.Member(rawrpc.Member(result, "structuredContent"), "client")
		if rawrpc.Text(client, "name") != "toolherd" || rawrpc.Text(client, "version") == "" {
			t.Errorf("%s was greeted by %s, want toolherd and its version", server, client)
		}
		if got := rawrpc.Text(rawrpc.Member(result, "structuredContent"), "version"); got != era {
			t.Errorf("%s speaks %s, want %s", server, got, era)
		}
	}
}
