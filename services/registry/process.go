package registry

import (
	"fmt"
	"os"

	"github.com/toolherd/toolherd/pkg/config"
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
	}, nil
}
