// Command toolproxy runs a toolproxy of a split deployment.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/toolherd/toolherd/pkg/host"
	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	"github.com/toolherd/toolherd/services/toolproxy"
)

func main() {
	if toolproxy.IsWatchdog() {
		os.Exit(toolproxy.Watchdog())
	}
	os.Exit(host.Main(host.Split{Name: "toolproxy", Listen: "127.0.0.1:7402", Build: build}))
}

func build(_ context.Context, env *host.Env) (host.Serving, error) {
	registry, err1 := env.Peer(env.Config.Peers.Registry)
	tasks, err2 := env.Peer(env.Config.Peers.Taskworker)
	events, err3 := env.Peer(env.Config.Peers.Notifier)
	if err := errors.Join(err1, err2, err3); err != nil {
		return host.Serving{}, err
	}
	service, err := toolproxy.New(toolproxy.FromConfig(env.Config), toolproxy.Deps{
		Registry: registryv1.NewRegistryServiceClient(registry), Credentials: credentialv1.NewCredentialServiceClient(registry),
		Intake: taskv1.NewTaskIntakeServiceClient(tasks), Tasks: taskv1.NewTaskServiceClient(tasks),
		Events: notifierv1.NewNotifierServiceClient(events), Forward: true,
		Log: env.Log, Telemetry: env.Telemetry, Redactor: env.Redactor,
	})
	return host.Serving{Services: []host.Named{{Name: "toolproxy", Service: service}}}, err
}
