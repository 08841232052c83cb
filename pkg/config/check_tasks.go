package config

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
)

// bound is a key with a range.
type bound struct {
	key   string
	value any
	ok    bool
	want  string
}

func between[T cmp.Ordered](key string, value, low, high T, want string) bound {
	return bound{key: key, value: value, ok: value >= low && value <= high, want: want}
}

// bounds are the ranges of tasks and notifier.
func (c Config) bounds() []bound {
	t, n := c.Tasks, c.Notifier
	const year = 365 * 24 * time.Hour
	list := []bound{
		between("tasks.poll_interval", t.PollInterval, time.Second, 300*time.Second, "1s..300s"),
		between("tasks.lease", t.Lease, 5*time.Second, time.Hour, "5s..3600s"),
		between("tasks.max_poll_backoff", t.MaxPollBackoff, time.Second, time.Hour, "1s..3600s"),
		between("tasks.input_required_poll_interval", t.InputRequiredPollInterval, 5*time.Second, time.Hour, "5s..3600s"),
		between("tasks.concurrency", t.Concurrency, 1, 1<<20, "1..1048576"),
		between("tasks.tracking_degraded_after_errors", t.TrackingDegradedAfterErrors, 1, 100, "1..100"),
		between("tasks.max_result_bytes", t.MaxResultBytes, 1024, 10<<20, "1024..10485760"),
		between("tasks.result_preview_max_chars", t.ResultPreviewMaxChars, 64, 100_000, "64..100000"),
		between("tasks.max_age", t.MaxAge, time.Second, 10*year, "1s..87600h"),
		between("tasks.retention", t.Retention, time.Second, 10*year, "1s..87600h"),
		between("notifier.max_attempts", n.MaxAttempts, 0, 1000, "1..1000, or 0 for what is built in"),
	}
	if n.Backoff.Base != 0 {
		list = append(list, between("notifier.backoff.base", n.Backoff.Base, time.Millisecond, time.Hour, "1ms..1h, or 0s for what is built in"))
	}
	if n.Backoff.Cap != 0 {
		list = append(list, between("notifier.backoff.cap", n.Backoff.Cap, max(n.Backoff.Base, time.Millisecond), 24*time.Hour,
			"notifier.backoff.base..24h, or 0s for what is built in"))
	}
	return list
}

func (c Config) checkBounds(from origins) error {
	for _, b := range c.bounds() {
		if b.ok {
			continue
		}
		value := fmt.Sprint(b.value)
		if size, ok := b.value.(Size); ok {
			value = strconv.FormatInt(int64(size), 10)
		}
		return fault.New(fault.ConfigInvalid, "configuration: %s is %q, want %s", from.name(b.key), value, b.want)
	}
	return nil
}

var sinkName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// checkSinks names the sink and what is wrong with it, and shows no value that may hold a credential.
func (n Notifier) checkSinks(from origins) error {
	known := []string{Events}
	for i, s := range n.Sinks {
		at := from.name(fmt.Sprintf("notifier.sinks[%d]", i))
		if !sinkName.MatchString(s.Name) {
			return fault.New(fault.ConfigInvalid, "configuration: name of %s is %q, want 1..64 of the characters A-Z a-z 0-9 . _ -", at, s.Name)
		}
		if slices.ContainsFunc(n.Sinks[:i], func(other Sink) bool { return other.Name == s.Name }) {
			return fault.New(fault.ConfigInvalid, "configuration: two sinks of %s are called %q: rename one", from.name("notifier.sinks"), s.Name)
		}
		if wrong := s.wrong(); wrong != "" {
			return fault.New(fault.ConfigInvalid, "configuration: sink %q of %s: %s", s.Name, from.name("notifier.sinks"), wrong)
		}
		known = append(known, s.Name)
	}
	if n.DefaultSink != "" && !slices.Contains(known, n.DefaultSink) {
		return fault.New(fault.ConfigInvalid, "configuration: %s is %q, want one of %q", from.name("notifier.default_sink"), n.DefaultSink, known)
	}
	return nil
}

// wrong says what is wrong with a sink; empty means nothing.
func (s Sink) wrong() string {
	for _, role := range s.AllowedRoles {
		if !slices.Contains(authn.Roles(), authn.Role(role)) {
			return fmt.Sprintf("allowed_roles has %q, want some of %q", role, authn.Roles())
		}
	}
	given := map[string]bool{
		"url": s.URL != "", "secrets": len(s.Secrets) > 0,
		"address": s.Address != "", "token": s.Token != "", "ca_file": s.CAFile != "", "insecure_plaintext": s.InsecurePlaintext,
	}
	fits := map[string][]string{
		SinkWebhook:      {"url", "secrets"},
		SinkAgentRuntime: {"address", "token", "ca_file", "insecure_plaintext"},
		SinkStream:       nil,
	}
	if _, ok := fits[s.Type]; !ok {
		return fmt.Sprintf("type is %q, want webhook, agent_runtime or stream", s.Type)
	}
	for _, key := range []string{"url", "secrets", "address", "token", "ca_file", "insecure_plaintext"} {
		if given[key] && !slices.Contains(fits[s.Type], key) {
			return fmt.Sprintf("%s is not for type %s: leave it out", key, s.Type)
		}
	}
	switch {
	case s.Name == Events && s.Type != SinkStream:
		return "this name is that of the built-in sink of type stream: give another name"
	case s.Type == SinkWebhook && !isHTTP(s.URL):
		return "url is not one of http or https with a host, without user and password: write where the webhook is posted"
	case s.Type == SinkWebhook && slices.Contains(s.Secrets, ""):
		return "secrets has an empty item: write a key, such as \"${HOOK_SECRET}\""
	case s.Type == SinkAgentRuntime && s.Address == "":
		return "address is missing: write the host:port of the agent runtime"
	}
	return ""
}

func isHTTP(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil
}
