// Package config is the configuration of Toolherd's processes: one model for the all-in-one and for every split
// service, filled from flags, the environment and toolherd.yaml.
//
// A key comes from its flag, else from the variable TOOLHERD_ plus the key in upper snake case, else from the file,
// else from [Defaults]. The file is read once, at start; an unknown key in it is an error that names a near match.
// A leading ~ of a path is the user's home directory. Only this package reads the environment for configuration. MCP
// servers are not configured here but in the files that MCPConfig and discovery name.
package config

import "time"

// Config is everything a process of Toolherd can be told. Keys are the koanf tags, nested ones joined by dots.
type Config struct {
	// Listen is the address of the gRPC listener, host:port (port 0 picks a free one) or unix:PATH.
	Listen string `koanf:"listen" flag:"listen" help:"gRPC address, host:port or unix:PATH; port 0 picks a free one"`
	// HTTPListen serves /healthz, /readyz and /metrics; empty turns it off.
	HTTPListen string `koanf:"http_listen" flag:"http-listen" help:"address of /healthz, /readyz and /metrics; empty turns it off"`
	// StateDir holds the database, keys, the lock and the address file of the all-in-one.
	StateDir string `koanf:"state_dir" is:"path" flag:"state-dir" help:"directory of database, keys and lock"`
	// Project is where discovery of project files starts; empty means the working directory.
	Project string `koanf:"project" is:"path" flag:"project" help:"where the search for project files starts (default: working directory)"`
	// MCPConfig lists explicit files of MCP servers, later ones winning.
	MCPConfig []string `koanf:"mcp_config" is:"path" flag:"mcp-config" help:"file of MCP servers; repeatable, a later one wins"`
	// MCPConfigFrom says which flag or variable gave MCPConfig, for messages. It is not a key.
	MCPConfigFrom string `koanf:"-"`
	// NoMCP opens no server file and starts no server.
	NoMCP bool `koanf:"no_mcp" flag:"no-mcp" help:"read no server file, start no server"`
	// TrustProjectMCP trusts project servers for this run.
	TrustProjectMCP bool `koanf:"trust_project_mcp" flag:"trust-project-mcp" help:"trust the project's servers for this run"`
	// Postgres is the DSN of the database; empty means SQLite in StateDir (all-in-one only).
	Postgres string `koanf:"postgres" flag:"postgres" help:"Postgres DSN; empty means SQLite in the state directory (all-in-one only)"`
	// PostgresListen takes wake-ups from other processes by LISTEN. It must be off where the DSN leads through a pooler that
	// shares sessions, such as PgBouncer in transaction mode; everything is found by polling then.
	PostgresListen bool `koanf:"postgres_listen" flag:"postgres-listen" help:"take wake-ups by LISTEN; off behind PgBouncer in transaction mode"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `koanf:"log_level" flag:"log-level" help:"debug, info, warn or error"`
	// LogFormat is text or json.
	LogFormat string `koanf:"log_format" flag:"log-format" help:"text or json"`
	// LogFile receives the log instead of stderr.
	LogFile string `koanf:"log_file" is:"path" flag:"log-file" help:"write the log here instead of stderr"`
	// OTLPEndpoint receives traces by OTLP over gRPC, as a URL; empty exports none.
	OTLPEndpoint string `koanf:"otlp_endpoint" flag:"otlp-endpoint" help:"OTLP gRPC endpoint for traces, as a URL"`
	// InsecurePlaintext allows a non-loopback listener without TLS.
	InsecurePlaintext bool `koanf:"insecure_plaintext" flag:"insecure-plaintext" help:"allow a non-loopback listener without TLS"`

	Auth      Auth      `koanf:"auth"`
	TLS       TLS       `koanf:"tls"`
	Peers     Peers     `koanf:"peers"`
	Registry  Registry  `koanf:"registry"`
	Toolproxy Toolproxy `koanf:"toolproxy"`
	Tasks     Tasks     `koanf:"tasks"`
	Notifier  Notifier  `koanf:"notifier"`
}

// Auth says who may call.
type Auth struct {
	// TokensFile lists the callers' tokens by hash; empty means an unauthenticated loopback listener.
	TokensFile string `koanf:"tokens_file" is:"path" flag:"tokens-file" help:"file of token hashes (see 'toolherd token new')"`
}

// TLS is the identity of this process's listener.
type TLS struct {
	// CertFile is the certificate chain, PEM.
	CertFile string `koanf:"cert_file" is:"path" flag:"tls-cert-file" help:"certificate chain of the listener, PEM"`
	// KeyFile is its private key, PEM.
	KeyFile string `koanf:"key_file" is:"path" flag:"tls-key-file" help:"private key of the listener, PEM"`
	// ClientCAFile verifies client certificates; empty asks for none.
	ClientCAFile string `koanf:"client_ca_file" is:"path" flag:"tls-client-ca-file" help:"CA of client certificates; empty asks for none"`
}

// Peers says how to reach the other services.
type Peers struct {
	// TokenFile holds the token this process presents to its peers.
	TokenFile string `koanf:"token_file" is:"path" flag:"peer-token-file" help:"file with the token shown to peers"`
	// CAFile verifies the peers' certificates; empty means plaintext on loopback.
	CAFile string `koanf:"ca_file" is:"path" flag:"peer-ca-file" help:"CA of the peers' certificates; empty means plaintext"`
	// Registry, Toolproxy, Taskworker and Notifier are the peers' gRPC addresses.
	Registry   string `koanf:"registry" flag:"registry" env:"REGISTRY" help:"gRPC address of registry"`
	Toolproxy  string `koanf:"toolproxy" flag:"toolproxy" env:"TOOLPROXY" help:"gRPC address of toolproxy"`
	Taskworker string `koanf:"taskworker" flag:"taskworker" env:"TASKWORKER" help:"gRPC address of taskworker"`
	Notifier   string `koanf:"notifier" flag:"notifier" env:"NOTIFIER" help:"gRPC address of notifier"`
}

// Registry is the registry's own part.
type Registry struct {
	// Source is where configuration comes from. This version knows `files`.
	Source string `koanf:"source"`
	// SecretKeyFile holds the key that encrypts literal secrets at rest; all-in-one makes one in StateDir.
	SecretKeyFile string `koanf:"secret_key_file" is:"path"`
	// StdioCommandAllowlist are commands that an entry written through the API may start, beside npx and uvx, compared
	// exactly. The variable DEER_FLOW_MCP_STDIO_COMMAND_ALLOWLIST, a list between commas, adds to it.
	StdioCommandAllowlist []string `koanf:"stdio_command_allowlist"`
	// EnvRefs are the variables that an entry written through the API may refer to.
	EnvRefs []string `koanf:"env_refs"`
	// MaxToolNameLength is the longest visible tool name, 16..128.
	MaxToolNameLength int `koanf:"max_tool_name_length"`
}

// Toolproxy is toolproxy's own part.
type Toolproxy struct {
	// Replicas is `one` or `many`: with many, stdio servers must be `session_scope: shared`.
	Replicas string `koanf:"replicas"`
	// MaxSessions is the most stdio sessions at once, > 0.
	MaxSessions int `koanf:"max_sessions"`
	// StartConcurrency is the most servers in their start at once, > 0.
	StartConcurrency int `koanf:"start_concurrency"`
	// SessionIdleTimeout ends sessions that carry no call for this long, > 0.
	SessionIdleTimeout time.Duration `koanf:"session_idle_timeout"`
	// WorkspaceRoot holds the threads' working directories; empty means below StateDir.
	WorkspaceRoot string `koanf:"workspace_root" is:"path"`
	// MaxMessageBytes is the longest message from or to an MCP server.
	MaxMessageBytes Size `koanf:"max_message_bytes"`
	// Interceptors are the mcpInterceptors entries that may be used or left out. An entry of mcpInterceptors that is not
	// among them puts every http and sse server in error. The registry reads them too.
	Interceptors []Interceptor `koanf:"interceptors"`
}

// Interceptor is what the operator says about one entry of mcpInterceptors.
type Interceptor struct {
	// Entry is the entry as server files write it.
	Entry string `koanf:"entry"`
	// OnUnresolved says what happens where it cannot be resolved: `error`, the default, or `skip`, which calls servers
	// without it.
	OnUnresolved string `koanf:"on_unresolved"`
}

// SkippedInterceptors returns the mcpInterceptors entries that may be left out.
func (t Toolproxy) SkippedInterceptors() []string {
	var out []string
	for _, i := range t.Interceptors {
		if i.OnUnresolved == "skip" {
			out = append(out, i.Entry)
		}
	}
	return out
}

// Defaults returns the configuration before flags, environment and file.
func Defaults() Config {
	return Config{
		Listen:         "127.0.0.1:7400",
		HTTPListen:     "127.0.0.1:7480",
		PostgresListen: true,
		LogLevel:       "info",
		LogFormat:      "text",
		Peers: Peers{
			Registry: "127.0.0.1:7401", Toolproxy: "127.0.0.1:7402",
			Taskworker: "127.0.0.1:7403", Notifier: "127.0.0.1:7404",
		},
		Registry: Registry{Source: "files", MaxToolNameLength: 64},
		Toolproxy: Toolproxy{
			Replicas: "one", MaxSessions: 256, StartConcurrency: 8, SessionIdleTimeout: 2 * time.Hour,
			MaxMessageBytes: 16 << 20,
		},
		Tasks: defaultTasks(),
	}
}
