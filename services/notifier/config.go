package notifier

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/spelling"
	"github.com/toolherd/toolherd/pkg/telemetry"
	"github.com/toolherd/toolherd/pkg/wake"
)

// What holds where nothing is configured.
const (
	defaultRetention     = 720 * time.Hour
	defaultStreamLease   = 30 * time.Second
	defaultHeartbeat     = 15 * time.Second
	runtimeAttempts      = 5
	webhookAttempts      = 14
	defaultBase          = 5 * time.Second
	runtimeCap           = 300 * time.Second
	webhookCap           = 8 * time.Hour
	concurrency          = 32 // attempts of one sink at once
	maxAttempts          = 1000
	maxSinkName          = 64
	sinkNameCharacters   = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	secretsKey, tokenKey = "secrets", "token"
)

// Config is what a notifier can be told. Zero values take the defaults; the zero Config has the sink `events` alone.
type Config struct {
	// DefaultSink gets the events of tasks that name none; empty means config.Events.
	DefaultSink string
	// MaxAttempts is how many failures in a row make a dead letter, for all sinks; 0 means 5 for agent runtimes and 14 for
	// webhooks.
	MaxAttempts int
	// Backoff is the wait between attempts, for all sinks; zero fields mean 5 s, growing up to 5 min for agent runtimes
	// and 8 h for webhooks.
	Backoff config.Backoff
	// Sinks are where events can go, beside config.Events.
	Sinks []config.Sink
	// Retention is how long deliveries are kept that are done, and those that nobody reads; default 720 h.
	Retention time.Duration

	// Lease is how long a notifier owns what it claimed unless it renews it; default 30 s.
	Lease time.Duration
	// PollInterval bounds how long goes by without a look at what is due; default 1 s.
	PollInterval time.Duration
	// StreamLease is how long a reader of a stream has for an acknowledgement before the event comes again; default 30 s.
	StreamLease time.Duration
	// Heartbeat is how long a stream is silent before it gives a sign of life; default 15 s.
	Heartbeat time.Duration
}

// FromConfig returns the notifier's part of a process's configuration. Faults: CONFIG_INVALID, SINK_UNKNOWN.
func FromConfig(c config.Config) (Config, error) {
	n := Config{
		DefaultSink: c.Notifier.DefaultSink, MaxAttempts: c.Notifier.MaxAttempts, Backoff: c.Notifier.Backoff,
		Sinks: c.Notifier.Sinks, Retention: c.Tasks.Retention,
	}
	return n, n.validate()
}

// Deps are what a notifier works with. All but Environment are required.
type Deps struct {
	// DB has a current schema. The notifier does not close it.
	DB *db.DB
	// Wake tells of new events and due deliveries. It is a hint: without any, they are found by polling.
	Wake      wake.Bus
	Log       *slog.Logger
	Telemetry *telemetry.Telemetry
	// Redactor learns the secrets of sinks, so that nothing shows them.
	Redactor *secret.Redactor
	// Environment looks up the variables that secrets and tokens refer to; default that of the process.
	Environment func(name string) (string, bool)
}

func (d Deps) validate() error {
	if d.DB == nil || d.Wake == nil || d.Log == nil || d.Telemetry == nil || d.Redactor == nil {
		return errors.New("notifier: a dependency is missing")
	}
	return nil
}

func (d Deps) environment() func(string) (string, bool) {
	if d.Environment == nil {
		return os.LookupEnv
	}
	return d.Environment
}

func (c Config) withDefaults() Config {
	c.DefaultSink = cmp.Or(c.DefaultSink, config.Events)
	c.Retention = cmp.Or(c.Retention, defaultRetention)
	c.StreamLease = cmp.Or(c.StreamLease, defaultStreamLease)
	c.Heartbeat = cmp.Or(c.Heartbeat, defaultHeartbeat)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	if !slices.ContainsFunc(c.Sinks, func(s config.Sink) bool { return s.Name == config.Events }) {
		c.Sinks = append(slices.Clip(c.Sinks), config.Sink{Name: config.Events, Type: config.SinkStream})
	}
	return c
}

