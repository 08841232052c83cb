package registry

import (
	"fmt"
	"os"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/secret"
)

// FromConfig returns the registry's part of a process's configuration. Relative names count from the working directory
// of the process, and user files are those of the user who runs it.
func FromConfig(c config.Config) (Config, error) {
	dir, err := os.Getwd()
	if err != nil {
		return Config{}, fmt.Errorf("find the working directory: %w", err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // a service account without a home has no user files
	}
	return Config{
		Source:    c.Registry.Source,
		MCPConfig: c.MCPConfig, MCPConfigFrom: c.MCPConfigFrom,
		WorkDir: dir, ProjectDir: c.Project, Home: home,
		NoMCP: c.NoMCP, TrustProjectMCP: c.TrustProjectMCP, SkipInterceptors: c.Toolproxy.SkippedInterceptors(),
		StdioCommandAllowlist: c.Registry.StdioCommandAllowlist, EnvRefs: c.Registry.EnvRefs,
		NoTasks: !c.Tasks.Enabled, MaxTaskAge: c.Tasks.MaxAge,
	}, nil
}

// LoadKey reads the key that registry.secret_key_file names. Without one it returns nil: entries that hold a literal
// secret are then in error, each of which says so.
func LoadKey(c config.Config) (*secret.Key, error) {
	if c.Registry.SecretKeyFile == "" {
		return nil, nil
	}
	key, err := secret.LoadKey(c.Registry.SecretKeyFile)
	if err != nil {
		return nil, fmt.Errorf("registry.secret_key_file: %w", err)
	}
	return key, nil
}
