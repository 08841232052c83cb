package serverconfig_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/toolherd/toolherd/pkg/serverconfig"
)

// findings decodes an entry and returns one line per problem: severity, path and reason.
func findings(entry string) []string {
	_, problems := serverconfig.Decode("srv", []byte(entry))
	return lines(problems)
}

func lines(problems []serverconfig.Problem) []string {
	var out []string
	for _, p := range problems {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", p.Severity, p.Path, p.Reason)))
	}
	return out
}

// expect checks that an entry has exactly these problems.
func expect(t *testing.T, entry string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, findings(entry)); diff != "" {
		t.Errorf("%s\n%s", entry, diff)
	}
}

// hint returns the message and hint of the only problem of an entry.
func hint(t *testing.T, name, entry string) string {
	t.Helper()
	_, problems := serverconfig.Decode(name, []byte(entry))
	if len(problems) != 1 {
		t.Fatalf("%s: %v", entry, problems)
	}
	return problems[0].Message + ": " + problems[0].Hint
}

func decode(tb testing.TB, entry string) serverconfig.Entry {
	tb.Helper()
	e, problems := serverconfig.Decode("srv", []byte(entry))
	if serverconfig.HasErrors(problems) {
		tb.Fatalf("%s: %v", entry, problems)
	}
	return e
}

func TestDefaults(t *testing.T) {
	want := serverconfig.Entry{
		Name: "srv", Enabled: true, Transport: serverconfig.Stdio, Command: "npx", SessionScope: serverconfig.ScopeThread,
		Era: serverconfig.EraAuto, ToolNamePrefix: true, ToolCallTimeout: 300 * time.Second, ToolCallMaxTimeout: time.Hour,
		SessionInitTimeout: 60 * time.Second, Routing: serverconfig.Routing{Mode: "off"},
	}
	if diff := cmp.Diff(want, decode(t, `{"command":"npx"}`)); diff != "" {
		t.Error(diff)
	}
}

