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
			"{\n  // my own\n  \"mcpServers\": {}\n}",
			"line 2, column 3: a comment: JSON has no comments: remove it\n" +
				"      // my own\n" +
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
	p := broken(t, `{"a":"`+strings.Repeat("x", 500)+`",,"b":"`+strings.Repeat("yyy ", 125)+`"}`)
	if n := len([]rune(p.Source)); n > 125 || !strings.HasPrefix(p.Source, "…xxx") || !strings.HasSuffix(p.Source, "yy…") {
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

// One character that is missing, wrong or too many, wherever it stands: what is a secret in the file as it was meant
// must not show. Closing brackets are left out: behind one the text is well-formed and means something else.
func TestSyntaxErrorShowsNoSecretWhateverTheSlip(t *testing.T) {
	const meant = `{"mcpServers": {"a": {"command": "npx", "args": ["-y", "--token", "SECRET-a1", "--api-key=SECRET-a2"],
  "env": {"PLAIN": "SECRET-a3", "B": "SECRET-a4"}}, "b": {"url": "https://u:SECRET-a5@h/?token=SECRET-a6",
  "headers": {"X-A": "SECRET-a7", "Authorization": "Bearer SECRET-a8"},
  "oauth": {"token_url": "https://x", "client_secret": "SECRET-a9", "extra_token_params": {"z": "SECRET-b1"}},
  "user_auth": {"users": {"bob": "SECRET-b2", "eve": "SECRET-b3"}}}}}`
	const structure = "\"'{}[]:, \n"
	isStructure := func(i int) bool { // and no colon of a URL
		return strings.IndexByte(structure, meant[i]) >= 0 && (meant[i] != ':' || meant[i-1] == '"')
	}
	check := func(text string) {
		if _, p := serverconfig.ParseDocument([]byte(text)); p != nil && strings.Contains(p.String(), "SECRET") {
			t.Errorf("%s\nshows\n%s", text, p)
		}
	}
	for i := 1; i < len(meant)-1; i++ {
		if !isStructure(i) {
			continue
		}
		check(meant[:i] + meant[i+1:])
		for _, c := range "\"'{[:, \nx#" {
			check(meant[:i] + string(c) + meant[i:])
			check(meant[:i] + string(c) + meant[i+1:])
		}
	}
}

func TestSyntaxErrorShowsWhatIsNoSecret(t *testing.T) {
	p := broken(t, `{"mcpServers":{"a":{"command":"npx","args":["-y","pkg"],"url":"https://x.example/mcp?v=1",}}}`)
	if strings.Contains(p.Source, "*") {
		t.Error(p.Source)
	}
}
