package snapshot_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

func example() *snapshot.Content {
	return &snapshot.Content{
		Servers: []snapshot.Entry{
			{Name: "a", State: snapshot.Active, Transport: "stdio", JSON: json.RawMessage(`{"command":"<x>&","n":1.10}`), Fingerprint: "f", Source: "~/a", Class: snapshot.User, Secrets: map[string]string{"env.K": "00"}},
			{Name: "b", State: snapshot.Error, Transport: "http", Reason: "r", FixCommand: "f", Source: "~/b", Class: snapshot.Project, Problems: []snapshot.Problem{{Severity: "error", Path: "url", Reason: "missing", Message: "m", Hint: "h"}}},
			{Name: "<config:x>", Synthetic: true, State: snapshot.Error, Transport: "config", Reason: "r", Class: snapshot.Explicit},
		},
		Interceptors: []string{"i"},
	}
}

func encode(t *testing.T, c *snapshot.Content) (snapshot.ID, []byte) {
	t.Helper()
	id, content, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return id, content
}

// SNAP-005
func TestTheIDIsTheDigestOfTheCanonicalContent(t *testing.T) {
	c := example()
	for i := range c.Servers {
		c.Servers[i].Source = ""
	}
	id, content := encode(t, c)
	sum := sha256.Sum256(content)
	if want := snapshot.ID("snap_" + hex.EncodeToString(sum[:])[:32]); id != want || !id.Valid() {
		t.Errorf("id is %s, want %s", id, want)
	}
	const canonical = `{"interceptors":["i"],"servers":[` +
		`{"entry":{"command":"<x>&","n":1.10},"fingerprint":"f","name":"a","secrets":{"env.K":"00"},"source_class":"user","state":"active","transport":"stdio"},` +
		`{"fix_command":"f","name":"b","problems":[{"hint":"h","message":"m","path":"url","reason":"missing","severity":"error"}],"reason":"r","source_class":"project","state":"error","transport":"http"},` +
		`{"name":"<config:x>","reason":"r","source_class":"explicit","state":"error","synthetic":true,"transport":"config"}]}`
	if diff := cmp.Diff(canonical, string(content)); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
	if empty, content := encode(t, &snapshot.Content{}); string(content) != `{"interceptors":[],"servers":[]}` || !empty.Valid() {
		t.Errorf("the empty snapshot is %s, %s", empty, content)
	}
}

// SNAP-005
func TestTheIDChangesWithEverythingButTheSource(t *testing.T) {
	id, _ := encode(t, example())
	for name, change := range map[string]func(c *snapshot.Content){
		"name":        func(c *snapshot.Content) { c.Servers[0].Name = "aa" },
		"state":       func(c *snapshot.Content) { c.Servers[0].State = snapshot.Untrusted },
		"entry":       func(c *snapshot.Content) { c.Servers[0].JSON = json.RawMessage(`{"command":"<x>&","n":1.1}`) },
		"class":       func(c *snapshot.Content) { c.Servers[0].Class = snapshot.Project },
		"secret":      func(c *snapshot.Content) { c.Servers[0].Secrets["env.K"] = "01" },
		"stale":       func(c *snapshot.Content) { c.Servers[0].Stale = true },
		"reason":      func(c *snapshot.Content) { c.Servers[1].Reason = "s" },
		"problem":     func(c *snapshot.Content) { c.Servers[1].Problems[0].Message = "n" },
		"removal":     func(c *snapshot.Content) { c.Servers = c.Servers[1:] },
		"interceptor": func(c *snapshot.Content) { c.Interceptors = nil },
	} {
		c := example()
		change(c)
		if got, _ := encode(t, c); got == id {
			t.Errorf("a change of %s changes no id", name)
		}
	}
	c := example()
	c.Servers[0].Source = "/elsewhere"
	if got, content := encode(t, c); got != id || !strings.Contains(string(content), "/elsewhere") {
		t.Errorf("another source gives %s, want %s, and is kept", got, id)
	}
}

func TestDecodeReversesEncodeAndRefusesWhatWasChanged(t *testing.T) {
	id, content := encode(t, example())
	got, err := snapshot.Decode(id, content)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example(), got); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
	changed := strings.Replace(string(content), `"active"`, `"untrusted"`, 1)
	if _, err := snapshot.Decode(id, []byte(changed)); err == nil || !strings.Contains(err.Error(), string(id)) {
		t.Errorf("a changed content gives %v", err)
	}
	// A replica of an older version reads what a newer one wrote, and does not take it for damaged.
	newer := strings.Replace(string(content), `{"entry":`, `{"added":[1.10],"entry":`, 1)
	sum := sha256.Sum256([]byte(strings.NewReplacer(`"source":"~/a",`, "", `"source":"~/b",`, "").Replace(newer)))
	if got, err := snapshot.Decode(snapshot.ID("snap_"+hex.EncodeToString(sum[:16])), []byte(newer)); err != nil || got.Servers[0].Name != "a" {
		t.Errorf("a content with another field gives %v, %v", got, err)
	}
	if _, err := snapshot.Decode(id, []byte("{")); err == nil {
		t.Error("half a content is accepted")
	}
}

func TestCompareOrdersServersByCodePointsAndFilesLast(t *testing.T) {
	c := example()
	for i := 1; i < len(c.Servers); i++ {
		if snapshot.Compare(c.Servers[i-1], c.Servers[i]) >= 0 {
			t.Errorf("%s is not before %s", c.Servers[i-1].Name, c.Servers[i].Name)
		}
	}
}

func TestDescribeNamesWhatChanged(t *testing.T) {
	after := example()
	after.Servers[0].Source = "/elsewhere"
	if got := snapshot.Describe(example(), after); got != "" {
		t.Errorf("another source is described as %q", got)
	}
	after.Servers[0].State = snapshot.Disabled
	after.Servers[1].Name = "c"
	after.Interceptors = nil
	if got, want := snapshot.Describe(example(), after), "added c; changed a; removed b; changed mcpInterceptors"; got != want {
		t.Errorf("it is described as %q, want %q", got, want)
	}
	many := &snapshot.Content{}
	for _, n := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		many.Servers = append(many.Servers, snapshot.Entry{Name: n})
	}
	if got, want := snapshot.Describe(&snapshot.Content{}, many), "added a, b, c, d, e and 2 more"; got != want {
		t.Errorf("it is described as %q, want %q", got, want)
	}
}

func TestASecretIsBoundToItsPlace(t *testing.T) {
	seen := map[string]snapshot.Ref{}
	for _, r := range []snapshot.Ref{
		{Server: "a", FieldPath: "bc", MAC: "d"}, {Server: "ab", FieldPath: "c", MAC: "d"}, {Server: "a", FieldPath: "b", MAC: "cd"},
		{Server: "a1:b", FieldPath: "c", MAC: "d"}, {Server: "a", FieldPath: "1:bc", MAC: "d"},
	} {
		if other, ok := seen[string(r.Bind())]; ok {
			t.Errorf("%v and %v are bound alike", r, other)
		}
		seen[string(r.Bind())] = r
	}
}
