package rawrpc_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolherd/toolherd/test/rawrpc"
)

func TestParseKeepsTheBytesOfTheParts(t *testing.T) {
	got, err := rawrpc.Parse([]byte(" {\"jsonrpc\":\"2.0\",\"ID\":7,\"id\": 1.0 ,\"result\":{ \"b\":1e400,\"a\":[\"\xff\"]},\"x\":1}\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := rawrpc.Message{ID: json.RawMessage("1.0"), Result: json.RawMessage("{ \"b\":1e400,\"a\":[\"\xff\"]}")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseRefusesWhatIsNoMessage(t *testing.T) {
	for _, s := range []string{
		"", "x", "null", "42", `"s"`, "{}", `{"jsonrpc":"1.0","id":1,"result":1}`, `{"jsonrpc":"2.0","id":1}`, `{"jsonrpc":"2.0","method":7}`,
		`{"jsonrpc":"2.0","id":1,"result":1`, `{"jsonrpc":"2.0","id":1,"result":1} {}`, "\xef\xbb\xbf" + `{"jsonrpc":"2.0","id":1,"result":1}`,
	} {
		if m, err := rawrpc.Parse([]byte(s)); err == nil {
			t.Errorf("%q is %+v", s, m)
		}
	}
	if _, err := rawrpc.Parse([]byte(` [{"jsonrpc":"2.0","id":1,"result":1}]`)); !errors.Is(err, rawrpc.ErrBatch) {
		t.Errorf("a batch: %v", err)
	}
}

func TestKindsOfMessages(t *testing.T) {
	for s, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"method":"m"}`:               "request",
		`{"jsonrpc":"2.0","id":"a","method":"m","params":[]}`: "request",
		`{"jsonrpc":"2.0","method":"m"}`:                      "notification",
		`{"jsonrpc":"2.0","id":1,"result":null}`:              "response",
		`{"jsonrpc":"2.0","id":null,"error":{"code":1}}`:      "response",
	} {
		m, err := rawrpc.Parse([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		got := map[bool]string{m.IsRequest(): "request", m.IsNotification(): "notification", m.IsResponse(): "response"}[true]
		if got != want {
			t.Errorf("%s is a %s, want a %s", s, got, want)
		}
	}
}

func TestEncodedMessagesAreParsedAgain(t *testing.T) {
	for _, b := range [][]byte{
		rawrpc.Request(rawrpc.ID(7), "m", json.RawMessage(`{"a":1.0}`)), rawrpc.Request(rawrpc.ID(7), "m", nil),
		rawrpc.Notification("n", nil), rawrpc.Result(rawrpc.Quote("x"), json.RawMessage(`{"<":"&"}`)), rawrpc.Failure(nil, rawrpc.Errorf(-1, "<%s>", "e")),
	} {
		if _, err := rawrpc.Parse(b); err != nil {
			t.Errorf("%s: %v", b, err)
		}
	}
	if got, want := string(rawrpc.Failure(nil, rawrpc.Errorf(-1, "<%s>", "e"))), `{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"<e>"}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPrependPutsAMemberInFront(t *testing.T) {
	for object, want := range map[string]string{
		"": `{"k":1}`, "{}": `{"k":1}`, "{ }": `{"k":1}`, `{"a":2}`: `{"k":1,"a":2}`, ` { "a" : 2 }`: `{"k":1,"a" : 2 }`, "[1]": "[1]", "{": "{",
	} {
		if got := string(rawrpc.Prepend(json.RawMessage(object), "k", json.RawMessage("1"))); got != want {
			t.Errorf("Prepend(%q) = %s, want %s", object, got, want)
		}
	}
}

func TestEventsSurviveTheWire(t *testing.T) {
	want := []rawrpc.Event{{Name: "message", Data: []byte(`{"a":1}`)}, {ID: "7", Data: []byte("two\nlines")}, {Name: "last"}}
	var wire bytes.Buffer
	for _, e := range want {
		wire.WriteString(": comment\n\n")
		wire.Write(e.Bytes())
	}
	wire.WriteString("data: without an end")
	var got []rawrpc.Event
	if err := rawrpc.Events(&wire, func(e rawrpc.Event) bool { got = append(got, e); return true }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	odd := "data:a\r\nevent:x\r\n\r\nretry: 5\n\n\n"
	got = nil
	if err := rawrpc.Events(strings.NewReader(odd), func(e rawrpc.Event) bool { got = append(got, e); return true }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]rawrpc.Event{{Name: "x", Data: []byte("a")}}, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1.0]}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"m"}}`))
	f.Add([]byte(`[{}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := rawrpc.Parse(b)
		if err != nil || m.Result == nil || m.ID == nil || m.Method != "" {
			return
		}
		again, err := rawrpc.Parse(rawrpc.Result(m.ID, m.Result))
		if err != nil || !bytes.Equal(again.Result, m.Result) || !bytes.Equal(again.ID, m.ID) {
			t.Errorf("%q came back as %+v, %v", b, again, err)
		}
	})
}
