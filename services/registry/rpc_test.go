package registry_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/registry"
)

// API-001
func TestGetConfigShowsTheWritableFileMasked(t *testing.T) {
	p := newPlace(t)
	p.write(p.userFile(), `{
		"skills": {"s": {"enabled": true}}, "custom": {"apiKey": "literal-top"}, "mcpInterceptors": [],
		"mcpServers": {
			"a": {"command": "${CMD}", "args": ["${ARG:-x}", "--token=literal-arg"], "env": {"K": "literal-env", "R": "${REF}"}, "cwd": "$HOME"},
			"b": {"url": "https://u:literal-user@example.com/?token=literal-query&x=${X}", "headers": {"H": "literal-header"},
			      "oauth": {"token_url": "https://example.com/t", "client_secret": "literal-client"}, "n": 1.10},
			"bad": ["literal-list"], "shapes": {"user_auth": "literal-user", "auth": "literal-auth", "oauth": ["literal-oauth"], "env": "literal-env"}
		}}`)
	p.projectConf(`{"p":{"command":"x","env":{"K":"literal-project"}},"a":{"command":"over"}}`)
	p.write(filepath.Join(p.home, ".deepagents", ".mcp.json"), servers2doc(`{"u":{"command":"x"},"b":{"command":"under"}}`))
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	resp, err := n.GetConfig(t.Context(), &registryv1.GetConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(resp.String(), "literal") {
		t.Errorf("a secret is shown: %v", resp)
	}
	var got, want any
	if err := json.Unmarshal([]byte(resp.GetConfigJson()), &got); err != nil {
		t.Fatal(err)
	}
	const masked = `{
		"skills": {"s": {"enabled": true}}, "custom": {"apiKey": "***"}, "mcpInterceptors": [],
		"mcpServers": {
			"a": {"command": "${CMD}", "args": ["${ARG:-x}", "--token=***"], "env": {"K": "***", "R": "***"}, "cwd": "$HOME"},
			"b": {"url": "https://***@example.com/?token=***&x=${X}", "headers": {"H": "***"},
			      "oauth": {"token_url": "https://example.com/t", "client_secret": null}, "n": 1.10},
			"bad": "***", "shapes": {"user_auth": "***", "auth": "***", "oauth": "***", "env": "***"}
		}}`
	if err := json.Unmarshal([]byte(masked), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config_json (-want +got):\n%s", diff)
	}
	if !strings.Contains(resp.GetConfigJson(), "1.10") {
		t.Error("a number was rewritten")
	}
	if resp.GetSnapshotId() != n.current(t).GetSnapshotId() || resp.GetSource() != "~/.toolherd/.mcp.json" {
		t.Errorf("snapshot_id %s, source %s", resp.GetSnapshotId(), resp.GetSource())
	}
	var readOnly []string
	for _, e := range resp.GetReadOnly() {
		readOnly = append(readOnly, fmt.Sprintf("%s %s %s %s", e.GetName(), e.GetSourceClass(), strings.TrimPrefix(e.GetSource(), p.project), e.GetServerJson()))
	}
	if diff := cmp.Diff([]string{
		`a project /.mcp.json {"command":"over"}`,
		`p project /.mcp.json {"command":"x","env":{"K":"***"}}`,
		`u user ~/.deepagents/.mcp.json {"command":"x"}`,
	}, readOnly); diff != "" {
		t.Errorf("read_only (-want +got):\n%s", diff)
	}
}

func TestTheEtagIsThatOfExactlyThisContent(t *testing.T) {
	p := newPlace(t)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	etag := func() string {
		t.Helper()
		resp, err := n.GetConfig(t.Context(), &registryv1.GetConfigRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetEtag() == "" {
			t.Error("the etag is empty, which means unconditional")
		}
		return resp.GetEtag()
	}
	var etags []string
	etags = append(etags, etag())
	for _, content := range []string{`{}`, `{ }`, `{"mcpServers":{"a":{"env":{"K":"one"}}}}`, `{"mcpServers":{"a":{"env":{"K":"two"}}}}`} {
		p.write(p.userFile(), content)
		etags = append(etags, etag())
		if etag() != etags[len(etags)-1] {
			t.Error("the etag changes by itself")
		}
	}
	if distinct := slices.Compact(slices.Sorted(slices.Values(etags))); len(distinct) != len(etags) {
		t.Errorf("etags are %q, want all to differ", etags)
	}
	p.write(p.userFile(), `{"mcpServers":{"a":{"env":{"K":"literal"}},}}`)
	if _, err := n.GetConfig(t.Context(), &registryv1.GetConfigRequest{}); !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), "~/.toolherd/.mcp.json") || strings.Contains(err.Error(), "literal") {
		t.Errorf("a broken file: %v, want CONFIG_INVALID that names it", err)
	}
	if err := os.Remove(p.userFile()); err != nil {
		t.Fatal(err)
	}
	if got := etag(); got != etags[0] {
		t.Errorf("without the file the etag is %s, was %s", got, etags[0])
	}
}

