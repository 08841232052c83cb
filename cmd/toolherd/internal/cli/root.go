// Package cli is the command line of Toolherd: `up` runs all services in one process, the other commands are clients of
// a running one or, where none runs, of one that they compose for themselves.
//
// Output for people are tables, `--output json` is for programs. Errors go to stderr as one line that names the thing,
// the cause and the next step. Exit status: 0 done, 1 failed, 2 wrong usage.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/host"
	"github.com/toolherd/toolherd/pkg/version"
)

// Streams is what a command reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// Environ is the environment in the form of os.Environ.
	Environ []string
}

// errUsage marks errors of usage, which exit with 2.
var errUsage = errors.New("usage")

// errReported marks a failure that was already shown to the person.
var errReported = errors.New("reported")

// Main runs the command line and returns the exit status. A first interrupt ends the command in order, a second at once.
func Main(args []string, s Streams) int {
	ctx, stop := host.Interruptible(context.Background())
	defer stop()
	root := newRoot(s)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errReported):
		return 1
	case errors.Is(err, errUsage):
		fmt.Fprintf(s.Err, "toolherd: %s\nRun 'toolherd --help' for usage.\n", terminal.Text(usageText(err)))
		return 2
	default:
		fmt.Fprintf(s.Err, "toolherd: %s\n", terminal.Text(err.Error()))
		return 1
	}
}

// usageError wraps an error of cobra or of our own checks.
type usageError struct{ err error }

func (e usageError) Error() string        { return e.err.Error() }
func (e usageError) Unwrap() error        { return e.err }
func (e usageError) Is(target error) bool { return target == errUsage }

func usageText(err error) string {
	if u, ok := errors.AsType[usageError](err); ok {
		return u.err.Error()
	}
	return err.Error()
}

func newRoot(s Streams) *cobra.Command {
	root := &cobra.Command{
		Use:           "toolherd",
		Short:         "The tool plane for AI agents: gRPC in front, MCP servers behind",
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newUp(s), newServers(s), newConfig(s), newTools(s), newCall(s), newTasks(s), newNotifications(s), newSnapshots(s), newDoctor(s),
		newMigrate(s), newVersion(s), newToken(s), newSetup(s), newDemo(s), newDemoServer(s))
	return root
}

// noArgs is cobra.NoArgs with our kind of usage error; what says what could follow instead.
func noArgs(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{fmt.Errorf("want %s, got %d arguments", what, len(args))}
		}
		return nil
	}
}

// loadConfig reads the configuration of a command; what is wrong with it is an error of usage where a flag is.
func loadConfig(cmd *cobra.Command, s Streams, base config.Config) (config.Config, error) {
	cfg, err := config.Load(config.Source{Flags: cmd.Flags(), Environ: s.Environ, Base: &base})
	if fault.Is(err, fault.ConfigInvalid) {
		return cfg, usageError{err}
	}
	if err == nil && cfg.StateDir == "" {
		cfg.StateDir, err = config.UserStateDir()
	}
	return cfg, err
}
