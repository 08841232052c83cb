package toolproxy

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/pkg/telemetry"
	"github.com/toolherd/toolherd/pkg/version"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/environ"
	"github.com/toolherd/toolherd/services/toolproxy/internal/workspace"
)

// Config is what a toolproxy can be told. Zero values take the defaults.
type Config struct {
	// Replicas is "one", the default, or "many": with many, stdio servers that are not session_scope: shared are in error.
	Replicas string
	// MaxSessions is the most stdio sessions at once; default 256.
	MaxSessions int
	// StartConcurrency is the most servers that are being started or listed at once; default 8.
	StartConcurrency int
	// SessionIdleTimeout ends a session that carried no call for so long; default 2 h.
	SessionIdleTimeout time.Duration
	// MaxMessageBytes bounds a message to or from an MCP server; default 16 MiB.
	MaxMessageBytes int
	// MaxToolNameLength bounds visible tool names, 16 to 128 bytes; default 64.
	MaxToolNameLength int
	// WorkspaceRoot holds the working directories of threads. Without one no stdio server can be started.
	WorkspaceRoot string
	// ProjectRoot is where stdio servers of the scope default work; empty means their workspace.
	ProjectRoot string
	// Environment looks up variables of this process that entries refer to; default os.LookupEnv.
	Environment func(name string) (string, bool)
	// EnvFiles are asked for variables that the process does not have, the first one first.
	EnvFiles []string
	// SkipInterceptors lists entries of mcpInterceptors that may be left out where they cannot be resolved.
	SkipInterceptors []string
	// NoTasks says that durable tasks are switched off: servers with task_toolsets are in error.
	NoTasks bool
	// Version is how this program introduces itself to servers; default that of the build.
	Version string
}

// FromConfig returns toolproxy's part of a process's configuration.
func FromConfig(c config.Config) Config {
	t := c.Toolproxy
	root := t.WorkspaceRoot
	if root == "" && c.StateDir != "" {
		root = filepath.Join(c.StateDir, "workspaces")
	}
	project := c.Project
	if project == "" {
		project, _ = os.Getwd() // a process without a working directory has no project
	}
	home, _ := os.UserHomeDir() // nor a service account without a home any files
	return Config{
		Replicas: t.Replicas, MaxSessions: t.MaxSessions, StartConcurrency: t.StartConcurrency,
		SessionIdleTimeout: t.SessionIdleTimeout, MaxMessageBytes: int(t.MaxMessageBytes),
		MaxToolNameLength: c.Registry.MaxToolNameLength,
		WorkspaceRoot:     root, ProjectRoot: workspace.ProjectRoot(project), EnvFiles: environ.Files(home),
		Environment: environment(home), SkipInterceptors: t.SkippedInterceptors(),
		NoTasks: !c.Tasks.Enabled,
	}
}

// noTasks says why there are no durable tasks, and what to do about it, or nothing where there are.
func (c Config) noTasks(d Deps) string {
	const or = ", or remove task_toolsets to use the server's tools as ordinary ones"
	switch {
	case c.NoTasks:
		return "durable tasks are switched off; set tasks.enabled to true in toolherd.yaml and restart" + or
	case d.Intake == nil:
		return "this toolproxy has no taskworker to hand durable tasks to; name one by peers.taskworker" + or
	default:
		return ""
	}
}

// environment is that of the process, with the two variables of Toolherd's own that entries may name:
// TOOLHERD_EXECUTABLE is the running binary, TOOLHERD_CONFIG_DIR the user's own directory of server files.
func environment(home string) func(name string) (string, bool) {
	executable, _ := os.Executable() // empty, and so unset, where the system cannot tell
	dir := ""
	if home != "" {
		dir = filepath.Join(home, ".toolherd")
	}
	return serverconfig.Environment(executable, dir, os.LookupEnv)
}

func (c Config) withDefaults() Config {
	c.Replicas = cmp.Or(c.Replicas, "one")
	c.MaxSessions = cmp.Or(c.MaxSessions, 256)
	c.StartConcurrency = cmp.Or(c.StartConcurrency, 8)
	c.SessionIdleTimeout = cmp.Or(c.SessionIdleTimeout, 2*time.Hour)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 16<<20)
	c.MaxToolNameLength = cmp.Or(c.MaxToolNameLength, 64)
	c.Version = cmp.Or(c.Version, version.Number)
	if c.Environment == nil {
		c.Environment = os.LookupEnv
	}
	return c
}

func (c Config) validate() error {
	wrong := func(key, want string) error {
		return fault.New(fault.ConfigInvalid, "toolproxy.%s: %s", key, want)
	}
	switch {
	case c.Replicas != "one" && c.Replicas != "many":
		return wrong("replicas", "set it to one or many")
	case c.MaxSessions < 1:
		return wrong("max_sessions", "must be above zero")
	case c.StartConcurrency < 1:
		return wrong("start_concurrency", "must be above zero")
	case c.SessionIdleTimeout <= 0:
		return wrong("session_idle_timeout", "must be above zero")
	case c.MaxMessageBytes < 1<<10:
		return wrong("max_message_bytes", "must be at least 1 KiB")
	case c.MaxToolNameLength < 16 || c.MaxToolNameLength > 128:
		return fault.New(fault.ConfigInvalid, "registry.max_tool_name_length: must be between 16 and 128")
	}
	return nil
}

// Deps are what a toolproxy works with. All are required, but those that say otherwise.
type Deps struct {
	Registry    registryv1.RegistryServiceClient
	Credentials credentialv1.CredentialServiceClient
	Log         *slog.Logger
	Telemetry   *telemetry.Telemetry
	// Redactor learns the secrets of servers, so that nothing shows them.
	Redactor *secret.Redactor

	// Intake takes durable tasks in. Without it servers with task_toolsets are in error.
	Intake taskv1.TaskIntakeServiceClient
	// Tasks cancels tasks whose callers went away. Required with Intake and Forward.
	Tasks taskv1.TaskServiceClient
	// Events delivers task events. Required with Forward.
	Events notifierv1.NotifierServiceClient
	// Forward makes toolproxy serve TaskService and NotifierService by handing calls on to Tasks and Events, so that one
	// address is enough for an agent. False where those services are on the same server.
	Forward bool
}

func (d Deps) validate() error {
	if d.Registry == nil || d.Credentials == nil || d.Log == nil || d.Telemetry == nil || d.Redactor == nil {
		return errors.New("toolproxy: a dependency is missing")
	}
	if d.Intake != nil && d.Tasks == nil || d.Forward && (d.Tasks == nil || d.Events == nil) {
		return errors.New("toolproxy: a client of taskworker or notifier is missing")
	}
	return nil
}
