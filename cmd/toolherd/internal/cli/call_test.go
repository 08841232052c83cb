package cli

import (
	"errors"
	"strings"
	"testing"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

func TestArgumentsAreReadAsTheSchemaSays(t *testing.T) {
	types := schemaTypes(`{"type":"object","properties":{
		"text":{"type":"string"},"n":{"type":"integer"},"x":{"type":"number"},"on":{"type":"boolean"},
		"list":{"type":"array"},"either":{"type":["null","string"]},"maybe":{"type":["integer","null"]},"any":{}}}`)
	for _, c := range []struct{ pairs, want string }{
		{"text=12", `{"text":"12"}`},
		{"text=", `{"text":""}`},
		{"text=a=b", `{"text":"a=b"}`},
		{"text=<&>\u2028", `{"text":"<&>\u2028"}`},
		{"n=9007199254740993", `{"n":9007199254740993}`},
		{"x=1.10", `{"x":1.10}`},
		{"on=true", `{"on":true}`},
		{`list=[1,"a"]`, `{"list":[1,"a"]}`},
		{"either=null", `{"either":"null"}`},
		{"maybe=null", `{"maybe":null}`},
		{"any=1", `{"any":"1"}`},
		{"any:=1", `{"any":1}`},
		{"unknown:={\"a\":1}", `{"unknown":{"a":1}}`},
		{"text=a n=1", `{"text":"a","n":1}`},
	} {
		got, err := buildArguments(strings.Split(c.pairs, " "), types)
		want := strings.ReplaceAll(c.want, "\u2028", `\u2028`)
		if err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", c.pairs, got, err, want)
		}
	}
	for _, bad := range []string{"n=one", "n=", "novalue", "=x", ":=1", "text=a text=b", "any:=nope", "list=1,2"} {
		if got, err := buildArguments(strings.Split(bad, " "), types); !errors.Is(err, errUsage) {
			t.Errorf("%s: got %s, %v, want an error of usage", bad, got, err)
		}
	}
}

func TestWhatAServerWritesCannotSteerTheTerminal(t *testing.T) {
	var out, errs strings.Builder
	hostile := "a\x1b[2Jb\u202ec\rd"
	err := printOutcome(Streams{Out: &out, Err: &errs}, outputTable, &toolproxyv1.CallToolResponse{
		Outcome: &toolproxyv1.CallToolResponse_Result{Result: &toolproxyv1.ToolResult{IsError: true, Content: []*toolproxyv1.ContentBlock{
			{Block: &toolproxyv1.ContentBlock_Text{Text: &toolproxyv1.TextContent{Text: hostile + "\nsecond"}}},
			{Block: &toolproxyv1.ContentBlock_OtherJson{OtherJson: `{"type":"hologram"}`}},
		}}},
	})
	if !errors.Is(err, errReported) {
		t.Fatalf("got %v, want a reported failure", err)
	}
	want := "a\uFFFD[2Jb\uFFFDc d\nsecond\n{\"type\":\"hologram\"}\n"
	if errs.String() != want || out.String() != "" {
		t.Fatalf("got %q on stderr and %q on stdout, want %q on stderr", errs.String(), out.String(), want)
	}
}

func TestTokenEntriesAreChecked(t *testing.T) {
	entry, err := tokenEntry("ops", []string{"operator", "agent"}, "", true)
	if err != nil || entry != "- name: \"ops\"\n  sha256: HASH\n  roles: [operator, agent]\n  act_as: any\n" {
		t.Fatalf("got %q, %v", entry, err)
	}
	for name, call := range map[string]func() (string, error){
		"no name":      func() (string, error) { return tokenEntry("", []string{"agent"}, "", false) },
		"unknown role": func() (string, error) { return tokenEntry("x", []string{"king"}, "", false) },
		"both":         func() (string, error) { return tokenEntry("x", []string{"agent"}, "u", true) },
		"control":      func() (string, error) { return tokenEntry("x\x1by", []string{"agent"}, "", false) },
		"long user":    func() (string, error) { return tokenEntry("x", []string{"agent"}, strings.Repeat("u", 129), false) },
		"line break":   func() (string, error) { return tokenEntry("x\ny", []string{"agent"}, "", false) },
	} {
		if got, err := call(); err == nil {
			t.Errorf("%s: got %q, want an error", name, got)
		}
	}
}

func TestANewTokenInJSONSaysForWhomItSpeaks(t *testing.T) {
	for args, want := range map[string]string{"--act-as-any": `"act_as": "any"`, "--user-id=bob": `"user_id": "bob"`} {
		var out, errs strings.Builder
		if code := Main([]string{"token", "new", "--name", "x", "-o", "json", args}, Streams{Out: &out, Err: &errs}); code != 0 || !strings.Contains(out.String(), want) {
			t.Errorf("%s: exit %d, %s%s, want %s", args, code, out.String(), errs.String(), want)
		}
	}
}

func TestRawArgumentsAreCheckedBeforeAnythingStarts(t *testing.T) {
	in := func(text string) Streams { return Streams{In: strings.NewReader(text)} }
	for _, bad := range []string{`{"a"`, "x"} {
		if _, err := rawArguments(in(""), bad); !errors.Is(err, errUsage) {
			t.Errorf("--json %s: got %v, want an error of usage", bad, err)
		}
		if _, err := rawArguments(in(bad), "-"); !errors.Is(err, errUsage) {
			t.Errorf("%s on standard input: got %v, want an error of usage", bad, err)
		}
	}
	if got, err := rawArguments(in(`{"a":1.10}`), "-"); err != nil || got != `{"a":1.10}` {
		t.Errorf("got %s, %v", got, err)
	}
}
