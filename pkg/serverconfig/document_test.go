package serverconfig_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/toolherd/toolherd/pkg/serverconfig"
)

func parse(tb testing.TB, text string) serverconfig.Document {
	tb.Helper()
	doc, p := serverconfig.ParseDocument([]byte(text))
	if p != nil {
		tb.Fatalf("ParseDocument: %v", p)
	}
	return doc
}

// CFG-020
func TestDocumentIsReadInTheOrderOfTheFile(t *testing.T) {
	doc := parse(t, "\ufeff"+`{
		"skills": {"a": {"enabled": true}}, "mcpInterceptors": ["x"],
		"mcp_servers": {"b": {"command": "npx"}, "a": {"url": "https://x.example"}, "B": 3},
		"zzz": [1.50, 1e400], "middlewares": []
	}`)
	var got []string
	for _, s := range doc.Servers {
		got = append(got, s.Name+" "+string(s.JSON))
		if s.Problem != nil {
			t.Errorf("%s: %v", s.Name, s.Problem)
		}
	}
	for _, e := range doc.Extras {
		got = append(got, e.Key+" "+string(e.JSON))
	}
	got = append(got, string(doc.Interceptors))
	for _, w := range doc.Warnings {
		got = append(got, fmt.Sprint(w.Severity, " ", w.Path, " ", w.Reason, " ", w.Line))
	}
	want := []string{
		`b {"command": "npx"}`, `a {"url": "https://x.example"}`, `B 3`,
		`skills {"a": {"enabled": true}}`, `zzz [1.50, 1e400]`, `middlewares []`,
		`["x"]`, "warning zzz unknown_key 4",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDocumentWithoutServersIsValid(t *testing.T) {
	for _, text := range []string{`{}`, `{"mcpServers":{}}`, `{"mcp_servers":{}}`, `{"skills":{}}`} {
		if doc := parse(t, text); len(doc.Servers) != 0 {
			t.Errorf("%s: %v", text, doc.Servers)
		}
	}
}

// CFG-017
func TestWhatBreaksAFile(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`[]`, "line 1, column 1: a configuration must be an object, not a list"},
		{`"x"`, "line 1, column 1: a configuration must be an object, not a string"},
		{`{"mcpServers": []}`, "line 1, column 16: mcpServers: must be an object, not a list"},
		{`{"mcp_servers": null}`, "line 1, column 17: mcp_servers: must be an object, not null"},
		{"{\"mcpServers\": {\n\"a\": {},\n\"a\": {}}}", "line 3, column 6: mcpServers.a: two servers have this name: rename or remove one of them"},
		{`{"mcpServers": {"a":{},"\u0061":{}}}`, "two servers have this name"},
		{`{"mcpServers": {}, "mcpServers": {}}`, "mcpServers: this key occurs twice in the file"},
		{`{"mcpServers": {}, "mcp_servers": {}}`, "mcp_servers: mcpServers and mcp_servers are the same thing"},
		{`{"skills": {}, "skills": {}}`, "skills: this key occurs twice in the file"},
		{"{\"mcpServers\": {\"a\": {\"command\": \"\xff\"}}}", "not UTF-8"},
		{`{"mcpServers": {}} x`, "more text"},
	} {
		_, p := serverconfig.ParseDocument([]byte(c.text))
		if p == nil || !strings.Contains(p.String(), c.want) || p.Severity != serverconfig.SeverityError || p.Server != "" {
			t.Errorf("%q\n got %v\nwant %s", c.text, p, c.want)
		}
	}
}

// CFG-017
func TestDuplicateKeyInAnEntryBreaksThatEntryAlone(t *testing.T) {
	doc := parse(t, `{"mcpServers": {
		"good": {"command": "npx", "env": {"A": "1"}},
		"bad": {"command": "npx",
			"env": {"A": "1", "A": "2"}},
		"worse": {"command": "a", "command": "b"},
		"also-good": {"url": "https://x.example"}
	}}`)
	var got []string
	for _, s := range doc.Servers {
		_, problems := serverconfig.Decode(s.Name, s.JSON)
		got = append(got, fmt.Sprintf("%s %v %v", s.Name, s.Problem != nil, serverconfig.HasErrors(problems)))
	}
	if diff := cmp.Diff([]string{"good false false", "bad true true", "worse true true", "also-good false false"}, got); diff != "" {
		t.Error(diff)
	}
	if p := doc.Servers[1].Problem; p.Server != "bad" || p.Path != "env.A" || p.Line != 4 || p.Reason != serverconfig.ReasonDuplicateKey {
		t.Errorf("%+v", p)
	}
	if _, problems := serverconfig.Decode("bad", doc.Servers[1].JSON); problems[0].Path != "env.A" || problems[0].Reason != serverconfig.ReasonDuplicateKey {
		t.Errorf("%v", problems)
	}
}

