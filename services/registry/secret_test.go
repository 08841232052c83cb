package registry_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/services/registry"
)

const withSecrets = `{
  "a":{"command":"x","args":["--token=arg-literal-1"],"env":{"K":"env-literal-1","V":"${HOME}"}},
  "plain":{"command":"x"},
  "off":{"command":"x","enabled":false,"env":{"K":"off-literal"}},
  "bad":{"command":7,"env":{"K":"bad-literal"}},
  "login":{"url":"https://example.com/mcp","auth":"oauth","headers":{"X-K":"login-literal"}}
}`

func (n *node) resolve(t *testing.T, id, server string) (map[string]string, error) {
	t.Helper()
	resp, err := n.credential.ResolveSecrets(t.Context(), secretsOf(id, server))
	return resp.GetSecrets(), err
}

// SNAP-008
func TestSecretsAreHandedOutForActiveServersOnly(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(withSecrets)
		p.projectConf(`{"untrusted":{"command":"x","env":{"K":"project-literal"}}}`)
		n := start(t, d, options{cfg: p.config()})
		id := n.current(t).GetSnapshotId()

		got, err := n.resolve(t, id, "a")
		if diff := cmp.Diff(map[string]string{"args[0]": "--token=arg-literal-1", "env.K": "env-literal-1"}, got); diff != "" || err != nil {
			t.Errorf("secrets of a: %v (-want +got):\n%s", err, diff)
		}
		if got, err := n.resolve(t, id, "plain"); err != nil || len(got) != 0 {
			t.Errorf("a server without secrets has %d, %v", len(got), err)
		}
		for server, want := range map[string]fault.Reason{
			"off": fault.ServerDisabled, "bad": fault.ServerError, "login": fault.ServerError, "untrusted": fault.ServerUntrusted, "gone": fault.ServerNotFound,
		} {
			if got, err := n.resolve(t, id, server); !fault.Is(err, want) || len(got) != 0 {
				t.Errorf("%s: %v, want %s", server, err, want)
			}
		}
		for _, id := range []string{"snap_00000000000000000000000000000000", "", "x"} {
			if _, err := n.resolve(t, id, "a"); !fault.Is(err, fault.SnapshotNotFound) {
				t.Errorf("snapshot %q: %v, want SNAPSHOT_NOT_FOUND", id, err)
			}
		}
	})
}

// SNAP-008
func TestSecretsOfOlderSnapshotsStayResolvable(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"x","env":{"K":"one"}}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	old := n.current(t).GetSnapshotId()
	p.user(`{"b":{"command":"x"}}`)
	n.becomes(t, "b: ACTIVE")
	if got, err := n.resolve(t, old, "a"); err != nil || got["env.K"] != "one" {
		t.Errorf("the secret of a removed server: %v, %v", got, err)
	}
	p.user(`{"a":{"command":"x","env":{"K":"two"}}}`)
	n.becomes(t, "a: ACTIVE")
	if got, err := n.resolve(t, old, "a"); err != nil || got["env.K"] != "one" {
		t.Errorf("the old secret: %v, %v", got, err)
	}
	if got, err := n.resolve(t, n.current(t).GetSnapshotId(), "a"); err != nil || got["env.K"] != "two" {
		t.Errorf("the new secret: %v, %v", got, err)
	}
}

// TRUST-002
func TestTrustThatIsGoneClosesTheSecretsOfOlderSnapshots(t *testing.T) {
	p := newPlace(t)
	p.projectConf(`{"a":{"command":"x","env":{"K":"literal"}}}`)
	d := dbtest.SQLite(t)
	cfg := p.config()
	cfg.TrustProjectMCP = true
	n := start(t, d, options{cfg: cfg})
	id := n.current(t).GetSnapshotId()
	if got, err := n.resolve(t, id, "a"); err != nil || len(got) != 1 {
		t.Errorf("with trust: %d, %v", len(got), err)
	}
	n.stop()
	n = start(t, d, options{cfg: p.config()})
	if got, err := n.resolve(t, id, "a"); !fault.Is(err, fault.ServerUntrusted) || len(got) != 0 {
		t.Errorf("without trust: %v, want SERVER_UNTRUSTED", err)
	}
}

// SNAP-007, SNAP-008
func TestNoLiteralIsInTheDatabaseInClear(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.user(withSecrets)
		n := start(t, d, options{cfg: p.config()})
		if got := dump(t, d); strings.Contains(got, "literal") || !strings.Contains(got, "registry_secret") {
			t.Errorf("the database holds a literal secret, or nothing:\n%s", got)
		}
		for _, s := range n.current(t).GetServers() {
			if strings.Contains(s.String(), "literal") {
				t.Errorf("the snapshot holds a literal secret: %v", s)
			}
		}
	})
}

