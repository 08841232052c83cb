package serverconfig_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
)

// env returns a lookup in these variables.
func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// resolve takes an entry the whole way: externalised, decoded in its public form and resolved.
func resolve(raw string, vars map[string]string) (serverconfig.Resolved, error) {
	public, secrets := serverconfig.Externalize("srv", json.RawMessage(raw), mac)
	e, problems := serverconfig.DecodePublic("srv", public)
	if err := serverconfig.Fault(problems); err != nil {
		return serverconfig.Resolved{}, err
	}
	return serverconfig.Resolve(e, public, env(vars), secrets)
}

// CFG-047, CFG-049, CFG-050, and the forms of CFG-048 that are legal
func TestReferenceForms(t *testing.T) {
	vars := map[string]string{"A": "V", "EMPTY": "", "_x9": "under", "NESTED": "${A} $A $${A}", "HOME": "/home/me", "X": "ex"}
	for _, c := range []struct{ in, want string }{
		{"Bearer ${A}", "Bearer V"},
		{"${A}${A}/${A}", "VV/V"},
		{"pre${X}post", "preexpost"},
		{"${_x9}", "under"},
		{"${EMPTY}", ""},
		{"${A:-x}", "V"},
		{"${A:-}", "V"},
		{"${UNSET:-x}", "x"},
		{"${UNSET:-}", ""},
		{"${EMPTY:-x}", "x"},
		{"${UNSET:-a $A :- b}", "a $A :- b"},
		{"${UNSET:-y}}", "y}"},
		{"$A", "V"},
		{"$EMPTY", ""},
		{"$HOME", "/home/me"},
		{"$_x9", "under"},
		{"$$", "$$"},
		{"$", "$"},
		{"a$", "a$"},
		{"pa$$word", "pa$$word"},
		{"Bearer $TOKEN", "Bearer $TOKEN"},
		{"$A/$B", "$A/$B"},
		{" $A", " $A"},
		{"$1A", "$1A"},
		{"$A-", "$A-"},
		{"$$A", "$A"},
		{"$$A/", "$$A/"},
		{"$${A}", "${A}"},
		{"$${", "${"},
		{"$$${A}", "$${A}"},
		{"$${A}${A}", "${A}V"},
		{`\${A}`, `\V`},
		{`\$A`, `\$A`},
		{"${NESTED}", "${A} $A $${A}"},
		{"$NESTED", "${A} $A $${A}"},
		{"", ""},
		{"}{", "}{"},
	} {
		raw, err := json.Marshal(map[string]any{"command": "x", "env": map[string]string{"E": c.in}, "args": []string{c.in}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := resolve(string(raw), vars)
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		if got.Env["E"] != c.want || got.Args[0] != c.want {
			t.Errorf("%q: env %q, args %q, want %q", c.in, got.Env["E"], got.Args[0], c.want)
		}
	}
}

// CFG-048
func TestMalformedReferencesAreErrorsOfTheServer(t *testing.T) {
	for _, text := range []string{
		"${1A}", "${}", "${ A }", "${A", "${", "x${", "${A-x}", "${A:=x}", "${A:-${B}}", "${A:-{x}}", "${${A}}", "${A:}", "${A:-x", "${A.B}", "${ä}", "ok ${A} ${",
		"$${ ${", "${A\n}",
	} {
		for field, entry := range map[string]string{
			"command":            `{"command":%}`,
			"args[1]":            `{"command":"x","args":["a",%]}`,
			"env.E":              `{"command":"x","env":{"E":%}}`,
			"cwd":                `{"command":"x","cwd":%}`,
			"url":                `{"url":%}`,
			"headers.H":          `{"url":"https://x.example","headers":{"H":%}}`,
			"oauth.scope":        `{"url":"https://x.example","oauth":{"token_url":"u","scope":%}}`,
			"auth.scopes[0]":     `{"url":"https://x.example","auth":{"type":"oauth","scopes":[%]}}`,
			"user_auth.users.me": `{"url":"https://x.example","user_auth":{"users":{"me":%}}}`,
		} {
			value, _ := json.Marshal(text)
			raw := strings.Replace(entry, "%", string(value), 1)
			_, problems := serverconfig.Decode("srv", json.RawMessage(raw))
			if len(problems) != 1 || problems[0].Path != field || problems[0].Severity != serverconfig.SeverityError ||
				!strings.Contains(problems[0].Hint, "${NAME} or ${NAME:-default}") {
				t.Errorf("%s: %v", raw, problems)
			}
			// Found again where the value is used, even if it was stored as a literal before anyone looked.
			public, secrets := serverconfig.Externalize("srv", json.RawMessage(raw), mac)
			e, _ := serverconfig.DecodePublic("srv", public)
			if _, err := serverconfig.Resolve(e, public, env(map[string]string{"A": "V", "B": "W"}), secrets); err == nil && !strings.HasPrefix(field, "user_auth") {
				t.Errorf("%s resolves", raw)
			}
		}
	}
}

// CFG-046
func TestWhereReferencesResolve(t *testing.T) {
	vars := map[string]string{"V": "value", "U": "https://v.example"}
	stdio, err := resolve(`{"command":"c-${V}","args":["a-${V}"],"cwd":"/w/${V}","env":{"${V}":"e-${V}"},"headers":{"H":"${UNSET}"},"description":"${UNSET}","x":"${UNSET}"}`, vars)
	if err != nil {
		t.Fatal(err)
	}
	if stdio.Command != "c-value" || stdio.Args[0] != "a-value" || stdio.Cwd != "/w/value" || stdio.Env["${V}"] != "e-value" || stdio.Headers != nil {
		t.Errorf("%+v", []any{stdio.Command, stdio.Args, stdio.Cwd, stdio.Env, stdio.Headers})
	}
	remote, err := resolve(`{"url":"${U}/mcp","headers":{"X-H":"h-${V}"},"env":{"E":"${UNSET}"},
		"oauth":{"token_url":"${U}/t","client_secret":"${V}","extra_token_params":{"p":"$V","${V}":"lit"},"more":[{"deep":"${V}"}],"myToken":{"deep":"${V}"}},
		"user_auth":{"header":"X-U","users":{"me":"${UNSET}","you":"literal-${UNSET}"}},
		"headers_from_context":{"headers":{"X-C":"${UNSET}"}}}`, vars)
	if err != nil {
		t.Fatal(err)
	}
	if remote.URL != "https://v.example/mcp" || remote.Headers["X-H"] != "h-value" || remote.Env != nil {
		t.Errorf("%+v", []any{remote.URL, remote.Headers, remote.Env})
	}
	if got, want := canonical(t, remote.OAuth.JSON), canonical(t, []byte(`{"token_url":"https://v.example/t","client_secret":"value",
		"extra_token_params":{"p":"value","${V}":"lit"},"more":[{"deep":"value"}],"myToken":{"deep":"value"}}`)); got != want {
		t.Errorf("oauth: %s", got)
	}
	if got, want := canonical(t, remote.UserAuth.JSON), canonical(t, []byte(`{"header":"X-U","users":{"me":"${UNSET}","you":"literal-${UNSET}"}}`)); got != want {
		t.Errorf("user_auth: %s", got)
	}
	auth, err := resolve(`{"url":"https://x.example","auth":{"type":"oauth","client_id":"${V}","client_secret":"lit-${V}","scopes":["${V}"]}}`, vars)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := canonical(t, auth.Auth.JSON), `{"client_id":"value","client_secret":"lit-value","scopes":["value"],"type":"oauth"}`; got != want {
		t.Errorf("auth: %s", got)
	}
}

func canonical(t *testing.T, raw []byte) string {
	t.Helper()
	c, err := serverconfig.Canonical(raw)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return string(c)
}

func TestUnsetVariableNamesFieldVariableAndLiteralSpelling(t *testing.T) {
	for _, c := range []struct{ entry, field, variable, spelling string }{
		{`{"command":"${MISSING}"}`, "command", "MISSING", "$${MISSING}"},
		{`{"command":"x","args":["a","$MISSING"]}`, "args[1]", "MISSING", "$$MISSING"},
		{`{"command":"x","env":{"A":"pre${MISSING}post"}}`, "env.A", "MISSING", "$${MISSING}"},
		{`{"command":"x","cwd":"${MISSING}/x"}`, "cwd", "MISSING", "$${MISSING}"},
		{`{"url":"https://${MISSING}/"}`, "url", "MISSING", "$${MISSING}"},
		{`{"url":"https://x.example","headers":{"Authorization":"Bearer ${MISSING}"}}`, "headers.Authorization", "MISSING", "$${MISSING}"},
		{`{"url":"https://x.example","oauth":{"token_url":"u","client_secret":"${MISSING}"}}`, "oauth.client_secret", "MISSING", "$${MISSING}"},
	} {
		_, err := resolve(c.entry, map[string]string{"A": "V"})
		if !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("%s: %v", c.entry, err)
			continue
		}
		for _, want := range []string{`server "srv": ` + c.field + ": ", "variable " + c.variable + ",", "set " + c.variable, "write " + c.spelling + " for the literal text"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v lacks %q", c.entry, err, want)
			}
		}
	}
	if _, err := resolve(`{"command":"x","env":{"A":"${ONE}","B":"${TWO}${ONE}"}}`, nil); strings.Count(fmt.Sprint(err), "not set") != 3 {
		t.Errorf("all at once: %v", err)
	}
	if _, err := resolve(`{"command":"x","env":{"A":"literal-part ${MISSING}"}}`, nil); err == nil || strings.Contains(err.Error(), "literal-part") {
		t.Errorf("shows the value: %v", err)
	}
}

