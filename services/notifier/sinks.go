package notifier

import (
	"cmp"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/envref"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/safehttp"
	agentv1 "github.com/toolherd/toolherd/proto/gen/toolherd/agent/v1"
	"github.com/toolherd/toolherd/services/notifier/internal/agentrun"
	"github.com/toolherd/toolherd/services/notifier/internal/delivery"
	"github.com/toolherd/toolherd/services/notifier/internal/sink"
	"github.com/toolherd/toolherd/services/notifier/internal/webhook"
)

// place is a configured sink as RPCs see it.
type place struct {
	name  string
	kind  string
	roles []authn.Role // who may use it; empty means everyone
}

func (p place) admits(caller authn.Principal) bool {
	return len(p.roles) == 0 || slices.ContainsFunc(p.roles, caller.Has)
}

// sinks are the configured sinks, by name, and how the pushed ones are sent to.
type sinks struct {
	places []place
	pushed []delivery.Sink
}

func (s *sinks) names() []string {
	out := make([]string, len(s.places))
	for i, p := range s.places {
		out[i] = p.name
	}
	return out
}

// pushedNames returns the names of the sinks that are sent to, not read.
func (s *sinks) pushedNames() []string {
	out := make([]string, len(s.pushed))
	for i, p := range s.pushed {
		out[i] = p.Name
	}
	return out
}

// find returns the sink called name, or SINK_UNKNOWN.
func (s *sinks) find(name string) (place, error) {
	for _, p := range s.places {
		if p.name == name {
			return p, nil
		}
	}
	return place{}, sinkUnknown("", name, s.names())
}

// stream returns the stream sink called name, for a caller who may use it.
func (s *sinks) stream(name string, caller authn.Principal) (place, error) {
	p, err := s.find(cmp.Or(name, config.Events))
	switch {
	case err != nil:
		return place{}, err
	case p.kind != config.SinkStream:
		return place{}, notAStream(p)
	case !p.admits(caller):
		return place{}, notAllowed(p, caller)
	}
	return p, nil
}

// Close ends the connections to the sinks.
func (s *sinks) Close() error {
	var errs []error
	for _, p := range s.pushed {
		errs = append(errs, p.Sender.Close())
	}
	return errors.Join(errs...)
}

// newSinks makes the sinks of a valid configuration. It connects to none of them.
func newSinks(c Config, d Deps) (_ *sinks, err error) {
	out := &sinks{}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close())
		}
	}()
	for _, s := range c.Sinks {
		p := place{name: s.Name, kind: s.Type}
		for _, r := range s.AllowedRoles {
			p.roles = append(p.roles, authn.Role(r))
		}
		out.places = append(out.places, p)
		var pushed delivery.Sink
		switch s.Type {
		case config.SinkWebhook:
			pushed = delivery.Sink{MaxAttempts: webhookAttempts, Base: defaultBase, Cap: webhookCap}
			pushed.Cap = cmp.Or(c.Backoff.Cap, pushed.Cap)
			pushed.Sender, err = newWebhook(s, d, pushed)
		case config.SinkAgentRuntime:
			pushed = delivery.Sink{MaxAttempts: runtimeAttempts, Base: defaultBase, Cap: runtimeCap}
			pushed.Cap = cmp.Or(c.Backoff.Cap, pushed.Cap)
			pushed.Sender, err = newRuntime(s, d)
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		pushed.Name, pushed.Type, pushed.Concurrency = s.Name, s.Type, concurrency
		pushed.MaxAttempts = cmp.Or(c.MaxAttempts, pushed.MaxAttempts)
		pushed.Base = cmp.Or(c.Backoff.Base, pushed.Base)
		out.pushed = append(out.pushed, pushed)
	}
	slices.SortFunc(out.places, func(a, b place) int { return cmp.Compare(a.name, b.name) })
	return out, nil
}

// webhookURL returns where a webhook is posted. Its errors do not show it: its path may be the secret.
func webhookURL(s config.Sink) (*url.URL, error) {
	if s.URL == "" {
		return nil, wrongSink(s, "url is missing: write where the webhook is posted")
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Host == "" {
		return nil, wrongSink(s, "url is not one: write where the webhook is posted, such as https://hooks.example.com/x")
	}
	if u.User != nil {
		return nil, wrongSink(s, "url has a user or password, which are not sent: the receiver verifies the signature instead")
	}
	if err := safehttp.CheckURL(u); err != nil {
		return nil, wrongSink(s, "url: %v", err)
	}
	return u, nil
}

func newWebhook(s config.Sink, d Deps, limits delivery.Sink) (sink.Sender, error) {
	u, err := webhookURL(s)
	if err != nil {
		return nil, err
	}
	o := webhook.Options{Name: s.Name, URL: u, MaxConns: concurrency, MaxRetryAfter: limits.Cap}
	for _, text := range s.Secrets {
		text, err := resolve(s, secretsKey, text, d)
		if err != nil {
			return nil, err
		}
		key, err := webhook.ParseKey(text)
		if err != nil {
			return nil, wrongSink(s, "%s: %v", secretsKey, err)
		}
		o.Keys = append(o.Keys, key)
	}
	return webhook.New(o), nil
}

func validateRuntime(s config.Sink) error {
	switch {
	case s.Address == "":
		return wrongSink(s, "address is missing: write the host:port of the agent runtime")
	case s.CAFile == "" && !s.InsecurePlaintext && !rpc.LocalTarget(s.Address):
		return wrongSink(s, "events would leave the machine in plaintext: set ca_file for TLS, or insecure_plaintext where the network is protected otherwise")
	}
	return nil
}

func newRuntime(s config.Sink, d Deps) (sink.Sender, error) {
	o := rpc.ClientOptions{Log: d.Log, Tracing: d.Telemetry.Tracing(), InsecurePlaintext: s.InsecurePlaintext}
	if s.CAFile != "" {
		var err error
		if o.TLS, err = rpc.ClientTLS(rpc.ClientTLSFiles{CAFile: s.CAFile}, d.Log); err != nil {
			return nil, wrongSink(s, "ca_file: %v", err)
		}
	}
	token, err := resolve(s, tokenKey, s.Token, d)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, wrongSink(s, "%s has a character that no header may carry", tokenKey)
	}
	if token != "" {
		o.Token = func() (string, error) { return token, nil }
	}
	conn, err := rpc.Dial(s.Address, o)
	if err != nil {
		return nil, wrongSink(s, "address: %v", err)
	}
	return agentrun.New(agentv1.NewAgentRuntimeServiceClient(conn), conn.Close), nil
}

// resolve returns a secret text with its references replaced, and tells the redactor of it.
func resolve(s config.Sink, key, text string, d Deps) (string, error) {
	e, err := envref.Expand(text, d.environment())
	if err != nil {
		return "", wrongSink(s, "%s: %v: %s", key, err, envref.Hint)
	}
	for _, u := range e.Unresolved {
		return "", wrongSink(s, "%s: %s: %s", key, u.Message(), u.Hint())
	}
	value := strings.TrimSpace(e.Text)
	d.Redactor.Add(value)
	if _, bare, ok := strings.Cut(value, "_"); ok && key == secretsKey {
		d.Redactor.Add(bare)
	}
	return value, nil
}
