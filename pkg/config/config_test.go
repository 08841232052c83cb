package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/toolherd/toolherd/pkg/fault"
)

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "toolherd.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T, environ []string, args ...string) (Config, error) {
	t.Helper()
	fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
	Register(fs, Defaults())
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(Source{Flags: fs, Environ: environ})
}

// CFG-059
func TestFlagBeatsEnvironmentBeatsFileBeatsDefault(t *testing.T) {
	path := write(t, "listen: 127.0.0.1:1\nlog_level: debug\nlog_format: json\ntoolproxy: {max_sessions: 7, session_idle_timeout: 3m, max_message_bytes: 2MiB}\npeers: {registry: file:1}\n")
	cfg, err := load(t, []string{"TOOLHERD_LISTEN=127.0.0.1:2", "TOOLHERD_LOG_LEVEL=warn", "TOOLHERD_TOOLPROXY_START_CONCURRENCY=3",
		"TOOLHERD_REGISTRY=env:1", "TOOLHERD_REGISTRY_MAX_TOOL_NAME_LENGTH=100", "TOOLHERD_UNRELATED=x"}, "--listen", "127.0.0.1:3", "--config", path)
	if err != nil {
		t.Fatal(err)
	}
	want := Defaults()
	want.Listen, want.LogLevel, want.LogFormat = "127.0.0.1:3", "warn", "json"
	want.MCPConfigFrom = "mcp_config"
	want.Toolproxy.MaxSessions, want.Toolproxy.SessionIdleTimeout = 7, 3*time.Minute
	want.Toolproxy.MaxMessageBytes, want.Toolproxy.StartConcurrency = 2<<20, 3
	want.Peers.Registry, want.Registry.MaxToolNameLength = "env:1", 100
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Fatalf("configuration (-want +got):\n%s", diff)
	}
}

// CFG-059
func TestUnknownKeyStopsTheStartWithANearMatch(t *testing.T) {
	for content, near := range map[string]string{
		"toolproxy: {max_sesions: 1}": "toolproxy.max_sessions",
		"lissten: x":                  "listen",
		"qqqqqqqqqqqqqqqqqqqqq: 1":    "",
	} {
		_, err := load(t, nil, "--config", write(t, content))
		if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), "unknown key") {
			t.Fatalf("%s: got %v, want an unknown key", content, err)
		}
		if near != "" && !strings.Contains(err.Error(), "did you mean \""+near+"\"") {
			t.Fatalf("%s: got %v, want the near match %s", content, err, near)
		}
	}
}

func TestWrongValuesNameKeyValueAndWhatIsRight(t *testing.T) {
	for content, want := range map[string]string{
		"log_level: loud":                                               "log_level",
		"toolproxy: {replicas: few}":                                    "toolproxy.replicas",
		"toolproxy: {max_sessions: 0}":                                  "toolproxy.max_sessions",
		"toolproxy: {session_idle_timeout: soon}":                       "session_idle_timeout",
		"toolproxy: {max_message_bytes: 1}":                             "toolproxy.max_message_bytes",
		"toolproxy: {max_message_bytes: lots}":                          "max_message_bytes",
		"registry: {source: magic}":                                     "registry.source",
		"tls: {cert_file: a}":                                           "cert_file and key_file together",
		"tls: {client_ca_file: a}":                                      "tls.client_ca_file",
		"listen: [a, {b: c}]":                                           "listen",
		"listen: a\nlisten: b":                                          "listen",
		"registry: {max_tool_name_length: 4}":                           "16..128",
		"no_mcp: true\nmcp_config: [a.json]":                            "no_mcp",
		"toolproxy: {interceptors: [{entry: a, on_unresolved: never}]}": "on_unresolved",
		"toolproxy: {interceptors: [{on_unresolved: skip}]}":            "has no entry",
		"toolproxy: {interceptors: [{entry: a, tiemout: 1s}]}":          "tiemout",
		"toolproxy: {session_idle_timeout: 7200}":                       "write one with its unit",
		"toolproxy: 5":                                                  "toolproxy holds keys of its own",
		"mcp_config: ['']":                                              "empty path",
		"toolproxy: {max_message_bytes: 99999GiB}":                      "max_message_bytes",
		"toolproxy: {max_message_bytes: \"-1MiB\"}":                     "max_message_bytes",
	} {
		_, err := load(t, nil, "--config", write(t, content))
		if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want CONFIG_INVALID with %q", content, err, want)
		}
	}
	both := []string{"toolproxy.max_sessions", "toolproxy.start_concurrency"}
	_, err := load(t, nil, "--config", write(t, "toolproxy: {max_sessions: x, start_concurrency: y}"))
	if err == nil || !strings.Contains(err.Error(), both[0]) || !strings.Contains(err.Error(), both[1]) || strings.Contains(err.Error(), "\n") {
		t.Errorf("two wrong values: got %v, want one line that names both", err)
	}
	if _, err := load(t, nil, "--config", filepath.Join(t.TempDir(), "none.yaml")); !fault.Is(err, fault.ConfigInvalid) {
		t.Errorf("missing file: got %v", err)
	}
}

