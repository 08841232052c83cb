package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/spelling"
)

const envPrefix = "TOOLHERD_"

// legacyMCPConfig is understood beside TOOLHERD_MCP_CONFIG, for users who come from DeerFlow.
const legacyMCPConfig = "DEER_FLOW_EXTENSIONS_CONFIG_PATH"

// legacyAllowlist adds to registry.stdio_command_allowlist, for the same users.
const legacyAllowlist = "DEER_FLOW_MCP_STDIO_COMMAND_ALLOWLIST"

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

// Load reads the configuration and checks it. Errors are CONFIG_INVALID faults of one line that name the key, where its
// value came from and what would be right, and no value that may hold a credential.
func Load(src Source) (Config, error) {
	cfg := Defaults()
	if src.Base != nil {
		cfg = *src.Base
	}
	env := environ(src.Environ)
	k := koanf.New(".")
	from := origins{}
	if path := configPath(src.Flags, env); path != "" {
		if err := loadFile(k, expandHome(path, env["HOME"]), from); err != nil {
			return Config{}, err
		}
	}
	cfg.MCPConfigFrom = "mcp_config"
	overlay, err := overlays(src.Flags, env, from)
	if err != nil {
		return Config{}, err
	}
	if _, ok := overlay["mcp_config"]; ok {
		cfg.MCPConfigFrom = from["mcp_config"]
	}
	if err := k.Load(confmap.Provider(overlay, "."), nil); err != nil {
		return Config{}, fault.New(fault.ConfigInvalid, "configuration: %v", err)
	}
	if err := checkItems(k, from); err != nil {
		return Config{}, err
	}
	if err := unmarshal(k, &cfg, from); err != nil {
		return Config{}, err
	}
	cfg.Registry.StdioCommandAllowlist = append(cfg.Registry.StdioCommandAllowlist, words(env[legacyAllowlist])...)
	cfg.expandPaths(env["HOME"])
	if err := cfg.check(from); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// origins says where the value of a key came from: a flag, a variable or the file. Keys with their default are not in it.
type origins map[string]string

// name returns key as messages name it.
func (o origins) name(key string) string {
	for at := key; at != ""; {
		if from, ok := o[at]; ok {
			return key + " (" + from + ")"
		}
		at = at[:max(0, strings.LastIndexAny(at, ".["))] // of an item of a list, what gave the list
	}
	return key
}

func configPath(fs *pflag.FlagSet, env map[string]string) string {
	if fs != nil {
		if f := fs.Lookup("config"); f != nil && f.Changed {
			return f.Value.String()
		}
	}
	return env[envPrefix+"CONFIG"]
}

func loadFile(k *koanf.Koanf, path string, from origins) error {
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		return fault.New(fault.ConfigInvalid, "read configuration %s: %v (give another path with --config)", path, err)
	}
	known, sections := map[string]bool{}, map[string]bool{}
	for _, key := range keys() {
		known[key.path] = true
		for i, c := range key.path {
			if c == '.' {
				sections[key.path[:i]] = true
			}
		}
	}
	var unknown []string
	for _, name := range k.Keys() {
		switch {
		case known[name]:
			from[name] = path
		case sections[name] && isNothing(k.Get(name)): // such as one whose every key is commented out
			k.Delete(name)
		case sections[name]:
			return fault.New(fault.ConfigInvalid, "configuration %s: %s holds keys of its own: write them below it, one a line", path, name)
		default:
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return unknownKey("configuration "+path, unknown[0], slices.Sorted(maps.Keys(known)))
}

func unknownKey(where, name string, known []string) error {
	msg := fmt.Sprintf("%s: unknown key %q", where, name)
	if near := spelling.Nearest(name, known, len(name)/3+1); near != "" {
		msg += fmt.Sprintf(", did you mean %q?", near)
	}
	return fault.New(fault.ConfigInvalid, "%s", msg)
}

// checkItems refuses unknown keys inside the items of lists of objects.
func checkItems(k *koanf.Koanf, from origins) error {
	for _, list := range keys() {
		if list.items == nil {
			continue
		}
		known := make([]string, len(list.items))
		for i, item := range list.items {
			known[i] = item.path
		}
		items, _ := k.Get(list.path).([]any)
		for i, item := range items {
			given, _ := item.(map[string]any)
			for _, name := range slices.Sorted(maps.Keys(given)) {
				if !slices.Contains(known, name) {
					return unknownKey("configuration: "+from.name(fmt.Sprintf("%s[%d]", list.path, i)), name, known)
				}
			}
		}
	}
	return nil
}

// isNothing reports whether a section of the file is there without anything in it.
func isNothing(section any) bool {
	m, ok := section.(map[string]any)
	return section == nil || ok && len(m) == 0
}

// overlays collects what environment and flags say, flags winning, and notes where it came from.
func overlays(fs *pflag.FlagSet, env map[string]string, from origins) (map[string]any, error) {
	overlay := map[string]any{}
	if v := env[legacyMCPConfig]; v != "" {
		overlay["mcp_config"], from["mcp_config"] = []string{v}, legacyMCPConfig
	}
	for _, k := range keys() {
		if v, ok := env[envPrefix+k.env]; ok {
			value, err := k.fromText(v)
			if err != nil {
				return nil, fault.New(fault.ConfigInvalid, "configuration: %s (%s%s): %v", k.path, envPrefix, k.env, err)
			}
			overlay[k.path], from[k.path] = value, envPrefix+k.env
		}
		if fs == nil || k.flag == "" {
			continue
		}
		f := fs.Lookup(k.flag)
		if f == nil || !f.Changed {
			continue
		}
		from[k.path] = "--" + k.flag
		if list, ok := f.Value.(pflag.SliceValue); ok {
			overlay[k.path] = list.GetSlice()
		} else {
			overlay[k.path] = f.Value.String()
		}
	}
	return overlay, nil
}

// fromText returns the value that a variable gives to k: the parts of a list of paths between colons and those of another
// list between commas, a list of objects in YAML, and any other text as it is.
func (k key) fromText(text string) (any, error) {
	switch {
	case k.items != nil:
		var items []any
		if err := yamlv3.Unmarshal([]byte(text), &items); err != nil {
			return nil, fmt.Errorf("want a list in YAML, such as [{%s: x}]", k.items[0].path)
		}
		return items, nil
	case k.list && !k.isPath:
		return words(text), nil
	case k.list:
		return slices.DeleteFunc(filepath.SplitList(text), func(part string) bool { return part == "" }), nil
	default:
		return text, nil
	}
}

// words returns the parts of a list between commas, blank ones left out.
func words(text string) []string {
	var out []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, word)
		}
	}
	return out
}