// CFG-054
func TestVariablesOfTheServiceNeverResolve(t *testing.T) {
	vars := map[string]string{
		"TOOLHERD_EXECUTABLE": "/tmp/evil", "TOOLHERD_CONFIG_DIR": "/tmp/evil", "PG": "x", "PGPASSWORD": "x", "PGHOST": "x", "PG_ANY": "x",
		"TOOLHERD_SECRET_KEY": "x", "TOOLHERD_": "x", "MY_PG": "mine", "pghost": "lower",
	}
	e := decode(t, `{"command":"${TOOLHERD_EXECUTABLE}","args":["${TOOLHERD_CONFIG_DIR}","${MY_PG}","$pghost"]}`)
	got, err := serverconfig.Resolve(e, []byte(`{"command":"${TOOLHERD_EXECUTABLE}","args":["${TOOLHERD_CONFIG_DIR}","${MY_PG}","$pghost"]}`),
		serverconfig.Environment("/bin/toolherd", "/etc/toolherd", env(vars)), nil)
	if err != nil || got.Command != "/bin/toolherd" || !slices.Equal(got.Args, []string{"/etc/toolherd", "mine", "lower"}) {
		t.Errorf("%v %v %v", got.Command, got.Args, err)
	}
	asked := map[string]bool{}
	for _, name := range []string{"PG", "PGPASSWORD", "PGHOST", "PG_ANY", "TOOLHERD_SECRET_KEY", "TOOLHERD_", "TOOLHERD_EXECUTABLE_X"} {
		for _, form := range []string{"${%}", "${%:-default}", "$%", "x${%}", "literal and ${%}"} {
			text := strings.Replace(form, "%", name, 1)
			raw := `{"command":"x","env":{"A":"` + text + `"}}`
			_, problems := serverconfig.Decode("srv", json.RawMessage(raw))
			if len(problems) != 1 || problems[0].Reason != serverconfig.ReasonForbiddenVariable || problems[0].Path != "env.A" || !strings.Contains(problems[0].Message, name) {
				t.Errorf("%s: %v", text, problems)
			}
			public, secrets := serverconfig.Externalize("srv", json.RawMessage(raw), mac)
			e, _ := serverconfig.DecodePublic("srv", public)
			_, err := serverconfig.Resolve(e, public, func(name string) (string, bool) {
				asked[name] = true
				return env(vars)(name)
			}, secrets)
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s resolves: %v", text, err)
			}
		}
	}
	if len(asked) > 0 {
		t.Errorf("looked up: %v", asked)
	}
}

