package mark_test

import (
	"testing"

	"github.com/toolherd/toolherd/services/registry/internal/mark"
)

func TestADefinitionIsTheEntryWithoutItsLiteralsAndItsSwitch(t *testing.T) {
	const entry = `{"command":"npx","args":["--token=abcdef"],"env":{"A":"literal","B":"${B}"},"enabled":true}`
	want := mark.Definition("srv", []byte(entry))
	for _, same := range []string{
		`{"env":{"B":"${B}","A":"literal"}, "command":"npx","args":["--token=abcdef"]}`,
		`{"command":"npx","args":["--token=ghijkl"],"env":{"A":"rotated","B":"${B}"},"enabled":false}`,
		`{"command":"npx","args":["--token=abcdef"],"env":{"A":"literal","B":"${B}"},"disabled":true}`,
	} {
		if got := mark.Definition("srv", []byte(same)); got != want {
			t.Errorf("%s has another definition", same)
		}
	}
	for _, other := range []string{
		`{"command":"npx","args":["--token=abcdef"],"env":{"A":"${A}","B":"${B}"}}`,
		`{"command":"npx","args":["--token=abcdef"],"env":{"A":"literal","B":"${C}"}}`,
		`{"command":"npx","args":["--token=${T}"],"env":{"A":"literal","B":"${B}"}}`,
		`{"command":"uvx","args":["--token=abcdef"],"env":{"A":"literal","B":"${B}"}}`,
		`{"command":"npx","args":["--token=abcdef"],"env":{"A":"literal","B":"${B}"},"cwd":"${HOME}"}`,
		`{}`, `"x"`, `7`, `[`,
	} {
		if got := mark.Definition("srv", []byte(other)); got == want || len(got) != 64 {
			t.Errorf("%s has the same definition", other)
		}
	}
}

func TestMarksCountForTheirPlace(t *testing.T) {
	at := mark.Place{Path: "/a", Server: "srv"}
	raw := []byte(`{"command":"x"}`)
	s := mark.Set{Overlays: []mark.Overlay{{Place: at}}, Written: []mark.Written{{Place: at, Definition: mark.Definition("srv", raw)}}}
	if enabled, ok := s.Enabled(at); enabled || !ok {
		t.Errorf("the overlay says %v, %v", enabled, ok)
	}
	if !s.IsWritten(at, raw) || s.IsWritten(at, []byte(`{"command":"y"}`)) {
		t.Error("the written definition is not told from another")
	}
	for _, other := range []mark.Place{{Path: "/b", Server: "srv"}, {Path: "/a", Server: "x"}} {
		if _, ok := s.Enabled(other); ok || s.IsWritten(other, raw) {
			t.Errorf("a mark counts for %v", other)
		}
	}
}
