// Command toolherd is the tool plane for AI agents: all services in one process, and a client for them.
package main

import (
	"os"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/cli"
	"github.com/toolherd/toolherd/services/toolproxy"
)

func main() {
	if toolproxy.IsWatchdog() {
		os.Exit(toolproxy.Watchdog())
	}
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()}))
}