func TestResolvedHeaderMustBeLegal(t *testing.T) {
	for _, value := range []string{"hunter2\nEvil: 1", " hunter2", "hunter2\x7f", "hünter2"} {
		_, err := resolve(`{"url":"https://x.example","headers":{"X-Key":"${V}"}}`, map[string]string{"V": value})
		if !fault.Is(err, fault.CredentialIllegal) || !strings.Contains(err.Error(), "headers.X-Key") || strings.Contains(err.Error(), "nter2") {
			t.Errorf("%q: %v", value, err)
		}
	}
	// A value that looks like a reference is a value.
	got, err := resolve(`{"url":"https://x.example","headers":{"X-Key":"${V}"}}`, map[string]string{"V": "${W"})
	if err != nil || got.Headers["X-Key"] != "${W" {
		t.Errorf("%v %v", got.Headers, err)
	}
	if _, err := resolve(`{"url":"https://x.example","headers":{"X-Key":"${V}"}}`, map[string]string{"V": "${W\n"}); !fault.Is(err, fault.CredentialIllegal) {
		t.Errorf("a value that looks like a reference is not checked: %v", err)
	}
}

func TestResolvedEntryMustStillBeOne(t *testing.T) {
	for _, c := range []struct{ entry, want string }{
		{`{"command":"${V}"}`, "command: a stdio server needs a command"},
		{`{"url":"${V}"}`, "url: a server reached over HTTP needs a url"},
		{`{"url":"${BAD}"}`, "url: is not an http or https URL"},
		{`{"command":"x","args":["${NUL}"]}`, "args[0]: holds a NUL character"},
	} {
		if _, err := resolve(c.entry, map[string]string{"V": "", "BAD": "ftp://hunter2", "NUL": "\x00"}); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", c.entry, err)
		}
	}
}

