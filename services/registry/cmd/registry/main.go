// Command registry runs the registry of a split deployment.
package main

import (
	"context"
	"os"

	"github.com/toolherd/toolherd/pkg/host"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/services/registry"
)

func main() {
	os.Exit(host.Main(host.Split{Name: "registry", Listen: "127.0.0.1:7401", Build: build}))
}

func build(ctx context.Context, env *host.Env) (host.Serving, error) {
	store, err := env.Postgres(ctx)
	if err != nil {
		return host.Serving{}, err
	}
	key, err := registry.LoadKey(env.Config)
	if err != nil {
		return host.Serving{}, err
	}
	bus := env.Wake(store)
	cfg, err := registry.FromConfig(env.Config)
	if err != nil {
		return host.Serving{}, err
	}
	service, err := registry.New(cfg, registry.Deps{DB: store, Wake: bus, Key: key, Log: env.Log})
	return host.Serving{
		Services: []host.Named{{Name: "registry", Service: service}},
		Tasks:    []run.Task{{Name: "wake-up bus", Run: bus.Run}},
	}, err
}