// dump returns everything in the registry's tables.
func dump(t *testing.T, d *db.DB) string {
	t.Helper()
	var b strings.Builder
	for table, columns := range map[string]string{
		"registry_snapshot": "content", "registry_activation": "reason || actor", "registry_secret": "ciphertext",
	} {
		query := fmt.Sprintf("select cast(%s as text) from %s", columns, table)
		if d.Engine() == db.Postgres {
			if table == "registry_secret" {
				query = "select encode(ciphertext, 'escape') from registry_secret"
			}
			rows, err := d.Pool().Query(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var s string
				if err := rows.Scan(&s); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "%s %s\n", table, s)
			}
			continue
		}
		rows, err := d.Read().QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var s sql.RawBytes
			if err := rows.Scan(&s); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s %s\n", table, s)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestASecretUnderAnotherKeyIsAnErrorThatSaysSo(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"x","env":{"K":"literal"}}}`)
	d := dbtest.SQLite(t)
	n := start(t, d, options{cfg: p.config()})
	id := n.current(t).GetSnapshotId()
	n.stop()
	other, err := secret.NewKey([]byte("another key, also of 32 bytes ok"))
	if err != nil {
		t.Fatal(err)
	}
	n = start(t, d, options{cfg: p.config(), deps: registry.Deps{Key: other}})
	if _, err := n.resolve(t, id, "a"); !fault.Is(err, fault.ServerError) || !strings.Contains(err.Error(), other.ID()) || !strings.Contains(err.Error(), testKey(t).ID()) {
		t.Errorf("the old snapshot: %v, want SERVER_ERROR that names both keys", err)
	}
	if got, err := n.resolve(t, n.current(t).GetSnapshotId(), "a"); err != nil || got["env.K"] != "literal" {
		t.Errorf("the new snapshot: %v, %v", got, err)
	}
}

// listener serves what register registers on TCP and returns a connection with the token of each role, "" for none.
func listener(t *testing.T, o rpc.ServerOptions, register func(grpc.ServiceRegistrar)) func(role authn.Role) *grpc.ClientConn {
	t.Helper()
	tokens := map[authn.Role]string{}
	if o.Tokens == nil && !o.Peer {
		var file strings.Builder
		for _, role := range authn.Roles() {
			token, sum := authn.NewToken()
			tokens[role] = token
			fmt.Fprintf(&file, "- { name: %s, sha256: %s, roles: [%s] }\n", role, sum, role)
		}
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if o.Tokens, err = authn.OpenTokens(path, discard()); err != nil {
			t.Fatal(err)
		}
	}
	o.Log = discard()
	server, err := rpc.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	register(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(role authn.Role) *grpc.ClientConn {
		var options rpc.ClientOptions
		if role != "" {
			options.Token = func() (string, error) { return tokens[role], nil }
		}
		conn, err := rpc.Dial(l.Addr().String(), options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

// OPS-003: what only services may ask is closed on a public listener, to every token, in whatever way it was set up.
func TestOnAPublicListenerNobodyGetsSecrets(t *testing.T) {
	p := newPlace(t)
	p.user(withSecrets)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	id := n.current(t).GetSnapshotId()
	for name, dial := range map[string]func(authn.Role) *grpc.ClientConn{
		"told to be public":     listener(t, rpc.ServerOptions{Public: true}, n.Register),
		"not told to be public": listener(t, rpc.ServerOptions{}, n.Register),
	} {
		for _, role := range append(authn.Roles(), "") {
			client := credentialv1.NewCredentialServiceClient(dial(role))
			resp, err := client.ResolveSecrets(t.Context(), secretsOf(id, "a"))
			if err == nil || len(resp.GetSecrets()) != 0 {
				t.Errorf("%s: role %q got secrets", name, role)
			}
			if kind := fault.KindOf(err); kind != fault.PermissionDenied && kind != fault.Unimplemented && (role != "" || kind != fault.Unauthenticated) {
				t.Errorf("%s: role %q: %v", name, role, err)
			}
			if resp, err := client.GetAccessToken(t.Context(), &credentialv1.GetAccessTokenRequest{}); err == nil || resp.GetHeaderValue() != "" {
				t.Errorf("%s: role %q got an access token", name, role)
			}
		}
	}
}

// SNAP-008, OPS-003: the listener of a registry of its own.
func TestOnAnInternalListenerOnlyTheRoleToolproxyGetsSecrets(t *testing.T) {
	p := newPlace(t)
	p.user(withSecrets)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	id := n.current(t).GetSnapshotId()
	dial := listener(t, rpc.ServerOptions{}, n.RegisterInternal)
	for _, role := range append(authn.Roles(), "") {
		conn := dial(role)
		resp, err := credentialv1.NewCredentialServiceClient(conn).ResolveSecrets(t.Context(), secretsOf(id, "a"))
		switch {
		case role == authn.Toolproxy:
			if err != nil || len(resp.GetSecrets()) != 2 {
				t.Errorf("toolproxy got %d secrets, %v", len(resp.GetSecrets()), err)
			}
		case role == "" && fault.KindOf(err) != fault.Unauthenticated, role != "" && !fault.Is(err, fault.Forbidden):
			t.Errorf("role %q: %v", role, err)
		}
		// Both may follow the configuration; nobody else may read it.
		_, err = registryv1.NewRegistryServiceClient(conn).GetSnapshot(t.Context(), &registryv1.GetSnapshotRequest{})
		if allowed := role == authn.Toolproxy || role == authn.Operator; allowed != (err == nil) {
			t.Errorf("role %q: GetSnapshot says %v", role, err)
		}
		_, err = registryv1.NewRegistryServiceClient(conn).GetConfig(t.Context(), &registryv1.GetConfigRequest{})
		if allowed := role == authn.Operator; allowed != (err == nil) {
			t.Errorf("role %q: GetConfig says %v", role, err)
		}
	}
}
