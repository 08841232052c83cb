package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
)

// POL-004
func TestWhatAPIWritesMayNameComesFromFileAndVariables(t *testing.T) {
	path := write(t, "registry: {stdio_command_allowlist: [python], env_refs: [ONE, TWO]}\n")
	cfg, err := load(t, []string{"DEER_FLOW_MCP_STDIO_COMMAND_ALLOWLIST= deno, ,node"}, "--config", path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"python", "deno", "node"}, cfg.Registry.StdioCommandAllowlist); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ONE", "TWO"}, cfg.Registry.EnvRefs); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	cfg, err = load(t, []string{"TOOLHERD_REGISTRY_ENV_REFS=A, B", "TOOLHERD_REGISTRY_STDIO_COMMAND_ALLOWLIST=x,"}, "--config", path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]string{{"A", "B"}, {"x"}}, [][]string{cfg.Registry.EnvRefs, cfg.Registry.StdioCommandAllowlist}); diff != "" {
		t.Errorf("from variables (-want +got):\n%s", diff)
	}
}

func TestWordsThatCouldNeverMatchAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`env_refs: ["${TOKEN}"]`:                        "registry.env_refs",
		`env_refs: [""]`:                                "registry.env_refs",
		`env_refs: [PGPASSWORD]`:                        "never resolves",
		`env_refs: [TOOLHERD_TOKEN]`:                    "never resolves",
		`stdio_command_allowlist: [/usr/bin/python]`:    "registry.stdio_command_allowlist",
		`stdio_command_allowlist: ["python -m server"]`: "registry.stdio_command_allowlist",
	} {
		_, err := load(t, nil, "--config", write(t, "registry: {"+text+"}\n"))
		if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want CONFIG_INVALID that says %q", text, err, want)
		}
	}
}
