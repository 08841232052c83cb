package serverconfig_test

import (
	"testing"

	"github.com/toolherd/toolherd/pkg/serverconfig"
)

// TRUST-004, TRUST-005, TRUST-006
func TestDefinitionFingerprint(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{`{"type":"http","url":"https://example.com/mcp"}`, "sha256:a51a767c891b31cc3372e314f46523e6c5654a8a5572556bfda664221aef3100"},
		{` { "url" : "https://example.com/mcp" , "type":"http" } `, "sha256:a51a767c891b31cc3372e314f46523e6c5654a8a5572556bfda664221aef3100"},
		{`{"args":["-y","@x/é"],"command":"npx","env":{}}`, "sha256:8cb10787fbf23abb4a7f911f4573487b8e00fbbc556587f23fc9890cf3f2110c"},
		{`{"env":{},"command":"npx","args":["-y","@x/\u00e9"]}`, "sha256:8cb10787fbf23abb4a7f911f4573487b8e00fbbc556587f23fc9890cf3f2110c"},
	} {
		if got, err := serverconfig.DefinitionFingerprint([]byte(c.raw)); err != nil || got != c.want {
			t.Errorf("%s: %s, %v", c.raw, got, err)
		}
	}
	if got, err := serverconfig.DefinitionFingerprint([]byte(`{"command":"a","command":"b"}`)); err == nil {
		t.Errorf("an ambiguous definition has fingerprint %s", got)
	}
}

func TestEntriesThatMeanTheSameHaveOneFingerprint(t *testing.T) {
	for _, group := range [][]string{
		{
			`{"command":"npx","args":["-y"]}`, `{ "args" : ["-y"], "command":"npx" }`, `{"type":"stdio","command":"npx","args":["-y"],"env":{},"url":null}`,
			`{"transport":"stdio","command":"npx","args":["-y"],"session_scope":"thread","era":"auto","tool_call_timeout":300,"session_init_timeout":"1m"}`,
			`{"command":"npx","args":["-y"],"headers":{"X":"ignored"},"oauth":null,"task_toolsets":[]}`,
			`{"command":"npx","args":["-y"],"description":"d","routing":{"mode":"prefer"},"tools":{"t":{}},"tool_name_prefix":false,"allowedTools":["a"]}`,
			`{"command":"npx","args":["-y"],"enabled":false,"disabledTools":["a"],"unknown":1}`,
		},
		{`{"url":"https://x.example"}`, `{"type":"streamableHttp","url":"https://x.example","command":"","args":["ignored"]}`},
	} {
		want := serverconfig.Fingerprint([]byte(group[0]))
		if len(want) != 64 {
			t.Errorf("fingerprint %q", want)
		}
		for _, entry := range group {
			if got := serverconfig.Fingerprint([]byte(entry)); got != want {
				t.Errorf("%s: %s, want %s", entry, got, want)
			}
		}
	}
}

func TestWhatMattersToASessionChangesTheFingerprint(t *testing.T) {
	seen := map[string]string{}
	for _, entry := range []string{
		`{"command":"npx"}`, `{"command":"npx","args":["-y"]}`, `{"command":"npx","args":["","-y"]}`, `{"command":"npx","env":{"A":"${A}"}}`,
		`{"command":"npx","env":{"A":"${B}"}}`, `{"command":"npx","cwd":"/w"}`, `{"command":"npx","session_scope":"user"}`, `{"command":"npx","era":"modern"}`,
		`{"command":"npx","tool_call_timeout":1}`, `{"command":"npx","tool_call_timeout":null}`, `{"command":"npx","tool_call_max_timeout":1}`,
		`{"command":"npx","session_init_timeout":1}`, `{"url":"https://x.example"}`, `{"type":"sse","url":"https://x.example"}`,
		`{"url":"https://x.example","headers":{"A":"${A}"}}`, `{"url":"https://x.example","auth":"oauth"}`, `{"url":"https://x.example","login_scope":"user"}`,
		`{"url":"https://x.example","oauth":{"token_url":"u"}}`, `{"url":"https://x.example","user_auth":{}}`, `{"url":"https://x.example","user_auth":{"on_missing":"passthrough"}}`,
		`{"url":"https://x.example","headers_from_context":{"headers":{"A":"a"}}}`,
		`{"command":"npx","task_toolsets":[{"name":"n","submit_tool":"a","status_tool":"b","cancel_tool":"c"}]}`,
		`{"command":5}`, `{"command":6}`, `{`, `null`,
	} {
		got := serverconfig.Fingerprint([]byte(entry))
		if other, ok := seen[got]; ok {
			t.Errorf("%s and %s have one fingerprint", entry, other)
		}
		seen[got] = entry
	}
}
