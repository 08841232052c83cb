package serverconfig_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/serverconfig"
)

// CFG-034
func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		json string
		want time.Duration
	}{
		{`1`, time.Second},
		{`0.1`, 100 * time.Millisecond},
		{`1.5e2`, 150 * time.Second},
		{`"30"`, 30 * time.Second},
		{`" 2.5 "`, 2500 * time.Millisecond},
		{`"1m30s"`, 90 * time.Second},
		{`"250ms"`, 250 * time.Millisecond},
		{`1e-9`, 1},
		{`9223372036`, 9223372036 * time.Second},
	} {
		for _, key := range []string{"tool_call_timeout", "tool_call_max_timeout", "session_init_timeout"} {
			e := decode(t, `{"command":"x","`+key+`":`+c.json+`}`)
			got := map[string]time.Duration{
				"tool_call_timeout": e.ToolCallTimeout, "tool_call_max_timeout": e.ToolCallMaxTimeout, "session_init_timeout": e.SessionInitTimeout,
			}[key]
			if got != c.want {
				t.Errorf("%s %s: %v", key, c.json, got)
			}
		}
	}
	for _, json := range []string{
		`0`, `-1`, `0.0`, `1e-10`, `"0"`, `"-5"`, `"0s"`, `"-1m"`, `"NaN"`, `"Infinity"`, `"inf"`, `"-Inf"`, `"nan"`, `true`, `false`, `""`, `"soon"`,
		`"5 s"`, `"0x10"`, `"1_000"`, `[]`, `{}`, `1e400`, `-1e400`, `9223372037`, `1e10`, `"9223372037"`, `"3000000h"`, `86399999999999`,
	} {
		for _, key := range []string{"tool_call_timeout", "tool_call_max_timeout", "session_init_timeout"} {
			_, problems := serverconfig.Decode("srv", []byte(`{"command":"x","`+key+`":`+json+`}`))
			if len(problems) != 1 || problems[0].Severity != serverconfig.SeverityError || problems[0].Path != key {
				t.Errorf("%s %s: %v", key, json, problems)
			}
		}
	}
}

// CFG-035
func TestTimeoutOfNullMeansNoOwnLimit(t *testing.T) {
	e := decode(t, `{"command":"x","tool_call_timeout":null,"tool_call_max_timeout":null,"session_init_timeout":null}`)
	if e.ToolCallTimeout != 0 || e.ToolCallMaxTimeout != 0 || e.SessionInitTimeout != 0 {
		t.Errorf("null: %+v", e)
	}
	e = decode(t, `{"url":"https://x.example"}`)
	if e.ToolCallTimeout != 300*time.Second || e.ToolCallMaxTimeout != time.Hour || e.SessionInitTimeout != time.Minute {
		t.Errorf("absent: %+v", e)
	}
}

// CFG-041
func TestRouting(t *testing.T) {
	for _, c := range []struct {
		json     string
		mode     string
		priority int
		want     []string
	}{
		{`null`, "off", 0, nil},
		{`{}`, "off", 0, nil},
		{`{"mode":"prefer","priority":100,"keywords":["a"]}`, "prefer", 100, nil},
		{`{"priority":5.0}`, "off", 5, nil},
		{`{"priority":101}`, "off", 100, []string{"warning routing.priority out_of_range"}},
		{`{"priority":-1}`, "off", 0, []string{"warning routing.priority out_of_range"}},
		{`{"mode":"always"}`, "off", 0, []string{"error routing.mode unsupported"}},
		{`{"priority":"5"}`, "off", 0, []string{"error routing.priority wrong_type"}},
		{`{"priority":1.5}`, "off", 0, []string{"error routing.priority wrong_type"}},
		{`{"keywords":"a"}`, "off", 0, []string{"error routing.keywords wrong_type"}},
		{`{"keywords":[1]}`, "off", 0, []string{"error routing.keywords[0] wrong_type"}},
		{`5`, "off", 0, []string{"error routing wrong_type"}},
	} {
		e, problems := serverconfig.Decode("srv", []byte(`{"command":"x","routing":`+c.json+`}`))
		if e.Routing.Mode != c.mode || e.Routing.Priority != c.priority || !slices.Equal(lines(problems), c.want) {
			t.Errorf("%s: %+v %v", c.json, e.Routing, problems)
		}
	}
}

// CFG-024
func TestUnknownKeysInsideBlocks(t *testing.T) {
	expect(t, `{"command":"x","routing":{"prio":1}}`, "error routing.prio unknown_key")
	expect(t, `{"command":"x","tools":{"t":{"routing":{"prio":1}}}}`, "error tools.t.routing.prio unknown_key")
	expect(t, `{"command":"x","task_toolsets":[{"name":"n","submit_tool":"a","status_tool":"b","cancel_tool":"c","x":1}]}`, "error task_toolsets[0].x unknown_key")
	for _, entry := range []string{
		`{"url":"https://x.example","oauth":{"token_url":"https://x.example","x":1}}`,
		`{"url":"https://x.example","user_auth":{"x":1}}`,
		`{"url":"https://x.example","headers_from_context":{"x":1}}`,
		`{"url":"https://x.example","tools":{"t":{"x":1}}}`,
	} {
		_, problems := serverconfig.Decode("srv", []byte(entry))
		if len(problems) != 1 || problems[0].Severity != serverconfig.SeverityWarning || problems[0].Reason != serverconfig.ReasonUnknownKey {
			t.Errorf("%s: %v", entry, problems)
		}
		if masked := string(serverconfig.Mask([]byte(entry))); masked != entry {
			t.Errorf("%s is not kept: %s", entry, masked)
		}
	}
}

