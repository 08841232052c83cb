package verdict_test

import (
	"testing"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/source"
	"github.com/toolherd/toolherd/services/registry/internal/verdict"
)

// SNAP-010
func TestABrokenUpdateLeavesTheLastGoodEntryInForce(t *testing.T) {
	j := judge(t, verdict.Policy{})
	j.Decide([]source.File{user(`{"a":{"command":"old","env":{"K":"literal"}},"b":{"command":"old"}}`)})
	r := j.Decide([]source.File{user(`{"a":{"command":7,"env":{"K":"other"}},"b":{"command":"new"},"c":{"command":7}}`)})
	expectStates(t, r, "a: active, stale", "b: active", "c: error")
	a := find(t, r, "a")
	mentions(t, "public entry", string(a.JSON), `"command":"old"`)
	mentions(t, "reason", a.Reason, "last good", "command", "a number", "~/.toolherd/.mcp.json")
	mentions(t, "fix", a.FixCommand, "edit ~/.toolherd/.mcp.json")
	mentions(t, "public entry", string(find(t, r, "b").JSON), `"command":"new"`)
	if len(r.Literals) != 1 || r.Literals[0].Value != "literal" {
		t.Errorf("the secrets are %v, want that of the last good entry", r.Literals)
	}
	// What is in the file now is what the API shows.
	mentions(t, "raw entry", string(r.Raw["a"].JSON), `"command":7`)

	r = j.Decide([]source.File{user(`{"a":{"command":"newer"}}`)})
	expectStates(t, r, "a: active")
	if e := find(t, r, "a"); e.Reason != "" || len(e.Problems) != 0 {
		t.Errorf("the mended entry has %q, %v", e.Reason, e.Problems)
	}
}

func TestTheLastGoodEntryIsThatOfTheSameFileOnly(t *testing.T) {
	j := judge(t, verdict.Policy{})
	j.Decide([]source.File{user(`{"a":{"command":"low"}}`)})
	r := j.Decide([]source.File{user(`{"a":{"command":"low"}}`), explicit(`{"a":{"command":7}}`)})
	expectStates(t, r, "a: error")
}

func TestALastGoodEntryIsForgottenWithItsEntry(t *testing.T) {
	j := judge(t, verdict.Policy{})
	j.Decide([]source.File{user(`{"a":{"command":"old"}}`)})
	j.Decide([]source.File{user(`{}`)})
	r := j.Decide([]source.File{user(`{"a":{"command":7}}`)})
	expectStates(t, r, "a: error")
}

func TestABrokenUpdateThatDisablesDoes(t *testing.T) {
	j := judge(t, verdict.Policy{})
	j.Decide([]source.File{user(`{"a":{"command":"old"}}`)})
	r := j.Decide([]source.File{user(`{"a":{"command":7,"enabled":false}}`)})
	expectStates(t, r, "a: disabled")
}

// CFG-012
func TestTheServersOfABrokenFileAreStale(t *testing.T) {
	f := user(`{"a":{"command":"old"},"b":{"command":"x","enabled":false}}`)
	broken := file(snapshot.User, f.Name, `{"mcpServers":{,}}`)
	f.Problem = broken.Problem
	r := judge(t, verdict.Policy{}).Decide([]source.File{f, explicit(`{"c":{"command":"x"}}`)})
	expectStates(t, r, "a: active, stale", "b: disabled, stale", "c: active", "<config:.mcp.json>: error")
	mentions(t, "reason", find(t, r, "a").Reason, "last good", "~/.toolherd/.mcp.json", "line 1")
	mentions(t, "reason", find(t, r, "<config:.mcp.json>").Reason, "last good content is in force")
}

func TestStaleProjectEntriesAreUntrustedAllTheSame(t *testing.T) {
	j := judge(t, verdict.Policy{})
	j.Decide([]source.File{project(`{"a":{"command":"old"}}`)})
	r := j.Decide([]source.File{project(`{"a":{"command":7}}`)})
	expectStates(t, r, "a: untrusted, stale")
}
