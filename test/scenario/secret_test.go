package scenario

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/partners"
)

func rawMap(t testing.TB, raw json.RawMessage) map[string]string {
	t.Helper()
	out := map[string]string{}
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return out
}

// literals are secrets of the test: none looks like one to a pattern.
func literals(run string) map[string]string {
	return map[string]string{
		"env": "herd-env-literal-" + run, "header": "herd-header-literal-" + run, "argument": "herd-argument-literal-" + run,
		"query": "herd-query-literal-" + run, "variable": "herd-variable-value-" + run,
	}
}

// secretive returns servers whose entries hold the literals.
func secretive(t testing.TB, s map[string]string, url string) map[string]any {
	t.Helper()
	return map[string]any{
		"stdio": with(partners.Fake(t).Entry(), "env", map[string]string{"API_KEY": s["env"], "FROM": "${SCENARIO_VARIABLE}"}),
		"web":   map[string]any{"url": url + "?api_key=" + s["query"], "headers": map[string]string{"X-Api-Key": s["header"]}},
		// Its start fails, and what it says of that has everything in it.
		"tells": map[string]any{
			"command": "sh", "args": []string{"-c", "echo told: $API_KEY $1 >&2; exit 3", "sh", "--token=" + s["argument"]},
			"env": map[string]string{"API_KEY": s["env"]},
		},
	}
}

// SNAP-007, SNAP-008, OPS-008: literal secrets reach their server and nobody else: they are in no snapshot, answer, error, log,
// metric, output, nor readable in the database. Rotating one changes the snapshot and restarts the server.
func TestLiteralSecretsAreSeenByTheirServerAlone(t *testing.T) {
	web := partners.FakeHTTP(t)
	Each(t, Options{Idle: true}, func(t *testing.T, h *Herd) {
		first, second := literals("first"), literals("second")
		h.o.Env = []string{"SCENARIO_VARIABLE=" + first["variable"]}
		h.o.Args = []string{"--log-level", "debug"}
		h.Write(t, secretive(t, first, web.URL))
		h.LaunchAll(t)
		h.Settled(t, "stdio", "tells", "web")
		seen := []string{}
		see := func(m proto.Message, err error) {
			t.Helper()
			if err != nil {
				seen = append(seen, err.Error())
				return
			}
			seen = append(seen, protojson.Format(m))
		}
		look := func() (snapshot *registryv1.Snapshot) {
			t.Helper()
			config, err := h.Configuration(t).GetSnapshot(t.Context(), &registryv1.GetSnapshotRequest{})
			see(config, err)
			snapshots, err := h.Configuration(t).ListSnapshots(t.Context(), &registryv1.ListSnapshotsRequest{})
			see(snapshots, err)
			written, err := h.Configuration(t).GetConfig(t.Context(), &registryv1.GetConfigRequest{})
			see(written, err)
			servers, err := h.Configuration(t).ListServers(t.Context(), &registryv1.ListServersRequest{})
			see(servers, err)
			tools, err := h.Tools(t).ListTools(t.Context(), &toolproxyv1.ListToolsRequest{})
			see(tools, err)
			_, err = h.Do(t, Call{Tool: "tells_anything"})
			see(nil, err)
			_, err = h.Do(t, Call{Tool: "web_http_status", Arguments: `{"status":500,"body":"key was ` + first["header"] + `"}`})
			see(nil, err)
			for _, s := range h.Servers(t) {
				see(s, nil)
			}
			for _, program := range h.programs() {
				_, metrics := h.httpGet(t, program, "/metrics")
				seen = append(seen, metrics)
			}
			return config.GetSnapshot()
		}
		before := look()
		if got := rawMap(t, structured(h.JSON(t, Call{Tool: "stdio_env"}))); got["API_KEY"] != first["env"] || got["FROM"] != first["variable"] {
			t.Errorf("the server got %v", got)
		}
		if got := h.JSON(t, Call{Tool: "web_headers"}); !strings.Contains(got, first["header"]) {
			t.Errorf("the web server got %s", got)
		}
		pid := h.pid(t, Call{Tool: "stdio_pid"})
		reason := h.Servers(t)["tells"].GetReason()
		if !strings.Contains(reason, "told: ") || !strings.Contains(reason, "***") {
			t.Errorf("the failed start does not show what it said, redacted: %s", reason)
		}

		h.Apply(t, secretive(t, second, web.URL))
		Eventually(t, "the rotated secret is in use", func() bool {
			return rawMap(t, structured(h.JSON(t, Call{Tool: "stdio_env"})))["API_KEY"] == second["env"]
		})
		h.Settled(t, "stdio", "tells", "web")
		after := look()
		if before.GetSnapshotId() == after.GetSnapshotId() || h.pid(t, Call{Tool: "stdio_pid"}) == pid {
			t.Error("the rotation changed neither snapshot nor process")
		}
		for _, s := range before.GetServers() {
			i := slices.IndexFunc(after.GetServers(), func(other *registryv1.ServerEntry) bool { return other.GetName() == s.GetName() })
			if i < 0 || s.GetFingerprint() == after.GetServers()[i].GetFingerprint() {
				t.Errorf("%s has the fingerprint of before", s.GetName())
			}
		}
		if h.Topology == Split {
			h.checkResolve(t, after.GetSnapshotId(), second)
		}
		h.StopAll(t)
		if h.Topology != Split {
			if info, err := os.Stat(h.path("state", "secret.key")); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the generated key: %v, %v", info, err)
			}
		}
		where := h.written(t)
		where["answers"] = strings.Join(seen, "\n")
		// What is no secret shows that the test looks at the right places.
		database := where["the database"] + where[h.path("state", "toolherd.db")]
		for place, text := range map[string]string{"the database": database, "the answers": where["answers"]} {
			if !strings.Contains(text, "${SCENARIO_VARIABLE}") {
				t.Errorf("the reference, which stands as written, is not in %s", place)
			}
		}
		for _, s := range []map[string]string{first, second} {
			for kind, value := range s {
				for place, text := range where {
					for _, form := range []string{value, hex.EncodeToString([]byte(value)), base64.RawStdEncoding.EncodeToString([]byte(value))} {
						if at := strings.Index(text, form); at >= 0 {
							t.Errorf("the secret of %s is in %s: …%.200s", kind, place, text[max(0, at-100):])
						}
					}
				}
			}
		}
	})
}

