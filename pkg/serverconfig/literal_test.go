package serverconfig_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
)

// mac stands in for a keyed digest, where the key does not matter.
func mac(label string, data []byte) string {
	return fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(label+"|"+string(data))))
}

// API-004, API-005
func TestMask(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{ "command" : "npx",  "args":["-y"] }`, `{ "command" : "npx",  "args":["-y"] }`},
		{`{"env":{"A":"x","B":"${B}","C":"","D":5,"E":null}}`, `{"env":{"A":"***","B":"***","C":"***","D":"***","E":null}}`},
		{`{"headers":{"X-A":"x","Authorization":"Bearer ${T}"}}`, `{"headers":{"X-A":"***","Authorization":"***"}}`},
		{`{"env":["A=b"],"headers":"x"}`, `{"env":"***","headers":"***"}`},
		{`{"oauth":{"token_url":"https://x.example/t","client_id":"id","client_secret":"s","refresh_token":"r","scope":"token secret","token_field":"t","default_token_type":"Bearer"}}`,
			`{"oauth":{"token_url":"https://x.example/t","client_id":"id","client_secret":null,"refresh_token":null,"scope":"token secret","token_field":"t","default_token_type":"Bearer"}}`},
		{`{"oauth":{"extra_token_params":{"audience":"a","resource":"b"},"my_token":"x","plain":"y","deep":[{"password":"p","user":"u"}]}}`,
			`{"oauth":{"extra_token_params":{"audience":"***","resource":"***"},"my_token":"***","plain":"y","deep":[{"password":"***","user":"u"}]}}`},
		{`{"auth":{"type":"oauth","client_id":"id","client_secret":"${S}","scopes":["a"],"apiKey":"k"}}`,
			`{"auth":{"type":"oauth","client_id":"id","client_secret":null,"scopes":["a"],"apiKey":"***"}}`},
		{`{"auth":"oauth"}`, `{"auth":"oauth"}`},
		{`{"auth":"hunter2"}`, `{"auth":"***"}`},
		{`{"user_auth":{"header":"Authorization","users":{"bob":"Bearer b","eve":"$EVE"},"on_missing":"deny","client_secret":"x","note":"n"}}`,
			`{"user_auth":{"header":"Authorization","users":{"bob":"***","eve":"***"},"on_missing":"deny","client_secret":"***","note":"n"}}`},
		{`{"headers_from_context":{"headers":{"Authorization":"github_token","X-Token":"token"},"secret":"s","x":{"token":"t"}}}`,
			`{"headers_from_context":{"headers":{"Authorization":"github_token","X-Token":"token"},"secret":"***","x":{"token":"***"}}}`},
		{`{"tools":{"get_secret":{"routing":{"keywords":["password"]},"token":"t","note":"n"}},"routing":{"keywords":["api_key=1"]}}`,
			`{"tools":{"get_secret":{"routing":{"keywords":["password"]},"token":"***","note":"n"}},"routing":{"keywords":["api_key=1"]}}`},
		{`{"githubToken":"x","tokenizer":"x","a":{"b":[{"X-Api-Key":{"c":1}}]},"credentials":[1,2],"password":null,"secret":true}`,
			`{"githubToken":"***","tokenizer":"x","a":{"b":[{"X-Api-Key":"***"}]},"credentials":"***","password":null,"secret":"***"}`},
		{`{"description":"use key=value and Bearer abcdefgh","session_scope":"user"}`, `{"description":"use key=value and Bearer abcdefgh","session_scope":"user"}`},
		{`"hunter2"`, `"***"`},
		{`{"a":`, `"***"`},
	} {
		if got := string(serverconfig.Mask([]byte(c.in))); got != c.want {
			t.Errorf("Mask(%s)\n got %s\nwant %s", c.in, got, c.want)
		}
	}
}

// API-008
func TestMaskOfArgumentsAndURLs(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"args":["--api-key=abc","-y","--port=80"]}`, `{"args":["--api-key=***","-y","--port=80"]}`},
		{`{"args":["--api-key","abc","--token","--verbose","--access-token","${T}"]}`, `{"args":["--api-key","***","--token","--verbose","--access-token","***"]}`},
		{`{"args":["--api-key=${KEY}","--token=${T:-fallback}"]}`, `{"args":["--api-key=${KEY}","--token=***"]}`},
		{`{"args":["-e","GITHUB_TOKEN=abc","-e","LEVEL=debug","-e","GITHUB_TOKEN"]}`, `{"args":["-e","GITHUB_TOKEN=***","-e","LEVEL=debug","-e","GITHUB_TOKEN"]}`},
		{`{"args":["mcp-remote","https://x.example/sse","--header","Authorization: Bearer abc"]}`, `{"args":["mcp-remote","https://x.example/sse","--header","Authorization: ***"]}`},
		{`{"args":["--header","Authorization: Bearer ${T}","sk-abcdefgh"]}`, `{"args":["--header","Authorization: Bearer ${T}","***"]}`},
		{`{"args":["postgres://u:p@db/x","postgres://${U}:${P}@db/x","postgres://u:${P}@db/x"]}`, `{"args":["postgres://***@db/x","postgres://${U}:${P}@db/x","postgres://***@db/x"]}`},
		{`{"args":[{"token":"x"},["--token=x"]]}`, `{"args":[{"token":"***"},["--token=***"]]}`},
		{`{"args":"--token=x"}`, `{"args":"--token=***"}`},
		{`{"url":"https://bob:pw@x.example/mcp?token=abc&v=1#f"}`, `{"url":"https://***@x.example/mcp?token=***&v=1#f"}`},
		{`{"url":"https://x.example/mcp?v=1&api%5Fkey=abc&key=k&access_token_v2=z"}`, `{"url":"https://x.example/mcp?v=1&api%5Fkey=***&key=***&access_token_v2=***"}`},
		{`{"url":"https://x.example/mcp?token=${T}&key=$K"}`, `{"url":"https://x.example/mcp?token=${T}&key=$K"}`},
		{`{"url":"https://${H}/mcp?q=tokenizer"}`, `{"url":"https://${H}/mcp?q=tokenizer"}`},
		{`{"command":"API_KEY=abc npx","cwd":"/w"}`, `{"command":"API_KEY=*** npx","cwd":"/w"}`},
		{`{"oauth":{"token_url":"https://a:b@x.example/"}}`, `{"oauth":{"token_url":"https://***@x.example/"}}`},
		{`{"note":["see https://a:b@x.example/"]}`, `{"note":["see https://***@x.example/"]}`},
	} {
		if got := string(serverconfig.Mask([]byte(c.in))); got != c.want {
			t.Errorf("Mask(%s)\n got %s\nwant %s", c.in, got, c.want)
		}
	}
}

