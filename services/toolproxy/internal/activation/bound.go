package activation

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// JudgeBound judges an entry that a task is bound to, as one of the snapshot in force: what this version and the
// interceptors of today do not allow is not allowed to tasks either. That no more tasks are taken in does not matter.
func (a *Activator) JudgeBound(s *registryv1.Snapshot, w *registryv1.ServerEntry) *Entry {
	draining := Activator{a.o}
	draining.o.NoTasks = ""
	e := draining.judge(w)
	if e.Startable() && e.config.Transport.IsRemote() {
		if missing := a.missingInterceptors(s.GetInterceptorsJson()); missing != "" {
			e.refuse(missing)
		}
	}
	return e
}

// ActivateBound resolves an entry that a task is bound to. Its literals are those that its own references name: the
// snapshot that had them may be gone. Errors are those of [Activator.Activate].
func (a *Activator) ActivateBound(ctx context.Context, e *Entry, refs []*credentialv1.SecretRef) (*upstream.Server, error) {
	if len(refs) == 0 {
		return a.resolve(e, nil)
	}
	return a.activate(ctx, e, &credentialv1.ResolveSecretsRequest{Server: e.Name, Refs: refs})
}

// activate resolves an entry whose literals, if it has any, are those that q asks for.
func (a *Activator) activate(ctx context.Context, e *Entry, q *credentialv1.ResolveSecretsRequest) (*upstream.Server, error) {
	if !strings.Contains(e.wire.GetEntryJson(), `"$secret"`) {
		return a.resolve(e, nil)
	}
	bounded, cancel := context.WithTimeout(ctx, secretsTimeout)
	defer cancel()
	r, err := a.o.Credentials.ResolveSecrets(bounded, q)
	if err != nil {
		return nil, secretsFault(e.Name, err)
	}
	return a.resolve(e, r.GetSecrets())
}

// resolve puts literals and the environment into an entry, and makes what it holds then known to the redactor.
func (a *Activator) resolve(e *Entry, literals map[string]string) (*upstream.Server, error) {
	resolved, err := serverconfig.Resolve(e.config, json.RawMessage(e.wire.GetEntryJson()), a.o.Environment(), literals)
	if err != nil {
		return nil, err
	}
	s, err := a.server(e, resolved)
	if err != nil {
		return nil, err
	}
	a.o.Redactor.Add(s.Secrets...)
	return s, nil
}

func secretsFault(server string, err error) error {
	reason := fault.ServerError
	if fault.Is(err, fault.ServerUntrusted) {
		reason = fault.ServerUntrusted
	}
	return fault.New(reason, "the registry did not hand out the secrets of server %q: %v", server, err).Because(err)
}
