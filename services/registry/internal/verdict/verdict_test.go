package verdict_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/source"
	"github.com/toolherd/toolherd/services/registry/internal/verdict"
)

func key(t *testing.T) *secret.Key {
	t.Helper()
	k, err := secret.NewKey([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func judge(t *testing.T, p verdict.Policy) *verdict.Judge {
	t.Helper()
	if p.Key == nil {
		p.Key = key(t)
	}
	if p.TrustCommand == "" {
		p.TrustCommand = "toolherd up --trust-project-mcp"
	}
	return verdict.New(p)
}

// file returns a file of that class and name, with this content.
func file(class snapshot.Class, name, content string) source.File {
	f := source.File{Layer: source.Layer{Path: "/abs/" + name, Name: name, Class: class}}
	doc, problem := serverconfig.ParseDocument([]byte(content))
	f.Document, f.Problem, f.Good = doc, problem, problem == nil
	return f
}

func user(servers string) source.File {
	return file(snapshot.User, "~/.toolherd/.mcp.json", `{"mcpServers":`+servers+`}`)
}

func project(servers string) source.File {
	return file(snapshot.Project, "/repo/.mcp.json", `{"mcpServers":`+servers+`}`)
}

func explicit(servers string) source.File {
	return file(snapshot.Explicit, "/etc/mcp.json", `{"mcpServers":`+servers+`}`)
}

// states returns "name: state" of each entry, in order.
func states(r verdict.Result) []string {
	var out []string
	for _, e := range r.Content.Servers {
		s := e.Name + ": " + string(e.State)
		if e.Stale {
			s += ", stale"
		}
		out = append(out, s)
	}
	return out
}

func expectStates(t *testing.T, r verdict.Result, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, states(r)); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

func find(t *testing.T, r verdict.Result, name string) *snapshot.Entry {
	t.Helper()
	e := r.Content.Find(name)
	if e == nil {
		t.Fatalf("there is no entry %q in %v", name, states(r))
	}
	return e
}

// mentions reports what of want is not in text.
func mentions(t *testing.T, what, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s %q does not mention %q", what, text, w)
		}
	}
}

func TestAHigherLayerReplacesAnEntryWhole(t *testing.T) {
	// CFG-014
	r := judge(t, verdict.Policy{}).Decide([]source.File{
		user(`{"a":{"command":"low","args":["x"],"env":{"K":"v"}},"b":{"command":"low"}}`),
		explicit(`{"a":{"command":"high"}}`),
	})
	expectStates(t, r, "a: active", "b: active")
	if got := string(find(t, r, "a").JSON); got != `{"command":"high"}` {
		t.Errorf("a is %s", got)
	}
	if got := find(t, r, "a").Source; got != "/etc/mcp.json" {
		t.Errorf("a comes from %s", got)
	}
	if got := find(t, r, "b").Class; got != snapshot.User {
		t.Errorf("b has class %s", got)
	}
}

func TestARejectedEntryNeverBringsBackWhatItShadows(t *testing.T) {
	// CFG-015
	r := judge(t, verdict.Policy{}).Decide([]source.File{
		user(`{"untrusted":{"command":"low"},"invalid":{"command":"low"},"disabled":{"command":"low"}}`),
		project(`{"untrusted":{"command":"high"}}`),
		explicit(`{"invalid":{"command":7},"disabled":{"command":"high","disabled":true}}`),
	})
	expectStates(t, r, "disabled: disabled", "invalid: error", "untrusted: untrusted")
	if got := string(find(t, r, "untrusted").JSON); got != `{"command":"high"}` {
		t.Errorf("untrusted is %s", got)
	}
}

// CFG-016
func TestOneInvalidEntryIsAnErrorOfItsOwn(t *testing.T) {
	r := judge(t, verdict.Policy{}).Decide([]source.File{
		user(`{"bad":{"command":"x","args":["ok",7],"env":{"A":1}},"good":{"command":"x"}}`),
		explicit(`{"other":{"url":"https://example.com/mcp"}}`),
	})
	expectStates(t, r, "bad: error", "good: active", "other: active")
	bad := find(t, r, "bad")
	mentions(t, "reason", bad.Reason, "args[1]", "a number", "and 1 more", "~/.toolherd/.mcp.json")
	mentions(t, "fix", bad.FixCommand, "edit ~/.toolherd/.mcp.json")
	if bad.Source != "~/.toolherd/.mcp.json" || len(bad.Problems) != 2 || bad.Problems[1].Path != "env.A" {
		t.Errorf("entry is %+v", bad)
	}
	if string(bad.JSON) != `{"type":"stdio"}` {
		t.Errorf("an invalid entry is published as %s", bad.JSON)
	}
	if find(t, r, "good").Reason != "" {
		t.Errorf("the good one has the reason %q", find(t, r, "good").Reason)
	}
}

// CFG-017
func TestADuplicateKeyBreaksItsEntryAndADuplicateNameTheFile(t *testing.T) {
	r := judge(t, verdict.Policy{}).Decide([]source.File{
		user(`{"bad":{"command":"x","env":{"A":"1","A":"2"}},"good":{"command":"x"}}`),
		explicit(`{"twice":{"command":"x"},"twice":{"command":"y"}}`),
	})
	expectStates(t, r, "bad: error", "good: active", "<config:mcp.json>: error")
	mentions(t, "reason", find(t, r, "bad").Reason, "env.A", "twice")
}

// CFG-018
func TestABrokenFileIsOneEntryListedLast(t *testing.T) {
	broken := file(snapshot.Project, "/repo/.mcp.json", "{\n  \"mcpServers\": {},\n}")
	r := judge(t, verdict.Policy{}).Decide([]source.File{
		file(snapshot.User, "~/.toolherd/.mcp.json", `nonsense`), broken, explicit(`{"a":{"command":"x"},"<b>":{"command":"x"}}`),
	})
	expectStates(t, r, "<b>: error", "a: active", "<config:.mcp.json>: error", "<config:/repo/.mcp.json>: error")
	second := find(t, r, "<config:/repo/.mcp.json>")
	mentions(t, "reason", second.Reason, "/abs//repo/.mcp.json", "line 2, column 19", "^")
	if second.Transport != "config" || !second.Synthetic {
		t.Errorf("entry is %+v", second)
	}
}

// CFG-025
func TestABadNameAndABadShapeAreErrorsOfThatEntry(t *testing.T) {
	r := judge(t, verdict.Policy{}).Decide([]source.File{
		user(`{"my.server":{"command":"x"},"list":["x"],"null":null,"text":"x","` + strings.Repeat("a", 129) + `":{"command":"x"},"ok-1_A":{"command":"x"}}`),
	})
	expectStates(t, r, strings.Repeat("a", 129)+": error", "list: error", "my.server: error", "null: error", "ok-1_A: active", "text: error")
	mentions(t, "fix", find(t, r, "my.server").FixCommand, "rename `my.server` to `my_server`", "~/.toolherd/.mcp.json")
	mentions(t, "reason", find(t, r, "list").Reason, "must be an object", "a list")
}

// CFG-026
func TestDisabledEntriesAreListedAndHaveNoSecrets(t *testing.T) {
	r := judge(t, verdict.Policy{TrustProject: true}).Decide([]source.File{
		user(`{"a":{"command":"x"},"b":{"command":"x","enabled":false,"env":{"K":"literal secret"}},"c":{"command":"x","disabled":true},
		       "d":{"command":"x","enabled":true,"disabled":true},"e":{"command":7,"enabled":false},"f":{"command":"x","enabled":true,"disabled":false}}`),
		project(`{"g":{"command":"x","enabled":false}}`),
	})
	expectStates(t, r, "a: active", "b: disabled", "c: disabled", "d: disabled", "e: disabled", "f: active", "g: disabled")
	mentions(t, "reason", find(t, r, "b").Reason, "disabled in ~/.toolherd/.mcp.json")
	if len(r.Literals) != 0 {
		t.Errorf("secrets of a disabled server are handed on: %d", len(r.Literals))
	}
}

// TRUST-002
func TestProjectEntriesAreUntrustedAndHaveNoSecrets(t *testing.T) {
	files := []source.File{project(`{"a":{"command":"x","env":{"K":"literal secret","V":"${HOME}"}},"b":{"url":"https://example.com/mcp"},"c":{"command":7}}`), user(`{"d":{"command":"x"}}`)}
	r := judge(t, verdict.Policy{}).Decide(files)
	expectStates(t, r, "a: untrusted", "b: untrusted", "c: untrusted", "d: active")
	a := find(t, r, "a")
	mentions(t, "reason", a.Reason, "/repo/.mcp.json", "trust")
	if a.FixCommand != "toolherd up --trust-project-mcp" {
		t.Errorf("fix is %q", a.FixCommand)
	}
	if len(r.Literals) != 0 {
		t.Errorf("secrets of an untrusted server are handed on: %d", len(r.Literals))
	}

	// TRUST-003
	r = judge(t, verdict.Policy{TrustProject: true}).Decide(files)
	expectStates(t, r, "a: active", "b: active", "c: error", "d: active")
	if len(r.Literals) != 1 {
		t.Errorf("there are %d secrets, want the one of a", len(r.Literals))
	}
}

// CRED-021
func TestAnEntryThatUsesWhatIsNotBuiltIsInError(t *testing.T) {
	for field, value := range map[string]string{
		"oauth":                `{"token_url":"https://example.com/token"}`,
		"auth":                 `"oauth"`,
		"user_auth":            `{"users":{"bob":"Bearer x"}}`,
		"headers_from_context": `{"headers":{"X-Key":"key"}}`,
		"allowed_users":        `["bob"]`,
		"allowed_roles":        `["agent"]`,
	} {
		t.Run(field, func(t *testing.T) {
			r := judge(t, verdict.Policy{}).Decide([]source.File{
				user(`{"a":{"url":"https://example.com/mcp","` + field + `":` + value + `},"b":{"url":"https://example.com/mcp"}}`),
			})
			expectStates(t, r, "a: error", "b: active")
			mentions(t, "reason", find(t, r, "a").Reason, field, "does not support", "~/.toolherd/.mcp.json")
			if len(r.Literals) != 0 {
				t.Errorf("its secrets are handed on: %d", len(r.Literals))
			}
		})
	}
	r := judge(t, verdict.Policy{}).Decide([]source.File{user(`{
		"null":{"url":"https://example.com/mcp","oauth":null,"auth":null,"user_auth":null,"headers_from_context":null},
		"off":{"url":"https://example.com/mcp","user_auth":{"enabled":false,"users":{"bob":"Bearer x"}},"task_toolsets":[]}}`)})
	expectStates(t, r, "null: active", "off: active")
}

// TASK-046, the part of the registry: who may be stopped by it, and who alone.
func TestToolsetsNeedDurableTasks(t *testing.T) {
	const set = `"task_toolsets":[{"name":"t","submit_tool":"s","status_tool":"q","cancel_tool":"c"}]`
	files := []source.File{
		user(`{"u":{"command":"x",` + set + `},"off":{"command":"x","enabled":false,` + set + `},"none":{"command":"x","task_toolsets":[]},
		       "login":{"url":"https://example.com","auth":"oauth",` + set + `}}`),
		project(`{"p":{"command":"x",` + set + `},"q":{"command":"x"}}`),
		explicit(`{"e":{"url":"https://example.com/mcp",` + set + `}}`),
	}
	r := judge(t, verdict.Policy{TrustProject: true}).Decide(files)
	expectStates(t, r, "e: active", "login: error", "none: active", "off: disabled", "p: active", "q: active", "u: active")
	if len(r.NoTasks) != 0 {
		t.Errorf("%v lack tasks", r.NoTasks)
	}

	r = judge(t, verdict.Policy{TrustProject: true, NoTasks: true}).Decide(files)
	expectStates(t, r, "e: error", "login: error", "none: active", "off: disabled", "p: error", "q: active", "u: error")
	for _, name := range []string{"e", "p", "u"} {
		mentions(t, "reason", find(t, r, name).Reason, "TASKS_UNAVAILABLE", "task_toolsets", find(t, r, name).Source)
		mentions(t, "fix", find(t, r, name).FixCommand, "tasks.enabled", "remove task_toolsets")
	}
	if diff := cmp.Diff([]string{"e", "u"}, r.NoTasks); diff != "" {
		t.Errorf("servers of operators' files (-want +got):\n%s", diff)
	}
	r = judge(t, verdict.Policy{NoTasks: true}).Decide(files[1:2])
	expectStates(t, r, "p: untrusted", "q: untrusted")
}

// CRED-021: an update that asks for an unbuilt layer is not an invalid one, so the server does not go on without it.
func TestAddingAnUnbuiltLayerStopsAServer(t *testing.T) {
	j := judge(t, verdict.Policy{})
	j.Decide([]source.File{user(`{"a":{"url":"https://example.com/mcp"}}`)})
	r := j.Decide([]source.File{user(`{"a":{"url":"https://example.com/mcp","auth":"oauth"}}`)})
	expectStates(t, r, "a: error")
}

// CRED-018
func TestInterceptorsThatCannotBeResolvedStopAllRemoteServers(t *testing.T) {
	servers := `{"a":{"command":"x"},"b":{"url":"https://example.com/mcp"},"c":{"type":"sse","url":"https://example.com/sse"},"d":{"url":"https://example.com/mcp","enabled":false}}`
	with := func(class snapshot.Class, interceptors string) []source.File {
		return []source.File{user(servers), file(class, "other.json", `{"mcpInterceptors":`+interceptors+`}`)}
	}
	stopped := []string{"a: active", "b: error", "c: error", "d: disabled"}
	running := []string{"a: active", "b: active", "c: active", "d: disabled"}
	for _, tt := range []struct {
		name   string
		files  []source.File
		policy verdict.Policy
		want   []string
		names  string
	}{
		{"a list", with(snapshot.Explicit, `["pkg.mod:attr"]`), verdict.Policy{}, stopped, "pkg.mod:attr"},
		{"one string", with(snapshot.User, `"grpc://127.0.0.1:9100"`), verdict.Policy{}, stopped, "grpc://127.0.0.1:9100"},
		{"a number", with(snapshot.User, `7`), verdict.Policy{}, stopped, "a number"},
		{"a list with another type", with(snapshot.User, `["x", {}]`), verdict.Policy{}, stopped, "mcpInterceptors[1]"},
		{"none", with(snapshot.User, `[]`), verdict.Policy{}, running, ""},
		{"null", with(snapshot.User, `null`), verdict.Policy{}, running, ""},
		{"may be left out", with(snapshot.User, `["x:y"]`), verdict.Policy{SkipInterceptors: []string{"x:y"}}, running, ""},
		{"one of two may be left out", with(snapshot.User, `["x:y","z"]`), verdict.Policy{SkipInterceptors: []string{"x:y"}}, stopped, "resolve z"},
		{"another type may never be left out", with(snapshot.User, `{}`), verdict.Policy{SkipInterceptors: []string{"", "{}"}}, stopped, "an object"},
		{"of an untrusted project", with(snapshot.Project, `["x"]`), verdict.Policy{}, running, ""},
		{"of a trusted project", with(snapshot.Project, `["x"]`), verdict.Policy{TrustProject: true}, stopped, "x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := judge(t, tt.policy).Decide(tt.files)
			expectStates(t, r, tt.want...)
			if tt.names != "" {
				mentions(t, "reason", find(t, r, "b").Reason, "mcpInterceptors", tt.names)
			}
		})
	}
}

func TestAHigherFileDoesNotSwitchOffAnInterceptor(t *testing.T) {
	r := judge(t, verdict.Policy{}).Decide([]source.File{
		file(snapshot.User, "a.json", `{"mcpInterceptors":["one","two"],"mcpServers":{"s":{"url":"https://example.com"}}}`),
		file(snapshot.Explicit, "b.json", `{"mcpInterceptors":["two","three"]}`),
	})
	if diff := cmp.Diff([]string{"one", "two", "three"}, r.Content.Interceptors); diff != "" {
		t.Errorf("interceptors (-want +got):\n%s", diff)
	}
	expectStates(t, r, "s: error")
}

func TestWithoutAKeyALiteralSecretIsAnErrorThatSaysSo(t *testing.T) {
	r := verdict.New(verdict.Policy{}).Decide([]source.File{user(`{"a":{"command":"x","env":{"K":"literal"}},"b":{"command":"x","env":{"K":"${K}"}}}`)})
	expectStates(t, r, "a: error", "b: active")
	mentions(t, "fix", find(t, r, "a").FixCommand, "registry.secret_key_file", "${")
}
