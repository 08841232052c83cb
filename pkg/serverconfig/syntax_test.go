package serverconfig_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/toolherd/toolherd/pkg/serverconfig"
)

func broken(t *testing.T, text string) serverconfig.Problem {
	t.Helper()
	_, p := serverconfig.ParseDocument([]byte(text))
	if p == nil {
		t.Fatalf("%q is accepted", text)
	}
	return *p
}

// CFG-019, CFG-020
func TestSyntaxErrorShowsTheLine(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{
			"{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"npx\", },\n  }\n}",
			"line 3, column 27: a trailing comma before }: remove the trailing comma\n" +
				"        \"a\": {\"command\": \"npx\", },\n" +
				"                              ^",
		},
		{
			"{\n\t\"mcpServers\": {\r\n\t\t\"a\": {\"url\" \"https://x.example\"}\r\n\t}\r\n}",
			"line 3, column 15: a colon is missing between a name and its value: missing delimiter: write `\"name\": value`\n" +
				"    \t\t\"a\": {\"url\" \"https://x.example\"}\n" +
				"    \t\t            ^",
		},
		{
			"{\n  // my servers\n  \"mcpServers\": {}\n}",
			"line 2, column 3: a comment: JSON has no comments: remove it\n" +
				"      // my servers\n" +
				"      ^",
		},
		{
			"{\n  \"mcpServers\": {\"a\": {\"url\": https://x.example}}\n}",
			"line 2, column 31: not a JSON value: write a value: true, false, null, a number, or text in double quotes\n" +
				"      \"mcpServers\": {\"a\": {\"url\": https://x.example}}\n" +
				"                                  ^",
		},
		{
			"{\"mcpServers\": {\"é\": {command: 1}}}",
			"line 1, column 23: a property name without quotes: put the property name in double quotes\n" +
				"    {\"mcpServers\": {\"é\": {command: 1}}}\n" +
				"                          ^",
		},
		{
			"{\"mcpServers\": {\"a\": }}",
			"line 1, column 22: a value is missing: add the missing value, or remove what needs one\n" +
				"    {\"mcpServers\": {\"a\": }}\n" +
				"                         ^",
		},
		{"{\"mcpServers\": {\n\n", "line 3, column 1: the text ends too early: look for a missing delimiter: a } or ] that was never written"},
		{"", "line 1, column 1: empty: write at least {}"},
	} {
		if diff := cmp.Diff(c.want, broken(t, c.text).String()); diff != "" {
			t.Errorf("%q: %s", c.text, diff)
		}
	}
}

func TestSyntaxErrorShowsAWindowOfALongLine(t *testing.T) {
	p := broken(t, `{"a":"`+strings.Repeat("x", 500)+`",,"b":"`+strings.Repeat("y", 500)+`"}`)
	if n := len([]rune(p.Source)); n > 125 || !strings.HasPrefix(p.Source, "…xxx") || !strings.HasSuffix(p.Source, "yyy…") {
		t.Errorf("%d characters: %s", n, p.Source)
	}
	if at := strings.IndexByte(p.Caret, '^'); []rune(p.Source)[at] != ',' {
		t.Errorf("the caret points at %c:\n%s\n%s", []rune(p.Source)[at], p.Source, p.Caret)
	}
}

func TestSyntaxErrorShowsNoControlCharacters(t *testing.T) {
	p := broken(t, "{\"a\": \"\x1b[2J\u202e\"}")
	if strings.ContainsAny(p.String(), "\x1b\u202e") {
		t.Errorf("%q", p.String())
	}
}

// What is secret by its place must not show either, although the text cannot be parsed.
func TestSyntaxErrorShowsNoSecret(t *testing.T) {
	for _, text := range []string{
		`{"mcpServers":{"a":{"env":{"MY_PAT":"hunter2hunter2",}}}}`,
		`{"mcpServers":{"a":{"env":{"MY_PAT":"hunter2hunter2" "B":"x"}}}}`,
		`{"mcpServers":{"a":{"env":{,"MY_PAT":"hunter2hunter2"}}}}`,
		`{"mcpServers":{"a":{"env":{"MY_PAT":hunter2hunter2}}}}`,
		`{"mcpServers":{"a":{"env":{"MY_PAT":'hunter2hunter2'}}}}`,
		`{"mcpServers":{"a":{"env":{"MY_PAT":"hunter2hunter2}}}}`,
		`{"mcpServers":{"a":{"env":{"MY_PAT":["hunter2hunter2",]}}}}`,
		"{\"mcpServers\":{\"a\":{\"headers\":\n{\"X-Thing\":\"hunter2hunter2\",}}}}",
		"{\"mcpServers\":{\"a\":{\"env\":{\n\"MY_PAT\"\n:\"hunter2hunter2\",}}}}",
		`{"mcpServers":{"a":{"user_auth":{"users":{"bob":"hunter2hunter2",}}}}}`,
		`{"mcpServers":{"a":{"oauth":{"client_secret":"hunter2hunter2",}}}}`,
		`{"mcpServers":{"a":{"args":["--api-key","hunter2hunter2",]}}}`,
		`{"mcpServers":{"a":{"args":["--api-key=hunter2hunter2",]}}}`,
		`{"mcpServers":{"a":{"url":"https://bob:hunter2hunter2@x.example/",}}}`,
		`{"mcpServers":{"a":{"githubToken":"hunter2hunter2",}}}`,
		`{"mcpServers":{"a":{"x":,"headers":{"A":"Bearer hunter2hunter2"}}}}`,
	} {
		p := broken(t, text)
		if strings.Contains(p.String(), "hunter2") {
			t.Errorf("%s\nshows\n%s", text, p)
		}
		if p.Source == "" || !strings.Contains(p.Source, "**************") {
			t.Errorf("%s\ndoes not show its line: %s", text, p)
		}
	}
}

func TestSyntaxErrorShowsWhatIsNoSecret(t *testing.T) {
	p := broken(t, `{"mcpServers":{"a":{"command":"npx","args":["-y","pkg"],"url":"https://x.example/mcp?v=1",}}}`)
	if strings.Contains(p.Source, "*") {
		t.Error(p.Source)
	}
}
