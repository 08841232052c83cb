package verdict_test

import (
	"strings"
	"testing"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/source"
	"github.com/toolherd/toolherd/services/registry/internal/verdict"
)

// seeded has a literal secret, each beginning with "seeded", in every place that may hold one.
const seeded = `{
  "stdio": {"command": "x", "args": ["--api-key=seeded-arg-1", "--token", "seeded-arg-2"], "env": {"TOKEN": "seeded-env", "PLAIN": "seeded-too"},
            "apiKey": "seeded-extra", "nested": {"list": [{"password": "seeded-deep"}]}},
  "http": {"url": "https://user:seeded-userinfo@example.com/mcp?token=seeded-query", "headers": {"X-Any": "seeded-header"}},
  "oauth": {"url": "https://example.com", "oauth": {"token_url": "https://example.com/t", "client_secret": "seeded-client", "refresh_token": "seeded-refresh",
            "extra_token_params": {"p": "seeded-param"}}},
  "auth": {"url": "https://example.com", "auth": {"type": "oauth", "client_secret": "seeded-auth"}},
  "users": {"url": "https://example.com", "user_auth": {"users": {"bob": "seeded-user"}}},
  "invalid": {"command": "x", "env": ["TOKEN=seeded-list"], "headers": "seeded-text"},
  "shape": "seeded-shape",
  "twice": {"command": "x", "env": {"A": "seeded-first", "A": "seeded-second"}},
  "disabled": {"command": "x", "enabled": false, "env": {"A": "seeded-disabled"}}
}`

// SNAP-007
func TestNoLiteralSecretIsInASnapshot(t *testing.T) {
	for name, files := range map[string][]source.File{
		"user":              {user(seeded)},
		"untrusted project": {project(seeded)},
		"interceptor":       {file(snapshot.User, "i.json", `{"mcpInterceptors":["grpc://user:seeded-interceptor@127.0.0.1:9"],"mcpServers":{"a":{"url":"https://example.com"}}}`)},
		"broken":            {user("{\"a\":{\"command\":\"x\",\n\"env\":{\"TOKEN\":\"seeded-broken\" \"B\":1}}}")},
	} {
		t.Run(name, func(t *testing.T) {
			r := judge(t, verdict.Policy{}).Decide(files)
			_, content, err := r.Content.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if at := strings.Index(string(content), "seeded"); at >= 0 {
				t.Errorf("the snapshot has a secret: …%s…", content[max(0, at-100):min(len(content), at+60)])
			}
		})
	}
}

// SNAP-007
func TestARotatedSecretChangesFingerprintAndSnapshot(t *testing.T) {
	decide := func(entry string) (*snapshot.Entry, snapshot.ID) {
		r := judge(t, verdict.Policy{}).Decide([]source.File{user(`{"a":` + entry + `}`)})
		id, _, err := r.Content.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return find(t, r, "a"), id
	}
	for name, pair := range map[string][2]string{
		"env":    {`{"command":"x","env":{"K":"one"}}`, `{"command":"x","env":{"K":"two"}}`},
		"header": {`{"url":"https://example.com","headers":{"K":"one"}}`, `{"url":"https://example.com","headers":{"K":"two"}}`},
		"arg":    {`{"command":"x","args":["--token=one1one1"]}`, `{"command":"x","args":["--token=two2two2"]}`},
		"query":  {`{"url":"https://example.com?token=one1one1"}`, `{"url":"https://example.com?token=two2two2"}`},
	} {
		one, oneID := decide(pair[0])
		two, twoID := decide(pair[1])
		again, againID := decide(pair[0])
		if len(one.Secrets) != 1 {
			t.Errorf("%s: %d secrets were found in %s", name, len(one.Secrets), one.JSON)
		}
		if one.Fingerprint == two.Fingerprint || oneID == twoID {
			t.Errorf("%s: rotation changed nothing", name)
		}
		if one.Fingerprint != again.Fingerprint || oneID != againID {
			t.Errorf("%s: equal secrets make different snapshots", name)
		}
	}
}

func TestAReferenceToASecretCannotBeForged(t *testing.T) {
	r := judge(t, verdict.Policy{}).Decide([]source.File{user(
		`{"a":{"command":"x","env":{"K":"mine"},"extra":{"$secret":"extra","mac":"00"},"more":{"x":{"$secret":"env.K","mac":"00"}}}}`)})
	a := find(t, r, "a")
	if a.Secrets["env.K"] == "" {
		t.Errorf("secrets are %v, want that of env.K among them", a.Secrets)
	}
	for path, mac := range a.Secrets {
		if path == "extra" || mac == "00" {
			t.Errorf("%s refers to a digest that was written by hand, %s", path, mac)
		}
	}
	for _, l := range r.Literals {
		if l.MAC != a.Secrets[l.FieldPath] || (l.FieldPath == "env.K") != (l.Value == "mine") {
			t.Errorf("literal is %+v, digests are %v", l, a.Secrets)
		}
	}
}
