package registry_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/services/registry"
)

// violations returns the fields that an error names.
func violations(err error) string {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return ""
	}
	var fields []string
	for _, v := range f.Violations() {
		fields = append(fields, v.Field)
	}
	return strings.Join(fields, " ")
}

// POL-001, POL-002
func TestTheLaunchPolicyJudgesWhatAWriteTouches(t *testing.T) {
	p := newPlace(t)
	// A file is not judged.
	p.user(`{"sh":{"command":"sh","args":["-c","x"],"description":"old"},"off":{"command":"sh","enabled":false},"web":{"url":"https://h.example/"}}`)
	cfg := p.config()
	cfg.StdioCommandAllowlist = []string{"python"}
	n := start(t, dbtest.SQLite(t), options{cfg: cfg})
	if got := n.states(t); got != "off: DISABLED, sh: ACTIVE, web: ACTIVE" {
		t.Fatal(got)
	}
	for entry, fields := range map[string]string{
		`{"command":"bash"}`: "command", `{"command":""}`: "command command", `{"command":" npx"}`: "command", `{"command":"/usr/bin/npx"}`: "command", `{"command":"npx ; id"}`: "command",
		`{"command":"npx","args":["--call=hunter2"]}`: "args[0]", `{"command":"npx","args":["-c","hunter2"],"enabled":false}`: "args[0]",
		`{"command":"python","args":["-c","hunter2"]}`: "args[0]", `{"command":"npx","env":{"NODE_OPTIONS":"hunter2"}}`: "env.NODE_OPTIONS",
		`{"command":"npx","env":{"LD_PRELOAD":"x","npm_config_registry":"x"}}`: "env.LD_PRELOAD env.npm_config_registry",
		`{"type":"STDIO","command":"bash"}`:                                    "type command", `{"transport":"stdio","command":"bash"}`: "command",
	} {
		want := "mcpServers.new." + strings.ReplaceAll(fields, " ", " mcpServers.new.")
		for what, write := range map[string]func() error{
			"put":     func() error { return n.put(t, "new", entry) },
			"replace": func() error { return n.replace(t, `{"mcpServers":{"new":`+entry+`}}`, "") },
		} {
			err := n.refused(t, p, what+" "+entry, fault.LaunchPolicy, write)
			if got := violations(err); got != want || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s %s names %s: %v, want %s", what, entry, got, err, want)
			}
		}
	}
	for what, write := range map[string]func() error{
		"http is changed to stdio": func() error { return n.put(t, "web", `{"command":"sh"}`) },
		"args change":              func() error { return n.put(t, "sh", `{"command":"sh","args":["-c","y"]}`) },
		"env changes":              func() error { return n.put(t, "sh", `{"command":"sh","args":["-c","x"],"env":{"A":"b"}}`) },
		"switched on":              func() error { return n.enable(t, "off", true) },
		"put switched on":          func() error { return n.put(t, "off", `{"command":"sh","enabled":true}`) },
		"put without its switch":   func() error { return n.put(t, "off", `{"command":"sh"}`) },
	} {
		n.refused(t, p, what, fault.LaunchPolicy, write)
	}
	for _, w := range []struct {
		what  string
		write func() error
	}{
		{"others are untouched", func() error { return n.put(t, "new", `{"command":"uvx","args":["tool"]}`) }},
		{"an extended list", func() error { return n.put(t, "py", `{"command":"python","args":["-m","mod"]}`) }},
		{"its description changes", func() error { return n.put(t, "sh", `{"command":"sh","args":["-c","x"],"description":"new"}`) }},
		{"it stays off", func() error { return n.put(t, "off", `{"command":"sh","enabled":false,"description":"x"}`) }},
		{"http is not judged", func() error { return n.put(t, "web", `{"url":"https://h.example/other"}`) }},
		{"switched off", func() error { return n.enable(t, "sh", false) }},
	} {
		if err := w.write(); err != nil {
			t.Errorf("%s: %v", w.what, err)
		}
	}
	n.refused(t, p, "switched on again", fault.LaunchPolicy, func() error { return n.enable(t, "sh", true) })
}