func TestOneInvalidEntryHarmsNoOther(t *testing.T) {
	doc := parse(t, `{"mcpServers": {"a": 1, "b": {"command": "npx"}, "c": {}, "d d": {"command": "x"}, "e": {"url": "https://x.example"}, "f": null}}`)
	var got []string
	for _, s := range doc.Servers {
		e, problems := serverconfig.Decode(s.Name, s.JSON)
		for _, p := range problems {
			if p.Server != s.Name || p.Message == "" || p.Hint == "" {
				t.Errorf("incomplete: %+v", p)
			}
		}
		got = append(got, fmt.Sprintf("%s %s %v", e.Name, e.Transport, serverconfig.HasErrors(problems)))
	}
	want := []string{"a stdio true", "b stdio false", "c stdio true", "d d stdio true", "e http false", "f stdio true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// CFG-021
func TestLimitsOfAFileAreNamed(t *testing.T) {
	nested := func(n int) string {
		return `{"mcpServers":{"a":{"command":"x","z":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}}}`
	}
	for _, c := range []struct{ text, want string }{
		{nested(61), ""},
		{nested(62), "nested deeper than the limit of 64 levels"},
		{nested(2 << 20), "nested deeper than the limit of 64 levels"},
		{strings.Repeat("[", serverconfig.MaxBytes), "nested deeper than the limit of 64 levels"},
		{`{}` + strings.Repeat(" ", serverconfig.MaxBytes-2), ""},
		{`{}` + strings.Repeat(" ", serverconfig.MaxBytes-1), "larger than the limit of 8 MiB"},
	} {
		_, p := serverconfig.ParseDocument([]byte(c.text))
		if c.want == "" && p != nil || c.want != "" && (p == nil || !strings.Contains(p.String(), c.want)) {
			t.Errorf("%.30q (%d bytes): %v, want %q", c.text, len(c.text), p, c.want)
		}
	}
}

func TestEntryThatIsAcceptedAloneFitsIntoAFile(t *testing.T) {
	for depth := 58; depth < 66; depth++ {
		entry := `{"command":"x","z":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`
		_, problems := serverconfig.Decode("a", []byte(entry))
		_, broken := serverconfig.ParseDocument([]byte(`{"mcpServers":{"a":` + entry + `}}`))
		if alone, inFile := !serverconfig.HasErrors(problems), broken == nil; alone != inFile {
			t.Errorf("%d lists: accepted alone %v, in a file %v", depth, alone, inFile)
		}
	}
}

func TestUnknownTopLevelKeyGetsANearMatch(t *testing.T) {
	doc := parse(t, `{"servers": {}, "mcpserver": {}, "$schema": "x", "inputs": []}`)
	var got []string
	for _, w := range doc.Warnings {
		got = append(got, w.Path+": "+w.Hint)
	}
	want := []string{
		"servers: did you mean `mcpServers`?", "mcpserver: did you mean `mcpServers`?", "inputs: check the spelling, or remove it",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseInterceptors(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want []string
		path string
	}{
		{"", nil, ""},
		{"null", nil, ""},
		{"[]", nil, ""},
		{`"a"`, []string{"a"}, ""},
		{`["a","b"]`, []string{"a", "b"}, ""},
		{`""`, nil, "mcpInterceptors"},
		{`3`, nil, "mcpInterceptors"},
		{`{"a":1}`, nil, "mcpInterceptors"},
		{`["a",1]`, nil, "mcpInterceptors[1]"},
		{`["",1]`, nil, "mcpInterceptors[0]"},
	} {
		got, p := serverconfig.ParseInterceptors([]byte(c.raw))
		path := ""
		if p != nil {
			path = p.Path
		}
		if diff := cmp.Diff(c.want, got); diff != "" || path != c.path {
			t.Errorf("%s: %v, %v", c.raw, got, p)
		}
	}
}

func TestCanonical(t *testing.T) {
	got, err := serverconfig.Canonical([]byte(` { "b" : 1.0 , "a":"\u00e9" } `))
	if want := `{"a":"é","b":1.0}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v", got, err)
	}
	for _, in := range []string{"", "{", `{"a":1,"a":1}`, `{"x":[{"a":1,"a":1}]}`} {
		if got, err := serverconfig.Canonical([]byte(in)); err == nil {
			t.Errorf("Canonical(%s) = %s", in, got)
		}
	}
}