func TestEveryFieldIsRead(t *testing.T) {
	got := decode(t, `{"type":"stdio","command":"npx","args":["-y","p"],"env":{"A":"1"},"cwd":"/w","enabled":false,
		"tool_call_timeout":"1m30s","tool_call_max_timeout":null,"session_init_timeout":0.5,"session_scope":"shared","era":"modern",
		"tool_name_prefix":false,"allowedTools":["a*"],"description":"d","routing":{"mode":"prefer","priority":7,"keywords":["k"]},
		"tools":{"t":{"routing":{"mode":"off"}}},"login_scope":"user","allowed_users":["u"],"allowed_roles":["r"],
		"task_toolsets":[{"name":"n","submit_tool":"s","status_tool":"st","cancel_tool":"c","answer_tool":"a","background_scope":"user"}]}`)
	want := serverconfig.Entry{
		Name: "srv", Transport: serverconfig.Stdio, Command: "npx", Args: []string{"-y", "p"}, Env: map[string]string{"A": "1"}, Cwd: "/w",
		ToolCallTimeout: 90 * time.Second, SessionInitTimeout: 500 * time.Millisecond, SessionScope: "shared", Era: "modern",
		AllowedTools: []string{"a*"}, Description: "d", Routing: serverconfig.Routing{Mode: "prefer", Priority: 7, Keywords: []string{"k"}},
		Tools: got.Tools, LoginScope: "user", AllowedUsers: []string{"u"}, AllowedRoles: []string{"r"},
		TaskToolsets: []serverconfig.TaskToolset{{Name: "n", SubmitTool: "s", StatusTool: "st", CancelTool: "c", AnswerTool: "a", BackgroundScope: "user"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if string(got.Tools["t"]) != `{"routing":{"mode":"off"}}` {
		t.Errorf("tools: %s", got.Tools["t"])
	}
	remote := decode(t, `{"url":"https://x.example/mcp","headers":{"X-A":"${A}"},"disabledTools":["b"]}`)
	if remote.URL != "https://x.example/mcp" || remote.Headers["X-A"] != "${A}" || remote.DisabledTools[0] != "b" {
		t.Errorf("%+v", remote)
	}
}

// CFG-025
func TestServerNameRule(t *testing.T) {
	for _, name := range []string{"a", "_under", "z9", "slack-bot_1", "-", strings.Repeat("x", 128)} {
		if _, problems := serverconfig.Decode(name, []byte(`{"command":"x"}`)); len(problems) > 0 {
			t.Errorf("%q: %v", name, problems)
		}
	}
	for _, c := range []struct{ name, hint string }{
		{"my.server", "rename `my.server` to `my_server`"},
		{"a b", "rename `a b` to `a_b`"},
		{"../evil", "rename `../evil` to `___evil`"},
		{"naïve", "rename `na\\u00efve` to `na_ve`"},
		{"a\n", "rename `a\\n` to `a_`"},
		{"", "give it a name"},
		{strings.Repeat("x", 129), "rename it to at most 128 characters"},
		{"a+b", "rename `a+b` to `a_b`"},
	} {
		if got := hint(t, c.name, `{"command":"x"}`); !strings.HasSuffix(got, ": "+c.hint) {
			t.Errorf("%q: %s", c.name, got)
		}
	}
	for _, entry := range []string{"1", `"x"`, "[]", "null", "true"} {
		expect(t, entry, "error  wrong_type")
	}
}

func TestEnabledAndDisabled(t *testing.T) {
	for _, c := range []struct {
		keys string
		want bool
	}{
		{``, true},
		{`,"enabled":true`, true},
		{`,"enabled":false`, false},
		{`,"disabled":true`, false},
		{`,"disabled":false`, true},
		{`,"enabled":true,"disabled":true`, false},
		{`,"enabled":false,"disabled":false`, false},
	} {
		if got := decode(t, `{"command":"x"`+c.keys+`}`).Enabled; got != c.want {
			t.Errorf("%s: %v", c.keys, got)
		}
	}
	expect(t, `{"command":"x","enabled":"true"}`, "error enabled wrong_type")
	expect(t, `{"command":"x","disabled":1}`, "error disabled wrong_type")
}

// CFG-027, CFG-028
func TestTransport(t *testing.T) {
	for _, c := range []struct {
		entry string
		want  serverconfig.Transport
	}{
		{`{"command":"x"}`, "stdio"},
		{`{"url":"https://x.example"}`, "http"},
		{`{"url":"https://x.example","command":""}`, "http"},
		{`{"url":"","command":"x"}`, "stdio"},
		{`{"url":null,"command":"x"}`, "stdio"},
		{`{"type":"stdio","command":"x"}`, "stdio"},
		{`{"type":"http","url":"https://x.example"}`, "http"},
		{`{"type":"sse","url":"https://x.example"}`, "sse"},
		{`{"type":"streamable_http","url":"https://x.example"}`, "http"},
		{`{"type":"streamable-http","url":"https://x.example"}`, "http"},
		{`{"type":"streamableHttp","url":"https://x.example"}`, "http"},
		{`{"transport":"sse","url":"https://x.example"}`, "sse"},
		{`{"transport":"streamable-http","url":"https://x.example"}`, "http"},
		{`{"type":"sse","transport":"stdio","url":"https://x.example"}`, "sse"},
		{`{"type":"","transport":"sse","url":"https://x.example"}`, "sse"},
		{`{"type":null,"transport":"sse","url":"https://x.example"}`, "sse"},
		{`{"type":"","transport":"","url":"https://x.example"}`, "http"},
	} {
		if got := decode(t, c.entry).Transport; got != c.want {
			t.Errorf("%s: %s", c.entry, got)
		}
		if masked := string(serverconfig.Mask([]byte(c.entry))); masked != c.entry {
			t.Errorf("%s does not survive a round trip: %s", c.entry, masked)
		}
	}
}

// CFG-029
func TestUnsupportedTransportListsTheSupported(t *testing.T) {
	for _, kind := range []string{"STDIO", "Http", "websocket", "config", " stdio"} {
		expect(t, `{"type":"`+kind+`","command":"x"}`, "error type unsupported")
		if got := hint(t, "srv", `{"type":"`+kind+`","command":"x"}`); !strings.HasPrefix(got, "is none of stdio, http, sse: ") {
			t.Errorf("%s: %s", kind, got)
		}
	}
	expect(t, `{"transport":"ws","url":"https://x.example"}`, "error transport unsupported")
	expect(t, `{"type":7,"command":"x"}`, "error type wrong_type")
	if got := hint(t, "srv", `{"type":"STDIO","command":"x"}`); !strings.Contains(got, "did you mean `stdio`?") {
		t.Error(got)
	}
}

// CFG-030, CFG-031
func TestCommandAndURLExcludeEachOther(t *testing.T) {
	for _, c := range []struct{ entry, finding, advice string }{
		{`{}`, "error command missing", "add `command`"},
		{`{"command":""}`, "error command missing", "add `command`"},
		{`{"command":null}`, "error command missing", "add `command`"},
		{`{"type":"stdio"}`, "error command missing", "add `command`"},
		{`{"type":"stdio","command":"x","url":"https://x.example"}`, "error url conflict", "remove `url`, or declare `\"type\": \"http\"` or `\"sse\"`"},
		{`{"type":"http"}`, "error url missing", "add `url`"},
		{`{"type":"sse","url":""}`, "error url missing", "add `url`"},
		{`{"type":"http","url":null}`, "error url missing", "add `url`"},
		{`{"command":"x","url":"https://x.example"}`, "error command conflict", "remove `command`, or declare `\"type\": \"stdio\"`"},
		{`{"type":"sse","command":"x","url":"https://x.example"}`, "error command conflict", "remove `command`, or declare `\"type\": \"stdio\"`"},
	} {
		expect(t, c.entry, c.finding)
		if got := hint(t, "srv", c.entry); !strings.Contains(got, c.advice) {
			t.Errorf("%s: %s", c.entry, got)
		}
	}
}

// CFG-032
func TestTypeErrorsNameFieldAndType(t *testing.T) {
	for _, c := range []struct{ entry, path, found string }{
		{`{"command":1}`, "command", "must be a string, not a number"},
		{`{"command":["npx","-y"]}`, "command", "must be a string, not a list"},
		{`{"url":true}`, "url", "must be a string, not a boolean"},
		{`{"command":"x","cwd":{}}`, "cwd", "must be a string, not an object"},
		{`{"command":"x","args":"-y"}`, "args", "must be a list of strings, not a string"},
		{`{"command":"x","args":null}`, "args", "must be a list of strings, not null"},
		{`{"command":"x","args":["a",2]}`, "args[1]", "must be a string, not a number"},
		{`{"command":"x","args":[null]}`, "args[0]", "must be a string, not null"},
		{`{"command":"x","env":["A=1"]}`, "env", "must be an object of strings, not a list"},
		{`{"command":"x","env":{"PORT":8080}}`, "env.PORT", "must be a string, not a number"},
		{`{"command":"x","env":{"a.b":null}}`, `env["a.b"]`, "must be a string, not null"},
		{`{"url":"https://x.example","headers":"A: b"}`, "headers", "must be an object of strings, not a string"},
		{`{"url":"https://x.example","headers":{"X-Num":5}}`, "headers.X-Num", "must be a string, not a number"},
		{`{"command":"x","tool_name_prefix":"no"}`, "tool_name_prefix", "must be true or false, not a string"},
		{`{"command":"x","description":5}`, "description", "must be a string, not a number"},
		{`{"command":"x","env":{"A":{"$secret":"env.A","mac":"00"}}}`, "env.A", "must be a string, not an object"},
	} {
		_, problems := serverconfig.Decode("srv", []byte(c.entry))
		if len(problems) != 1 || problems[0].Path != c.path || problems[0].Message != c.found {
			t.Errorf("%s: %v", c.entry, problems)
		}
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	expect(t, `{"command":1,"args":[1,2],"env":{"A":1},"enabled":3,"tool_call_timeout":0,"era":"new","allowedTools":[],"comand":"x"}`,
		"error enabled wrong_type", "error command wrong_type", "error args[0] wrong_type", "error args[1] wrong_type", "error env.A wrong_type",
		"error tool_call_timeout out_of_range", "error era unsupported", "error allowedTools missing", "warning comand unknown_key")
}

// CFG-033
func TestFieldsOfTheOtherTransportAreIgnored(t *testing.T) {
	expect(t, `{"command":"x","headers":{"A":1}}`, "warning headers ignored")
	expect(t, `{"url":"https://x.example","args":[1],"env":3,"cwd":"/"}`, "warning args ignored", "warning env ignored", "warning cwd ignored")
	expect(t, `{"command":"x","headers":{},"args":[],"env":{}}`)
	expect(t, `{"url":"https://x.example","headers":{},"args":[],"env":{}}`)
	if a, b := decode(t, `{"command":"x","args":[],"env":{}}`), decode(t, `{"command":"x"}`); len(a.Args) != len(b.Args) || len(a.Env) != len(b.Env) {
		t.Errorf("%+v differs from %+v", a, b)
	}
	expect(t, `{"url":"https://x.example","headers":{"X-Key":"a","x-key":"b","X-KEY":"c"}}`, "error headers.x-key conflict", "error headers.X-KEY conflict")
}

func TestIllegalHeadersAreErrorsThatDoNotShowTheValue(t *testing.T) {
	for _, c := range []struct{ value, reason string }{
		{`caf\u00e9-hunter2`, "outside ASCII"},
		{`hunter2\r\nEvil: 1`, "line break"},
		{`hunter2\n`, "line break"},
		{`\u0000hunter2`, "line break or another forbidden control character"},
		{` hunter2`, "begins or ends with white space"},
		{`hunter2\t`, "begins or ends with white space"},
		{`hunter2\u0001`, "a control character"},
		{`hunter2\u007f`, "a control character"},
	} {
		entry := `{"url":"https://x.example","headers":{"X-Key":"` + c.value + `"}}`
		expect(t, entry, "error headers.X-Key illegal_header")
		if got := hint(t, "srv", entry); !strings.Contains(got, c.reason) || strings.Contains(got, "hunter2") {
			t.Errorf("%s: %s", c.value, got)
		}
	}
	expect(t, `{"url":"https://x.example","headers":{"X-Empty":"","X-Inner":"a b\tc","X-Ref":"${A}"}}`)
	for _, name := range []string{``, ` `, `a b`, `a:b`, `ä`, `X\r\nEvil`, `Content-Length`, `transfer-encoding`, `Host`} {
		_, problems := serverconfig.Decode("srv", []byte(`{"url":"https://x.example","headers":{"`+name+`":"v"}}`))
		if len(problems) != 1 || problems[0].Reason != serverconfig.ReasonBadName || !strings.HasPrefix(problems[0].Path, "headers") {
			t.Errorf("%q: %v", name, problems)
		}
	}
}

func TestURLMustBeOneThatCanBeCalled(t *testing.T) {
	for _, url := range []string{"https://x.example", "http://127.0.0.1:8080/mcp?x=1", "HTTPS://x.example/", "${BASE}/mcp", "$URL", "http://[::1]:80/"} {
		expect(t, `{"url":"`+url+`"}`)
	}
	for _, url := range []string{"x.example/mcp", "/mcp", "ftp://x.example", "https://", "https:///mcp", "http://x.example:port/", "file:///etc/passwd", "$$URL"} {
		expect(t, `{"url":"`+url+`"}`, "error url bad_value")
	}
	if got := hint(t, "srv", `{"url":"ftp://bob:hunter2@x.example"}`); strings.Contains(got, "hunter2") {
		t.Error(got)
	}
}

func TestWhatNoProcessCanBeGiven(t *testing.T) {
	expect(t, `{"command":"a\u0000","args":["\u0000"],"env":{"A=B":"x","":"x","C":"\u0000"},"cwd":"\u0000"}`,
		"error command bad_value", "error args[0] bad_value", `error env["A=B"] bad_name`, `error env[""] bad_name`, "error env.C bad_value", "error cwd bad_value")
}

// CFG-020, CFG-023
func TestUnknownKeysWarnWithANearMatch(t *testing.T) {
	for _, c := range []struct{ key, want string }{
		{"timeuot", "did you mean `tool_call_timeout`?"},
		{"timeout", "did you mean `tool_call_timeout`?"},
		{"init_timeout", "did you mean `session_init_timeout`?"},
		{"tool_prefx", "did you mean `tool_name_prefix`?"},
		{"comand", "did you mean `command`?"},
		{"Command", "did you mean `command`?"},
		{"cmd", "did you mean `command`?"},
		{"arg", "did you mean `args`?"},
		{"environment", "did you mean `env`?"},
		{"serverUrl", "did you mean `url`?"},
		{"httpUrl", "did you mean `url`?"},
		{"header", "did you mean `headers`?"},
		{"allowed_tools", "did you mean `allowedTools`?"},
		{"disabled_tools", "did you mean `disabledTools`?"},
		{"toolCallTimeout", "did you mean `tool_call_timeout`?"},
		{"userAuth", "did you mean `user_auth`?"},
		{"taskToolsets", "did you mean `task_toolsets`?"},
		{"scope", "did you mean `session_scope`?"},
		{"gallery", "check the spelling, or remove it"},
		{"name", "check the spelling, or remove it"},
		{"autoApprove", "check the spelling, or remove it"},
		{strings.Repeat("timeout", 2000), "check the spelling, or remove it"},
	} {
		entry := `{"command":"x","` + c.key + `":{"kept":[1.0]}}`
		_, problems := serverconfig.Decode("srv", []byte(entry))
		if len(problems) != 1 || problems[0].Hint != c.want || problems[0].Severity != serverconfig.SeverityWarning || problems[0].Path != c.key {
			t.Errorf("%.30s: %v", c.key, problems)
		}
		secret := strings.Replace(entry, "[1.0]", `"***"`, 1) // where it stands for env or headers
		if masked := string(serverconfig.Mask([]byte(entry))); masked != entry && masked != secret {
			t.Errorf("%.30s is not kept: %s", c.key, masked)
		}
	}
}

func TestProblemsBeyondAHundredAreCounted(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"command":"x","era":"no"`)
	for i := range 10_000 {
		fmt.Fprintf(&b, `,"unknown%d":1`, i)
	}
	b.WriteString(`,"enabled":1}`)
	_, problems := serverconfig.Decode("srv", []byte(b.String()))
	got := lines(problems)
	if len(got) != 103 || !slices.Contains(got, "error era unsupported") || !slices.Contains(got, "error enabled wrong_type") {
		t.Errorf("%d problems: %v", len(got), got[:3])
	}
	if last := problems[len(problems)-1]; last.Reason != serverconfig.ReasonTooMany || last.Severity != serverconfig.SeverityWarning || !strings.HasPrefix(last.Message, "9900 more") {
		t.Errorf("%+v", last)
	}
}

func TestFaultNamesEveryError(t *testing.T) {
	_, problems := serverconfig.Decode("srv", []byte(`{"command":1,"env":{"A":1},"x":1}`))
	err := serverconfig.Fault(problems)
	if err == nil || strings.Count(err.Error(), `server "srv": `) != 2 || strings.Contains(err.Error(), "unknown") {
		t.Errorf("%v", err)
	}
	if err := serverconfig.Fault(problems[2:]); err != nil {
		t.Errorf("warnings are no fault: %v", err)
	}
}
