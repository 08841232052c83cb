package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/toolherd/toolherd/pkg/fault"
)

// Size is a number of bytes, written plain or with KiB, MiB or GiB.
type Size int64

// UnmarshalText parses "65536", "64KiB", "16MiB" or "1GiB".
func (s *Size) UnmarshalText(text []byte) error {
	word := strings.TrimSpace(string(text))
	unit := int64(1)
	for suffix, u := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(word, suffix); ok {
			word, unit = strings.TrimSpace(rest), u
		}
	}
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil || n < 0 || n > (1<<62)/unit {
		return fmt.Errorf("%q is not a size: write bytes, or a number with KiB, MiB or GiB", text)
	}
	*s = Size(n * unit)
	return nil
}

func (c Config) check(from origins) error {
	if c.NoMCP && len(c.MCPConfig) > 0 {
		return fault.New(fault.ConfigInvalid, "configuration: %s and %s exclude each other: leave one out", from.name("no_mcp"), from.name("mcp_config"))
	}
	if slices.Contains(c.MCPConfig, "") {
		return fault.New(fault.ConfigInvalid, "configuration: %s has an empty path: name a file, or leave it out", from.name("mcp_config"))
	}
	checks := []struct {
		ok              bool
		key, value, fix string
	}{
		{slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel), "log_level", c.LogLevel, "debug, info, warn or error"},
		{slices.Contains([]string{"text", "json"}, c.LogFormat), "log_format", c.LogFormat, "text or json"},
		{c.Registry.Source == "files", "registry.source", c.Registry.Source, "files"},
		{c.Registry.MaxToolNameLength >= 16 && c.Registry.MaxToolNameLength <= 128, "registry.max_tool_name_length",
			strconv.Itoa(c.Registry.MaxToolNameLength), "16..128"},
		{slices.Contains([]string{"one", "many"}, c.Toolproxy.Replicas), "toolproxy.replicas", c.Toolproxy.Replicas, "one or many"},
		{c.Toolproxy.MaxSessions > 0, "toolproxy.max_sessions", strconv.Itoa(c.Toolproxy.MaxSessions), "a number above 0"},
		{c.Toolproxy.StartConcurrency > 0, "toolproxy.start_concurrency", strconv.Itoa(c.Toolproxy.StartConcurrency), "a number above 0"},
		{c.Toolproxy.SessionIdleTimeout > 0, "toolproxy.session_idle_timeout", c.Toolproxy.SessionIdleTimeout.String(), "a duration above 0, such as 2h"},
		{c.Toolproxy.MaxMessageBytes >= 64<<10 && c.Toolproxy.MaxMessageBytes <= 1<<30, "toolproxy.max_message_bytes",
			strconv.FormatInt(int64(c.Toolproxy.MaxMessageBytes), 10), "64KiB..1GiB"},
		{(c.TLS.CertFile == "") == (c.TLS.KeyFile == ""), "tls.cert_file", c.TLS.CertFile, "cert_file and key_file together"},
		{c.TLS.ClientCAFile == "" || c.TLS.CertFile != "", "tls.client_ca_file", c.TLS.ClientCAFile, "set together with cert_file and key_file"},
	}
	for _, i := range c.Toolproxy.Interceptors {
		if i.Entry == "" {
			return fault.New(fault.ConfigInvalid, "configuration: an item of %s has no entry: write what mcpInterceptors says", from.name("toolproxy.interceptors"))
		}
		if !slices.Contains([]string{"", "error", "skip"}, i.OnUnresolved) {
			return fault.New(fault.ConfigInvalid, "configuration: %s: on_unresolved of %q is %q, want error or skip", from.name("toolproxy.interceptors"), i.Entry, i.OnUnresolved)
		}
	}
	for _, k := range checks {
		if !k.ok {
			return fault.New(fault.ConfigInvalid, "configuration: %s is %q, want %s", from.name(k.key), k.value, k.fix)
		}
	}
	if err := c.checkBounds(from); err != nil {
		return err
	}
	if err := c.Registry.check(from); err != nil {
		return err
	}
	return c.Notifier.checkSinks(from)
}
