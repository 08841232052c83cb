// Command notifier runs a notifier of a split deployment.
package main

import (
	"context"
	"os"

	"github.com/toolherd/toolherd/pkg/host"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/services/notifier"
)

func main() {
	os.Exit(host.Main(host.Split{Name: "notifier", Listen: "127.0.0.1:7404", Build: build}))
}

func build(ctx context.Context, env *host.Env) (host.Serving, error) {
	cfg, err := notifier.FromConfig(env.Config)
	if err != nil {
		return host.Serving{}, err
	}
	store, err := env.Postgres(ctx)
	if err != nil {
		return host.Serving{}, err
	}
	bus := env.Wake(store)
	service, err := notifier.New(cfg, notifier.Deps{
		DB: store, Wake: bus, Log: env.Log, Telemetry: env.Telemetry, Redactor: env.Redactor,
	})
	return host.Serving{
		Services: []host.Named{{Name: "notifier", Service: service}},
		Tasks:    []run.Task{{Name: "wake-up bus", Run: bus.Run}},
	}, err
}
