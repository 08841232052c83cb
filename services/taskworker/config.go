package taskworker

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/telemetry"
	"github.com/toolherd/toolherd/pkg/wake"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/server"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Config is what a taskworker can be told. Zero values take the defaults, which are those of toolherd.yaml.
type Config struct {
	// Disabled takes no task in and works on none.
	Disabled bool
	// PollInterval is the time between polls without a hint; default 5 s.
	PollInterval time.Duration
	// Lease is how long a worker owns what it claimed unless it renews it; default 30 s.
	Lease time.Duration
	// Concurrency is the most remote calls at once; default 128.
	Concurrency int
	// MaxPollBackoff caps the wait after failures; default 5 min.
	MaxPollBackoff time.Duration
	// InputRequiredPollInterval is the least wait while a task asks for input; default 1 min.
	InputRequiredPollInterval time.Duration
	// TrackingDegradedAfterErrors is how many failures in a row make a task degraded; default 3.
	TrackingDegradedAfterErrors int
	// MaxResultBytes is the largest result kept in a task itself; default 64 KiB.
	MaxResultBytes int
	// ResultPreviewMaxChars is the length of a preview; default 2000.
	ResultPreviewMaxChars int
	// MaxAge ends tasks that would be polled for ever; default 30 days.
	MaxAge time.Duration
	// Retention is how long final tasks are kept; default 30 days.
	Retention time.Duration
	// Sinks are what a submit may name as notify_sink. The built-in stream is always there.
	Sinks []Sink
}

// Sink is where events may go.
type Sink struct {
	Name string
	// AllowedRoles are those of the callers who may name it; empty means all.
	AllowedRoles []authn.Role
}

// FromConfig returns the taskworker's part of a process's configuration.
func FromConfig(c config.Config) (Config, error) {
	t := c.Tasks
	out := Config{
		Disabled: !t.Enabled, PollInterval: t.PollInterval, Lease: t.Lease, Concurrency: t.Concurrency,
		MaxPollBackoff: t.MaxPollBackoff, InputRequiredPollInterval: t.InputRequiredPollInterval,
		TrackingDegradedAfterErrors: t.TrackingDegradedAfterErrors, MaxResultBytes: int(t.MaxResultBytes),
		ResultPreviewMaxChars: t.ResultPreviewMaxChars, MaxAge: t.MaxAge, Retention: t.Retention,
	}
	for _, k := range c.Notifier.Sinks {
		s := Sink{Name: k.Name}
		for _, r := range k.AllowedRoles {
			s.AllowedRoles = append(s.AllowedRoles, authn.Role(r))
		}
		out.Sinks = append(out.Sinks, s)
	}
	return out, out.withDefaults().validate()
}

func (c Config) withDefaults() Config {
	c.PollInterval = cmp.Or(c.PollInterval, 5*time.Second)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.Concurrency = cmp.Or(c.Concurrency, 128)
	c.MaxPollBackoff = cmp.Or(c.MaxPollBackoff, 300*time.Second)
	c.InputRequiredPollInterval = cmp.Or(c.InputRequiredPollInterval, 60*time.Second)
	c.TrackingDegradedAfterErrors = cmp.Or(c.TrackingDegradedAfterErrors, 3)
	c.MaxResultBytes = cmp.Or(c.MaxResultBytes, 65536)
	c.ResultPreviewMaxChars = cmp.Or(c.ResultPreviewMaxChars, 2000)
	c.MaxAge = cmp.Or(c.MaxAge, 720*time.Hour)
	c.Retention = cmp.Or(c.Retention, 720*time.Hour)
	return c
}

// validate refuses what no taskworker can work with. The ranges that users are held to are those of pkg/config.
func (c Config) validate() error {
	for _, f := range []struct {
		key string
		ok  bool
	}{
		{"poll_interval", c.PollInterval > 0},
		{"lease", c.Lease > 0},
		{"concurrency", c.Concurrency > 0},
		{"max_poll_backoff", c.MaxPollBackoff > 0},
		{"input_required_poll_interval", c.InputRequiredPollInterval > 0},
		{"tracking_degraded_after_errors", c.TrackingDegradedAfterErrors > 0},
		{"max_result_bytes", c.MaxResultBytes > 0},
		{"result_preview_max_chars", c.ResultPreviewMaxChars > 0},
		{"max_age", c.MaxAge > 0},
		{"retention", c.Retention > 0},
	} {
		if !f.ok {
			return fault.New(fault.ConfigInvalid, "tasks.%s: must be above zero", f.key)
		}
	}
	return nil
}

func (c Config) policy() task.Policy {
	return task.Policy{
		PollInterval: c.PollInterval, Lease: c.Lease, MaxPollBackoff: c.MaxPollBackoff,
		InputRequiredPollInterval: c.InputRequiredPollInterval, MaxAge: c.MaxAge, Retention: c.Retention,
		TrackingDegradedAfterErrors: c.TrackingDegradedAfterErrors, MaxResultBytes: c.MaxResultBytes,
		ResultPreviewMaxChars: c.ResultPreviewMaxChars,
	}
}

// sinks returns what a submit may name. A configured sink with the name of the built-in one says who may use that.
func (c Config) sinks() []server.Sink {
	var out []server.Sink
	builtIn := true
	for _, s := range c.Sinks {
		out = append(out, server.Sink{Name: s.Name, AllowedRoles: s.AllowedRoles})
		builtIn = builtIn && s.Name != config.Events
	}
	if builtIn {
		out = append(out, server.Sink{Name: config.Events})
	}
	return out
}

// Deps are what a taskworker works with. All are required.
type Deps struct {
	// DB has a current schema. The taskworker does not close it.
	DB *db.DB
	// Wake makes replicas look sooner. It is a hint: without any, everything works, later.
	Wake wake.Bus
	// Remote is toolproxy. It need not be there yet.
	Remote    toolproxyv1.BackgroundToolServiceClient
	Log       *slog.Logger
	Telemetry *telemetry.Telemetry
}

func (d Deps) validate() error {
	if d.DB == nil || d.Wake == nil || d.Remote == nil || d.Log == nil || d.Telemetry == nil {
		return errors.New("taskworker: a dependency is missing")
	}
	return nil
}
