package serverconfig_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"pgregory.net/rapid"
)

// restore returns what Unmask makes of sent, in canonical form, and the paths of its problems.
func restore(t *testing.T, stored, sent string) (got string, problems []string) {
	t.Helper()
	var before json.RawMessage
	if stored != "" {
		before = json.RawMessage(stored)
	}
	raw, found := serverconfig.Unmask("srv", before, json.RawMessage(sent))
	for _, p := range found {
		if p.Reason != serverconfig.ReasonMaskedValue || p.Server != "srv" {
			t.Errorf("%s: unexpected problem %v", sent, p)
		}
		problems = append(problems, p.Path)
	}
	return canonical(t, raw), problems
}

// API-008, API-009, API-010, API-011, API-012
func TestUnmask(t *testing.T) {
	const login = `{"url":"u","oauth":{"token_url":"t","client_secret":"s","refresh_token":"r","apiKey":"k","note":"n","scope":"x","extra_token_params":{"a":"1","b":"2"}}}`
	const users = `{"url":"u","user_auth":{"header":"X","on_missing":"passthrough","users":{"bob":"1","eve":"2"},"pin_token":"p"}}`
	const context = `{"url":"u","headers_from_context":{"headers":{"A":"a"},"on_missing":"passthrough","secret":"s"}}`
	const tools = `{"url":"u","tools":{"t":{"routing":{"mode":"prefer"},"token":"x","note":"n"},"t.2":{"token":"y"}}}`
	for _, c := range []struct{ name, stored, sent, want string }{
		{"env of a stored key", `{"env":{"A":"1","B":"2"}}`, `{"env":{"A":"***","B":"***"}}`, `{"env":{"A":"1","B":"2"}}`},
		{"a key left out is removed", `{"env":{"A":"1","B":"2"}}`, `{"env":{"B":"***"}}`, `{"env":{"B":"2"}}`},
		{"a map left out is removed", `{"env":{"A":"1"},"headers":{"H":"h"}}`, `{}`, `{}`},
		{"a value of its own", `{"env":{"A":"1","B":"2"}}`, `{"env":{"A":"new","B":"***","C":"c"}}`, `{"env":{"A":"new","B":"2","C":"c"}}`},
		{"a reference", `{"headers":{"H":"Bearer ${T}"}}`, `{"headers":{"H":"***"}}`, `{"headers":{"H":"Bearer ${T}"}}`},
		{"what is no text", `{"env":{"A":5,"B":[1.10]}}`, `{"env":{"A":"***","B":"***"}}`, `{"env":{"A":5,"B":[1.10]}}`},

		{"null keeps", login, `{"url":"u","oauth":{"token_url":"t","client_secret":null,"refresh_token":null,"extra_token_params":{"a":"***","b":"new"}}}`,
			`{"url":"u","oauth":{"token_url":"t","client_secret":"s","refresh_token":"r","apiKey":"k","note":"n","extra_token_params":{"a":"1","b":"new"}}}`},
		{"empty clears, else it is set", login, `{"url":"u","oauth":{"token_url":"t","client_secret":"","refresh_token":"new","apiKey":null,"note":"other"}}`,
			`{"url":"u","oauth":{"token_url":"t","client_secret":null,"refresh_token":"new","apiKey":null,"note":"other"}}`},
		{"left out keeps", login, `{"url":"u","oauth":{"token_url":"t"}}`, `{"url":"u","oauth":{"token_url":"t","client_secret":"s","refresh_token":"r","apiKey":"k","note":"n"}}`},
		{"the block left out is removed", login, `{"url":"u"}`, `{"url":"u"}`},
		{"null where nothing is stored", `{"url":"u"}`, `{"url":"u","oauth":{"client_secret":null,"refresh_token":""}}`, `{"url":"u","oauth":{"client_secret":null,"refresh_token":null}}`},
		{"auth", `{"auth":{"type":"oauth","client_secret":"s","scopes":["a"],"api_key":"k"}}`, `{"auth":{"type":"oauth","client_secret":null,"api_key":"***"}}`, `{"auth":{"type":"oauth","client_secret":"s","api_key":"k"}}`},
		{"auth by its word", `{"auth":{"type":"oauth","client_secret":"s"}}`, `{"auth":"oauth"}`, `{"auth":"oauth"}`},

		{"users replace", users, `{"url":"u","user_auth":{"users":{"bob":"***","amy":"3"}}}`, `{"url":"u","user_auth":{"header":"X","on_missing":"passthrough","users":{"bob":"1","amy":"3"},"pin_token":"p"}}`},
		{"users left out", users, `{"url":"u","user_auth":{"header":"Y","on_missing":null}}`, `{"url":"u","user_auth":{"header":"Y","on_missing":null,"users":{"bob":"1","eve":"2"},"pin_token":"p"}}`},
		{"user_auth left out", users, `{"url":"v"}`, `{"url":"v","user_auth":{"header":"X","on_missing":"passthrough","users":{"bob":"1","eve":"2"},"pin_token":"p"}}`},
		{"user_auth taken away", users, `{"url":"v","user_auth":null}`, `{"url":"v","user_auth":null}`},
		{"users taken away", users, `{"url":"v","user_auth":{"users":{}}}`, `{"url":"v","user_auth":{"users":{},"header":"X","on_missing":"passthrough","pin_token":"p"}}`},

		{"headers_from_context left out", context, `{"url":"v"}`, `{"url":"v","headers_from_context":{"headers":{"A":"a"},"on_missing":"passthrough","secret":"s"}}`},
		{"headers_from_context replaced", context, `{"url":"u","headers_from_context":{"headers":{"B":"b"}}}`, `{"url":"u","headers_from_context":{"headers":{"B":"b"},"secret":"s"}}`},
		{"its extra masked", context, `{"url":"u","headers_from_context":{"headers":{},"secret":"***"}}`, `{"url":"u","headers_from_context":{"headers":{},"secret":"s"}}`},

		{"tools left out", tools, `{"url":"v"}`, strings.Replace(tools, `"u"`, `"v"`, 1)},
		{"tools replaced", tools, `{"url":"u","tools":{"t":{"token":"***"}}}`, `{"url":"u","tools":{"t":{"token":"x","note":"n"}}}`},
		{"a tool of a strange name", tools, `{"url":"u","tools":{"t.2":{"routing":{}}}}`, `{"url":"u","tools":{"t.2":{"routing":{},"token":"y"}}}`},
		{"routing left out", `{"routing":{"mode":"prefer"}}`, `{}`, `{"routing":{"mode":"prefer"}}`},
		{"routing replaced", `{"routing":{"mode":"prefer","priority":3}}`, `{"routing":{"mode":"off"}}`, `{"routing":{"mode":"off"}}`},

		{"extras left out", `{"command":"x","x":{"token":"t"},"y":1,"timeuot":3}`, `{"command":"z"}`, `{"command":"z","x":{"token":"t"},"y":1,"timeuot":3}`},
		{"extras restored at any depth", `{"x":{"token":"t","deep":{"password":"p","a":1}}}`, `{"x":{"token":"***","deep":{"password":"***","a":2}}}`, `{"x":{"token":"t","deep":{"password":"p","a":2}}}`},
		{"an extra taken away", `{"x":{"token":"t"},"y":1}`, `{"x":null}`, `{"x":null,"y":1}`},
		{"other fields go back to their default", `{"command":"x","args":["a"],"cwd":"/w","enabled":false,"tool_call_timeout":5,"description":"d","era":"modern"}`, `{"command":"x"}`, `{"command":"x"}`},

		{"a list as it is shown", `{"command":"x","args":["--api-key","s","--port=1"]}`, `{"args":["--api-key","***","--port=1"],"command":"y"}`, `{"command":"y","args":["--api-key","s","--port=1"]}`},
		{"a list without a mask", `{"args":["--token=s","b"]}`, `{"args":["b"]}`, `{"args":["b"]}`},
		{"a list of an extra", `{"x":[{"token":"t"},1]}`, `{"x":[{"token":"***"},1],"y":2}`, `{"x":[{"token":"t"},1],"y":2}`},
		{"an address", `{"url":"https://u:p@h/?token=s&v=1"}`, `{"url":"https://***@h/?token=***&v=1","era":"auto"}`, `{"url":"https://u:p@h/?token=s&v=1","era":"auto"}`},
		{"an entry that is no object", `"secret-text"`, `"***"`, `"secret-text"`},
		{"stars that were stored", `{"description":"a *** b","command":"x"}`, `{"description":"a *** b","command":"y"}`, `{"description":"a *** b","command":"y"}`},
		{"numbers token for token", `{"x":{"token":1.10},"command":"c"}`, `{"x":{"token":"***"},"big":9007199254740993,"command":"d"}`, `{"x":{"token":1.10},"big":9007199254740993,"command":"d"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, problems := restore(t, c.stored, c.sent)
			if len(problems) > 0 {
				t.Errorf("problems at %v", problems)
			}
			if diff := cmp.Diff(canonical(t, []byte(c.want)), got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// API-009, API-010, API-012
func TestStarsThatStandForNothing(t *testing.T) {
	for _, c := range []struct{ name, stored, sent, want string }{
		{"a new key", `{"env":{"A":"1"}}`, `{"env":{"A":"***","B":"***"}}`, "env.B"},
		{"another spelling of a header", `{"headers":{"X-A":"1"}}`, `{"headers":{"x-a":"***"}}`, "headers.x-a"},
		{"a new entry", ``, `{"command":"x","env":{"A":"***"},"args":["--token=***"]}`, "env.A args[0]"},
		{"a new user", `{"user_auth":{"users":{"bob":"1"}}}`, `{"user_auth":{"users":{"eve":"***"}}}`, "user_auth.users.eve"},
		{"a client_secret, which is shown as null", `{"oauth":{"client_secret":"s"}}`, `{"oauth":{"client_secret":"***"}}`, "oauth.client_secret"},
		{"a new parameter", `{"oauth":{"extra_token_params":{"a":"1"}}}`, `{"oauth":{"extra_token_params":{"b":"***"}}}`, "oauth.extra_token_params.b"},
		{"a longer list", `{"args":["--token=s"]}`, `{"args":["--token=***","b"]}`, "args[0]"},
		{"a shorter list", `{"args":["a","--token=s"]}`, `{"args":["--token=***"]}`, "args[0]"},
		{"another place in a list", `{"args":["--token=s","b"]}`, `{"args":["b","--token=***"]}`, "args[1]"},
		{"deep in a list", `{"x":[{"token":"t"}]}`, `{"x":[{"token":"***","a":1}]}`, "x[0].token"},
		{"part of an address", `{"url":"https://h/?token=s"}`, `{"url":"https://other/?token=***"}`, "url"},
		{"an extra that is not stored", `{"x":1}`, `{"apiKey":"***"}`, "apiKey"},
		{"anywhere", `{}`, `{"description":"***","command":"***","x":{"y":"a***b"}}`, "description command x.y"},
		{"a name", `{}`, `{"env":{"***":"x"}}`, `env["***"]`},
		{"the entry", `{}`, `"***"`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw, found := serverconfig.Unmask("srv", json.RawMessage(c.stored), json.RawMessage(c.sent))
			if c.stored == "" {
				raw, found = serverconfig.Unmask("srv", nil, json.RawMessage(c.sent))
			}
			var paths []string
			for _, p := range found {
				paths = append(paths, p.Path)
			}
			if len(found) == 0 || strings.Join(paths, " ") != c.want {
				t.Errorf("problems at %q (%s), want %q", paths, raw, c.want)
			}
		})
	}
}

// API-013
func TestUnmaskOfWhatMaskShowsIsWhatIsStored(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		if rapid.Bool().Draw(t, "shaped") {
			raw, _ := json.Marshal(entry().Draw(t, "entry"))
			b.Write(raw)
		} else {
			trees(4).Draw(t, "tree").write(t, &b)
		}
		stored := json.RawMessage(strings.TrimSpace(b.String()))
		sent := serverconfig.Mask(stored)
		if rapid.Bool().Draw(t, "rewritten") {
			sent, _ = serverconfig.Canonical(sent) // a client that decodes and encodes
		}
		got, problems := serverconfig.Unmask("srv", stored, sent)
		if string(got) != string(stored) || len(problems) > 0 {
			t.Fatalf("stored %s\nshown  %s\nback   %s\n%v", stored, sent, got, problems)
		}
		key := rapid.SampledFrom([]string{"skills", "apiKey", "env", "x.y"}).Draw(t, "key")
		value, problems := serverconfig.UnmaskValue(key, stored, serverconfig.MaskValue(key, stored))
		if !serverconfig.Equal(value, stored) || len(problems) > 0 {
			t.Fatalf("stored %s under %s\nback   %s\n%v", stored, key, value, problems)
		}
	})
}

// An edit of one place must leave every secret elsewhere as it is stored.
func TestUnmaskKeepsTheSecretsBesideAnEdit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		written := entry().Draw(t, "entry")
		stored, _ := json.Marshal(written)
		var sent map[string]any
		if err := json.Unmarshal(serverconfig.Mask(stored), &sent); err != nil {
			t.Fatal(err)
		}
		written["description"], sent["description"] = "edited", "edited"
		want, _ := json.Marshal(written)
		edited, _ := json.Marshal(sent)
		got, problems := serverconfig.Unmask("srv", stored, edited)
		if !serverconfig.Equal(got, want) || len(problems) > 0 {
			t.Fatalf("stored %s\nsent   %s\nback   %s\n%v", stored, edited, got, problems)
		}
	})
}

// API-012
func TestNoStarsComeOutOfUnmask(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stored, _ := json.Marshal(entry().Draw(t, "stored"))
		other, _ := json.Marshal(entry().Draw(t, "other"))
		got, problems := serverconfig.Unmask("srv", stored, serverconfig.Mask(other))
		if strings.Contains(string(got), "***") && len(problems) == 0 {
			t.Fatalf("stored %s\nsent   %s\nback   %s", stored, serverconfig.Mask(other), got)
		}
	})
}

func FuzzUnmask(f *testing.F) {
	f.Add(`{"env":{"A":"1"}}`, `{"env":{"A":"***"}}`)
	f.Add(`{"tools":{"a\"]":{"token":1}}}`, `{"tools":{"a\"]":{}}}`)
	f.Add(`[`, `{"a":"***"}`)
	f.Fuzz(func(t *testing.T, stored, sent string) {
		got, problems := serverconfig.Unmask("srv", json.RawMessage(stored), json.RawMessage(sent))
		if json.Valid([]byte(sent)) && !json.Valid(got) {
			t.Fatalf("%s onto %s gives %s", sent, stored, got)
		}
		if len(problems) == 0 && !strings.Contains(stored, "*") && strings.Contains(string(got), "***") && serverconfig.Equal(got, got) {
			t.Fatalf("%s onto %s gives %s", sent, stored, got)
		}
		serverconfig.UnmaskValue("x", json.RawMessage(stored), json.RawMessage(sent))
	})
}
