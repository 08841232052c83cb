package notifier_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/notifier"
	"github.com/toolherd/toolherd/services/notifier/internal/delivery"
)

func hookAt(url string, secrets ...string) config.Sink {
	return config.Sink{Name: "ops", Type: config.SinkWebhook, URL: url, Secrets: secrets}
}

func runtimeAt(address string, more ...func(*config.Sink)) config.Sink {
	s := config.Sink{Name: "runtime", Type: config.SinkAgentRuntime, Address: address}
	for _, change := range more {
		change(&s)
	}
	return s
}

func TestAConfigurationThatCannotWorkIsRefusedAtTheStart(t *testing.T) {
	d := dbtest.SQLite(t)
	redactor := secret.NewRedactor()
	tel := newTelemetry(t, redactor, t.Output())
	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(notPEM, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := hookAt("https://hooks.example.com/hunter2", hookKey)
	for _, c := range []struct {
		name   string
		cfg    notifier.Config
		reason string
		says   []string
	}{
		{"unknown type", notifier.Config{Sinks: []config.Sink{{Name: "x", Type: "webhok"}}}, "CONFIG_INVALID", []string{`"x"`, `did you mean "webhook"?`}},
		{"no type", notifier.Config{Sinks: []config.Sink{{Name: "x"}}}, "CONFIG_INVALID", []string{`"x"`, "type is missing"}},
		{"bad name", notifier.Config{Sinks: []config.Sink{{Name: "a b", Type: config.SinkStream}}}, "CONFIG_INVALID", []string{`"a b"`}},
		{"no name", notifier.Config{Sinks: []config.Sink{{Type: config.SinkStream}}}, "CONFIG_INVALID", []string{"name"}},
		{"two of a name", notifier.Config{Sinks: []config.Sink{good, good}}, "CONFIG_INVALID", []string{`"ops"`, "rename one"}},
		{"events as a webhook", notifier.Config{Sinks: []config.Sink{{Name: "events", Type: config.SinkWebhook, URL: "https://x.example.com"}}}, "CONFIG_INVALID", []string{"built-in"}},
		{"unknown role", notifier.Config{Sinks: []config.Sink{{Name: "x", Type: config.SinkStream, AllowedRoles: []string{"agents"}}}}, "CONFIG_INVALID", []string{`"agents"`}},
		{"no url", notifier.Config{Sinks: []config.Sink{hookAt("", hookKey)}}, "CONFIG_INVALID", []string{`"ops"`, "url is missing"}},
		{"no host", notifier.Config{Sinks: []config.Sink{hookAt("/hook", hookKey)}}, "CONFIG_INVALID", []string{`"ops"`, "url"}},
		{"other scheme", notifier.Config{Sinks: []config.Sink{hookAt("ftp://hooks.example.com/x", hookKey)}}, "CONFIG_INVALID", []string{`"ops"`, "ftp"}},
		{"userinfo", notifier.Config{Sinks: []config.Sink{hookAt("https://u:hunter2@hooks.example.com/x", hookKey)}}, "CONFIG_INVALID", []string{`"ops"`, "user or password"}},
		{"metadata", notifier.Config{Sinks: []config.Sink{hookAt("http://169.254.169.254/latest", hookKey)}}, "CONFIG_INVALID", []string{`"ops"`, "metadata"}},
		{"number as host", notifier.Config{Sinks: []config.Sink{hookAt("http://2130706433/", hookKey)}}, "CONFIG_INVALID", []string{`"ops"`, "127.0.0.1"}},
		{"no secrets", notifier.Config{Sinks: []config.Sink{hookAt("https://hooks.example.com/x")}}, "CONFIG_INVALID", []string{`"ops"`, "secrets is missing"}},
		{"a secret that is no key", notifier.Config{Sinks: []config.Sink{hookAt("https://hooks.example.com/x", "hunter2hunter2")}}, "CONFIG_INVALID", []string{`"ops"`, "whsec_"}},
		{"an unset variable", notifier.Config{Sinks: []config.Sink{hookAt("https://hooks.example.com/x", hookKey, "${HOOK_SECRET_2}")}}, "CONFIG_INVALID", []string{`"ops"`, "secrets", "HOOK_SECRET_2", "not set"}},
		{"a variable of Toolherd's own", notifier.Config{Sinks: []config.Sink{hookAt("https://hooks.example.com/x", "${TOOLHERD_SECRET}")}}, "CONFIG_INVALID", []string{`"ops"`, "TOOLHERD_SECRET"}},
		{"a broken reference", notifier.Config{Sinks: []config.Sink{hookAt("https://hooks.example.com/x", "${HOOK")}}, "CONFIG_INVALID", []string{`"ops"`, "${NAME}"}},
		{"no address", notifier.Config{Sinks: []config.Sink{runtimeAt("")}}, "CONFIG_INVALID", []string{`"runtime"`, "address is missing"}},
		{"plaintext", notifier.Config{Sinks: []config.Sink{runtimeAt("runtime.example.com:9000")}}, "CONFIG_INVALID", []string{`"runtime"`, "ca_file"}},
		{"an unset token", notifier.Config{Sinks: []config.Sink{runtimeAt("127.0.0.1:9000", func(s *config.Sink) { s.Token = "$RUNTIME_TOKEN" })}}, "CONFIG_INVALID", []string{`"runtime"`, "token", "RUNTIME_TOKEN"}},
		{"a token of two lines", notifier.Config{Sinks: []config.Sink{runtimeAt("127.0.0.1:9000", func(s *config.Sink) { s.Token = "hunter2\nhunter2" })}}, "CONFIG_INVALID", []string{`"runtime"`, "token"}},
		{"no CA", notifier.Config{Sinks: []config.Sink{runtimeAt("127.0.0.1:9000", func(s *config.Sink) { s.CAFile = notPEM })}}, "CONFIG_INVALID", []string{`"runtime"`, "ca_file"}},
		{"unknown default", notifier.Config{DefaultSink: "opps", Sinks: []config.Sink{good}}, "SINK_UNKNOWN", []string{`"opps"`, `did you mean "ops"?`}},
		{"too many attempts", notifier.Config{MaxAttempts: 1001}, "CONFIG_INVALID", []string{"max_attempts"}},
		{"base above cap", notifier.Config{Backoff: config.Backoff{Base: time.Minute, Cap: time.Second}}, "CONFIG_INVALID", []string{"backoff"}},
		{"a negative time", notifier.Config{Retention: -1}, "CONFIG_INVALID", []string{"retention"}},
	} {
		_, err := notifier.New(c.cfg, notifier.Deps{
			DB: d, Wake: wake.None(), Log: tel.Log, Telemetry: tel, Redactor: redactor,
			Environment: lookup(map[string]string{"TOOLHERD_SECRET": "hunter2hunter2"}),
		})
		if !isReason(err, c.reason) {
			t.Errorf("%s: %v, want %s", c.name, err, c.reason)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %s", c.name, err, want)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: a secret is shown: %v", c.name, err)
		}
	}
	if _, err := notifier.New(notifier.Config{}, notifier.Deps{}); err == nil {
		t.Error("a notifier without a database is made")
	}
}