func TestAWrongValueNamesWhereItCameFrom(t *testing.T) {
	file := write(t, "log_format: loud\ntoolproxy: {max_sessions: none}")
	for want, err := range map[string]error{
		"log_level (--log-level)":          second(load(t, []string{"TOOLHERD_LOG_LEVEL=info"}, "--log-level", "loud")),
		"log_level (TOOLHERD_LOG_LEVEL)":   second(load(t, []string{"TOOLHERD_LOG_LEVEL="})),
		"max_sessions (" + file + ")":      second(load(t, nil, "--config", file)),
		"max_sessions (TOOLHERD_TOOLPROXY": second(load(t, []string{"TOOLHERD_TOOLPROXY_MAX_SESSIONS=none"})),
		"interceptors (TOOLHERD_TOOLPROXY": second(load(t, []string{"TOOLHERD_TOOLPROXY_INTERCEPTORS=a:b"})),
		"mcp_config (DEER_FLOW_EXTENSIONS": second(load(t, []string{legacyMCPConfig + "=old.json"}, "--no-mcp")),
		"no_mcp (--no-mcp)":                second(load(t, []string{"TOOLHERD_MCP_CONFIG=a.json"}, "--no-mcp")),
		"mcp_config (--mcp-config)":        second(load(t, nil, "--mcp-config", "")),
	} {
		if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want CONFIG_INVALID with %q", err, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestASectionWithNothingInItSaysNothing(t *testing.T) {
	cfg, err := load(t, nil, "--config", write(t, "toolproxy:\n  # max_sessions: 1\nauth: {}\nregistry: null\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := Defaults()
	want.MCPConfigFrom = "mcp_config"
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Fatal(diff)
	}
}

func TestALeadingTildeOfAPathIsTheHomeDirectory(t *testing.T) {
	file := write(t, "state_dir: ~/state\nauth: {tokens_file: ~/tokens.yaml}\nlog_file: a~/b\n")
	cfg, err := load(t, []string{"HOME=/users/me", "TOOLHERD_MCP_CONFIG=~/a.json:~other/b.json:", "TOOLHERD_REGISTRY_SECRET_KEY_FILE=~"}, "--config", file)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{cfg.StateDir, cfg.Auth.TokensFile, cfg.LogFile, cfg.Registry.SecretKeyFile}
	if diff := cmp.Diff([]string{"/users/me/state", "/users/me/tokens.yaml", "a~/b", "/users/me"}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/users/me/a.json", "~other/b.json"}, cfg.MCPConfig); diff != "" {
		t.Error(diff)
	}
}

func TestExplicitServerFilesKeepTheirOrder(t *testing.T) {
	cfg, err := load(t, []string{"TOOLHERD_MCP_CONFIG=x.json", legacyMCPConfig + "=old.json"}, "--mcp-config", "a.json", "--mcp-config", "b,c.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a.json", "b,c.json"}, cfg.MCPConfig); diff != "" || cfg.MCPConfigFrom != "--mcp-config" {
		t.Fatalf("from %s (-want +got):\n%s", cfg.MCPConfigFrom, diff)
	}
	cfg, err = load(t, []string{"TOOLHERD_MCP_CONFIG=x.json:y.json", legacyMCPConfig + "=old.json"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"x.json", "y.json"}, cfg.MCPConfig); diff != "" || cfg.MCPConfigFrom != "TOOLHERD_MCP_CONFIG" {
		t.Fatalf("from %s (-want +got):\n%s", cfg.MCPConfigFrom, diff)
	}
	cfg, err = load(t, []string{legacyMCPConfig + "=old.json"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"old.json"}, cfg.MCPConfig); diff != "" || cfg.MCPConfigFrom != legacyMCPConfig {
		t.Fatalf("from %s (-want +got):\n%s", cfg.MCPConfigFrom, diff)
	}
}

func TestEveryKeyCanComeFromTheEnvironment(t *testing.T) {
	examples := map[reflect.Kind]string{
		reflect.String: "1s", reflect.Bool: "true", reflect.Int: "17", reflect.Int64: "65536s", reflect.Slice: "[{entry: x}]",
	}
	seen := map[string]string{}
	for _, k := range keys() {
		if other, dup := seen[k.env]; dup {
			t.Errorf("%s and %s share the variable TOOLHERD_%s", other, k.path, k.env)
		}
		seen[k.env] = k.path
		text := examples[reflect.ValueOf(Defaults()).FieldByIndex(k.index).Kind()]
		switch k.path {
		case "toolproxy.max_message_bytes":
			text = "65536"
		case "log_level":
			text = "warn"
		case "log_format":
			text = "json"
		case "registry.source":
			text = "files"
		case "toolproxy.replicas":
			text = "many"
		case "tls.cert_file", "tls.key_file", "tls.client_ca_file":
			continue // together only
		case "tasks.enabled", "postgres_listen":
			text = "false"
		case "registry.stdio_command_allowlist", "registry.env_refs":
			text = "one, two"
		case "tasks.poll_interval", "tasks.lease", "tasks.max_poll_backoff", "tasks.input_required_poll_interval", "notifier.backoff.base":
			text = "17s"
		case "tasks.max_result_bytes":
			text = "64000"
		case "tasks.result_preview_max_chars":
			text = "1700"
		case "notifier.default_sink":
			text = "events"
		case "notifier.sinks":
			text = "[{name: feed, type: stream}]"
		}
		if cfg, err := load(t, []string{"TOOLHERD_" + k.env + "=" + text}); err != nil || k.path != "registry.source" && cmp.Equal(cfg, Defaults()) {
			t.Errorf("TOOLHERD_%s=%s: %v", k.env, text, err)
		}
	}
	if len(seen) < 25 {
		t.Fatalf("only %d keys found", len(seen))
	}
}

func TestTheExampleHoldsEveryKeyWithItsDefault(t *testing.T) {
	const path = "../../examples/toolherd.yaml"
	cfg, err := load(t, nil, "--config", path)
	if err != nil {
		t.Fatal(err)
	}
	want := Defaults()
	want.MCPConfigFrom = "mcp_config"
	if diff := cmp.Diff(want, cfg, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("examples/toolherd.yaml differs from the defaults (-want +got):\n%s", diff)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys() {
		last := k.path[strings.LastIndex(k.path, ".")+1:]
		if !strings.Contains(string(content), last+":") {
			t.Errorf("examples/toolherd.yaml does not mention %s", k.path)
		}
	}
}

func TestInterceptorsThatMayBeLeftOutAreNamed(t *testing.T) {
	cfg, err := load(t, nil, "--config", write(t, "toolproxy: {interceptors: [{entry: 'a:b', on_unresolved: skip}, {entry: 'c:d'}]}"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a:b"}, cfg.Toolproxy.SkippedInterceptors()); diff != "" {
		t.Fatal(diff)
	}
}