func unmarshal(k *koanf.Koanf, cfg *Config, from origins) error {
	err := k.UnmarshalWithConf("", cfg, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result:           cfg,
		TagName:          "koanf",
		WeaklyTypedInput: true,
		ErrorUnused:      true, // unknown keys inside the items of a list
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			durationHook,
			wholeHook,
			mapstructure.TextUnmarshallerHookFunc(),
		),
	}})
	if err == nil {
		return nil
	}
	return fault.New(fault.ConfigInvalid, "configuration: %s", strings.Join(wrongValues(err, from), "; "))
}

// wrongValues says what is wrong with each value that an error of mapstructure is about.
func wrongValues(err error, from origins) []string {
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case interface{ Unwrap() []error }:
		var out []string
		for _, one := range e.Unwrap() {
			out = append(out, wrongValues(one, from)...)
		}
		return out
	case *mapstructure.DecodeError:
		cause := e.Unwrap().Error()
		if parse, ok := errors.AsType[*mapstructure.ParseError](err); ok {
			cause = "want a whole number"
			if parse.Expected.Kind() == reflect.Bool {
				cause = "want true or false"
			}
		}
		return []string{from.name(e.Name()) + ": " + cause}
	}
	if inner := errors.Unwrap(err); inner != nil {
		return wrongValues(inner, from)
	}
	return []string{err.Error()}
}

// durationHook reads a duration with its unit. A bare number would be taken for nanoseconds.
func durationHook(source, target reflect.Type, value any) (any, error) {
	if target != reflect.TypeFor[time.Duration]() || source == target {
		return value, nil
	}
	text := fmt.Sprint(value)
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a duration: write one with its unit, such as 90s or 2h", text)
	}
	return d, nil
}

// wholeHook refuses a fraction or a truth value where a whole number belongs: mapstructure would cut or convert it.
func wholeHook(source, target reflect.Type, value any) (any, error) {
	if !isWhole(target.Kind()) || source == target {
		return value, nil
	}
	if k := source.Kind(); k == reflect.Bool || k == reflect.Float32 || k == reflect.Float64 {
		return nil, fmt.Errorf("%v is not a whole number", value)
	}
	return value, nil
}

func isWhole(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Int64 }

// expandPaths replaces a leading ~ of every path: no shell does it in a file, in a variable or behind a flag's =.
func (c *Config) expandPaths(home string) {
	expandFields(reflect.ValueOf(c).Elem(), keys(), home)
}

func expandFields(v reflect.Value, of []key, home string) {
	for _, k := range of {
		f := v.FieldByIndex(k.index)
		switch {
		case k.items != nil:
			for i := range f.Len() {
				expandFields(f.Index(i), k.items, home)
			}
		case !k.isPath:
		case k.list:
			for i := range f.Len() {
				f.Index(i).SetString(expandHome(f.Index(i).String(), home))
			}
		default:
			f.SetString(expandHome(f.String(), home))
		}
	}
}

// expandHome replaces a ~ that stands for the user's home directory.
func expandHome(path, home string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && home != "" && (rest == "" || rest[0] == '/') {
		return home + rest
	}
	return path
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
