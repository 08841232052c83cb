package jsonrpc

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMemberLooksOneLevelDeepAndTellsCasesApart(t *testing.T) {
	raw := json.RawMessage(` {"Tools":1, "x":{"tools":2}, "tools" : [ 1.10 , "a" ] , "n":null}`)
	for name, want := range map[string]string{"tools": `[ 1.10 , "a" ]`, "Tools": "1", "TOOLS": "", "n": "null", "": ""} {
		if got := Member(raw, name); string(got) != want {
			t.Errorf("Member(%q) = %q, want %q", name, got, want)
		}
	}
	for _, raw := range []string{``, `[]`, `null`, `{}`, `{"a"`, `{"tools"`, `{"tools":`} {
		if got := Member(json.RawMessage(raw), "tools"); got != nil {
			t.Errorf("Member of %q = %q, want nil", raw, got)
		}
	}
	if got := Member(json.RawMessage(`{"a":1,"\u0061":2}`), "a"); string(got) != "2" {
		t.Errorf("of two members %q counts, want the last", got)
	}
}

func TestMembersAndElementsKeepOrderAndTokens(t *testing.T) {
	var got []string
	for key, value := range Members(json.RawMessage(`{"b":1E5,"\u00e9":{ "x":[ ] },"b":"\u0041"}`)) {
		got = append(got, string(key)+"="+string(value))
	}
	for value := range Elements(json.RawMessage(` [ null , {"a":[1,2]},"]" ] `)) {
		got = append(got, string(value))
	}
	for value := range Elements(json.RawMessage(`{"not":"an array"}`)) {
		got = append(got, string(value))
	}
	want := []string{`b=1E5`, `é={ "x":[ ] }`, `b="\u0041"`, `null`, `{"a":[1,2]}`, `"]"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStringAndInt(t *testing.T) {
	for raw, want := range map[string]string{`"a\nb"`: "a\nb", ` "x" `: "x", `""`: "", `"\ud83d\ude00"`: "😀"} {
		if got, ok := String(json.RawMessage(raw)); !ok || got != want {
			t.Errorf("String(%s) = %q, %t, want %q", raw, got, ok, want)
		}
	}
	for _, raw := range []string{``, `1`, `null`, `{}`} {
		if got, ok := String(json.RawMessage(raw)); ok {
			t.Errorf("String(%s) = %q, want none", raw, got)
		}
	}
	if got, ok := Int(json.RawMessage(`-9223372036854775808`)); !ok || got != -1<<63 {
		t.Errorf("Int = %d, %t", got, ok)
	}
	for _, raw := range []string{``, `1.0`, `1e2`, `"1"`, `9223372036854775808`, `-`, `null`} {
		if got, ok := Int(json.RawMessage(raw)); ok {
			t.Errorf("Int(%s) = %d, want none", raw, got)
		}
	}
}

func TestAppendBuildsOneLineAroundRawValues(t *testing.T) {
	params := json.RawMessage("{\n\t\"a\": 1.10,\r\n \"html\":\"<&>\\n\"}")
	for got, want := range map[string]string{
		string(AppendRequest(nil, 7, "tools/call", params)):                                               `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{ 	"a": 1.10,   "html":"<&>\n"}}`,
		string(AppendRequest(nil, -1, "a\"b", nil)):                                                       `{"jsonrpc":"2.0","id":-1,"method":"a\"b"}`,
		string(AppendNotification(nil, "n/x", []byte(`{}`))):                                              `{"jsonrpc":"2.0","method":"n/x","params":{}}`,
		string(AppendResult(nil, ID(`"q"`), []byte(`{"a":1}`))):                                           `{"jsonrpc":"2.0","id":"q","result":{"a":1}}`,
		string(AppendError(nil, nil, &Error{Code: -32600, Message: "<no>\n\x01", Data: []byte("[\n1]")})): `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"<no>\n\u0001","data":[ 1]}}`,
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if _, err := Parse([]byte(got)); err != nil {
			t.Errorf("%s: %v", got, err)
		}
	}
}

func TestAppendMetaAddsToWhatIsThere(t *testing.T) {
	for in, want := range map[string]string{
		``:                             `{"_meta":{"t":1}}`,
		`{}`:                           `{"_meta":{"t":1}}`,
		` { } `:                        ` {"_meta":{"t":1} } `,
		`{"name":"x"}`:                 `{"_meta":{"t":1},"name":"x"}`,
		`{"name":"x", "_meta": {}}`:    `{"name":"x", "_meta": {"t":1}}`,
		`{"_meta":{ "a":1e5 },"b":[]}`: `{"_meta":{"t":1, "a":1e5 },"b":[]}`,
		`{"a":{"_meta":{}}}`:           `{"_meta":{"t":1},"a":{"_meta":{}}}`,
		`{"_meta":null}`:               `{"_meta":{"t":1}}`,
	} {
		got, err := AppendMeta([]byte("#"), json.RawMessage(in), `"t":1`)
		if err != nil || string(got) != "#"+want {
			t.Errorf("AppendMeta(%s) = %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{`[]`, `null`, `{"_meta":[]}`, `{"_meta":"x"}`} {
		if got, err := AppendMeta(nil, json.RawMessage(in), `"t":1`); err == nil {
			t.Errorf("AppendMeta(%s) = %s, want an error", in, got)
		}
	}
}

func TestDeepNesting(t *testing.T) {
	for _, depth := range []int{63, 64, 65, 127, 128, 129, 5000, maxDepth} {
		mixed := strings.Repeat(`[{"a":`, depth/2) + "1" + strings.Repeat(`}]`, depth/2)
		if !Valid([]byte(mixed)) {
			t.Errorf("depth %d is refused", depth)
		}
		if crossed := strings.Repeat(`[{"a":`, depth/2) + "1" + strings.Repeat(`]}`, depth/2); Valid([]byte(crossed)) {
			t.Errorf("crossed brackets at depth %d are accepted", depth)
		}
	}
	if Valid([]byte(strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1))) {
		t.Error("a value nested too deeply is accepted")
	}
}
