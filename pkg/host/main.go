package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/toolherd/toolherd/pkg/config"
)

// Split describes the process of one service of a split deployment.
type Split struct {
	// Name is the service's name.
	Name string
	// Listen is its default gRPC address.
	Listen string
	// Build makes the service. It may open databases and connections through env, and starts nothing.
	Build func(ctx context.Context, env *Env) (Serving, error)
}

// Main runs a split service with the arguments and environment of this process and returns its exit status: 0 after an
// orderly end, 1 after a failure, 2 for wrong usage. A first interrupt ends the service in order, a second at once.
func Main(s Split) int {
	ctx, stop := Interruptible(context.Background())
	defer stop()
	err := s.run(ctx, os.Args[1:], os.Environ())
	switch {
	case err == nil:
		return 0
	case errors.Is(err, pflag.ErrHelp):
		return 0
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err)
		if _, ok := errors.AsType[usageError](err); ok {
			return 2
		}
		return 1
	}
}

// Interruptible returns a context that ends with the first interrupt or SIGTERM. From then on a further one has its default
// effect, the end of the process: nobody who saw ctx end can be faster than that. The returned function releases all.
func Interruptible(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	released := make(chan struct{})
	go func() {
		defer close(released)
		select {
		case <-signals:
		case <-ctx.Done():
		}
		signal.Stop(signals)
		cancel()
	}()
	return ctx, func() {
		cancel()
		<-released
	}
}

type usageError struct{ error }

func (s Split) run(ctx context.Context, args, environ []string) (err error) {
	base := config.Defaults()
	base.Listen, base.HTTPListen = s.Listen, ""
	fs := pflag.NewFlagSet(s.Name, pflag.ContinueOnError)
	fs.SortFlags = false
	config.Register(fs, base)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if fs.NArg() > 0 {
		return usageError{fmt.Errorf("unexpected argument %q: everything is set by flags, see --help", fs.Arg(0))}
	}
	cfg, err := config.Load(config.Source{Flags: fs, Environ: environ, Base: &base})
	if err != nil {
		return usageError{err}
	}
	env, err := Open(ctx, s.Name, cfg, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close(ctx)) }()
	serving, err := s.Build(ctx, env)
	if err != nil {
		return err
	}
	return env.Serve(ctx, serving)
}
