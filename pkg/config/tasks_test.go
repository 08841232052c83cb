package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
)

// CFG-057, CFG-058
func TestTaskKeysHaveTheirDefaults(t *testing.T) {
	cfg, err := load(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Tasks{
		Enabled: true, PollInterval: 5 * time.Second, Lease: 30 * time.Second, Concurrency: 128, MaxPollBackoff: 5 * time.Minute,
		InputRequiredPollInterval: time.Minute, TrackingDegradedAfterErrors: 3, MaxResultBytes: 65536, ResultPreviewMaxChars: 2000,
		MaxAge: 30 * 24 * time.Hour, Retention: 30 * 24 * time.Hour,
	}
	if diff := cmp.Diff(want, cfg.Tasks); diff != "" {
		t.Errorf("tasks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Notifier{}, cfg.Notifier); diff != "" {
		t.Errorf("notifier (-want +got):\n%s", diff)
	}
}

// CFG-057, CFG-058
func TestTaskKeysOutOfRangeStopTheStartNamingKeyAndRange(t *testing.T) {
	for _, r := range []struct {
		key                  string
		low, high            string // the ends of the range
		tooLow, tooHigh, say string
	}{
		{"poll_interval", "1s", "300s", "999ms", "301s", "1s..300s"},
		{"lease", "5s", "3600s", "4999ms", "3601s", "5s..3600s"},
		{"max_poll_backoff", "1s", "3600s", "0s", "2h", "1s..3600s"},
		{"input_required_poll_interval", "5s", "3600s", "4s", "3601s", "5s..3600s"},
		{"concurrency", "1", "1048576", "0", "1048577", "1..1048576"},
		{"tracking_degraded_after_errors", "1", "100", "0", "101", "1..100"},
		{"max_result_bytes", "1024", "10485760", "1023", "10485761", "1024..10485760"},
		{"result_preview_max_chars", "64", "100000", "63", "100001", "64..100000"},
		{"max_age", "1s", "87600h", "0s", "87601h", "1s..87600h"},
		{"retention", "1s", "87600h", "-1h", "87601h", "1s..87600h"},
	} {
		for _, inside := range []string{r.low, r.high} {
			if _, err := load(t, nil, "--config", write(t, fmt.Sprintf("tasks: {%s: %s}", r.key, inside))); err != nil {
				t.Errorf("%s: %s is refused: %v", r.key, inside, err)
			}
		}
		for _, outside := range []string{r.tooLow, r.tooHigh} {
			file := write(t, fmt.Sprintf("tasks: {%s: %s}", r.key, outside))
			_, err := load(t, nil, "--config", file)
			if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), "tasks."+r.key+" ("+file+")") || !strings.Contains(err.Error(), r.say) {
				t.Errorf("%s: %s: got %v, want CONFIG_INVALID with the key and %s", r.key, outside, err, r.say)
			}
			variable := "TOOLHERD_TASKS_" + strings.ToUpper(r.key)
			if _, err := load(t, []string{variable + "=" + outside}); !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), variable) {
				t.Errorf("%s=%s: got %v, want CONFIG_INVALID with the variable", variable, outside, err)
			}
		}
	}
	for content, want := range map[string]string{
		"tasks: {enabled: perhaps}":               "tasks.enabled",
		"tasks: {concurrency: 1.5}":               "1.5 is not a whole number",
		"tasks: {concurrency: true}":              "true is not a whole number",
		"tasks: {lease: 30}":                      "write one with its unit",
		"tasks: {leese: 30s}":                     `did you mean "tasks.lease"?`,
		"notifier: {max_attempts: -1}":            "notifier.max_attempts",
		"notifier: {max_attempts: 1001}":          "1..1000",
		"notifier: {backoff: 5s}":                 "notifier.backoff holds keys of its own",
		"notifier: {backoff: {base: 2h}}":         "1ms..1h",
		"notifier: {backoff: {bass: 2h}}":         `did you mean "notifier.backoff.base"?`,
		"notifier: {backoff: {cap: 25h}}":         "notifier.backoff.cap",
		"notifier: {backoff: {base: 9s,cap: 8s}}": "notifier.backoff.base..24h",
	} {
		if _, err := load(t, nil, "--config", write(t, content)); !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want CONFIG_INVALID with %q", content, err, want)
		}
	}
}

