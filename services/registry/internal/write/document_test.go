package write

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func compose(t *testing.T, stored string, servers, others []Member) string {
	t.Helper()
	var before []byte
	if stored != "" {
		before = []byte(stored)
	}
	got, err := Compose(before, servers, others)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(got) {
		t.Fatalf("no JSON: %s", got)
	}
	return string(got)
}

func m(key, value string) Member { return Member{key, json.RawMessage(value)} }

// API-020
func TestANewFileIsIndentedByTwo(t *testing.T) {
	got := compose(t, "", []Member{m("a", `{"command":"npx","args":["-y","p"],"n":1.10,"e":{}}`), m("b", `{"url":"http://h/?a&b<c>"}`)}, nil)
	want := `{
  "mcpServers": {
    "a": {
      "command": "npx",
      "args": [
        "-y",
        "p"
      ],
      "n": 1.10,
      "e": {}
    },
    "b": {
      "url": "http://h/?a&b<c>"
    }
  }
}
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := compose(t, "", nil, nil); got != "{\n  \"mcpServers\": {}\n}\n" {
		t.Errorf("without servers: %s", got)
	}
}

// API-023
func TestWhatIsNotTouchedStandsByteForByte(t *testing.T) {
	const stored = "\ufeff" + `{"skills":{"a" :1.10,  "b":[ 9007199254740993 ]}, "$schema":"x","mcp_servers":{"keep":{ "command":"\u0078","n":1e5 },
   "edit":{"command":"old"},"drop":{"command":"x"}},
 "middlewares":[{"k":"\/"}],"mcpInterceptors":[ "a:b" ],"mystery":null,"notes":"\u00e9"}`
	got := compose(t, stored, []Member{m("new", `{"url":"u"}`), m("edit", `{"command":"new"}`), m("keep", `{"n":1e5,"command":"x"}`)},
		[]Member{m("fresh", `[1]`), m("notes", `"other"`), m("mcpInterceptors", `["a:b"]`)})
	want := `{
  "skills": {"a" :1.10,  "b":[ 9007199254740993 ]},
  "$schema": "x",
  "mcp_servers": {
    "keep": { "command":"\u0078","n":1e5 },
    "edit": {
      "command": "new"
    },
    "new": {
      "url": "u"
    }
  },
  "middlewares": [{"k":"\/"}],
  "mcpInterceptors": [ "a:b" ],
  "mystery": null,
  "notes": "other",
  "fresh": [
    1
  ]
}
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if again := compose(t, got, []Member{m("new", `{"url":"u"}`), m("edit", `{"command":"new"}`), m("keep", `{"n":1e5,"command":"x"}`)}, nil); again != got {
		t.Errorf("a second time:\n%s", again)
	}
	if _, err := Compose([]byte(`{`), nil, nil); err == nil {
		t.Error("broken JSON was composed into")
	}
}
