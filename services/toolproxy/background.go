package toolproxy

import (
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/activation"
	"github.com/toolherd/toolherd/services/toolproxy/internal/background"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
)

// drivers returns the drivers of remote tasks, by the names that bindings have for them.
func drivers(d Deps) (map[string]driver.Driver, error) {
	badHint, err := background.CountBadHints(d.Telemetry.Metrics, d.Log)
	if err != nil {
		return nil, err
	}
	return map[string]driver.Driver{
		driver.OrdinaryName: driver.NewOrdinary(driver.Options{Redact: d.Redactor.Redact, BadHint: badHint}),
	}, nil
}

// newBackground makes what serves workers. The pool and the discovery are there already.
func (s *Service) newBackground(d Deps, a *activation.Activator, drivers map[string]driver.Driver) {
	s.bound = background.NewResolver(background.ResolverOptions{Activator: a, Forsake: s.pool.Forsake})
	s.background = background.New(background.Options{
		Resolver: s.bound, Pool: s.pool, Drivers: drivers, Suspect: s.discovery.Suspect, Redact: d.Redactor.Redact,
		Tracer: d.Telemetry.Tracer("github.com/toolherd/toolherd/services/toolproxy"), Log: d.Log.With("service", "toolproxy"),
	})
}

// judge returns what turns a snapshot's entries into what may be activated. Background calls follow the snapshot first: a
// server that is not trusted any more must hold no session when ordinary calls hear of it.
func (s *Service) judge(a *activation.Activator) func(*registryv1.Snapshot) []*activation.Entry {
	return func(snapshot *registryv1.Snapshot) []*activation.Entry {
		s.bound.Follow(snapshot)
		return a.Judge(snapshot)
	}
}
