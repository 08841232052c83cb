package registry

import (
	"errors"
	"log/slog"
	"time"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/registry/internal/source"
)

// Config is what a registry can be told. The zero value reads nothing but the files of the project that WorkDir is in.
type Config struct {
	// Source is where configuration comes from: "files", which is the default.
	Source string
	// MCPConfig names explicit files, later ones above earlier ones; MCPConfigFrom is the flag or variable that did,
	// for messages.
	MCPConfig     []string
	MCPConfigFrom string
	// WorkDir is the caller's working directory, absolute. Relative names count from it.
	WorkDir string
	// ProjectDir is where the search for the project's root starts; empty means WorkDir.
	ProjectDir string
	// Home is the user's home directory; empty means that there are no user files and `~` is not expanded.
	Home string
	// NoMCP opens no file. It excludes MCPConfig.
	NoMCP bool
	// TrustProjectMCP trusts the entries of project files for as long as this registry runs, and saves nothing.
	TrustProjectMCP bool
	// SkipInterceptors are the mcpInterceptors entries that the operator allows to be left out where they cannot be
	// resolved (`on_unresolved: skip`). Any other one that cannot be resolved puts all http and sse servers in error.
	SkipInterceptors []string
	// NoTasks says that durable tasks are switched off. An entry with task_toolsets is then in error; one of the operator's
	// own files that is there when the registry starts keeps it from starting.
	NoTasks bool
	// StdioCommandAllowlist are commands that entries written through the API may start, beside npx and uvx.
	StdioCommandAllowlist []string
	// EnvRefs are the variables that an entry written through the API may refer to.
	EnvRefs []string
	// MaxTaskAge is tasks.max_age, and must not be less than that of taskworker: the secrets of a removed server are kept
	// for a day longer than this after they were last in force or used. Zero means 720 h.
	MaxTaskAge time.Duration
}

// Deps are what a registry works with. DB, Wake and Log are required.
type Deps struct {
	// DB has a current schema. The registry does not close it.
	DB *db.DB
	// Wake tells replicas of new revisions. It is a hint: without any, they find out within a second.
	Wake wake.Bus
	// Key seals literal secrets. Without one, an entry that holds a literal secret is an error that says how to set it.
	Key *secret.Key
	Log *slog.Logger
}

func (c Config) validate() error {
	switch c.Source {
	case "", "files":
	case "database":
		return fault.New(fault.ConfigInvalid, "registry.source: `database` is not supported by this version: set it to `files`")
	default:
		return fault.New(fault.ConfigInvalid, "registry.source: %q is unknown: set it to `files`", c.Source)
	}
	return nil
}

func (d Deps) validate() error {
	switch {
	case d.DB == nil:
		return errors.New("registry: Deps.DB is missing")
	case d.Wake == nil:
		return errors.New("registry: Deps.Wake is missing")
	case d.Log == nil:
		return errors.New("registry: Deps.Log is missing")
	}
	return nil
}

func (c Config) places() source.Places {
	return source.Places{
		Explicit:     c.MCPConfig,
		ExplicitFrom: c.MCPConfigFrom,
		WorkDir:      c.WorkDir,
		ProjectDir:   c.ProjectDir,
		Home:         c.Home,
		None:         c.NoMCP,
	}
}

// trustCommand is what a person types to trust the project's entries.
func (c Config) trustCommand() string {
	if c.ProjectDir == "" {
		return "toolherd up --trust-project-mcp"
	}
	return "toolherd up --project " + shellWord(c.places().Absolute(c.ProjectDir)) + " --trust-project-mcp"
}
