package setup

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/secret"
)

func TestWhatIsMadeFitsTogether(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	if made, err := Make(dir, []string{"tools.example.com", "10.0.0.7"}); err != nil || !made {
		t.Fatalf("made %t, %v", made, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content(t, dir, "ca.pem")) {
		t.Fatal("ca.pem holds no certificate")
	}
	for _, name := range services() {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{name, "localhost", "127.0.0.1", "tools.example.com", "10.0.0.7"} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host}); err != nil {
				t.Errorf("certificate of %s for %s: %v", name, host, err)
			}
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("certificate of %s as a client's: %v", name, err)
		}
		if err := pair.Leaf.VerifyHostname("elsewhere"); err == nil {
			t.Errorf("the certificate of %s is for any host", name)
		}
	}
	tokens, err := authn.OpenTokens(filepath.Join(dir, tokensName), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]authn.Principal{
		"toolproxy":  {Name: "toolproxy", Roles: []authn.Role{authn.Toolproxy}, Authenticated: true},
		"taskworker": {Name: "taskworker", Roles: []authn.Role{authn.Worker}, Authenticated: true},
		"notifier":   {Name: "notifier", Roles: []authn.Role{authn.Notifier}, Authenticated: true},
		"agent":      {Name: "agent", Roles: []authn.Role{authn.Agent}, ActAsAny: true, Authenticated: true},
		"operator":   {Name: "operator", Roles: []authn.Role{authn.Operator, authn.Agent}, ActAsAny: true, Authenticated: true},
	} {
		got, ok := tokens.Lookup(strings.TrimSpace(string(content(t, dir, name+".token"))))
		if !ok {
			t.Errorf("the token of %s is not known", name)
			continue
		}
		if diff := cmp.Diff(want, *got); diff != "" {
			t.Errorf("token of %s (-want +got):\n%s", name, diff)
		}
	}
	if _, err := secret.LoadKey(filepath.Join(dir, "secret.key")); err != nil {
		t.Error(err)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFilledDirectoryStaysAsItIs(t *testing.T) {
	dir := t.TempDir()
	if _, err := Make(dir, nil); err != nil {
		t.Fatal(err)
	}
	before := content(t, dir, "registry.pem")
	if made, err := Make(dir, nil); err != nil || made {
		t.Errorf("made %t, %v", made, err)
	}
	if diff := cmp.Diff(before, content(t, dir, "registry.pem")); diff != "" {
		t.Error("a second run replaces certificates")
	}
	// A run that was killed left no tokens.yaml: everything is made anew, but for the key that may have encrypted something.
	key := content(t, dir, "secret.key")
	if err := os.Remove(filepath.Join(dir, tokensName)); err != nil {
		t.Fatal(err)
	}
	if made, err := Make(dir, nil); err != nil || !made {
		t.Errorf("made %t, %v", made, err)
	}
	if diff := cmp.Diff(key, content(t, dir, "secret.key")); diff != "" {
		t.Error("the key of literal secrets is replaced")
	}
}

func content(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
