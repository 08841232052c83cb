package serverconfig_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/serverconfig"
)

func FuzzParseDocument(f *testing.F) {
	for _, s := range []string{
		`{"mcpServers":{"a":{"command":"npx","args":["-y"],"env":{"A":"${B}"}},"b":{"url":"https://x.example"}}}`,
		`{"mcpServers":{"a":{},"a":{}}}`, `{"mcp_servers":{"a":{"env":{"X":"1","X":"2"}}},"mcpInterceptors":["x"],"skills":{}}`,
		"\ufeff{}", `[]`, `{"mcpServers":{"a":{"env":{"T":"s",}}}}`, "{\n // x\n}", `{"mcpServers":`, "", "\xff", "{'a':1}", "{\"a\": \"\n",
		`{"a":"` + strings.Repeat("x", 200) + `",,}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		doc, p := serverconfig.ParseDocument(content)
		if p != nil {
			if p.Message == "" || p.Hint == "" || p.Severity != serverconfig.SeverityError || (p.Source == "") != (p.Caret == "") {
				t.Fatalf("%+v", p)
			}
			_ = p.String()
			return
		}
		for _, s := range doc.Servers {
			if !json.Valid(s.JSON) {
				t.Fatalf("%s: %s", s.Name, s.JSON)
			}
			_, problems := serverconfig.Decode(s.Name, s.JSON)
			if s.Problem != nil && !serverconfig.HasErrors(problems) {
				t.Fatalf("%s: %v is not found by Decode", s.Name, s.Problem)
			}
		}
	})
}

func FuzzEntry(f *testing.F) {
	for _, s := range []string{
		`{"command":"npx","args":["--token","x","--key=${A}"],"env":{"A":"$$","B":"pa$$word"}}`,
		`{"url":"https://a:b@x/?token=1","headers":{"A":"Bearer ${A:-}"},"oauth":{"token_url":"u","client_secret":1,"x":{"token":[1]}}}`,
		`{"user_auth":{"users":{"a b":"x"}},"auth":"x","task_toolsets":[{}],"tools":{"t":1},"routing":{"priority":1e9}}`,
		`{"env":{"A":{"$secret":"env.A","mac":"00"}}}`, `{"tool_call_timeout":"1h","session_init_timeout":1e400,"era":"x","enabled":null}`,
		`[]`, `{"a":1,"a":2}`, `{"args":[[["--token=x"]]],"url":5}`, `{"\ud800":"\udbff","url":"://?&=#"}`,
	} {
		f.Add("srv", []byte(s))
	}
	f.Fuzz(func(t *testing.T, name string, raw []byte) {
		e, problems := serverconfig.Decode(name, raw)
		for _, p := range problems {
			if p.Message == "" || p.Hint == "" || p.Reason == "" || p.Server != name {
				t.Fatalf("%+v", p)
			}
		}
		serverconfig.Variables(raw)
		serverconfig.Fingerprint(raw)
		masked := serverconfig.Mask(raw)
		if !json.Valid(masked) {
			t.Fatalf("Mask(%s) is no JSON: %s", raw, masked)
		}
		if again := serverconfig.Mask(masked); json.Valid(raw) && string(again) != string(masked) {
			t.Fatalf("Mask changes %s to %s", masked, again)
		}
		public, secrets := serverconfig.Externalize(name, raw, mac)
		if canonical, err := serverconfig.Canonical(public); err == nil && string(canonical) != string(public) {
			t.Fatalf("Externalize(%s) is not canonical: %s", raw, public)
		}
		if serverconfig.HasErrors(problems) {
			return
		}
		shown, publicProblems := serverconfig.DecodePublic(name, public)
		if serverconfig.HasErrors(publicProblems) || shown.Transport != e.Transport {
			t.Fatalf("%s is good, but its public form %s is not: %v", raw, public, publicProblems)
		}
		all := func(string) (string, bool) { return "v", true }
		if _, err := serverconfig.Resolve(shown, public, all, secrets); err != nil && strings.Contains(err.Error(), "secret store") {
			t.Fatalf("%s: %v", raw, err)
		}
	})
}
