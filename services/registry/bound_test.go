package registry_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
)

// boundRef returns the reference that a task keeps of one env secret of a server.
func boundRef(t *testing.T, s *registryv1.Snapshot, server, key string) *credentialv1.SecretRef {
	t.Helper()
	for _, e := range s.GetServers() {
		if e.GetName() != server {
			continue
		}
		var entry struct {
			Env map[string]struct {
				Secret string `json:"$secret"`
				MAC    string `json:"mac"`
			} `json:"env"`
		}
		if err := json.Unmarshal([]byte(e.GetEntryJson()), &entry); err != nil {
			t.Fatal(err)
		}
		return &credentialv1.SecretRef{FieldPath: entry.Env[key].Secret, Mac: entry.Env[key].MAC}
	}
	t.Fatalf("no server %s", server)
	return nil
}

func (n *node) resolveRefs(t *testing.T, server string, refs ...*credentialv1.SecretRef) (map[string]string, error) {
	t.Helper()
	const gone = "snap_00000000000000000000000000000000"
	resp, err := n.credential.ResolveSecrets(t.Context(), &credentialv1.ResolveSecretsRequest{SnapshotId: gone, Server: server, Refs: refs})
	return resp.GetSecrets(), err
}

// A task's references resolve without the snapshot that it was submitted under, whatever became of its server.
func TestReferencesResolveWithoutTheirSnapshot(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"x","env":{"K":"literal-one"}}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	old := boundRef(t, n.current(t), "a", "K")
	for _, change := range []struct{ servers, states string }{
		{`{"a":{"command":"x","env":{"K":"literal-two"}}}`, "a: ACTIVE"},
		{`{"a":{"command":"x","env":{"K":"literal-two"},"enabled":false}}`, "a: DISABLED"},
		{`{"b":{"command":"x"}}`, "b: ACTIVE"},
	} {
		p.user(change.servers)
		n.becomes(t, change.states)
		got, err := n.resolveRefs(t, "a", old)
		if diff := cmp.Diff(map[string]string{"env.K": "literal-one"}, got); diff != "" || err != nil {
			t.Errorf("after %s: %v (-want +got):\n%s", change.servers, err, diff)
		}
	}
	for name, ref := range map[string]*credentialv1.SecretRef{
		"another digest": {FieldPath: old.GetFieldPath(), Mac: "00"}, "another place": {FieldPath: "env.OTHER", Mac: old.GetMac()},
	} {
		if got, err := n.resolveRefs(t, "a", ref); !fault.Is(err, fault.ServerError) || len(got) != 0 {
			t.Errorf("%s: %d secrets, %v", name, len(got), err)
		}
	}
	if got, err := n.resolveRefs(t, "b", old); !fault.Is(err, fault.ServerError) || len(got) != 0 {
		t.Errorf("under another server's name: %d secrets, %v", len(got), err)
	}
	if _, err := n.resolveRefs(t, "a", make([]*credentialv1.SecretRef, 1001)...); !fault.Is(err, fault.InvalidArguments) {
		t.Errorf("1001 references: %v", err)
	}
}

// TRUST-002
func TestReferencesDoNotResolveOnceTrustIsGone(t *testing.T) {
	p := newPlace(t)
	p.projectConf(`{"a":{"command":"x","env":{"K":"literal-one"}}}`)
	d := dbtest.SQLite(t)
	cfg := p.config()
	cfg.TrustProjectMCP = true
	n := start(t, d, options{cfg: cfg})
	ref := boundRef(t, n.current(t), "a", "K")
	if got, err := n.resolveRefs(t, "a", ref); err != nil || got["env.K"] != "literal-one" {
		t.Errorf("with trust: %d secrets, %v", len(got), err)
	}
	n.stop()
	n = start(t, d, options{cfg: p.config()})
	if got, err := n.resolveRefs(t, "a", ref); !fault.Is(err, fault.ServerUntrusted) || len(got) != 0 {
		t.Errorf("without trust: %d secrets, %v", len(got), err)
	}
}
