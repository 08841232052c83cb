package verdict_test

import (
	"strings"
	"testing"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/source"
	"github.com/toolherd/toolherd/services/registry/internal/verdict"
)

// Whatever a file says, there is a verdict on it that can be published, and equal files get equal verdicts.
func FuzzDecide(f *testing.F) {
	for _, seed := range []string{
		seeded, `{}`, `null`, `{"a":null}`, `{"a":{"command":"x"}}`, `{"a":{"url":"https://example.com","headers":{"A":"b","a":"c"}}}`,
		`{"<config:.mcp.json>":{"command":"x"}}`, `{"":{}}`, `{"a":{"command":"x","x":{"$secret":"x","mac":"00"}}}`,
		`{"a":{"command":"x","env":{"K":"\u0000\ud800"}}}`, `{"a":{"command":"x","n":1e400}}`,
		`{"a":` + strings.Repeat(`{"a":`, 60) + `1` + strings.Repeat(`}`, 60) + `}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, servers string) {
		files := []source.File{user(servers), project(servers), file(snapshot.Explicit, "whole.json", servers)}
		j := judge(t, verdict.Policy{TrustProject: len(servers)%2 == 0})
		first := j.Decide(files)
		id, content, err := first.Content.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := snapshot.Decode(id, content); err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for i, e := range first.Content.Servers {
			if names[e.Name] {
				t.Errorf("two entries are called %q", e.Name)
			}
			names[e.Name] = true
			if i > 0 && snapshot.Compare(first.Content.Servers[i-1], e) >= 0 {
				t.Errorf("%q is not before %q", first.Content.Servers[i-1].Name, e.Name)
			}
			if (e.Reason == "") != (e.State == snapshot.Active && !e.Stale) {
				t.Errorf("%q is %s and its reason is %q", e.Name, e.State, e.Reason)
			}
		}
		for _, l := range first.Literals {
			if e := first.Content.Find(l.Server); e.State != snapshot.Active || e.Secrets[l.FieldPath] != l.MAC {
				t.Errorf("a literal is handed on for %q, which is %s", l.Server, e.State)
			}
		}
		second := j.Decide(files)
		if again, _, err := second.Content.Encode(); err != nil || again != id {
			t.Errorf("the second verdict is %s, %v, the first was %s", again, err, id)
		}
	})
}
