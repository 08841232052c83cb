package strictjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

var limits = strictjson.Limits{Bytes: 8 << 20, Depth: 64}

func parse(tb testing.TB, text string) strictjson.Value {
	tb.Helper()
	v, err := strictjson.Parse([]byte(text), limits)
	if err != nil {
		tb.Fatalf("Parse(%q): %v", text, err)
	}
	return v
}

// plain converts a value to what encoding/json makes of it.
func plain(v strictjson.Value) any {
	switch v.Kind() {
	case strictjson.Object:
		m := map[string]any{}
		for k, e := range v.Members() {
			m[k] = plain(e)
		}
		return m
	case strictjson.Array:
		l := []any{}
		for _, e := range v.Elements() {
			l = append(l, plain(e))
		}
		return l
	case strictjson.String:
		return v.Text()
	case strictjson.Number:
		return json.Number(v.Raw())
	case strictjson.Bool:
		return v.Raw() == "true"
	default:
		return nil
	}
}

func standard(tb testing.TB, text []byte) any {
	tb.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var want any
	if err := d.Decode(&want); err != nil {
		tb.Fatal(err)
	}
	return want
}

func TestParseReadsWhatEncodingJSONReads(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `null`, `true`, ` false `, `0`, `-0.5e+10`, `1E400`, `""`, `"a\"\\\/\b\f\n\r\té"`,
		`"\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx"`, `"\ud83d\u0041"`, `"\ude00\ud83d"`, `"\ud83d\ud83d\ude00"`, `"😀"`,
		`{"a":[1,{"b":null},[]],"A":"x","":{}}`, "\t[\r\n1 , 2 ]\n",
	} {
		if diff := cmp.Diff(standard(t, []byte(text)), plain(parse(t, text))); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

func TestSyntaxErrorsSayWhereAndHow(t *testing.T) {
	for _, c := range []struct{ text, at, message, hint string }{
		{"{\n  \"a\": 1,\n}", "2:9", "trailing comma", "remove the trailing comma"},
		{"[1, 2 , ]", "1:7", "trailing comma", "remove the trailing comma"},
		{"{\n  // a comment\n  \"a\": 1\n}", "2:3", "a comment", "no comments"},
		{"{\n  \"a\": 1, // why\n  \"b\": 2\n}", "2:11", "a comment", "no comments"},
		{"{\n  \"a\": 1\n/* why */\n}", "3:1", "a comment", "no comments"},
		{"{\n  \"a\":\n  // why\n 1}", "3:3", "a comment", "no comments"},
		{"# hello\n{}", "1:1", "a comment", "no comments"},
		{`{"url": //example.com/mcp}`, "1:9", "not a JSON value", "double quotes"},
		{`{"url": https://example.com/mcp}`, "1:9", "not a JSON value", "double quotes"},
		{`{a: 1}`, "1:2", "property name without quotes", "double quotes"},
		{`{'a': 1}`, "1:2", "single quotes", "double quotes"},
		{`{: 1}`, "1:2", "property name is missing", "property name"},
		{`{,"a":1}`, "1:2", "property name is missing", "property name"},
		{`{"a":1,,"b":2}`, "1:8", "two commas", "property name and value"},
		{`{1: 2}`, "1:2", "property name", "double quotes"},
		{`{"a": }`, "1:7", "value is missing", "missing value"},
		{`{"a": , "b": 1}`, "1:7", "value is missing", "missing value"},
		{`[,1]`, "1:2", "value is missing", "missing value"},
		{`[1,,2]`, "1:4", "value is missing", "missing value"},
		{`{"a": 'x'}`, "1:7", "single quotes", "double quotes"},
		{`{"a": True}`, "1:7", "not a JSON value", "true, false, null"},
		{`{"a": nullx}`, "1:7", "not a JSON value", "true, false, null"},
		{`{"a": NaN}`, "1:7", "not a JSON value", "a number"},
		{`{"a" 1}`, "1:6", "colon is missing", "missing delimiter"},
		{"{\"a\": 1\n \"b\": 2}", "2:2", "comma or } is missing", "missing delimiter"},
		{`[1 2]`, "1:4", "comma or ] is missing", "missing delimiter"},
		{`{"a": [1}`, "1:9", "comma or ] is missing", "missing delimiter"},
		{`{"a": 1`, "1:8", "ends too early", "missing delimiter"},
		{`{"a": {"b": 1}`, "1:15", "ends too early", "missing delimiter"},
		{`{`, "1:2", "ends too early", "} or ]"},
		{`{"a"`, "1:5", "ends too early", "} or ]"},
		{`{"a":`, "1:6", "ends too early", "} or ]"},
		{"", "1:1", "empty", "{}"},
		{" \n", "2:1", "empty", "{}"},
		{`{} {}`, "1:4", "more text", "closing bracket"},
		{`{}}`, "1:3", "more text", "closing bracket"},
		{`"abc`, "1:1", "does not end", `close it with "`},
		{"{\"a\": \"b\n\"}", "1:7", "does not end on its line", `close it with "`},
		{"\"a\tb\"", "1:3", "control character", `\u0009`},
		{`"C:\dir"`, "1:4", "escape", `\\`},
		{`"\u12"`, "1:2", "escape", `\\`},
		{`"\`, "1:2", "escape", `\\`},
		{`01`, "1:1", "number", "leading zeros"},
		{`1.`, "1:1", "number", "0.5"},
		{`-`, "1:1", "number", "0.5"},
		{`+1`, "1:1", "not a JSON value", "a number"},
		{`1e`, "1:1", "number", "1e3"},
		{`0x10`, "1:1", "number", "double quotes"},
		{`1.2.3`, "1:1", "number", "double quotes"},
		{"{\"é\": \"ü\", é}", "1:12", "property name", "double quotes"},
		{"{\"a\": \"\xff\"}", "1:8", "not UTF-8", "UTF-8"},
		{"\ufeff{}", "1:1", "not a JSON value", "a value"},
	} {
		_, err := strictjson.Parse([]byte(c.text), limits)
		e, ok := errors.AsType[*strictjson.SyntaxError](err)
		if !ok {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if at := fmt.Sprintf("%d:%d", e.Line, e.Column); at != c.at || !strings.Contains(e.Message, c.message) || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%q\n got %s %q, hint %q\nwant %s %q, hint %q", c.text, at, e.Message, e.Hint, c.at, c.message, c.hint)
		}
	}
}

func TestLimitsAreNamed(t *testing.T) {
	nested := func(n int, open, end string) string { return strings.Repeat(open, n) + "1" + strings.Repeat(end, n) }
	for _, c := range []struct{ text, want string }{
		{nested(64, "[", "]"), ""},
		{nested(64, `{"a":`, "}"), ""},
		{nested(65, "[", "]"), "limit of 64 levels"},
		{nested(65, `{"a":`, "}"), "limit of 64 levels"},
		{strings.Repeat("[", 1<<20), "limit of 64 levels"},
		{strings.Repeat(`{"a":`, 1<<20), "limit of 64 levels"},
		{`"` + strings.Repeat("a", 8<<20-2) + `"`, ""},
		{`"` + strings.Repeat("a", 8<<20-1) + `"`, "limit of 8 MiB"},
	} {
		_, err := strictjson.Parse([]byte(c.text), limits)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%.20q (%d bytes): %v, want %q", c.text, len(c.text), err, c.want)
		}
	}
}

// CFG-021
func TestMemoryIsBoundedByTheSizeOfTheText(t *testing.T) {
	for _, piece := range []string{"[],", "0,", `"",`, `{"a":0},`} {
		n := (1<<18 - 16) / len(piece)
		text := []byte("[" + strings.Repeat(piece, n-1) + strings.TrimSuffix(piece, ",") + "]")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v, err := strictjson.Parse(text, limits)
		if err != nil {
			t.Fatal(err)
		}
		if dup, _ := v.Duplicate(); dup != "" {
			t.Fatal(dup)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 20*int64(len(text)) {
			t.Errorf("%q: %d bytes of text hold %d bytes of memory", piece, len(text), grown)
		}
		runtime.KeepAlive(v)
	}
}

func TestDuplicate(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{"a":1,"A":2}`, ""},
		{`[{"a":1},{"a":2}]`, ""},
		{`{"a":{"a":{"a":1}}}`, ""},
		{`{"a":1,"a":1}`, "a"},
		{`{"a":1,"\u0061":1}`, "a"},
		{`{"env":{"X":"1","Y":"2","X":"3"}}`, "env.X"},
		{`{"l":[0,{"a.b":1,"a.b":2}]}`, `l[1]["a.b"]`},
		{`[[{"\ud800":1,"\udbff":2}]]`, `[0][0]["\ufffd"]`},
	} {
		if got, _ := parse(t, c.text).Duplicate(); got != c.want {
			t.Errorf("Duplicate(%s) = %q, want %q", c.text, got, c.want)
		}
	}
	_, second := parse(t, "{\"é\": 1,\n \"é\": 2}").Duplicate()
	if line, column := second.Position(); line != 2 || column != 7 || second.Raw() != "2" {
		t.Errorf("the second one is %s in line %d, column %d", second.Raw(), line, column)
	}
}

func TestGetIsCaseSensitive(t *testing.T) {
	v := parse(t, `{"Command":"x","command":"y"}`)
	if got := v.Get("command").Text(); got != "y" {
		t.Errorf("command = %q", got)
	}
	if got := v.Get("COMMAND"); got.Kind() != strictjson.Missing || got.Text() != "" || got.Raw() != "" {
		t.Errorf("COMMAND = %v", got)
	}
}

func TestCanonical(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"{ \"b\" : [ 1 , 2.0 ] ,\n\"a\" : null }", `{"a":null,"b":[1,2.0]}`},
		{`{"args":["-y","@x/\u00e9"],"command":"npx","env":{}}`, `{"args":["-y","@x/é"],"command":"npx","env":{}}`},
		{`"\u003c\/\u0009\u0001\u007f\u2028"`, `"</\t\u0001` + "\x7f\u2028" + `"`},
		{`[9007199254740993,1.10,1e400,1E5,-0]`, `[9007199254740993,1.10,1e400,1E5,-0]`},
		{`{"é":1,"z":2,"Z":3,"":4,"😀":5,"\uffff":6}`, `{"":4,"Z":3,"z":2,"é":1,"` + "\uffff" + `":6,"😀":5}`},
	} {
		if got := string(parse(t, c.text).Canonical()); got != c.want {
			t.Errorf("Canonical(%s)\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

func TestSpliceTouchesNothingElse(t *testing.T) {
	v := parse(t, " { \"a\" : 1.50 ,\n \"b\" : [ true, \"x\" ] } ")
	b := v.Get("b")
	var second strictjson.Value
	for _, e := range b.Elements() {
		second = e
	}
	got := v.Splice([]strictjson.Edit{{Value: v.Get("a"), JSON: "null"}, {Value: second, JSON: `"y"`}})
	if want := "{ \"a\" : null ,\n \"b\" : [ true, \"y\" ] }"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := b.Splice(nil); got != b.Raw() {
		t.Errorf("no edits: %q", got)
	}
}

func TestPathsNameOnePlace(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{strictjson.Field("env", "TOKEN"), "env.TOKEN"},
		{strictjson.Field("", "X-Api_Key9"), "X-Api_Key9"},
		{strictjson.Field("a", "b.c"), `a["b.c"]`},
		{strictjson.Field("a", ""), `a[""]`},
		{strictjson.Field("a", "\x1b\u202e\""), `a["\x1b\u202e\""]`},
		{strictjson.Item("args", 2), "args[2]"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,{"b":null}],"c":"\ud83d\ude00"}`, `{"a":1,}`, `[1,,2]`, `{'a':1}`, "//", `"\`, "\xff", `[[[[`, `{"a":{"a":1,"a":2}}`,
		`-0.0e-0`, `"\ud800\udc00\ud800"`, "\ufeff{}", `{"":""}`, `tru`, `nulll`, `[1 2]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := strictjson.Parse(text, strictjson.Limits{Bytes: 1 << 20, Depth: 1000})
		if e, ok := errors.AsType[*strictjson.SyntaxError](err); ok && strings.Contains(e.Message, "limit of") {
			return
		}
		if valid := json.Valid(text) && utf8.Valid(text); valid != (err == nil) {
			t.Fatalf("valid %v, but Parse says %v", valid, err)
		}
		if err != nil {
			return
		}
		want := standard(t, text)
		if dup, _ := v.Duplicate(); dup == "" && !reflect.DeepEqual(want, plain(v)) {
			t.Fatalf("reads %v, want %v", plain(v), want)
		}
		canonical := v.Canonical()
		again, err := strictjson.Parse(canonical, strictjson.Limits{Bytes: 4 << 20, Depth: 1000})
		if err != nil || !bytes.Equal(again.Canonical(), canonical) {
			t.Fatalf("the canonical form %s is not its own: %v", canonical, err)
		}
	})
}
