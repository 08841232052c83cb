package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"github.com/toolherd/toolherd/pkg/fault"
)

const envPrefix = "TOOLHERD_"

// legacyMCPConfig is understood beside TOOLHERD_MCP_CONFIG, for users who come from DeerFlow.
const legacyMCPConfig = "DEER_FLOW_EXTENSIONS_CONFIG_PATH"

// Source is where a configuration is read from.
type Source struct {
	// Flags are the parsed flags, registered by [Register]. May be nil.
	Flags *pflag.FlagSet
	// Environ is the environment in the form of os.Environ.
	Environ []string
	// Base is what holds where nothing is said; the zero value means [Defaults].
	Base *Config
}

// Register adds --config and the flags of every key that has one to fs, or only those named. Their defaults are those
// of base.
func Register(fs *pflag.FlagSet, base Config, only ...string) {
	fs.String("config", "", "toolherd.yaml to read; an unknown key in it is an error")
	for _, k := range keys() {
		if k.flag == "" || len(only) > 0 && !slices.Contains(only, k.flag) {
			continue
		}
		v := reflect.ValueOf(base).FieldByIndex(k.index)
		switch v.Kind() {
		case reflect.Bool:
			fs.Bool(k.flag, v.Bool(), k.help)
		case reflect.Slice:
			fs.StringArray(k.flag, nil, k.help)
		default:
			fs.String(k.flag, v.String(), k.help)
		}
	}
}

// Load reads the configuration and checks it. Errors are CONFIG_INVALID faults that name the key, where its value
// came from and what would be right.
func Load(src Source) (Config, error) {
	cfg := Defaults()
	if src.Base != nil {
		cfg = *src.Base
	}
	env := environ(src.Environ)
	k := koanf.New(".")
	if path := configPath(src.Flags, env); path != "" {
		if err := loadFile(k, path); err != nil {
			return Config{}, err
		}
	}
	cfg.MCPConfigFrom = "mcp_config"
	overlay, from := overlays(src.Flags, env)
	if from != "" {
		cfg.MCPConfigFrom = from
	}
	if err := k.Load(confmap.Provider(overlay, "."), nil); err != nil {
		return Config{}, fault.New(fault.ConfigInvalid, "configuration: %v", err)
	}
	if err := unmarshal(k, &cfg); err != nil {
		return Config{}, err
	}
	if err := cfg.check(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

func configPath(fs *pflag.FlagSet, env map[string]string) string {
	if fs != nil {
		if f := fs.Lookup("config"); f != nil && f.Changed {
			return f.Value.String()
		}
	}
	return env[envPrefix+"CONFIG"]
}

func loadFile(k *koanf.Koanf, path string) error {
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		return fault.New(fault.ConfigInvalid, "read configuration %s: %v (give another path with --config)", path, err)
	}
	known := map[string]bool{}
	for _, key := range keys() {
		known[key.path] = true
	}
	var unknown []string
	for _, path := range k.Keys() {
		if !known[path] {
			unknown = append(unknown, path)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	msg := fmt.Sprintf("configuration %s: unknown key %q", path, unknown[0])
	if near := nearest(unknown[0], slices.Sorted(maps.Keys(known))); near != "" {
		msg += fmt.Sprintf(", did you mean %q?", near)
	}
	return fault.New(fault.ConfigInvalid, "%s", msg)
}

// overlays collects what environment and flags say, flags winning, and who gave mcp_config.
func overlays(fs *pflag.FlagSet, env map[string]string) (overlay map[string]any, mcpFrom string) {
	overlay = map[string]any{}
	if v := env[legacyMCPConfig]; v != "" {
		overlay["mcp_config"], mcpFrom = []string{v}, legacyMCPConfig
	}
	for _, k := range keys() {
		if v, ok := env[envPrefix+k.env]; ok {
			if k.list {
				overlay[k.path] = filepath.SplitList(v)
			} else {
				overlay[k.path] = v
			}
			if k.path == "mcp_config" {
				mcpFrom = envPrefix + k.env
			}
		}
		if fs == nil || k.flag == "" {
			continue
		}
		f := fs.Lookup(k.flag)
		if f == nil || !f.Changed {
			continue
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			overlay[k.path] = list.GetSlice()
		} else {
			overlay[k.path] = f.Value.String()
		}
		if k.path == "mcp_config" {
			mcpFrom = "--" + k.flag
		}
	}
	return overlay, mcpFrom
}

func unmarshal(k *koanf.Koanf, cfg *Config) error {
	err := k.UnmarshalWithConf("", cfg, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result:           cfg,
		TagName:          "koanf",
		WeaklyTypedInput: true,
		ErrorUnused:      true, // unknown keys inside the items of a list
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(),
			mapstructure.TextUnmarshallerHookFunc(),
		),
	}})
	if err != nil {
		return fault.New(fault.ConfigInvalid, "configuration: %v", err)
	}
	return nil
}

func environ(list []string) map[string]string {
	env := map[string]string{}
	for _, kv := range list {
		if name, value, ok := strings.Cut(kv, "="); ok {
			env[name] = value
		}
	}
	return env
}

// UserStateDir returns the default state directory of the user who runs the process.
func UserStateDir() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fault.New(fault.ConfigInvalid, "no home directory (%v): give --state-dir", err)
	}
	return filepath.Join(home, ".toolherd", "state"), nil
}