func TestTheLastExplicitFileIsTheWritableOne(t *testing.T) {
	p := newPlace(t)
	p.user(`{"u":{"command":"x"}}`)
	for _, name := range []string{"one.json", "two.json"} {
		p.write(filepath.Join(p.project, name), servers2doc(`{"`+name[:3]+`":{"command":"x"}}`))
	}
	cfg := p.config()
	cfg.MCPConfig = []string{"one.json", "two.json"}
	n := start(t, dbtest.SQLite(t), options{cfg: cfg})
	resp, err := n.GetConfig(t.Context(), &registryv1.GetConfigRequest{})
	if err != nil || resp.GetSource() != filepath.Join(p.project, "two.json") || !strings.Contains(resp.GetConfigJson(), `"two"`) {
		t.Errorf("GetConfig is %v, %v", resp, err)
	}
	list, err := n.ListServers(t.Context(), &registryv1.ListServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range list.GetServers() {
		got = append(got, fmt.Sprint(s.GetName(), " ", s.GetWritable()))
	}
	if diff := cmp.Diff([]string{"one false", "two true", "u false"}, got); diff != "" {
		t.Errorf("servers (-want +got):\n%s", diff)
	}
}

// CFG-016, CFG-025, CFG-026, TRUST-002
func TestListServersSaysWhatWasDecidedAndWhy(t *testing.T) {
	p := newPlace(t)
	p.user(`{"ok":{"command":"x","timeuot":3},"off":{"url":"https://example.com","enabled":false},"bad":{"type":"sse"},"my.server":{"command":"x"}}`)
	p.projectConf(`{"theirs":{"command":"x"}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	resp, err := n.ListServers(t.Context(), &registryv1.ListServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp.GetSnapshotId() != n.current(t).GetSnapshotId() {
		t.Errorf("snapshot_id is %s", resp.GetSnapshotId())
	}
	want := map[string][]string{ // transport, state, then parts of reason and fix
		"bad":       {"sse", "ERROR", "url", "~/.toolherd/.mcp.json"},
		"my.server": {"stdio", "ERROR", "rename `my.server` to `my_server`", "~/.toolherd/.mcp.json"},
		"off":       {"http", "DISABLED", "disabled in ~/.toolherd/.mcp.json", `"enabled": true`},
		"ok":        {"stdio", "ACTIVE"},
		"theirs":    {"stdio", "UNTRUSTED", p.projectFile(), "toolherd up --trust-project-mcp"},
	}
	for _, s := range resp.GetServers() {
		w := want[s.GetName()]
		delete(want, s.GetName())
		if s.GetTransport() != w[0] || strings.TrimPrefix(s.GetState().String(), "ENTRY_STATE_") != w[1] {
			t.Errorf("%s is %s, %s, want %v", s.GetName(), s.GetTransport(), s.GetState(), w[:2])
		}
		for _, part := range w[2:] {
			if !strings.Contains(s.GetReason()+" "+s.GetFixCommand(), part) {
				t.Errorf("%s: %q, %q do not mention %q", s.GetName(), s.GetReason(), s.GetFixCommand(), part)
			}
		}
		if s.GetName() == "ok" {
			problems := s.GetProblems()
			if s.GetReason() != "" || len(problems) != 1 || problems[0].GetSeverity() != registryv1.Severity_SEVERITY_WARNING || problems[0].GetServer() != "ok" || problems[0].GetPath() != "timeuot" {
				t.Errorf("ok has %q, %v", s.GetReason(), problems)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
}

// OPS-010 for the lists of the registry.
func TestListsAreCompleteOverTheirPages(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		p := newPlace(t)
		p.write(filepath.Join(p.home, ".deepagents", ".mcp.json"), `{`)
		p.write(p.projectFile(), `{`)
		p.user(`{"c":{"command":"x"},"a":{"command":"x"},"B":{"command":"x"},"<x>":{"command":"x"},"d":{"command":"x"}}`)
		n := start(t, d, options{cfg: p.config()})
		for _, name := range []string{"e", "f", "g"} {
			p.user(`{"` + name + `":{"command":"x"}}`)
			n.becomes(t, name+": ACTIVE, <config:.mcp.json>: ERROR, <config:"+p.projectFile()+">: ERROR")
		}
		p.user(`{"c":{"command":"x"},"a":{"command":"x"},"B":{"command":"x"},"<x>":{"command":"x"},"d":{"command":"x"}}`)
		want := []string{"<x>", "B", "a", "c", "d", "<config:.mcp.json>", "<config:" + p.projectFile() + ">"}
		eventually(t, "all servers are back", func() bool { return strings.HasPrefix(n.states(t), "<x>") })
		for size := int32(1); size <= 8; size++ {
			var names []string
			for token := ""; ; {
				resp, err := n.ListServers(t.Context(), &registryv1.ListServersRequest{PageSize: size, PageToken: token})
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range resp.GetServers() {
					names = append(names, s.GetName())
				}
				if token = resp.GetNextPageToken(); token == "" {
					break
				}
			}
			if diff := cmp.Diff(want, names); diff != "" {
				t.Errorf("pages of %d (-want +got):\n%s", size, diff)
			}
			var revisions []int64
			for token := ""; ; {
				resp, err := n.ListSnapshots(t.Context(), &registryv1.ListSnapshotsRequest{PageSize: size, PageToken: token})
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range resp.GetSnapshots() {
					revisions = append(revisions, s.GetRevision())
					if len(s.GetServers()) != 0 || s.GetServerCount() == 0 {
						t.Errorf("a listed snapshot has %d servers and the count %d", len(s.GetServers()), s.GetServerCount())
					}
				}
				if token = resp.GetNextPageToken(); token == "" {
					break
				}
			}
			if len(revisions) != 5 || !slices.IsSortedFunc(revisions, func(a, b int64) int { return int(b - a) }) {
				t.Errorf("pages of %d give the revisions %v, want 5, falling", size, revisions)
			}
		}
		for _, token := range []string{"!", "eA", "c2", "cw"} {
			if _, err := n.ListServers(t.Context(), &registryv1.ListServersRequest{PageToken: token}); !fault.Is(err, fault.InvalidArguments) && token != "c2" {
				t.Errorf("page_token %q: %v, want INVALID_ARGUMENTS", token, err)
			}
		}
		for _, token := range []string{"x", "-1", "0"} {
			if _, err := n.ListSnapshots(t.Context(), &registryv1.ListSnapshotsRequest{PageToken: token}); !fault.Is(err, fault.InvalidArguments) {
				t.Errorf("page_token %q: %v, want INVALID_ARGUMENTS", token, err)
			}
		}
		if _, err := n.ListServers(t.Context(), &registryv1.ListServersRequest{PageSize: -1}); !fault.Is(err, fault.InvalidArguments) {
			t.Errorf("page_size -1: %v, want INVALID_ARGUMENTS", err)
		}
	})
}

// Every RPC that is not built says so, and what to do instead.
func TestWhatIsNotBuiltSaysSo(t *testing.T) {
	p := newPlace(t)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	built := []string{"GetConfig", "ListServers", "GetSnapshot", "ListSnapshots", "WatchSnapshots", "ResolveSecrets",
		"DiffSnapshots", "ActivateSnapshot", "ReleaseActivation",
		"ReplaceConfig", "PutServer", "DeleteServer", "SetServerEnabled", "ValidateConfig"}
	called := 0
	for _, client := range []any{n.RegistryServiceClient, n.credential} {
		v := reflect.ValueOf(client)
		for i := range v.NumMethod() {
			name := v.Type().Method(i).Name
			if slices.Contains(built, name) {
				continue
			}
			called++
			req := reflect.New(v.Method(i).Type().In(1).Elem())
			out := v.Method(i).Call([]reflect.Value{reflect.ValueOf(t.Context()), req})
			err, _ := out[1].Interface().(error)
			if fault.KindOf(err) != fault.Unimplemented || !strings.HasPrefix(err.Error(), name+": this version") {
				t.Errorf("%s: %v, want UNIMPLEMENTED that says what is missing", name, err)
			}
		}
	}
	want := len(registryv1.RegistryService_ServiceDesc.Methods) + len(credentialv1.CredentialService_ServiceDesc.Methods) - (len(built) - 1)
	if called != want {
		t.Errorf("%d RPCs were called, want %d", called, want)
	}
}

// A path of a file system need not be text.
func TestAProjectWhosePathIsNotUTF8IsShown(t *testing.T) {
	p := newPlace(t)
	p.project = filepath.Join(p.project, "caf\xe9")
	p.projectConf(`{"a":{"command":"x"}}`)
	p.write(filepath.Join(p.project, "b\xff.json"), `{`)
	cfg := p.config()
	cfg.ProjectDir, cfg.MCPConfig = p.project, []string{"b\xff.json"}
	p.write(filepath.Join(p.project, ".git", "HEAD"), "x")
	n := start(t, dbtest.SQLite(t), options{cfg: cfg})
	if got, want := n.states(t), "a: UNTRUSTED, <config:b\ufffd.json>: ERROR"; got != want {
		t.Errorf("states are %s, want %s", got, want)
	}
	resp, err := n.ListServers(t.Context(), &registryv1.ListServersRequest{})
	if err != nil || !strings.Contains(resp.GetServers()[0].GetSource(), "caf\ufffd") {
		t.Errorf("ListServers: %v, %v", resp, err)
	}
	if _, err := n.GetConfig(t.Context(), &registryv1.GetConfigRequest{}); !fault.Is(err, fault.ConfigInvalid) {
		t.Errorf("GetConfig: %v", err)
	}
}

func TestTheTrustCommandCanBePastedIntoAShell(t *testing.T) {
	for word, want := range map[string]string{
		"/srv/a-b_c.d":   "/srv/a-b_c.d",
		"":               "''",
		"/my projects/x": "'/my projects/x'",
		"it's":           `'it'\''s'`,
		"$(id)":          "'$(id)'",
		"~/x":            "'~/x'",
		"café":           "'café'",
		"caf\xe9'":       `$'caf\xe9\x27'`,
		"a\x1b[31m\nb":   `$'a\x1b[31m\x0ab'`,
	} {
		if got := registry.ShellWord(word); got != want {
			t.Errorf("%q is quoted as %s, want %s", word, got, want)
		}
	}
	p := newPlace(t)
	p.project = filepath.Join(p.project, "my project")
	p.projectConf(`{"a":{"command":"x"}}`)
	cfg := p.config()
	cfg.WorkDir, cfg.ProjectDir = filepath.Dir(p.project), filepath.Base(p.project)
	p.write(filepath.Join(p.project, ".git", "HEAD"), "x")
	n := start(t, dbtest.SQLite(t), options{cfg: cfg})
	want := "toolherd up --project '" + p.project + "' --trust-project-mcp"
	if got := n.current(t).GetServers()[0].GetFixCommand(); got != want {
		t.Errorf("fix_command is %s, want %s", got, want)
	}
}
