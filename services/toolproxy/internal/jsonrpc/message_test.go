package jsonrpc

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseTellsKindsByTheirKeys(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Message
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"a":1.10}}`,
			Message{Kind: Request, ID: ID(`1`), Method: "tools/call", Params: json.RawMessage(`{"a":1.10}`)}},
		{`{"method":"ping","id":"a-1","jsonrpc":"2.0"}`,
			Message{Kind: Request, ID: ID(`"a-1"`), Method: "ping"}},
		{`{"jsonrpc":"2.0","method":"notifications/progress","params":null}`,
			Message{Kind: Notification, Method: "notifications/progress"}},
		{`{"jsonrpc":"2.0","method":"x\/y"}`,
			Message{Kind: Notification, Method: "x/y"}},
		{` { "jsonrpc" : "2.0" , "id" : -7 , "result" : { "n" : 9007199254740993 , "e" : 1e400 } } ` + "\r",
			Message{Kind: Response, ID: ID(`-7`), Result: json.RawMessage(`{ "n" : 9007199254740993 , "e" : 1e400 }`)}},
		{`{"jsonrpc":"2.0","id":1,"result":null}`,
			Message{Kind: Response, ID: ID(`1`), Result: json.RawMessage(`null`)}},
		{`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`,
			Message{Kind: Failure, ID: ID(`1`), Error: json.RawMessage(`{"code":-32601,"message":"no"}`)}},
		{`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}`,
			Message{Kind: Failure, Error: json.RawMessage(`{"code":-32700,"message":"?"}`)}},
		{`{"jsonrpc":"2.0","id":1,"result":{},"ID":2,"Method":"x","extra":[{}]}`,
			Message{Kind: Response, ID: ID(`1`), Result: json.RawMessage(`{}`)}},
		{`{"\u006asonrpc":"2.0","\u0069d":3,"result":{}}`,
			Message{Kind: Response, ID: ID(`3`), Result: json.RawMessage(`{}`)}},
		{"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\xff\xfe\"}",
			Message{Kind: Response, ID: ID(`1`), Result: json.RawMessage("\"\xff\xfe\"")}},
	} {
		got, err := Parse([]byte(c.in))
		if err != nil {
			t.Errorf("Parse(%q): %v", c.in, err)
			continue
		}
		if diff := cmp.Diff(c.want, got, cmpopts.IgnoreUnexported(Message{})); diff != "" {
			t.Errorf("Parse(%q) (-want +got):\n%s", c.in, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		name, in, cause string
		id              string // that could be learned all the same
		answers         bool
	}{
		{name: "nothing", in: ``, cause: "not an object"},
		{name: "a banner", in: `Server listening on 8080`, cause: "not an object"},
		{name: "a batch", in: `[{"jsonrpc":"2.0","id":1,"result":{}}]`, cause: "a batch"},
		{name: "a number", in: `12`, cause: "not an object"},
		{name: "an empty object", in: `{}`, cause: `no "jsonrpc"`},
		{name: "an id alone", in: `{"jsonrpc":"2.0","id":1}`, cause: "neither a method", id: "1", answers: true},
		{name: "an empty method", in: `{"jsonrpc":"2.0","id":1,"method":""}`, cause: "an empty method", id: "1"},
		{name: "a null request id", in: `{"jsonrpc":"2.0","id":null,"method":"ping"}`, cause: "id is null"},
		{name: "no version", in: `{"id":1,"result":{}}`, cause: `no "jsonrpc"`, id: "1", answers: true},
		{name: "a version of another case", in: `{"JSONRPC":"2.0","id":1,"result":{}}`, cause: `no "jsonrpc"`, id: "1", answers: true},
		{name: "version 1.0", in: `{"jsonrpc":"1.0","id":1,"result":{}}`, cause: `is not "2.0"`, id: "1", answers: true},
		{name: "a numeric version", in: `{"jsonrpc":2.0,"id":1,"result":{}}`, cause: `is not "2.0"`, id: "1", answers: true},
		{name: "result and error", in: `{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`, cause: "both", id: "1", answers: true},
		{name: "method and result", in: `{"jsonrpc":"2.0","id":1,"method":"x","result":{}}`, cause: "together", id: "1"},
		{name: "a result without id", in: `{"jsonrpc":"2.0","result":{}}`, cause: "without an id"},
		{name: "a fractional id", in: `{"jsonrpc":"2.0","id":1.5,"result":{}}`, cause: "neither an integer"},
		{name: "an object as id", in: `{"jsonrpc":"2.0","id":{},"result":{}}`, cause: "neither an integer"},
		{name: "a string as params", in: `{"jsonrpc":"2.0","id":1,"method":"x","params":"y"}`, cause: "params that are", id: "1"},
		{name: "a number as method", in: `{"jsonrpc":"2.0","id":1,"method":5}`, cause: "not a string", id: "1"},
		{name: "a string as error", in: `{"jsonrpc":"2.0","id":1,"error":"boom"}`, cause: "error that is not", id: "1", answers: true},
		{name: "two ids", in: `{"jsonrpc":"2.0","id":1,"id":2,"result":{}}`, cause: "duplicate member id", id: "1", answers: true},
		{name: "two ids, one escaped", in: `{"jsonrpc":"2.0","id":1,"i\u0064":2,"result":{}}`, cause: "duplicate member id", id: "1", answers: true},
		{name: "two results", in: `{"jsonrpc":"2.0","id":1,"result":1,"result":2}`, cause: "duplicate member result", id: "1", answers: true},
		{name: "two unknown members", in: `{"jsonrpc":"2.0","id":1,"x":1,"x":2,"result":2}`, cause: "duplicate member", id: "1", answers: true},
		{name: "NaN before the id", in: `{"jsonrpc":"2.0","result":{"x":NaN},"id":12}`, cause: "malformed", id: "12", answers: true},
		{name: "NaN before a method", in: `{"jsonrpc":"2.0","id":12,"params":{"x":NaN},"method":"x"}`, cause: "malformed", id: "12"},
		{name: "a cut message", in: `{"jsonrpc":"2.0","id":12,"result":{"x"`, cause: "malformed", id: "12", answers: true},
		{name: "two messages on one line", in: `{"jsonrpc":"2.0","id":1,"result":{}}{"jsonrpc":"2.0","id":2,"result":{}}`, cause: "data after", id: "1", answers: true},
		{name: "a log line in JSON", in: `{"level":"error","id":1,"error":"boom","msg":"x"}`, cause: "not an object", id: "1"},
		{name: "a log line that has an id", in: `{"level":"info","id":1,"msg":"x"}`, cause: "no \"jsonrpc\"", id: "1"},
		{name: "many members", in: `{` + strings.Repeat(`"a":1,`, 1) + manyMembers(100) + `}`, cause: "too many"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Parse([]byte(c.in))
			if err == nil {
				t.Fatalf("Parse(%q) = %+v, want an error", c.in, m)
			}
			if !strings.Contains(err.Error(), c.cause) {
				t.Errorf("error %q does not say %q", err, c.cause)
			}
			if m.Kind != Invalid || string(m.ID) != c.id || m.Answers() != c.answers {
				t.Errorf("kind %d, id %q, answers %t; want kind 0, id %q, answers %t", m.Kind, m.ID, m.Answers(), c.id, c.answers)
			}
		})
	}
}

func manyMembers(n int) string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = `"k` + strings.Repeat("x", i) + `":0`
	}
	return strings.Join(keys, ",")
}

func TestParseOfAnAnswerDoesNotAllocate(t *testing.T) {
	msg := []byte(`{"jsonrpc":"2.0","id":12345,"result":{"content":[{"type":"text","text":"hi \u00e9 \"there\""}]}}`)
	if n := testing.AllocsPerRun(100, func() {
		m, err := Parse(msg)
		if id, ok := m.ID.Int(); err != nil || !ok || id != 12345 {
			t.Fatalf("id %d, %t, err %v", id, ok, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestDecodeErrorKeepsDataAndRefusesOddShapes(t *testing.T) {
	e, err := DecodeError(json.RawMessage(`{ "message":"a <b>", "code":-32001, "data": {"n":1.0} }`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Error{Code: -32001, Message: "a <b>", Data: json.RawMessage(`{"n":1.0}`)}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{`{}`, `{"message":"x"}`, `{"code":"1"}`, `{"code":1.5}`, `{"code":1,"message":2}`, `{"Code":1}`} {
		if e, err := DecodeError(json.RawMessage(bad)); err == nil {
			t.Errorf("DecodeError(%s) = %+v, want an error", bad, e)
		}
	}
}

func TestHeadFindsTheIDWhereverItStands(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	nested := `{"id":99,"s":"\"id\":98,","a":[{"id":97},"}"],"` + big + `":"\\"}`
	for _, c := range []struct {
		name, in, id  string
		answers, asks bool
	}{
		{"before the result", `{"jsonrpc":"2.0","id":5,"result":` + nested + `}`, "5", true, false},
		{"after the result", `{"jsonrpc":"2.0","result":` + nested + `,"id" : "a\"b" }`, `"a\"b"`, true, false},
		{"last, without the end", `{"result":` + nested + `,"id":7,`, "7", true, false},
		{"escaped", `{"result":` + nested + `,"\u0069d":8}`, "8", true, false},
		{"in a request", `{"jsonrpc":"2.0","params":` + nested + `,"id":9,"method":"x"}`, "9", false, true},
		{"null", `{"jsonrpc":"2.0","result":` + nested + `,"id":null}`, "", false, false},
		{"twice", `{"jsonrpc":"2.0","id":1,"result":` + nested + `,"id":2}`, "", false, false},
		{"too long", `{"jsonrpc":"2.0","id":"` + big + `","result":1}`, "", false, false},
		{"in an array", `[{"id":1}]`, "", false, false},
		{"behind a banner", `hello {"id":1}`, "", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{1, 7, 4096, 1 << 30} {
				var h Head
				for rest := []byte(c.in); len(rest) > 0; {
					n := min(size, len(rest))
					h.Write(rest[:n])
					rest = rest[n:]
				}
				if string(h.ID()) != c.id || h.Answers() != c.answers || h.Asks() != c.asks {
					t.Errorf("in pieces of %d: id %q, answers %t, asks %t; want %q, %t, %t",
						size, h.ID(), h.Answers(), h.Asks(), c.id, c.answers, c.asks)
				}
			}
		})
	}
}
