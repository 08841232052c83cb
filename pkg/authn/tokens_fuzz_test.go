package authn

import (
	"strings"
	"testing"
)

func FuzzParseTokens(f *testing.F) {
	f.Add("[]")
	f.Add("- {name: a, sha256: " + strings.Repeat("ab", 32) + ", roles: [agent], user_id: b}")
	f.Add("- &x {name: a, <<: *x}\n- *x")
	f.Add("- {? [a, b] : c}")
	f.Fuzz(func(t *testing.T, content string) {
		table, err := parseTokens([]byte(content))
		if err != nil {
			return
		}
		for _, p := range table {
			if p.Name == "" || len(p.Roles) == 0 || !p.Authenticated || p.ActAsAny && p.UserID != "" {
				t.Errorf("accepted %+v", p)
			}
			if _, err := p.Resolve(Scope{}); err != nil {
				t.Errorf("%+v cannot be resolved: %v", p, err)
			}
		}
	})
}
