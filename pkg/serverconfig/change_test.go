package serverconfig_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/serverconfig"
)

func TestSetEnabledChangesNothingElse(t *testing.T) {
	for _, c := range []struct{ in, on, off string }{
		{`{ "command" : "x" }`, `{ "command" : "x" }`, `{ "command" : "x" ,"enabled":false}`},
		{`{}`, `{}`, `{"enabled":false}`},
		{`{"enabled": true, "n":1.10}`, `{"enabled": true, "n":1.10}`, `{"enabled": false, "n":1.10}`},
		{`{"enabled":false}`, `{"enabled":true}`, `{"enabled":false}`},
		{`{"disabled":true}`, `{"disabled":false}`, `{"disabled":true}`},
		{`{"disabled":true,"enabled":true}`, `{"disabled":false,"enabled":true}`, `{"disabled":true,"enabled":false}`},
		{`{"disabled":false}`, `{"disabled":false}`, `{"disabled":false,"enabled":false}`},
		{`{"enabled":"yes","command":7}`, `{"enabled":true,"command":7}`, `{"enabled":false,"command":7}`},
		{`{"enabled":false,"enabled":false}`, `{"enabled":true,"enabled":true}`, `{"enabled":false,"enabled":false}`},
	} {
		for word, want := range map[bool]string{true: c.on, false: c.off} {
			got, ok := serverconfig.SetEnabled(json.RawMessage(c.in), word)
			if string(got) != want || !ok {
				t.Errorf("%s set to %v: %s, %v, want %s", c.in, word, got, ok, want)
			}
			if e, _ := serverconfig.Decode("x", got); e.Enabled != word {
				t.Errorf("%s set to %v: reads as %v", c.in, word, e.Enabled)
			}
		}
	}
	for _, bad := range []string{`[]`, `"x"`, `{`, `null`} {
		if got, ok := serverconfig.SetEnabled(json.RawMessage(bad), true); ok || string(got) != bad {
			t.Errorf("%s: %s, %v, want it as it is", bad, got, ok)
		}
	}
}

func TestOnlyListedVariables(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"command":"x","env":{"A":"${ONE}","B":"$TWO"}}`, ""},
		{`{"command":"${THREE}","args":["a${ONE}${FOUR:-x}"],"env":{"A":"$FIVE"},"cwd":"${SIX}"}`, "command THREE, args[0] FOUR, env.A FIVE, cwd SIX"},
		{`{"url":"https://${H}/","headers":{"A":"Bearer ${T}"},"oauth":{"client_secret":"$S"},"user_auth":{"users":{"bob":"$B"},"header":"$X"}}`,
			"url H, headers.A T, oauth.client_secret S, user_auth.users.bob B"},
		{`{"url":"https://h/","command":"","env":{"A":"$NOT"},"description":"$NOT","x":"${NOT}"}`, ""},
		{`{"command":"$$ESC","args":["$${NOT}","pa$$word","${bro"]}`, ""},
		{`{"command":"${TOOLHERD_EXECUTABLE}"}`, "command TOOLHERD_EXECUTABLE"},
	} {
		var got []string
		for _, p := range serverconfig.CheckVariables("srv", json.RawMessage(c.in), []string{"ONE", "TWO"}) {
			name := strings.Fields(p.Message)[2]
			got = append(got, p.Path+" "+name)
			if p.Severity != serverconfig.SeverityError || p.Server != "srv" || !strings.Contains(p.Message, "registry.env_refs") {
				t.Errorf("%s: %v, want an error that names the setting", c.in, p)
			}
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s: %q, want %q", c.in, s, c.want)
		}
	}
}