func wrong(format string, args ...any) error {
	return fault.New(fault.ConfigInvalid, "notifier."+format, args...)
}

// validate checks everything that needs neither environment nor network.
func (c Config) validate() error {
	c = c.withDefaults()
	switch {
	case c.MaxAttempts < 0 || c.MaxAttempts > maxAttempts:
		return wrong("max_attempts is %d, want 1..%d, or 0 for what is built in", c.MaxAttempts, maxAttempts)
	case c.Backoff.Base < 0 || c.Backoff.Cap < 0:
		return wrong("backoff: base %v and cap %v must not be negative", c.Backoff.Base, c.Backoff.Cap)
	case c.Backoff.Cap > 0 && c.Backoff.Base > c.Backoff.Cap:
		return wrong("backoff: base %v is above cap %v", c.Backoff.Base, c.Backoff.Cap)
	case c.Retention < 0 || c.Lease < 0 || c.PollInterval < 0 || c.StreamLease < 0 || c.Heartbeat < 0:
		return wrong("retention and the other durations must not be negative")
	}
	var names []string
	for _, s := range c.Sinks {
		if slices.Contains(names, s.Name) {
			return wrong("sinks: two are called %q: rename one", s.Name)
		}
		if err := validateSink(s); err != nil {
			return err
		}
		names = append(names, s.Name)
	}
	if !slices.Contains(names, c.DefaultSink) {
		return sinkUnknown("notifier.default_sink: ", c.DefaultSink, names)
	}
	return nil
}

// sinkUnknown returns the fault for a name that no sink has, with a near match.
func sinkUnknown(where, name string, names []string) error {
	if near := spelling.Nearest(name, names, len(name)/3+1); near != "" {
		return fault.New(fault.SinkUnknown, "%sno sink is called %q, did you mean %q?", where, name, near).With("sink", name)
	}
	return fault.New(fault.SinkUnknown, "%sno sink is called %q: `notifier.sinks` of toolherd.yaml says which there are", where, name).With("sink", name)
}

func validateSink(s config.Sink) error {
	switch {
	case s.Name == "" || len(s.Name) > maxSinkName || strings.Trim(s.Name, sinkNameCharacters) != "":
		return wrong("sinks: a name is %q, want 1..%d of the characters A-Z a-z 0-9 . _ -", s.Name, maxSinkName)
	case s.Name == config.Events && s.Type != config.SinkStream:
		return wrong("sinks: %q is the name of the built-in sink of type stream: give this one another name", s.Name)
	}
	for _, r := range s.AllowedRoles {
		if !slices.Contains(authn.Roles(), authn.Role(r)) {
			return wrongSink(s, "allowed_roles has %q, want some of %q", r, authn.Roles())
		}
	}
	switch s.Type {
	case config.SinkStream:
		return nil
	case config.SinkWebhook:
		if _, err := webhookURL(s); err != nil {
			return err
		}
		if len(s.Secrets) == 0 {
			return wrongSink(s, "secrets is missing: a webhook is signed; write a key, such as \"${HOOK_SECRET}\"")
		}
		return nil
	case config.SinkAgentRuntime:
		return validateRuntime(s)
	case "":
		return wrongSink(s, "type is missing: write webhook, agent_runtime or stream")
	}
	known := []string{config.SinkWebhook, config.SinkAgentRuntime, config.SinkStream}
	if near := spelling.Nearest(s.Type, known, len(s.Type)/3+1); near != "" {
		return wrongSink(s, "type is %q, did you mean %q?", s.Type, near)
	}
	return wrongSink(s, "type is %q, want webhook, agent_runtime or stream", s.Type)
}

func wrongSink(s config.Sink, format string, args ...any) error {
	return fault.New(fault.ConfigInvalid, "notifier.sinks: sink %q: %s", s.Name, fmt.Sprintf(format, args...)).With("sink", s.Name)
}