// API-009, API-012
func TestMaskedValuesOfNothing(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"npx","args":["--api-key=s3cret"],"env":{"K":"s3cret"}}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	for config, field := range map[string]string{
		`{"mcpServers":{"a":{"command":"npx","env":{"K":"***","NEW":"***"}}}}`:               "mcpServers.a.env.NEW",
		`{"mcpServers":{"a":{"command":"npx","args":["-y","--api-key=***"]}}}`:               "mcpServers.a.args[1]",
		`{"mcpServers":{"renamed":{"command":"npx","env":{"K":"***"}}}}`:                     "mcpServers.renamed.env.K",
		`{"mcpServers":{"b":{"url":"***"}}}`:                                                 "mcpServers.b.url mcpServers.b.url",
		`{"mcpServers":{},"x":{"apiKey":"***"}}`:                                             "x.apiKey",
		`{"mcpServers":{"b":{"url":"https://h/","oauth":{"token_url":"t","apiKey":"***"}}}}`: "mcpServers.b.oauth.apiKey",
	} {
		err := n.refused(t, p, config, fault.MaskedValue, func() error { return n.replace(t, config, "") })
		if got := violations(err); got != field {
			t.Errorf("%s names %s, want %s", config, got, field)
		}
	}
}

// API-017, API-018
func TestAllProblemsComeAtOnce(t *testing.T) {
	p := newPlace(t)
	p.user(`{"stays":{"command":7}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	const config = `{"mcpServers":{"stays":{"command":7},"one":{"command":7,"args":"x","timeuot":1},"bash":{"command":"bash"},"my.server":{"url":"ftp://h/"},
		"ok":{"command":"npx","env":{"A":"${NOT_LISTED}","B":"***"}},"ref":{"url":"https://h/${"}},"skils":{}}`
	err := n.refused(t, p, "replace", fault.ConfigInvalid, func() error { return n.replace(t, config, "") })
	want := `mcpServers.one.command mcpServers.one.args mcpServers.bash.command mcpServers.my.server mcpServers.my.server.url mcpServers.ok.env.B mcpServers.ok.env.A mcpServers.ref.url`
	if diff := cmp.Diff(strings.Fields(want), strings.Fields(violations(err))); diff != "" {
		t.Errorf("violations (-want +got):\n%s\n%v", diff, err)
	}

	file := p.read(p.userFile())
	resp, err := n.ValidateConfig(t.Context(), &registryv1.ValidateConfigRequest{ConfigJson: config})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range resp.GetProblems() {
		if x.GetMessage() == "" || x.GetHint() == "" {
			t.Errorf("%v has no message or no hint", x)
		}
		got = append(got, strings.TrimPrefix(x.GetSeverity().String(), "SEVERITY_")+" "+x.GetServer()+"."+x.GetPath()+" "+x.GetReason())
	}
	wantProblems := []string{
		"WARNING .skils unknown_key", "ERROR stays.command wrong_type", "ERROR one.command wrong_type", "ERROR one.args wrong_type", "WARNING one.timeuot unknown_key",
		"ERROR bash.command launch_policy", "ERROR my.server. bad_name", "ERROR my.server.url bad_value", "ERROR ok.env.B masked_value", "ERROR ok.env.A forbidden_variable",
		"ERROR ref.url bad_reference",
	}
	if diff := cmp.Diff(wantProblems, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if p.read(p.userFile()) != file || n.revisions(t) != 1 {
		t.Error("validation wrote something")
	}
	for config, reason := range map[string]string{
		`{`: "syntax", `[]`: "wrong_type", `{}`: "missing", `{"mcpServers":[]}`: "wrong_type", `{"mcpServers":{"a":{},"a":{}}}`: "duplicate_key",
		`{"mcpServers":{},"mcpInterceptors":7}`: "wrong_type",
	} {
		resp, err := n.ValidateConfig(t.Context(), &registryv1.ValidateConfigRequest{ConfigJson: config})
		if err != nil || len(resp.GetProblems()) != 1 || resp.GetProblems()[0].GetReason() != reason {
			t.Errorf("%s: %v, %v, want one problem of %s", config, resp.GetProblems(), err, reason)
		}
		n.refused(t, p, config, fault.ConfigInvalid, func() error { return n.replace(t, config, "") })
	}
	if resp, err := n.ValidateConfig(t.Context(), &registryv1.ValidateConfigRequest{ConfigJson: `{"mcpServers":{"a":{"command":"npx"}}}`}); err != nil || len(resp.GetProblems()) > 0 {
		t.Errorf("a good candidate: %v, %v", resp, err)
	}
	for _, entry := range []string{``, `{`, `7`, `{"command":"npx","command":"npx"}`, `{"url":"https://h/","command":"npx","type":"ws"}`} {
		n.refused(t, p, "put "+entry, fault.ConfigInvalid, func() error { return n.put(t, "a", entry) })
	}
}

func TestAFileThatIsBrokenIsNotMergedInto(t *testing.T) {
	p := newPlace(t)
	p.write(p.userFile(), `{"mcpServers": {"a":{"command":"npx","env":{"K":"s3cret"}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	for what, write := range map[string]func() error{
		"put":     func() error { return n.put(t, "b", `{"command":"npx"}`) },
		"replace": func() error { return n.replace(t, `{"mcpServers":{}}`, "") },
		"switch":  func() error { return n.enable(t, "a", false) },
	} {
		err := n.refused(t, p, what, fault.ConfigInvalid, write)
		if !strings.Contains(err.Error(), "~/.toolherd/.mcp.json") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestToolsetsWithoutTasksWouldKeepTheRegistryFromStarting(t *testing.T) {
	const entry = `{"command":"npx","task_toolsets":[{"name":"n","submit_tool":"s","status_tool":"t","cancel_tool":"c"}]}`
	p := newPlace(t)
	p.user(`{}`)
	cfg := p.config()
	cfg.NoTasks = true
	n := start(t, dbtest.SQLite(t), options{cfg: cfg})
	n.refused(t, p, "put", fault.ConfigInvalid, func() error { return n.put(t, "a", entry) })
	if err := n.put(t, "a", strings.Replace(entry, "{", `{"enabled":false,`, 1)); err != nil {
		t.Error(err)
	}
	n.refused(t, p, "enable", fault.ConfigInvalid, func() error { return n.enable(t, "a", true) })
}

// Whatever was typed into a write is a secret for all anybody knows.
func TestWhatIsWrittenAppearsInNoErrorNoLogAndNoSnapshot(t *testing.T) {
	const mark = "hunter2hunter2"
	p := newPlace(t)
	p.user(`{}`)
	var log bytes.Buffer
	d := dbtest.SQLite(t)
	n := start(t, d, options{cfg: p.config(), deps: registry.Deps{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}})
	for _, entry := range []string{
		`{"command":"npx","args":["-y","p","--token","%"],"env":{"K":"%"},"apiKey":"%"}`,
		`{"url":"https://u:%@h.example/?token=%","headers":{"X":"%"},"oauth":{"token_url":"https://t/","client_secret":"%"}}`,
		`{"command":"%"}`, `{"command":"npx","args":["--call=%"]}`, `{"command":"npx","env":{"PATH":"%"}}`, `{"command":"npx","type":"%"}`,
		`{"url":"%"}`, `{"url":"https://h/","headers":{"X":"%\n"}}`, `{"command":"npx","env":{"K":"${%"}}`, `{"command":"npx","session_scope":"%"}`,
		`{"command":"npx" "%"}`, `"%"`, `{"command":"npx","tool_call_timeout":"%"}`, `{"command":"npx","env":{"K":"%***"}}`, `{"auth":"%","url":"https://h/"}`,
	} {
		entry = strings.ReplaceAll(entry, "%", mark)
		if err := n.put(t, "a", entry); err != nil && strings.Contains(err.Error()+violations(err), mark) {
			t.Errorf("put %s: %v", entry, err)
		}
		if err := n.replace(t, `{"mcpServers":{"b":`+entry+`}}`, ""); err != nil && strings.Contains(err.Error()+violations(err), mark) {
			t.Errorf("replace %s: %v", entry, err)
		}
		resp, err := n.ValidateConfig(t.Context(), &registryv1.ValidateConfigRequest{ConfigJson: `{"mcpServers":{"b":` + entry + `}}`})
		if err != nil || strings.Contains(resp.String(), mark) {
			t.Errorf("validate %s: %v, %v", entry, resp, err)
		}
		if got := n.config(t).GetConfigJson(); strings.Contains(got, mark) {
			t.Errorf("after %s it is shown: %s", entry, got)
		}
		if got := n.current(t).String(); strings.Contains(got, mark) {
			t.Errorf("after %s it is in the snapshot: %s", entry, got)
		}
	}
	n.stop()
	if strings.Contains(log.String(), mark) {
		t.Errorf("it is in the log:\n%s", log.String())
	}
	if got := dump(t, d); strings.Contains(got, mark) {
		t.Errorf("it is in the database:\n%s", got)
	}
}

// API-024
func TestWritesNeedTheOperatorRole(t *testing.T) {
	p := newPlace(t)
	p.user(`{"a":{"command":"npx"}}`)
	n := start(t, dbtest.SQLite(t), options{cfg: p.config()})
	dial := listener(t, rpc.ServerOptions{Public: true}, n.Register)
	calls := func(conn grpc.ClientConnInterface) map[string]func() error {
		c := registryv1.NewRegistryServiceClient(conn)
		return map[string]func() error{
			"GetConfig": func() error { _, err := c.GetConfig(t.Context(), &registryv1.GetConfigRequest{}); return err },
			"ReplaceConfig": func() error {
				_, err := c.ReplaceConfig(t.Context(), &registryv1.ReplaceConfigRequest{ConfigJson: `{"mcpServers":{"a":{"command":"npx"}}}`})
				return err
			},
			"PutServer": func() error {
				_, err := c.PutServer(t.Context(), &registryv1.PutServerRequest{Name: "b", ServerJson: `{"command":"npx"}`})
				return err
			},
			"DeleteServer": func() error {
				_, err := c.DeleteServer(t.Context(), &registryv1.DeleteServerRequest{Name: "a"})
				return err
			},
			"SetServerEnabled": func() error {
				_, err := c.SetServerEnabled(t.Context(), &registryv1.SetServerEnabledRequest{Name: "a"})
				return err
			},
			"ValidateConfig": func() error {
				_, err := c.ValidateConfig(t.Context(), &registryv1.ValidateConfigRequest{ConfigJson: `{"mcpServers":{}}`})
				return err
			},
		}
	}
	for _, role := range []authn.Role{authn.Agent, authn.Worker, authn.Toolproxy, authn.Notifier, ""} {
		for name, call := range calls(dial(role)) {
			if err := call(); !fault.Is(err, fault.Forbidden) && fault.KindOf(err) != fault.Unauthenticated {
				t.Errorf("%s as %q: %v, want FORBIDDEN", name, role, err)
			}
		}
	}
	if got := n.revisions(t); got != 1 || n.states(t) != "a: ACTIVE" {
		t.Errorf("%d revisions, %s", got, n.states(t))
	}
	operator := calls(dial(authn.Operator))
	for _, name := range []string{"GetConfig", "ValidateConfig", "PutServer", "SetServerEnabled", "ReplaceConfig", "DeleteServer"} {
		if err := operator[name](); err != nil {
			t.Errorf("%s as an operator: %v", name, err)
		}
	}
	if actor := n.current(t).GetActor(); actor != string(authn.Operator) {
		t.Errorf("the actor is %q, want the name of the token", actor)
	}
}
