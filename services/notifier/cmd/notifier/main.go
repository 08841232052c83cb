// Command notifier runs a notifier of a split deployment.
package main

import (
	"context"
	"os"

	"github.com/toolherd/toolherd/pkg/host"
	"github.com/toolherd/toolherd/services/notifier"
)

func main() {
	os.Exit(host.Main(host.Split{Name: "notifier", Listen: "127.0.0.1:7404", Build: build}))
}

func build(context.Context, *host.Env) (host.Serving, error) {
	return host.Serving{Services: []host.Named{{Name: "notifier", Service: notifier.New()}}}, nil
}