// checkResolve asks for the secrets as toolproxy does, and as everyone else.
func (h *Herd) checkResolve(t *testing.T, snapshot string, s map[string]string) {
	t.Helper()
	request := &credentialv1.ResolveSecretsRequest{SnapshotId: snapshot, Server: "stdio"}
	out, err := h.Credentials(t, "toolproxy").ResolveSecrets(t.Context(), request)
	if err != nil || len(out.GetSecrets()) != 1 || out.GetSecrets()["env.API_KEY"] != s["env"] {
		t.Errorf("toolproxy gets %v, %v; want the one secret of that server", out, err)
	}
	for _, role := range []string{"agent", "operator", "worker", "notifier"} {
		if _, err := h.Credentials(t, role).ResolveSecrets(t.Context(), request); reasonOf(err).Reason != "FORBIDDEN" {
			t.Errorf("as %s: %v", role, err)
		}
	}
}

// written returns all that the Herd has written, by place: every file but the configuration that the test wrote itself, and
// every table.
func (h *Herd) written(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(h.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasPrefix(path, h.path("config")+"/") {
			return err
		}
		all[path] = read(path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 2 {
		t.Fatalf("only %v were written", all)
	}
	if h.dsn != "" {
		all["the database"] = h.tables(t)
	}
	return all
}

// tables returns every row of the Herd's schema as text, bytes in hex.
func (h *Herd) tables(t testing.TB) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), h.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `select table_name from information_schema.tables where table_schema = current_schema()`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, name := range names {
		rows, err := conn.Query(t.Context(), `select r::text from `+pgx.Identifier{name}.Sanitize()+` r`)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("read %s: %v", name, err)
		}
		b.WriteString(name + "\n" + strings.Join(lines, "\n") + "\n")
	}
	return b.String()
}