func TestSinksAreReadAsTheyAreWritten(t *testing.T) {
	file := write(t, `
notifier:
  default_sink: ops
  max_attempts: 7
  backoff: {base: 1s, cap: 1m}
  sinks:
    - {name: ops, type: webhook, url: "https://hooks.example.com/x?a=b", secrets: ["${HOOK_SECRET}", "old key"], allowed_roles: [agent, operator]}
    - {name: runtime, type: agent_runtime, address: "127.0.0.1:9000", token: "${RUNTIME_TOKEN}", ca_file: ~/ca.pem}
    - {name: plain, type: agent_runtime, address: "runtime:9000", insecure_plaintext: true}
    - {name: feed, type: stream}
    - {name: events, type: stream, allowed_roles: [operator]}
`)
	cfg, err := load(t, []string{"HOME=/users/me", "HOOK_SECRET=never resolved here"}, "--config", file)
	if err != nil {
		t.Fatal(err)
	}
	want := Notifier{
		DefaultSink: "ops", MaxAttempts: 7, Backoff: Backoff{Base: time.Second, Cap: time.Minute},
		Sinks: []Sink{
			{Name: "ops", Type: SinkWebhook, URL: "https://hooks.example.com/x?a=b", Secrets: []string{"${HOOK_SECRET}", "old key"}, AllowedRoles: []string{"agent", "operator"}},
			{Name: "runtime", Type: SinkAgentRuntime, Address: "127.0.0.1:9000", Token: "${RUNTIME_TOKEN}", CAFile: "/users/me/ca.pem"},
			{Name: "plain", Type: SinkAgentRuntime, Address: "runtime:9000", InsecurePlaintext: true},
			{Name: "feed", Type: SinkStream},
			{Name: Events, Type: SinkStream, AllowedRoles: []string{"operator"}},
		},
	}
	if diff := cmp.Diff(want, cfg.Notifier); diff != "" {
		t.Errorf("notifier (-want +got):\n%s", diff)
	}
	fromEnv, err := load(t, []string{`TOOLHERD_NOTIFIER_SINKS=[{name: feed, type: stream}]`, "TOOLHERD_NOTIFIER_DEFAULT_SINK=feed"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Notifier{DefaultSink: "feed", Sinks: []Sink{{Name: "feed", Type: SinkStream}}}, fromEnv.Notifier); diff != "" {
		t.Errorf("notifier from the environment (-want +got):\n%s", diff)
	}
}

func TestAWrongSinkIsNamedWithoutItsCredentials(t *testing.T) {
	const credential = "whsec_bm90IGZvciB5b3VyIGV5ZXM"
	for sinks, want := range map[string]string{
		"[{type: stream}]":                                                                 "name of notifier.sinks[0]",
		"[{name: a b, type: stream}]":                                                      `"a b"`,
		"[{name: a, type: stream}, {name: a, type: stream}]":                               `called "a"`,
		"[{name: a}]":                                                                      "webhook, agent_runtime or stream",
		"[{name: a, type: Webhook}]":                                                       `type is "Webhook"`,
		"[{name: a, type: webhook, secrets: [" + credential + "]}]":                        "url is not",
		"[{name: a, type: webhook, url: 'ftp://x'}]":                                       "url is not",
		"[{name: a, type: webhook, url: 'https://me:" + credential + "@x/'}]":              "url is not",
		"[{name: a, type: webhook, url: 'https://x', secrets: ['']}]":                      "secrets has an empty item",
		"[{name: a, type: webhook, url: 'https://x', token: " + credential + "}]":          "token is not for type webhook",
		"[{name: a, type: agent_runtime, token: " + credential + "}]":                      "address is missing",
		"[{name: a, type: agent_runtime, address: 'x:1', url: 'https://x'}]":               "url is not for type agent_runtime",
		"[{name: a, type: stream, address: 'x:1'}]":                                        "address is not for type stream",
		"[{name: events, type: agent_runtime, address: 'x:1'}]":                            "built-in sink",
		"[{name: a, type: stream, allowed_roles: [agents]}]":                               `allowed_roles has "agents"`,
		"[{name: a, type: stream}, {name: b, type: webhook, secretz: " + credential + "}]": `notifier.sinks[1]`,
		"[{name: b, type: webhook, secretz: " + credential + "}]":                          `unknown key "secretz", did you mean "secrets"?`,
		"[" + credential + "]":                                                             "notifier.sinks[0]",
		"{name: a, tipe: stream}":                                                          "did you mean \"notifier.sinks\"",
	} {
		_, err := load(t, nil, "--config", write(t, "notifier: {sinks: "+sinks+"}"))
		if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want CONFIG_INVALID with %q", sinks, err, want)
		}
		if err != nil && strings.Contains(err.Error(), credential) {
			t.Errorf("%s: the error shows a credential: %v", sinks, err)
		}
	}
	_, err := load(t, nil, "--config", write(t, "notifier: {default_sink: feed, sinks: [{name: food, type: stream}]}"))
	if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), `want one of ["events" "food"]`) {
		t.Errorf("unknown default sink: got %v", err)
	}
}
