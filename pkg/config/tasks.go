package config

import "time"

// Tasks is how durable tasks are taken in, polled and kept. taskworker reads all of it; registry and toolproxy read
// whether it is enabled.
type Tasks struct {
	// Enabled is whether there are durable tasks at all.
	Enabled bool `koanf:"enabled"`
	// PollInterval is how long after a call a task is asked for again where the remote gives no hint, 1s..300s.
	PollInterval time.Duration `koanf:"poll_interval"`
	// Lease is how long a worker owns what it claimed unless it renews it, 5s..3600s.
	Lease time.Duration `koanf:"lease"`
	// Concurrency is the most remote calls of one worker at once, at least 1.
	Concurrency int `koanf:"concurrency"`
	// MaxPollBackoff caps the wait after consecutive errors, 1s..3600s.
	MaxPollBackoff time.Duration `koanf:"max_poll_backoff"`
	// InputRequiredPollInterval is the least wait while a task asks for input, 5s..3600s.
	InputRequiredPollInterval time.Duration `koanf:"input_required_poll_interval"`
	// TrackingDegradedAfterErrors is how many consecutive errors make the tracking of a task degraded, 1..100.
	TrackingDegradedAfterErrors int `koanf:"tracking_degraded_after_errors"`
	// MaxResultBytes is the largest result kept in the task itself, 1024..10485760.
	MaxResultBytes Size `koanf:"max_result_bytes"`
	// ResultPreviewMaxChars is the length of a preview, 64..100000.
	ResultPreviewMaxChars int `koanf:"result_preview_max_chars"`
	// MaxAge ends what would be polled for ever, 1s..87600h.
	MaxAge time.Duration `koanf:"max_age"`
	// Retention is how long terminal tasks and their deliveries are kept, 1s..87600h.
	Retention time.Duration `koanf:"retention"`
}

// Notifier is how task events are delivered.
type Notifier struct {
	// DefaultSink gets the events of tasks that name none; empty means the built-in stream [Events].
	DefaultSink string `koanf:"default_sink"`
	// MaxAttempts is how many consecutive failures make a dead letter, 1..1000, for all sinks; 0 means what is built in for
	// the type of the sink.
	MaxAttempts int `koanf:"max_attempts"`
	// Backoff is the wait between attempts, for all sinks.
	Backoff Backoff `koanf:"backoff"`
	// Sinks are where events can go, beside [Events].
	Sinks []Sink `koanf:"sinks"`
}

// Backoff bounds a growing wait. A zero field means what is built in for the type of the sink.
type Backoff struct {
	// Base is the first wait, 1ms..1h.
	Base time.Duration `koanf:"base"`
	// Cap is the longest, Base..24h.
	Cap time.Duration `koanf:"cap"`
}

// The types of sinks.
const (
	SinkWebhook      = "webhook"
	SinkAgentRuntime = "agent_runtime"
	SinkStream       = "stream"
)

// Events is the name of the sink of type [SinkStream] that always exists.
const Events = "events"

// Sink is where events go. References ${VAR} in Secrets and Token are kept as they are written: the notifier resolves
// them, no other process.
type Sink struct {
	// Name is what notify_sink and default_sink say: 1..64 characters of [A-Za-z0-9._-]. An item called [Events] must be of
	// type stream; it says who may use the built-in one.
	Name string `koanf:"name"`
	// Type is webhook, agent_runtime or stream.
	Type string `koanf:"type"`
	// AllowedRoles are the roles of callers whose tasks may go here; empty means all.
	AllowedRoles []string `koanf:"allowed_roles"`

	// URL is where a webhook is posted, http or https.
	URL string `koanf:"url"`
	// Secrets sign a webhook, each with a signature of its own, so that keys can be rotated.
	Secrets []string `koanf:"secrets"`

	// Address is the gRPC address of an agent runtime, host:port or unix:PATH.
	Address string `koanf:"address"`
	// Token is shown to the agent runtime.
	Token string `koanf:"token"`
	// CAFile verifies the agent runtime's certificate; empty means plaintext on loopback.
	CAFile string `koanf:"ca_file" is:"path"`
	// InsecurePlaintext allows plaintext to an agent runtime that is not on loopback.
	InsecurePlaintext bool `koanf:"insecure_plaintext"`
}

func defaultTasks() Tasks {
	return Tasks{
		Enabled: true, PollInterval: 5 * time.Second, Lease: 30 * time.Second, Concurrency: 128,
		MaxPollBackoff: 300 * time.Second, InputRequiredPollInterval: 60 * time.Second, TrackingDegradedAfterErrors: 3,
		MaxResultBytes: 65536, ResultPreviewMaxChars: 2000, MaxAge: 720 * time.Hour, Retention: 720 * time.Hour,
	}
}