// SNAP-007
func TestMaskKnowsNoPlaceWithoutSecrets(t *testing.T) {
	const value = "hunter2hunter2"
	for _, raw := range []string{
		`{"command":"x","routing":{"api_key":"V"}}`, `{"command":"x","task_toolsets":[{"name":"a","password":"V"}]}`,
		`{"command":"x","tool_call_timeout":{"token":"V"}}`, `{"command":"x","allowedTools":[{"a":{"token":["V"]}}]}`,
		`{"command":"x","type":{"token":"V"}}`,
		`{"command":"x","tools":{"t":{"routing":{"token":"V"}}}}`, `{"command":"x","tools":[{"token":"V"}]}`, `{"command":"x","tools":"V"}`,
		`{"url":"http://h","headers_from_context":{"headers":{"X":{"token":"V"}}}}`, `{"url":"http://h","headers_from_context":{"headers":["V"]}}`,
		`{"command":"x","Env":{"A":"V"}}`, `{"command":"x","environment":{"A":"V"}}`, `{"url":"http://h","http_headers":{"X":"V"}}`,
	} {
		raw = strings.ReplaceAll(raw, "V", value)
		if masked := serverconfig.Mask([]byte(raw)); strings.Contains(string(masked), value) {
			t.Errorf("Mask(%s) shows it: %s", raw, masked)
		}
		if public, _ := serverconfig.Externalize("s", []byte(raw), mac); strings.Contains(string(public), value) {
			t.Errorf("Externalize(%s) keeps it: %s", raw, public)
		}
	}
	for _, raw := range []string{
		`{"command":"x","tools":{"create_token":{"routing":{"mode":"prefer","keywords":["password"]}}}}`,
		`{"url":"http://h","headers_from_context":{"headers":{"X-Token":"github_token"}}}`,
		`{"command":"x","description":"manages tokens","allowedTools":["token_*"]}`,
	} {
		if masked := serverconfig.Mask([]byte(raw)); string(masked) != raw {
			t.Errorf("Mask(%s) hides what is no secret: %s", raw, masked)
		}
	}
}