func TestFromConfigTakesWhatTheFileSays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "toolherd.yaml")
	content := `
tasks: { retention: 48h }
notifier:
  default_sink: ops
  max_attempts: 4
  backoff: { base: 2s, cap: 1m }
  sinks:
    - { name: ops, type: webhook, url: "https://hooks.example.com/x", secrets: [ "${HOOK_SECRET}" ], allowed_roles: [agent] }
    - { name: feed, type: stream }
`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(config.Source{Environ: []string{"TOOLHERD_CONFIG=" + path}})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := notifier.FromConfig(loaded)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.DefaultSink != "ops" || cfg.MaxAttempts != 4 || cfg.Backoff != (config.Backoff{Base: 2 * time.Second, Cap: time.Minute}) ||
		cfg.Retention != 48*time.Hour || len(cfg.Sinks) != 2 || cfg.Sinks[0].Secrets[0] != "${HOOK_SECRET}" {
		t.Errorf("got %+v", cfg)
	}
	loaded.Notifier.DefaultSink = "op"
	if _, err := notifier.FromConfig(loaded); !isReason(err, "SINK_UNKNOWN") {
		t.Errorf("an unknown default sink: %v", err)
	}
}

// Secrets come from the environment, keys are rotated by listing both, and nothing shows them.
func TestSecretsAreResolvedHereAndRedacted(t *testing.T) {
	d := dbtest.SQLite(t)
	h := newHook(t, nil)
	redactor := secret.NewRedactor()
	var log strings.Builder
	tel := newTelemetry(t, redactor, &log)
	s := hookSink("s", h)
	s.Secrets = []string{"${HOOK_SECRET}", "$OLD_SECRET"}
	service, err := notifier.New(quick(notifier.Config{DefaultSink: "s", Sinks: []config.Sink{s}}), notifier.Deps{
		DB: d, Wake: wake.NewLocal(), Log: tel.Log, Telemetry: tel, Redactor: redactor,
		Environment: lookup(map[string]string{"HOOK_SECRET": hookKey, "OLD_SECRET": otherKey}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := redactor.Redact("a " + hookKey + " b " + strings.TrimPrefix(otherKey, "whsec_")); got != "a *** b ***" {
		t.Errorf("redacted as %q", got)
	}
	runFor(t, service, func() {
		record(t, d, recorded("a"))
		eventually(t, "it is delivered", func() bool { return len(h.posts()) == 1 })
	})
	if got := strings.Fields(h.posts()[0].signature); len(got) != 2 || got[0] == got[1] {
		t.Errorf("signatures %v, want one for each key", got)
	}
	if strings.Contains(log.String(), "MfKQ9r8G") {
		t.Errorf("the log shows a key: %s", log.String())
	}
}

// NOTE-009, NOTE-008: what holds for each type of sink, and what the configuration puts in its place for all.
func TestLimitsAreThoseOfTheTypeUnlessConfigured(t *testing.T) {
	d := dbtest.SQLite(t)
	redactor := secret.NewRedactor()
	tel := newTelemetry(t, redactor, t.Output())
	sinks := []config.Sink{hookAt("https://hooks.example.com/x", hookKey), runtimeAt("127.0.0.1:9000")}
	for _, c := range []struct {
		cfg  notifier.Config
		want map[string]delivery.Sink
	}{
		{notifier.Config{Sinks: sinks}, map[string]delivery.Sink{
			"ops":     {MaxAttempts: 14, Base: 5 * time.Second, Cap: 8 * time.Hour},
			"runtime": {MaxAttempts: 5, Base: 5 * time.Second, Cap: 300 * time.Second},
		}},
		{notifier.Config{Sinks: sinks, MaxAttempts: 3, Backoff: config.Backoff{Base: time.Second, Cap: time.Minute}}, map[string]delivery.Sink{
			"ops":     {MaxAttempts: 3, Base: time.Second, Cap: time.Minute},
			"runtime": {MaxAttempts: 3, Base: time.Second, Cap: time.Minute},
		}},
		{notifier.Config{Sinks: sinks, Backoff: config.Backoff{Cap: time.Minute}}, map[string]delivery.Sink{
			"ops":     {MaxAttempts: 14, Base: 5 * time.Second, Cap: time.Minute},
			"runtime": {MaxAttempts: 5, Base: 5 * time.Second, Cap: time.Minute},
		}},
	} {
		s, err := notifier.New(c.cfg, notifier.Deps{DB: d, Wake: wake.None(), Log: tel.Log, Telemetry: tel, Redactor: redactor})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range s.Pushed() {
			want := c.want[got.Name]
			if got.MaxAttempts != want.MaxAttempts || got.Base != want.Base || got.Cap != want.Cap {
				t.Errorf("%+v: %s has %d attempts, %v to %v, want %d, %v to %v",
					c.cfg, got.Name, got.MaxAttempts, got.Base, got.Cap, want.MaxAttempts, want.Base, want.Cap)
			}
		}
		runFor(t, s, func() {})
	}
}
