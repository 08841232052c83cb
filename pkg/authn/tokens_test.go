package authn_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/authn"
)

func open(t *testing.T, content string) (*authn.Tokens, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return authn.OpenTokens(path, slog.New(slog.DiscardHandler))
}

func TestTokensRecogniseTheirOwners(t *testing.T) {
	alice, aliceSum := authn.NewToken()
	runtime, runtimeSum := authn.NewToken()
	tokens, err := open(t, fmt.Sprintf(`
- name: alice
  sha256: %s
  roles: [agent, operator, agent]
  user_id: alice
- {name: runtime, sha256: %s, roles: [agent], act_as: any}
`, aliceSum, strings.ToUpper(runtimeSum)))
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]*authn.Principal{
		alice:          {Name: "alice", Roles: []authn.Role{authn.Agent, authn.Operator}, UserID: "alice", Authenticated: true},
		runtime:        {Name: "runtime", Roles: []authn.Role{authn.Agent}, ActAsAny: true, Authenticated: true},
		aliceSum:       nil, // the hash is not the token
		alice + "x":    nil,
		"":             nil,
		alice[:20]:     nil,
		" " + alice:    nil,
		"thd_unknown0": nil,
	} {
		got, ok := tokens.Lookup(token)
		if ok != (want != nil) {
			t.Errorf("Lookup found %v, want %v", got, want)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("principal (-want +got):\n%s", diff)
		}
	}
}

func TestNewTokensDiffer(t *testing.T) {
	a, sumA := authn.NewToken()
	b, sumB := authn.NewToken()
	if a == b || sumA == sumB || len(sumA) != 64 || !strings.HasPrefix(a, "thd_") {
		t.Errorf("got %d and %d bytes, sums %s and %s", len(a), len(b), sumA, sumB)
	}
}

func TestOpenTokensSaysWhatIsWrong(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	for content, want := range map[string]string{
		"":                                    "write []",
		"tokens: []":                          "want a list",
		"- alice":                             "line 1: want {name, sha256",
		"[{name: a, sha256: ":                 "yaml",
		"- {name: a, sha: x, roles: [agent]}": `unknown key "sha"`,
		"- {name: a, role: [agent]}":          `did you mean "roles"?`,
		"- {name: a, userid: b}":              `did you mean "user_id"?`,
		"- {name: a, Name: b}":                `did you mean "name"?`,
		"- {name: a, zebra: b}":               `unknown key "zebra": want name, sha256`,
		"- {name: a, name: b}":                `"name" is given twice`,
		"- {sha256: " + sum + ", roles: [agent]}":                                                                                         "without a name",
		"- {name: a, sha256: 1234, roles: [agent]}":                                                                                       "64 hex digits",
		"- {name: a, sha256: " + sum + "}":                                                                                                "no roles",
		"- {name: a, sha256: " + sum + ", roles: [admin]}":                                                                                `unknown role "admin": want one of agent, operator, worker, toolproxy, notifier`,
		"- {name: a, sha256: " + sum + ", roles: agent}":                                                                                  "cannot unmarshal",
		"- {name: a, sha256: " + sum + ", roles: [agent], act_as: bob}":                                                                   "the only value is `any`",
		"- {name: a, sha256: " + sum + ", roles: [agent], act_as: any, user_id: b}":                                                       "exclude each other",
		"- {name: a, sha256: " + sum + ", roles: [agent], user_id: ''}":                                                                   "user_id is empty",
		"- {name: a, sha256: " + sum + ", roles: [agent], user_id: \"a\\tb\"}":                                                            "control character",
		"- {name: a, sha256: " + sum + ", roles: [agent]}\n- {name: b, sha256: " + sum + ", roles: [agent]}":                              `line 2: tokens "a" and "b" have the same sha256`,
		"- {name: a, sha256: " + sum + ", roles: [agent]}\n- {name: a, sha256: " + strings.Repeat("cd", 32) + ", roles: [agent]}":         `name "a" is taken by the token in line 1`,
		"- {name: a, sha256: " + sum + ", roles: [agent]}\n- {name: b, sha256: " + strings.ToUpper(sum) + ", roles: [agent], user_id: x}": "have the same sha256",
	} {
		_, err := open(t, content)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "tokens.yaml") {
			t.Errorf("%q: error %v, want one with the path and %q", content, err, want)
		}
	}
	if _, err := open(t, "[]"); err != nil {
		t.Errorf("an empty list: %v", err)
	}
}

func TestTokensFollowTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		write := func(content string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		old, oldSum := authn.NewToken()
		fresh, freshSum := authn.NewToken()
		write("- {name: a, sha256: " + oldSum + ", roles: [agent]}")
		var out strings.Builder
		tokens, err := authn.OpenTokens(path, slog.New(slog.NewTextHandler(&out, nil)))
		if err != nil {
			t.Fatal(err)
		}

		write("- {name: a, sha256: " + freshSum + ", roles: [agent]}")
		if _, ok := tokens.Lookup(old); ok {
			t.Error("a removed token is still known")
		}
		if _, ok := tokens.Lookup(fresh); !ok {
			t.Error("an added token is not known")
		}

		write("- {name: a, sha256: " + oldSum + ", rolls: [agent]}")
		if _, ok := tokens.Lookup(fresh); !ok {
			t.Error("a broken edit dropped the last good tokens")
		}
		if _, ok := tokens.Lookup(old); ok {
			t.Error("a broken edit was taken in")
		}
		if n := strings.Count(out.String(), "level=WARN"); n != 1 || !strings.Contains(out.String(), "did you mean") {
			t.Errorf("%d warnings, want one that explains:\n%s", n, out.String())
		}
	})
}