func TestExternalizeTakesEveryLiteralOut(t *testing.T) {
	raw := `{
		"url": "https://bob:url-secret@x.example/mcp", "args": ["--token=args-secret"], "type": "http",
		"env": {"LIT": "env-secret", "REF": "${ENV}", "WHOLE": "$ENV", "ESC": "$$ENV-secret", "PARTLY": "${A}-secret", "FALL": "${A:-fallback-secret}", "EMPTY": "", "EMPTYFALL": "${A:-}", "N": 5},
		"headers": {"Authorization": "Bearer header-secret", "X-Ref": "Bearer ${T}", "X-Two": "${A}${B}", "X-Word": "hunter ${T}-secret", "X-Dollar": "Bearer $T-secret"},
		"oauth": {"token_url": "https://x.example", "client_secret": "oauth-secret", "refresh_token": "${R}", "extra_token_params": {"p": "param-secret"}, "myToken": {"deep": "oauth-deep-secret"}},
		"auth": {"type": "oauth", "client_secret": "auth-secret"},
		"user_auth": {"users": {"bob@x": "bob-secret", "eve": "Basic ${EVE}"}},
		"vendor": [{"apiKey": "vendor-secret", "password": ["list-secret", 1.50]}],
		"description": "no secret"
	}`
	public, secrets := serverconfig.Externalize("srv", json.RawMessage(raw), mac)
	want := map[string]string{
		"url":                        "https://bob:url-secret@x.example/mcp",
		"args[0]":                    "--token=args-secret",
		"env.LIT":                    "env-secret",
		"env.ESC":                    "$$ENV-secret",
		"env.PARTLY":                 "${A}-secret",
		"env.FALL":                   "${A:-fallback-secret}",
		"env.N":                      "5",
		"headers.Authorization":      "Bearer header-secret",
		"headers.X-Word":             "hunter ${T}-secret",
		"headers.X-Dollar":           "Bearer $T-secret",
		"oauth.client_secret":        "oauth-secret",
		"oauth.extra_token_params.p": "param-secret",
		"oauth.myToken":              `{"deep":"oauth-deep-secret"}`,
		"auth.client_secret":         "auth-secret",
		`user_auth.users["bob@x"]`:   "bob-secret",
		"vendor[0].apiKey":           "vendor-secret",
		"vendor[0].password":         `["list-secret",1.50]`,
	}
	if diff := cmp.Diff(want, secrets); diff != "" {
		t.Error(diff)
	}
	for _, leak := range []string{"-secret", "hunter"} {
		if strings.Contains(string(public), leak) {
			t.Errorf("the public JSON holds %q: %s", leak, public)
		}
	}
	for _, stays := range []string{
		`"REF":"${ENV}"`, `"WHOLE":"$ENV"`, `"EMPTY":""`, `"EMPTYFALL":"${A:-}"`, `"X-Ref":"Bearer ${T}"`, `"X-Two":"${A}${B}"`,
		`"refresh_token":"${R}"`, `"eve":"Basic ${EVE}"`, `"description":"no secret"`,
		`"url":{"$secret":"url","mac":"` + mac("serverconfig:srv:url", []byte(want["url"])) + `","shown":"https://***@x.example/mcp"}`,
		`"LIT":{"$secret":"env.LIT","mac":"` + mac("serverconfig:srv:env.LIT", []byte("env-secret")) + `"}`,
		`"N":{"$secret":"env.N","json":true,"mac":"`,
	} {
		if !strings.Contains(string(public), stays) {
			t.Errorf("the public JSON lacks %s: %s", stays, public)
		}
	}
	if canonical, err := serverconfig.Canonical(public); err != nil || string(canonical) != string(public) {
		t.Errorf("the public JSON is not canonical: %s, %v", public, err)
	}
}

