package activation

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

func newActivator(vars map[string]string) *Activator {
	return New(Options{
		Environment: func() func(string) (string, bool) {
			return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
		},
		Redactor: secret.NewRedactor(), MaxNameLength: 64,
	})
}

func wire(raw, class string) *registryv1.ServerEntry {
	return &registryv1.ServerEntry{
		Name: "s", State: registryv1.EntryState_ENTRY_STATE_ACTIVE, EntryJson: raw,
		Fingerprint: serverconfig.Fingerprint(json.RawMessage(raw)), SourceClass: class,
	}
}

func judge(t *testing.T, raw string) *Entry {
	t.Helper()
	e := newActivator(nil).judge(wire(raw, "explicit"))
	if !e.Startable() {
		t.Fatalf("%s is refused: %s", raw, e.Reason)
	}
	return e
}

// NAME-015: effective routing is the server's, overlaid by what the tool sets; a server that is off stays off.
// A listed tool has routing only if its effective mode is not off.
func TestRouting(t *testing.T) {
	prefer := func(priority int32, keywords ...string) *toolproxyv1.Routing {
		return &toolproxyv1.Routing{Mode: "prefer", Priority: priority, Keywords: keywords}
	}
	for _, tc := range []struct {
		entry string
		want  *toolproxyv1.Routing
	}{
		{`{"command":"c"}`, nil},
		{`{"command":"c","routing":{"mode":"prefer","priority":5,"keywords":["a"]}}`, prefer(5, "a")},
		{`{"command":"c","routing":{"mode":"prefer","priority":5,"keywords":["a"]},"tools":{"t":{"routing":{"priority":9}}}}`, prefer(9, "a")},
		{`{"command":"c","routing":{"mode":"prefer","keywords":["a"]},"tools":{"t":{"routing":{"keywords":["b","c"]}}}}`, prefer(0, "b", "c")},
		{`{"command":"c","routing":{"mode":"prefer"},"tools":{"t":{"routing":{"mode":"off"}}}}`, nil},
		{`{"command":"c","tools":{"t":{"routing":{"priority":9}}}}`, nil},
		{`{"command":"c","tools":{"t":{"routing":{"mode":"prefer","priority":900}}}}`, prefer(100)},
		{`{"command":"c","tools":{"other":{"routing":{"mode":"prefer"}}}}`, nil},
	} {
		got := judge(t, tc.entry).Rules.Routing("t")
		if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", tc.entry, diff)
		}
	}
}

func TestLimitsSayWhereTheyComeFrom(t *testing.T) {
	a := newActivator(nil)
	for _, tc := range []struct {
		entry     string
		call, max upstream.Limit
		init      time.Duration
	}{
		{
			`{"command":"c"}`,
			upstream.Limit{Duration: 300 * time.Second, Source: "default.tool_call_timeout"},
			upstream.Limit{Duration: time.Hour, Source: "default.tool_call_max_timeout"}, time.Minute,
		},
		{
			`{"command":"c","tool_call_timeout":300,"tool_call_max_timeout":"2h","session_init_timeout":5}`,
			upstream.Limit{Duration: 300 * time.Second, Source: "server.tool_call_timeout"},
			upstream.Limit{Duration: 2 * time.Hour, Source: "server.tool_call_max_timeout"}, 5 * time.Second,
		},
		{
			`{"command":"c","tool_call_timeout":null,"session_init_timeout":null}`,
			upstream.Limit{Source: "server.tool_call_timeout"},
			upstream.Limit{Duration: time.Hour, Source: "default.tool_call_max_timeout"}, 0,
		},
	} {
		s, err := a.Activate(t.Context(), "snap", judge(t, tc.entry))
		if err != nil {
			t.Fatal(err)
		}
		if s.CallTimeout != tc.call || s.CallMaxTimeout != tc.max || s.InitTimeout != tc.init {
			t.Errorf("%s: %+v, %+v, %v", tc.entry, s.CallTimeout, s.CallMaxTimeout, s.InitTimeout)
		}
	}
}

func TestActivationResolvesAndReleaseForgets(t *testing.T) {
	a := newActivator(map[string]string{"TOKEN": "tok-12345678", "DIR": "/opt/tools"})
	s, err := a.Activate(t.Context(), "snap", judge(t, `{"command":"${DIR}/run","args":["$DIR"],"env":{"T":"${TOKEN}","PATH":"/some/where/bin"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Command != "/opt/tools/run" || s.Args[0] != "/opt/tools" || s.Env["T"] != "tok-12345678" {
		t.Errorf("%s %q %q", s.Command, s.Args, s.Env)
	}
	if got := a.o.Redactor.Redact("tok-12345678 in /some/where/bin"); got != "*** in /some/where/bin" {
		t.Errorf("redacted: %s", got)
	}
	a.Release(s)
	if got := a.o.Redactor.Redact("a tok-12345678"); got != "a tok-12345678" {
		t.Errorf("after release: %s", got)
	}
}

func TestSameConnection(t *testing.T) {
	a := newActivator(nil)
	base := a.judge(wire(`{"command":"c"}`, "explicit"))
	for _, tc := range []struct {
		other *registryv1.ServerEntry
		want  bool
	}{
		{wire(`{"command":"c","description":"d","disabledTools":["x"]}`, "explicit"), true},
		{wire(`{"command":"d"}`, "explicit"), false},
		{wire(`{"command":"c"}`, "project"), false}, // other addresses may be reached
		{&registryv1.ServerEntry{Name: "s", State: registryv1.EntryState_ENTRY_STATE_DISABLED, EntryJson: `{"command":"c"}`}, false},
	} {
		if got := base.SameConnection(a.judge(tc.other)); got != tc.want {
			t.Errorf("%v: %v", tc.other, got)
		}
	}
}
