// Command evilmcp is an MCP server that misbehaves in one chosen way; see package evil.
//
//	evilmcp -list
//	evilmcp -mode noise
//	evilmcp -mode gzip-bomb -http 127.0.0.1:0
//
// With -http it writes one line, `listening URL`, to standard error. It ends by itself after -life.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/toolherd/toolherd/test/evilmcp/evil"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "evilmcp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o evil.Options
	flags := flag.NewFlagSet("evilmcp", flag.ContinueOnError)
	list := flags.Bool("list", false, "list the modes: name, transports, triggering method, description")
	name := flags.String("mode", "", "how to misbehave")
	listen := flags.String("http", "", "listen on `host:port` instead of speaking over stdio; port 0 picks one")
	life := flags.Duration("life", 10*time.Minute, "end by itself after that long")
	flags.StringVar(&o.On, "on", "", "the `method` that triggers the mode, * for all; by default that of the mode")
	flags.IntVar(&o.Size, "size", 0, "`number` of bytes or items of modes that have one")
	flags.DurationVar(&o.Delay, "delay", 0, "wait of modes that have one")
	flags.StringVar(&o.Target, "target", "", "`URL` that some HTTP modes point to")
	flags.StringVar(&o.PIDFile, "pidfile", "", "`file` that gets the process id of each child, a line each")
	ready := flags.Int("ready", -1, "descriptor that a child closes once it ignores signals")
	flags.BoolVar(&o.JSON, "json", false, "HTTP: answer with JSON where the mode leaves it open")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *list {
		return evil.List(os.Stdout)
	}
	if *ready >= 0 {
		o.Ready = os.NewFile(uintptr(*ready), "ready")
	}
	mode, err := evil.Find(*name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *life)
	defer cancel()
	if *listen != "" {
		return serve(ctx, *listen, mode, o)
	}
	ended := make(chan error, 1)
	// A read that is blocked when ctx ends stays behind: the process ends with main.
	go func() {
		ended <- evil.Stdio(ctx, mode, o, evil.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Exit: os.Exit})
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

func serve(ctx context.Context, addr string, mode evil.Mode, o evil.Options) error {
	handler, end, err := evil.Handler(mode, o)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "listening http://%s/mcp\n", l.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 30 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve tells that it was closed
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	end()
	return nil
}
