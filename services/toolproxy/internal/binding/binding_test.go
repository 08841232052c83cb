package binding_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/toolproxy/internal/binding"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
)

// public returns an entry as snapshots have it, and its literals.
func public(t *testing.T, raw string) (json.RawMessage, map[string]string) {
	t.Helper()
	return serverconfig.Externalize("s", json.RawMessage(raw), func(label string, data []byte) string {
		return fmt.Sprintf("%x", sha256.Sum256(append([]byte(label), data...)))
	})
}

var toolset = binding.Toolset{
	Name: "reports", SubmitTool: "start", StatusTool: "status", CancelTool: "stop", BackgroundScope: serverconfig.ScopeThread,
}

func bind(t *testing.T, raw string) *binding.Binding {
	t.Helper()
	entry, _ := public(t, raw)
	return binding.New(binding.Origin{
		Driver: driver.OrdinaryName, Server: "s", SourceClass: "user", Public: entry, SnapshotID: "snap_1", Toolset: toolset,
	})
}

// TASK-045, TASK-052: what a worker is given to keep holds no secret.
func TestBindingsHoldNoSecret(t *testing.T) {
	t.Setenv("BINDING_TEST_TOKEN", "value-of-a-variable")
	for _, raw := range []string{
		`{"command":"run","args":["--token","literal-in-args","--url=https://u:literal-userinfo@h/x"],"env":{"K":"literal-in-env","REF":"${BINDING_TEST_TOKEN}"}}`,
		`{"url":"https://h.example/mcp?api_key=literal-in-url","headers":{"Authorization":"Bearer literal-in-header","X":"${BINDING_TEST_TOKEN}"}}`,
		`{"command":"sk-literal0123456789abcdef","env":{"N":7777777777,"O":{"deep":"literal-in-object"}},"description":"password=literal-in-text"}`,
		`{"url":"https://h.example/mcp","oauth":{"client_secret":"literal-in-oauth","refresh_token":"literal-too"},"user_auth":{"users":{"ann":"literal-of-ann"}}}`,
	} {
		entry, secrets := public(t, raw)
		if len(secrets) == 0 {
			t.Fatalf("%s has no literals", raw)
		}
		b := binding.New(binding.Origin{
			Driver: driver.OrdinaryName, Server: "s", SourceClass: "user", Public: entry, SnapshotID: "snap_1", Toolset: toolset,
		})
		encoded, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for path, literal := range secrets {
			if strings.Contains(string(encoded), literal) {
				t.Errorf("%s of %s is in the binding %s", path, raw, encoded)
			}
		}
		if s := string(encoded); strings.Contains(s, "literal") || strings.Contains(s, "value-of-a-variable") {
			t.Errorf("the binding of %s is %s", raw, s)
		}
		refs, err := binding.Refs(entry)
		if err != nil || len(refs) != len(secrets) {
			t.Errorf("%d references to %d literals of %s, %v", len(refs), len(secrets), raw, err)
		}
		for _, ref := range refs {
			if _, ok := secrets[ref.FieldPath]; !ok || ref.MAC == "" {
				t.Errorf("%s: no literal stands at %s", raw, ref.FieldPath)
			}
		}
	}
}

func TestEncodeAndDecode(t *testing.T) {
	b := bind(t, `{"command":"run","args":["<&>"],"env":{"A":"${X}"},"description":"about","tools":{"t":{"about":1}},"task_toolsets":[{"name":"reports","submit_tool":"start","status_tool":"status","cancel_tool":"stop"}]}`)
	encoded, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := binding.Decode(encoded)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.Fingerprint() != b.Fingerprint() || got.Connection != serverconfig.Fingerprint(b.Public) || strings.Contains(string(encoded), "about") {
		t.Errorf("%s is not what decides about the connection, and nothing else", encoded)
	}
	if want := (driver.Tools{Submit: "start", Status: "status", Cancel: "stop"}); got.Tools() != want {
		t.Errorf("tools are %+v", got.Tools())
	}
	for _, raw := range []string{``, `{}`, `[]`, `{"v":1}`, `{"v":0,"driver":"d","server":"s","entry":{}}`, strings.Replace(string(encoded), `"v":1`, `"v":2`, 1)} {
		if b, err := binding.Decode([]byte(raw)); err == nil {
			t.Errorf("%s gives %+v", raw, b)
		}
	}
}

func TestFingerprintFollowsWhatMatters(t *testing.T) {
	const entry = `{"command":"run","env":{"K":"literal-one"}}`
	base := bind(t, entry)
	for name, tc := range map[string]struct {
		raw    string
		change func(*binding.Binding)
		same   bool
	}{
		"another snapshot":    {entry, func(b *binding.Binding) { b.SnapshotID = "snap_2" }, true},
		"another description": {`{"description":"d","command":"run","env":{"K":"literal-one"}}`, nil, true},
		"another literal":     {`{"command":"run","env":{"K":"literal-two"}}`, nil, false},
		"another command":     {`{"command":"walk","env":{"K":"literal-one"}}`, nil, false},
		"another class":       {entry, func(b *binding.Binding) { b.SourceClass = "project" }, false},
		"another tool":        {entry, func(b *binding.Binding) { b.Toolset.StatusTool = "x" }, false},
		"another scope":       {entry, func(b *binding.Binding) { b.Toolset.BackgroundScope = "user" }, false},
		"another driver":      {entry, func(b *binding.Binding) { b.Driver = "x" }, false},
		"parts moved":         {entry, func(b *binding.Binding) { b.Toolset.SubmitTool, b.Toolset.StatusTool = "startstatus", "" }, false},
	} {
		b := bind(t, tc.raw)
		if tc.change != nil {
			tc.change(b)
		}
		if same := b.Fingerprint() == base.Fingerprint(); same != tc.same {
			t.Errorf("%s: the same is %v", name, same)
		}
	}
}

