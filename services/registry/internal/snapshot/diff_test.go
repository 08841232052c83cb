package snapshot_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

func entry(name, definition string) snapshot.Entry {
	return snapshot.Entry{Name: name, State: snapshot.Active, Transport: "stdio", JSON: json.RawMessage(definition), Class: snapshot.User}
}

// SNAP-012
func TestDiffNamesServersAndFieldsWithSecretsMasked(t *testing.T) {
	const ref = `{"$secret":"env.K","mac":"`
	before := &snapshot.Content{Servers: []snapshot.Entry{
		entry("a", `{"args":["x","y"],"command":"old","env":{"K":`+ref+`aa"},"V":"${V}"},"url":{"$secret":"url","mac":"01","shown":"https://***@h"}}`),
		entry("gone", `{"command":"x"}`), entry("same", `{"command":"x"}`), entry("verdict", `{"command":"x"}`),
	}}
	before.Servers[0].Fingerprint = "1"
	after := &snapshot.Content{Interceptors: []string{"i"}, Servers: []snapshot.Entry{
		entry("a", `{"args":["x","z","w"],"command":"new","cwd":{"a.b":true},"env":{"K":`+ref+`bb"},"V":"${W}"},"url":{"$secret":"url","mac":"02","shown":"https://***@i"}}`),
		entry("fresh", `{"command":"x"}`), entry("same", `{"command":"x"}`), entry("verdict", `{"command":"x"}`),
	}}
	after.Servers[0].Fingerprint = "2"
	after.Servers[2].Source = "/elsewhere"
	after.Servers[3].State, after.Servers[3].Reason, after.Servers[3].Class = snapshot.Untrusted, "nobody trusts it", snapshot.Project

	got, err := snapshot.Diff(before, after)
	if err != nil {
		t.Fatal(err)
	}
	want := snapshot.Difference{
		Added: []string{"fresh"}, Removed: []string{"gone"},
		Interceptors: &snapshot.Field{Path: "mcpInterceptors", Before: `[]`, After: `["i"]`},
		Changed: []snapshot.Change{
			{Name: "a", Reconnects: true, Fields: []snapshot.Field{
				{Path: "args[1]", Before: `"y"`, After: `"z"`}, {Path: "args[2]", After: `"w"`},
				{Path: "command", Before: `"old"`, After: `"new"`}, {Path: "cwd", After: `{"a.b":true}`},
				{Path: "env.K", Before: `"***"`, After: `"***"`}, {Path: "env.V", Before: `"${V}"`, After: `"${W}"`},
				{Path: "url", Before: `"https://***@h"`, After: `"https://***@i"`},
			}},
			{Name: "verdict", Verdict: []snapshot.Field{
				{Path: "reason", After: `"nobody trusts it"`}, {Path: "source_class", Before: `"user"`, After: `"project"`},
				{Path: "state", Before: `"active"`, After: `"untrusted"`},
			}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
	if none, err := snapshot.Diff(before, before); err != nil || cmp.Diff(snapshot.Difference{}, none) != "" {
		t.Errorf("a content differs from itself by %v, %v", none, err)
	}
}

// What appears or goes as a whole is masked like the rest.
func TestDiffMasksInsideOfWhatAppears(t *testing.T) {
	got, err := snapshot.Diff(
		&snapshot.Content{Servers: []snapshot.Entry{entry("a", `{"command":"x"}`)}},
		&snapshot.Content{Servers: []snapshot.Entry{entry("a", `{"command":"x","env":{"K":{"$secret":"env.K","mac":"aa"},"P":"$HOME"}}`)}})
	if err != nil {
		t.Fatal(err)
	}
	want := []snapshot.Field{{Path: "env", After: `{"K":"***","P":"$HOME"}`}}
	if diff := cmp.Diff(want, got.Changed[0].Fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}
