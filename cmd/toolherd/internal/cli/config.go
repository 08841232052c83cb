package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
)

func newConfig(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Read, check and replace the file of MCP servers that the API writes",
		Args:  noArgs("a subcommand, such as get"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigGet(s), newConfigValidate(s), newConfigReplace(s))
	return cmd
}

func newConfigGet(s Streams) *cobra.Command {
	var flags clientFlags
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show the file with its secrets masked; `replace` takes it back as it is",
		Example: `  toolherd config get > servers.json
  toolherd config get --output json`,
		Args: noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				resp, err := c.registry.GetConfig(ctx, &registryv1.GetConfigRequest{})
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, resp)
				}
				if _, err := fmt.Fprintln(s.Out, resp.GetConfigJson()); err != nil {
					return err
				}
				_, err = fmt.Fprintf(s.Err, "%s  etag %s\n", terminal.Line(resp.GetSource()), terminal.Line(resp.GetEtag()))
				for _, e := range resp.GetReadOnly() {
					fmt.Fprintf(s.Err, "%s is defined by %s and read-only here\n", terminal.Line(e.GetName()), terminal.Line(e.GetSource()))
				}
				return err
			})
		},
	}
	addClientFlags(cmd, &flags)
	return cmd
}

func newConfigValidate(s Streams) *cobra.Command {
	var flags clientFlags
	cmd := &cobra.Command{
		Use:   "validate FILE",
		Short: "Say what replace would find wrong with a file, and write nothing; - reads standard input",
		Args:  exactArgs(1, "a file, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			content, err := input(s, args[0])
			if err != nil {
				return err
			}
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				resp, err := c.registry.ValidateConfig(ctx, &registryv1.ValidateConfigRequest{ConfigJson: content})
				if err != nil {
					return err
				}
				switch {
				case flags.output == outputJSON:
					err = printMessage(s.Out, resp)
				case len(resp.GetProblems()) == 0:
					_, err = fmt.Fprintln(s.Out, "valid")
				default:
					err = table(s.Out, problemHeader, problemRows(resp.GetProblems()))
				}
				if err == nil && hasErrors(resp.GetProblems()) {
					return errReported
				}
				return err
			})
		},
	}
	addClientFlags(cmd, &flags)
	return cmd
}

func newConfigReplace(s Streams) *cobra.Command {
	var flags clientFlags
	var etag string
	cmd := &cobra.Command{
		Use:   "replace FILE",
		Short: "Replace the file as a whole: servers that are left out go, *** keeps a secret; - reads standard input",
		Example: `  toolherd config get > servers.json
  toolherd config replace servers.json`,
		Args: exactArgs(1, "a file, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			content, err := input(s, args[0])
			if err != nil {
				return err
			}
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				resp, err := c.registry.ReplaceConfig(ctx, &registryv1.ReplaceConfigRequest{ConfigJson: content, Etag: etag})
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, resp)
				}
				return printWritten(s, resp, resp.GetProblems())
			})
		},
	}
	addClientFlags(cmd, &flags)
	addEtag(cmd, &etag)
	return cmd
}

func addEtag(cmd *cobra.Command, etag *string) {
	cmd.Flags().StringVar(etag, "etag", "", "write only if the file is still the one that `config get` showed under this etag")
}

// exactArgs is cobra.ExactArgs with our kind of usage error; what says what is wanted.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("want %s, got %d arguments", what, len(args))}
		}
		return nil
	}
}

// input returns the content of a file, or of standard input for "-".
func input(s Streams, name string) (string, error) {
	if name == "-" {
		content, err := io.ReadAll(s.In)
		if err != nil {
			return "", fmt.Errorf("read standard input: %w", err)
		}
		return string(content), nil
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("read what is to be written: %w", err)
	}
	return string(content), nil
}

var problemHeader = []string{"SEVERITY", "SERVER", "FIELD", "PROBLEM", "NEXT STEP"}

func problemRows(problems []*registryv1.Problem) [][]string {
	rows := make([][]string, len(problems))
	for i, p := range problems {
		rows[i] = []string{severityWord(p), p.GetServer(), p.GetPath(), p.GetMessage(), p.GetHint()}
	}
	return rows
}

func severityWord(p *registryv1.Problem) string {
	return strings.ToLower(strings.TrimPrefix(p.GetSeverity().String(), "SEVERITY_"))
}

func hasErrors(problems []*registryv1.Problem) bool {
	for _, p := range problems {
		if p.GetSeverity() == registryv1.Severity_SEVERITY_ERROR {
			return true
		}
	}
	return false
}

// printWritten says what is in force after a write; warnings go to standard error.
func printWritten(s Streams, out interface {
	GetSnapshotId() string
	GetRevision() int64
}, warnings []*registryv1.Problem,
) error {
	for _, p := range warnings {
		fmt.Fprintf(s.Err, "%s: %s\n", severityWord(p), terminal.Line(strings.Trim(p.GetServer()+" "+p.GetPath()+": "+p.GetMessage()+": "+p.GetHint(), " ")))
	}
	_, err := fmt.Fprintf(s.Out, "in force: snapshot %s, revision %d\n", terminal.Line(out.GetSnapshotId()), out.GetRevision())
	return err
}