// TASK-045: where a call goes is decided by the binding, with which credentials by today's entry if it leads there too.
func TestCredentialsOfTodayForTheSamePlace(t *testing.T) {
	for name, tc := range map[string]struct{ bound, today, want string }{
		"nothing today": {
			`{"command":"run","env":{"K":"old-literal"}}`, ``, `{"command":"run","env":{"K":"old-literal"}}`,
		},
		"a literal that changed": {
			`{"command":"run","args":["a"],"env":{"K":"old-literal","GONE":"x"},"era":"legacy"}`,
			`{"command":"run","args":["a"],"env":{"K":"new-literal","MORE":"${Y}"},"session_scope":"shared","tool_call_timeout":5}`,
			`{"command":"run","args":["a"],"env":{"K":"new-literal","MORE":"${Y}"},"era":"legacy"}`,
		},
		"a secret argument that changed": {
			`{"command":"run","args":["--token=old-literal"]}`, `{"command":"run","args":["--token=new-literal"]}`,
			`{"command":"run","args":["--token=new-literal"]}`,
		},
		"env that is gone": {
			`{"command":"run","env":{"K":"old-literal"}}`, `{"command":"run"}`, `{"command":"run"}`,
		},
		"another command": {
			`{"command":"run","env":{"K":"old-literal"}}`, `{"command":"walk","env":{"K":"new-literal"}}`, `{"command":"run","env":{"K":"old-literal"}}`,
		},
		"another argument": {
			`{"command":"run","args":["a"],"env":{"K":"old-literal"}}`, `{"command":"run","args":["a","b"],"env":{"K":"new-literal"}}`,
			`{"command":"run","args":["a"],"env":{"K":"old-literal"}}`,
		},
		"another directory": {
			`{"command":"./run","cwd":"/a","env":{"K":"old-literal"}}`, `{"command":"./run","cwd":"/b","env":{"K":"new-literal"}}`,
			`{"command":"./run","cwd":"/a","env":{"K":"old-literal"}}`,
		},
		"a header that changed, on another path": {
			`{"url":"https://h.example/v1","headers":{"X-Key":"old-literal"}}`, `{"url":"https://H.example:443/v2","headers":{"X-Key":"new-literal"}}`,
			`{"url":"https://h.example/v1","headers":{"X-Key":"new-literal"}}`,
		},
		"a secret in the URL that changed": {
			`{"url":"https://h.example/mcp?api_key=old-literal"}`, `{"url":"https://h.example/mcp?api_key=new-literal"}`,
			`{"url":"https://h.example/mcp?api_key=new-literal"}`,
		},
		"the same reference as URL": {
			`{"url":"${BASE}/mcp","headers":{"X":"old-literal"}}`, `{"url":"${BASE}/mcp","headers":{"X":"new-literal"}}`, `{"url":"${BASE}/mcp","headers":{"X":"new-literal"}}`,
		},
		"another reference as URL": {
			`{"url":"${BASE}/v1","headers":{"X":"old-literal"}}`, `{"url":"${BASE}/v2","headers":{"X":"new-literal"}}`, `{"url":"${BASE}/v1","headers":{"X":"old-literal"}}`,
		},
		"a reference in the host": {
			`{"url":"https://${HOST}/v1","headers":{"X":"old-literal"}}`, `{"url":"https://${HOST}/v2","headers":{"X":"new-literal"}}`, `{"url":"https://${HOST}/v1","headers":{"X":"old-literal"}}`,
		},
		"another host": {
			`{"url":"https://h.example/mcp","headers":{"X":"old-literal"}}`, `{"url":"https://other.example/mcp","headers":{"X":"new-literal"}}`,
			`{"url":"https://h.example/mcp","headers":{"X":"old-literal"}}`,
		},
		"another port": {
			`{"url":"https://h.example/mcp","headers":{"X":"old-literal"}}`, `{"url":"https://h.example:8443/mcp","headers":{"X":"new-literal"}}`,
			`{"url":"https://h.example/mcp","headers":{"X":"old-literal"}}`,
		},
		"another scheme": {
			`{"url":"https://h.example/mcp","headers":{"X":"old-literal"}}`, `{"url":"http://h.example/mcp","headers":{"X":"new-literal"}}`,
			`{"url":"https://h.example/mcp","headers":{"X":"old-literal"}}`,
		},
		"another transport": {
			`{"url":"https://h.example/mcp","headers":{"X":"old-literal"}}`, `{"type":"sse","url":"https://h.example/mcp","headers":{"X":"new-literal"}}`,
			`{"url":"https://h.example/mcp","headers":{"X":"old-literal"}}`,
		},
		"an entry that makes no sense": {
			`{"command":"run","env":{"K":"old-literal"}}`, `{"command":7,"env":{"K":"new-literal"}}`, `{"command":"run","env":{"K":"old-literal"}}`,
		},
		"a layer that came": {
			`{"url":"https://h.example/mcp","headers":{"X":"old-literal"}}`, `{"url":"https://h.example/mcp","auth":"oauth"}`,
			`{"url":"https://h.example/mcp","auth":"oauth"}`,
		},
	} {
		var today json.RawMessage
		if tc.today != "" {
			today, _ = public(t, tc.today)
		}
		got, err := bind(t, tc.bound).Entry(today)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want, _ := public(t, tc.want)
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
