// Command taskworker runs a taskworker of a split deployment.
package main

import (
	"context"
	"os"

	"github.com/toolherd/toolherd/pkg/host"
	"github.com/toolherd/toolherd/services/taskworker"
)

func main() {
	os.Exit(host.Main(host.Split{Name: "taskworker", Listen: "127.0.0.1:7403", Build: build}))
}

func build(context.Context, *host.Env) (host.Serving, error) {
	return host.Serving{Services: []host.Named{{Name: "taskworker", Service: taskworker.New()}}}, nil
}
