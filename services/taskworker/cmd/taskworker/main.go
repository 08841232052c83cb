// Command taskworker runs a taskworker of a split deployment.
package main

import (
	"context"
	"os"

	"github.com/toolherd/toolherd/pkg/host"
	"github.com/toolherd/toolherd/pkg/run"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/taskworker"
)

func main() {
	os.Exit(host.Main(host.Split{Name: "taskworker", Listen: "127.0.0.1:7403", Build: build}))
}

func build(ctx context.Context, env *host.Env) (host.Serving, error) {
	cfg, err := taskworker.FromConfig(env.Config)
	if err != nil {
		return host.Serving{}, err
	}
	store, err := env.Postgres(ctx)
	if err != nil {
		return host.Serving{}, err
	}
	toolproxy, err := env.Peer(env.Config.Peers.Toolproxy)
	if err != nil {
		return host.Serving{}, err
	}
	bus := env.Wake(store)
	service, err := taskworker.New(cfg, taskworker.Deps{
		DB: store, Wake: bus, Remote: toolproxyv1.NewBackgroundToolServiceClient(toolproxy), Log: env.Log, Telemetry: env.Telemetry,
	})
	return host.Serving{
		Services: []host.Named{{Name: "taskworker", Service: service}},
		Tasks:    []run.Task{{Name: "wake-up bus", Run: bus.Run}},
	}, err
}