// CFG-042
func TestTaskToolsets(t *testing.T) {
	set := func(s string) string { return `{"command":"x","task_toolsets":[` + s + `]}` }
	expect(t, set(`{"name":"n","submit_tool":"a","status_tool":"b","cancel_tool":"c"}`))
	expect(t, set(`{"name":"n","submit_tool":"a","status_tool":"b","cancel_tool":"c","answer_tool":null},{"name":"m","submit_tool":"d","status_tool":"e","cancel_tool":"f","answer_tool":"g"}`))
	expect(t, set(`{}`), "error task_toolsets[0].name missing", "error task_toolsets[0].submit_tool missing",
		"error task_toolsets[0].status_tool missing", "error task_toolsets[0].cancel_tool missing")
	expect(t, set(`{"name":"  ","submit_tool":1,"status_tool":"b","cancel_tool":"c"}`), "error task_toolsets[0].name missing", "error task_toolsets[0].submit_tool wrong_type")
	expect(t, set(`{"name":"n","submit_tool":"a","status_tool":"a","cancel_tool":"c"}`), "error task_toolsets[0].status_tool conflict")
	expect(t, set(`{"name":"n","submit_tool":"a","status_tool":"b","cancel_tool":"c","answer_tool":"b"}`), "error task_toolsets[0].answer_tool conflict")
	both := set(`{"name":"n","submit_tool":"a","status_tool":"b","cancel_tool":"c"},{"name":"m","submit_tool":"d","status_tool":"c","cancel_tool":"f"}`)
	expect(t, both, "error task_toolsets[1].status_tool conflict")
	if got := hint(t, "srv", both); got != "names the same tool as task_toolsets[0].cancel_tool: a tool has one role over all toolsets of a server" {
		t.Error(got)
	}
	expect(t, set(`1`), "error task_toolsets[0] wrong_type")
	expect(t, `{"command":"x","task_toolsets":{}}`, "error task_toolsets wrong_type")
	long := strings.Repeat("x", 255)
	expect(t, set(`{"name":"`+long+`","submit_tool":"a","status_tool":"b","cancel_tool":"c"}`))
	expect(t, set(`{"name":"x`+long+`","submit_tool":"a","status_tool":"b","cancel_tool":"c"}`), "error task_toolsets[0].name out_of_range")
}

// CFG-043
func TestFilters(t *testing.T) {
	expect(t, `{"command":"x","allowedTools":["a"],"disabledTools":["b"]}`, "error disabledTools conflict")
	expect(t, `{"command":"x","allowedTools":null,"disabledTools":[]}`, "error allowedTools wrong_type", "error disabledTools missing", "error disabledTools conflict")
	for _, key := range []string{"allowedTools", "disabledTools"} {
		expect(t, `{"command":"x","`+key+`":["a","b*"]}`)
		expect(t, `{"command":"x","`+key+`":null}`, "error "+key+" wrong_type")
		expect(t, `{"command":"x","`+key+`":"a"}`, "error "+key+" wrong_type")
		expect(t, `{"command":"x","`+key+`":["a",1]}`, "error "+key+"[1] wrong_type")
		expect(t, `{"command":"x","`+key+`":[]}`, "error "+key+" missing")
		if got := hint(t, "srv", `{"command":"x","`+key+`":[]}`); got != "must not be empty: omit it if it is not to filter" {
			t.Error(got)
		}
	}
}

// CFG-044
func TestWords(t *testing.T) {
	set := `"task_toolsets":[{"name":"n","submit_tool":"a","status_tool":"b","cancel_tool":"c","background_scope":"%"}]`
	for _, c := range []struct {
		key  string
		good []string
	}{
		{`"era":"%"`, []string{"auto", "legacy", "modern"}},
		{`"session_scope":"%"`, []string{"thread", "user", "shared"}},
		{`"login_scope":"%"`, []string{"user", "shared"}},
		{set, []string{"thread", "user", "shared"}},
	} {
		for _, word := range append(c.good, "", "Shared", "other") {
			_, problems := serverconfig.Decode("srv", []byte(`{"command":"x",`+strings.Replace(c.key, "%", word, 1)+`}`))
			good := slices.Contains(c.good, word)
			if good != (len(problems) == 0) || !good && problems[0].Reason != serverconfig.ReasonUnsupported {
				t.Errorf("%s %q: %v", c.key, word, problems)
			}
		}
	}
	e := decode(t, `{"command":"x"}`)
	if e.Era != serverconfig.EraAuto || e.SessionScope != serverconfig.ScopeThread {
		t.Errorf("defaults: %+v", e)
	}
}
