package partners_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/test/partners"
	"github.com/toolherd/toolherd/test/rawrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answers checks that a session speaks the version, lists the tool and runs it with a text that has want.
func answers(t *testing.T, s *mcp.ClientSession, version, tool string, args map[string]any, want string) {
	t.Helper()
	if got := s.InitializeResult().ProtocolVersion; got != version {
		t.Errorf("negotiated %s, want %s", got, version)
	}
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list.Tools, func(l *mcp.Tool) bool { return l.Name == tool }) {
		t.Errorf("%s is not listed", tool)
	}
	result, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	if result.IsError || !strings.Contains(string(got), want) {
		t.Errorf("%s returned %s, want %q in it", tool, got, want)
	}
}

func TestServersAnswerADirectClient(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	hi := map[string]any{"message": "hi there"}
	t.Run("everything", func(t *testing.T) {
		answers(t, partners.Direct(t, partners.Everything(t), ""), rawrpc.V20251125, "echo", hi, "hi there")
	})
	t.Run("everything over HTTP", func(t *testing.T) {
		answers(t, partners.DirectHTTP(t, partners.EverythingHTTP(t), ""), rawrpc.V20251125, "echo", hi, "hi there")
	})
	t.Run("everything over SSE", func(t *testing.T) {
		answers(t, partners.DirectSSE(t, partners.EverythingSSE(t)), rawrpc.V20250618, "echo", hi, "hi there")
	})
	t.Run("filesystem", func(t *testing.T) {
		answers(t, partners.Direct(t, partners.Filesystem(t, dir), ""), rawrpc.V20251125, "read_text_file", map[string]any{"path": filepath.Join(dir, "a.txt")}, "hello")
	})
	t.Run("memory", func(t *testing.T) {
		entities := []any{map[string]any{"name": "ann", "entityType": "person", "observations": []any{"tall"}}}
		answers(t, partners.Direct(t, partners.Memory(t, filepath.Join(dir, "graph.jsonl")), ""), rawrpc.V20251125, "create_entities", map[string]any{"entities": entities}, "tall")
	})
	t.Run("sequential thinking", func(t *testing.T) {
		thought := map[string]any{"thought": "one", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1}
		answers(t, partners.Direct(t, partners.SequentialThinking(t), ""), rawrpc.V20251125, "sequentialthinking", thought, "thoughtNumber")
	})
	t.Run("modern TypeScript", func(t *testing.T) {
		answers(t, partners.Direct(t, partners.ModernTS(t), ""), rawrpc.V20260728, "add", map[string]any{"a": 2, "b": 3}, `{"sum":5}`)
	})
	t.Run("fake", func(t *testing.T) {
		answers(t, partners.Direct(t, partners.Fake(t, "-protocol", "2026-07-28"), ""), rawrpc.V20260728, "echo", hi, "hi there")
	})
	t.Run("demo", func(t *testing.T) {
		demo := partners.Command{Path: partners.Toolherd(t), Args: []string{"demo-server"}}
		answers(t, partners.Direct(t, demo, ""), rawrpc.V20260728, "add", map[string]any{"a": 2, "b": 3}, `{"sum":5}`)
	})
	t.Run("fake over HTTP", func(t *testing.T) {
		answers(t, partners.DirectHTTP(t, partners.FakeHTTP(t).URL, ""), rawrpc.V20251125, "echo", hi, "hi there")
	})
}

func TestPeersAnswerADirectClient(t *testing.T) {
	fake := partners.Fake(t, "-only", "echo")
	hi := map[string]any{"message": "hi there"}
	t.Run("mcp-proxy", func(t *testing.T) {
		answers(t, partners.DirectHTTP(t, partners.MCPProxy(t, fake), rawrpc.V20251125), rawrpc.V20251125, "echo", hi, "hi there")
	})
	t.Run("supergateway", func(t *testing.T) {
		answers(t, partners.DirectHTTP(t, partners.Supergateway(t, fake), rawrpc.V20251125), rawrpc.V20251125, "echo", hi, "hi there")
	})
	t.Run("mcp-hub", func(t *testing.T) {
		answers(t, partners.DirectSSE(t, partners.MCPHub(t, fake)), rawrpc.V20250618, "backend__echo", hi, "hi there")
	})
	t.Run("mcp-remote", func(t *testing.T) {
		http := partners.FakeHTTP(t, "-only", "echo")
		answers(t, partners.Direct(t, partners.MCPRemote(t, http.URL), rawrpc.V20251125), rawrpc.V20251125, "echo", hi, "hi there")
	})
}