// SNAP-007
func TestRotatingASecretChangesPublicJSONAndFingerprint(t *testing.T) {
	key, err := secret.NewKey(bytes.Repeat([]byte{7}, secret.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := secret.NewKey(bytes.Repeat([]byte{8}, secret.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	for _, template := range []string{
		`{"command":"x","env":{"A":"%"}}`,
		`{"command":"x","args":["--token=%"]}`,
		`{"url":"https://x.example/?token=%"}`,
		`{"url":"https://x.example","headers":{"A":"%"}}`,
		`{"url":"https://x.example","user_auth":{"users":{"bob":"%"}}}`,
		`{"url":"https://x.example","oauth":{"token_url":"u","client_secret":"%"}}`,
		`{"url":"https://x.example","auth":{"type":"oauth","client_secret":"%"}}`,
	} {
		prints := map[string]bool{}
		for _, value := range []string{"old", "new", "new"} {
			public, _ := serverconfig.Externalize("srv", json.RawMessage(strings.Replace(template, "%", value, 1)), key.MAC)
			if strings.Contains(string(public), value) {
				t.Errorf("%s holds the secret", public)
			}
			if _, problems := serverconfig.DecodePublic("srv", public); serverconfig.HasErrors(problems) {
				t.Errorf("%s: %v", public, problems)
			}
			prints[serverconfig.Fingerprint(public)] = true
		}
		if len(prints) != 2 {
			t.Errorf("%s: %d fingerprints of two secrets", template, len(prints))
		}
		underOther, _ := serverconfig.Externalize("srv", json.RawMessage(strings.Replace(template, "%", "old", 1)), otherKey.MAC)
		if prints[serverconfig.Fingerprint(underOther)] {
			t.Errorf("%s: the digest does not depend on the key", template)
		}
	}
}

func TestExternalizeIsNotFooledByAReferenceOfOthers(t *testing.T) {
	for _, raw := range []string{
		`{"command":"x","env":{"A":{"$secret":"env.B","mac":"00"}}}`,
		`{"command":"x","env":{"A":{"$secret":"hunter2","mac":"00"}}}`,
		`{"command":"x","env":{"A":{"$secret":"env.A","mac":"hunter2"}}}`,
		`{"command":"x","env":{"A":{"$secret":"env.A","mac":"00","also":"hunter2"}}}`,
		`{"command":"x","env":{"A":{"$secret":"env.A"}}}`,
	} {
		public, secrets := serverconfig.Externalize("srv", json.RawMessage(raw), mac)
		if strings.Contains(string(public), "hunter2") || secrets["env.A"] == "" {
			t.Errorf("%s: %s %v", raw, public, secrets)
		}
		if !serverconfig.HasErrors(second(serverconfig.Decode("srv", json.RawMessage(raw)))) {
			t.Errorf("%s is accepted", raw)
		}
	}
}

func second[A, B any](_ A, b B) B { return b }

func TestPublicEntryShowsWhatMayBeSeen(t *testing.T) {
	raw := `{"url":"https://bob:pw@x.example/mcp?v=1","headers":{"X-A":"lit","X-B":"${B}"}}`
	public, _ := serverconfig.Externalize("srv", json.RawMessage(raw), mac)
	e, problems := serverconfig.DecodePublic("srv", public)
	if len(problems) > 0 || e.URL != "https://***@x.example/mcp?v=1" || e.Headers["X-A"] != "***" || e.Headers["X-B"] != "${B}" {
		t.Errorf("%+v %v", e, problems)
	}
}

func TestExternalizeOfWhatIsNoEntry(t *testing.T) {
	for _, raw := range []string{`"hunter2"`, `{`, ``, `5`} {
		if public, secrets := serverconfig.Externalize("srv", json.RawMessage(raw), mac); string(public) != "null" || len(secrets) != 0 {
			t.Errorf("%s: %s %v", raw, public, secrets)
		}
	}
}
