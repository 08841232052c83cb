package jsonrpc

import (
	"bytes"
	"encoding/json"
	"testing"
)

var seeds = []string{
	`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hi"}]}}`,
	`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"a":[1,-0.5e+10,true,false,null,"\ud83d\ude00\\\"/"]}}`,
	`{"jsonrpc":"2.0","error":{"code":-32601,"message":"\u0000"},"id":9223372036854775807}`,
	`[{"a":{"b":[[[]]]}}]`, `{"a":1,"a":2}`, "{\"k\xff\":\"\xff\"}", `{"id":01}`, `1e`, `-`, `""`, `{"a" : }`, `[1,]`, `{,}`,
}

// Valid must agree with encoding/json, whose decoders read the values later.
func FuzzValidAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, want := Valid(data), json.Valid(data); got != want {
			t.Errorf("Valid(%q) = %t, encoding/json says %t", data, got, want)
		}
	})
}

// Whatever Parse accepts reads the same to encoding/json and survives a round trip.
func FuzzParse(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data)
		if err != nil {
			if m.Kind != Invalid {
				t.Errorf("kind %d beside the error %v", m.Kind, err)
			}
			return
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(data, &members); err != nil {
			t.Fatalf("Parse accepts %q, encoding/json does not: %v", data, err)
		}
		for name, got := range map[string]json.RawMessage{"id": json.RawMessage(m.ID), "params": m.Params, "result": m.Result, "error": m.Error} {
			if want := members[name]; !bytes.Equal(got, want) && (got != nil || string(want) != "null") {
				t.Errorf("%q: %s = %q, encoding/json reads %q", data, name, got, want)
			}
			if got := Member(data, name); !bytes.Equal(got, members[name]) {
				t.Errorf("%q: Member(%s) = %q, encoding/json reads %q", data, name, got, members[name])
			}
		}
		var h Head
		h.Write(data)
		if !bytes.Equal(h.ID(), m.ID) {
			t.Errorf("%q: Head reads id %q, Parse %q", data, h.ID(), m.ID)
		}
		line := encode(m)
		if bytes.ContainsAny(line, "\n\r") || !json.Valid(line) {
			t.Errorf("%q became %q", data, line)
		}
	})
}

func encode(m Message) []byte {
	switch m.Kind {
	case Request:
		return AppendRequest(nil, 1, m.Method, m.Params)
	case Notification:
		return AppendNotification(nil, m.Method, m.Params)
	case Response:
		return AppendResult(nil, m.ID, m.Result)
	default:
		return AppendError(nil, m.ID, &Error{Data: m.Error})
	}
}

func FuzzAppendString(f *testing.F) {
	f.Add("plain <&> \u2028 \x00 \xff é \"\\")
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		if err := json.Unmarshal(AppendString(nil, s), &got); err != nil {
			t.Fatal(err)
		}
		if want := string(bytes.ToValidUTF8([]byte(s), nil)); len(want) == len(s) && got != s {
			t.Errorf("%q came back as %q", s, got)
		}
	})
}
