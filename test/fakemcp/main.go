// Command fakemcp is the well-behaved MCP server of package fake as a process.
//
// Without -http it speaks to one client over stdio and ends with its input. With -http it listens and
// writes one line, `listening URL`, to standard error; the URL is that of the streamable endpoint.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/toolherd/toolherd/test/fakemcp/fake"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "fakemcp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o := fake.Options{Exit: os.Exit, Stderr: os.Stderr}
	flags := flag.NewFlagSet("fakemcp", flag.ContinueOnError)
	listen := flags.String("http", "", "listen on `host:port` instead of speaking over stdio; port 0 picks one")
	list := func(into *[]string) func(string) error {
		return func(s string) error {
			*into = strings.Split(s, ",")
			return nil
		}
	}
	flags.Func("protocol", "`versions` spoken, separated by commas (2025-06-18,2025-11-25)", list(&o.Versions))
	flags.Func("only", "offer only these `tools`, separated by commas", list(&o.Only))
	flags.StringVar(&o.Name, "name", "fake", "the server's own name")
	flags.StringVar(&o.Instructions, "instructions", "", "instructions for the client")
	flags.IntVar(&o.Filler, "filler", 0, "number of further tools, filler_0000 and up")
	flags.IntVar(&o.PageSize, "page", 0, "tools on a page of tools/list; 0 is all")
	flags.BoolVar(&o.Stateless, "stateless", false, "HTTP: give out no session ids")
	flags.BoolVar(&o.JSON, "json", false, "HTTP: answer with JSON instead of an event stream")
	flags.BoolVar(&o.Prime, "prime", false, "HTTP: open event streams with an empty event and a comment")
	flags.IntVar(&o.LostStatus, "lost-status", 404, "HTTP: status for an unknown session id")
	flags.StringVar(&o.LostBody, "lost-body", "", "HTTP: body of that answer")
	flags.StringVar(&o.Journal, "journal", "", "`file` that keeps the jobs; they are in memory without one")
	flags.BoolVar(&o.PrivateJobs, "private-jobs", false, "know no jobs but those that this process started")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	s := fake.New(o)
	if *listen == "" {
		return s.ServeStdio(ctx, os.Stdin, os.Stdout)
	}
	h, err := fake.Listen(ctx, *listen, s)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "listening", h.URL)
	<-ctx.Done()
	return h.Close()
}