func TestRawClientReturnsTheBytesOfTheServer(t *testing.T) {
	everything := partners.Raw(t, partners.Everything(t), rawrpc.V20251125, rawrpc.ClientOptions{})
	result, err := everything.Call(t.Context(), "tools/call", rawrpc.CallParams("echo", json.RawMessage(`{"message":"hi"}`)))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"content":[{"type":"text","text":"Echo: hi"}]}`; string(result) != want {
		t.Errorf("everything answered %s, want %s", result, want)
	}
	const big = `{"z":9007199254740993,"a":1.10}`
	fake := partners.FakeHTTP(t)
	overHTTP := partners.RawHTTP(t, fake.URL, rawrpc.V20250618, rawrpc.ClientOptions{})
	result, err = overHTTP.Call(t.Context(), "tools/call", rawrpc.CallParams("raw", json.RawMessage(`{"result":`+big+`}`)))
	if err != nil || string(result) != big {
		t.Errorf("fake answered %s, %v; want %s", result, err, big)
	}
	modern := partners.Raw(t, partners.ModernTS(t), rawrpc.V20260728, rawrpc.ClientOptions{})
	result, err = modern.Call(t.Context(), "tools/call", rawrpc.CallParams("echo", json.RawMessage(`{"text":"hi"}`)))
	if err != nil || rawrpc.Text(result, "resultType") != "complete" {
		t.Errorf("modern server answered %s, %v", result, err)
	}
}

func TestFakeProcessTellsOfItselfAndExits(t *testing.T) {
	c := partners.Fake(t)
	c.Env, c.Dir = []string{"FAKE_TEST=yes"}, t.TempDir()
	p := partners.StartStdio(t, c)
	client := rawrpc.NewStdio(p.Out, p.In, rawrpc.ClientOptions{})
	if _, err := rawrpc.Initialize(t.Context(), client, rawrpc.V20251125, nil); err != nil {
		t.Fatal(err)
	}
	for tool, want := range map[string]string{
		"pid": `"pid":` + string(rawrpc.ID(int64(p.PID))), "env": `"FAKE_TEST":"yes"`,
	} {
		result, err := client.Call(t.Context(), "tools/call", rawrpc.CallParams(tool, nil))
		if err != nil || !strings.Contains(string(rawrpc.Member(result, "structuredContent")), want) {
			t.Errorf("%s returned %s, %v; want %s in it", tool, result, err, want)
		}
	}
	if _, err := client.Call(t.Context(), "tools/call", rawrpc.CallParams("stderr", json.RawMessage(`{"text":"oh no"}`))); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Call(t.Context(), "tools/call", rawrpc.CallParams("exit", json.RawMessage(`{"code":5}`))); err == nil {
		t.Error("a call of exit was answered")
	}
	if code := p.Wait(t); code != 5 || p.Stderr() != "oh no\n" {
		t.Errorf("exit code %d, standard error %q", code, p.Stderr())
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

func TestFakeProcessEndsWithItsInputAndOnSIGTERM(t *testing.T) {
	p := partners.StartStdio(t, partners.Fake(t))
	if err := p.In.Close(); err != nil {
		t.Fatal(err)
	}
	if code := p.Wait(t); code != 0 {
		t.Errorf("exit code %d at the end of the input", code)
	}
	h := partners.FakeHTTP(t)
	if err := h.Kill(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-h.Exited()
}

func TestPinsNameNoHostAndNoRange(t *testing.T) {
	exact := regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9a-z.]+)?$`)
	for _, set := range []string{"servers", "bench"} {
		dir := filepath.Join(partners.Root(t), "test", "partners", "npm", set)
		var manifest struct{ Dependencies map[string]string }
		b, err := os.ReadFile(filepath.Join(dir, "package.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &manifest); err != nil {
			t.Fatal(err)
		}
		if len(manifest.Dependencies) == 0 {
			t.Errorf("%s has no dependencies", set)
		}
		for name, version := range manifest.Dependencies {
			if !exact.MatchString(version) {
				t.Errorf("%s: %s is pinned to %q, want one version", set, name, version)
			}
		}
		if b, err = os.ReadFile(filepath.Join(dir, "package-lock.json")); err != nil {
			t.Fatal(err)
		}
		var lock struct {
			Packages map[string]struct{ Resolved, Integrity string }
		}
		if err := json.Unmarshal(b, &lock); err != nil {
			t.Fatal(err)
		}
		for name, p := range lock.Packages {
			if p.Resolved != "" || (name != "" && p.Integrity == "") {
				t.Errorf("%s: %s is resolved to %q, integrity %q", set, name, p.Resolved, p.Integrity)
			}
		}
	}
}