func TestMissingSecretKeepsTheServerFromStarting(t *testing.T) {
	public, secrets := serverconfig.Externalize("srv", json.RawMessage(`{"command":"x","env":{"A":"lit","B":"lit"}}`), mac)
	e, _ := serverconfig.DecodePublic("srv", public)
	delete(secrets, "env.B")
	if _, err := serverconfig.Resolve(e, public, env(nil), secrets); err == nil || !strings.Contains(err.Error(), "env.B: its value is not in the secret store") || strings.Contains(err.Error(), "env.A") {
		t.Errorf("%v", err)
	}
	for _, other := range []string{`{`, `{"command":"x","env":{"B":{"$secret":"env.A","mac":"00"}}}`} {
		if _, err := serverconfig.Resolve(e, json.RawMessage(other), env(nil), map[string]string{"env.A": "lit"}); err == nil {
			t.Errorf("%s resolves", other)
		}
	}
}

func TestSecretsForTheRedactor(t *testing.T) {
	vars := map[string]string{"TOKEN": "token-value", "HOST": "x.example", "HOME": "/home/me", "PATH": "/bin"}
	stdio, err := resolve(`{"command":"x","args":["--api-key=arg-literal","--token","next-literal","${TOKEN}","${HOME}/x"],
		"env":{"A":"env-literal","B":"x-${TOKEN}","HOME":"${HOME}","P":"${PATH}:${HOME}"}}`, vars)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/bin:/home/me", "arg-literal", "env-literal", "next-literal", "token-value", "x-token-value"}, stdio.Secrets()); diff != "" {
		t.Error(diff)
	}
	remote, err := resolve(`{"url":"https://bob:url-literal@${HOST}/?token=query-literal","headers":{"Authorization":"Bearer header-literal"},
		"oauth":{"token_url":"u","client_secret":"oauth-literal","extra_token_params":{"p":"param-literal"},"token":{"deep":["deep-literal"]}},
		"user_auth":{"users":{"me":"user-literal","you":"${YOU}"}}}`, vars)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Bearer header-literal", "bob:url-literal", "deep-literal", "header-literal", "oauth-literal", "param-literal", "query-literal", "user-literal", "x.example",
	}
	if diff := cmp.Diff(want, remote.Secrets()); diff != "" {
		t.Error(diff)
	}
	redactor := secret.NewRedactor()
	redactor.Add(remote.Secrets()...)
	if got := redactor.Redact("dial " + remote.URL + ": refused header-literal"); got != "dial https://***@***/?token=***: refused ***" {
		t.Error(got)
	}
}

func TestResolvedShowsNothingHoweverItIsPrinted(t *testing.T) {
	r, err := resolve(`{"command":"x","env":{"A":"hunter2hunter2"},"args":["--token=hunter2hunter2"]}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+verb+verb, r, &r, struct{ R serverconfig.Resolved }{r})
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "r", r, "p", &r)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "r", r, "s", struct{ R serverconfig.Resolved }{r})
	encoded, err := json.Marshal(map[string]any{"r": r, "p": &r})
	if err != nil {
		t.Fatal(err)
	}
	if all := out.String() + string(encoded); strings.Contains(all, "hunter2") || strings.Contains(all, fmt.Sprintf("%x", "hunter2")) {
		t.Error(all)
	}
}

func TestVariablesListsWhatIsRead(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want []string
	}{
		{`{"command":"${B}","args":["$A","${B:-x}","$${NO}","$$NO","a $NO"],"env":{"E":"${C}${D}","${NO}":"x"},"cwd":"${E}","headers":{"H":"${NO}"},"description":"${NO}"}`, []string{"A", "B", "C", "D", "E"}},
		{`{"url":"${A}","headers":{"H":"$B"},"oauth":{"x":[{"y":"${C}"}]},"user_auth":{"header":"${NO}","users":{"me":"${D}"}},"env":{"E":"${NO}"}}`, []string{"A", "B", "C", "D"}},
		{`{"url":"${"}`, nil},
		{`{`, nil},
		{`5`, nil},
	} {
		if diff := cmp.Diff(c.want, serverconfig.Variables([]byte(c.raw)), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", c.raw, diff)
		}
	}
}
