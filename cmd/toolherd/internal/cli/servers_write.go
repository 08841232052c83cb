package cli

import (
	"context"

	"github.com/spf13/cobra"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
)

// addServerWrites adds the commands that change one server.
func addServerWrites(cmd *cobra.Command, s Streams) {
	cmd.AddCommand(
		newServersPut(s),
		serverCommand(s, "delete NAME", "Remove a server from the file that the API writes", func(ctx context.Context, c *client, w serverWrite) error {
			resp, err := c.registry.DeleteServer(ctx, &registryv1.DeleteServerRequest{Name: w.name, Etag: w.etag})
			if err != nil {
				return err
			}
			if w.flags.output == outputJSON {
				return printMessage(s.Out, resp)
			}
			return printWritten(s, resp, nil)
		}),
		newServersSwitch(s, "enable NAME", "Switch a server on, whichever file defines it", true),
		newServersSwitch(s, "disable NAME", "Switch a server off, whichever file defines it", false),
	)
}

// serverWrite is what a command was told about the server it changes.
type serverWrite struct {
	name, etag string
	flags      clientFlags
}

// serverCommand makes a command that changes the server its argument names.
func serverCommand(s Streams, use, short string, f func(ctx context.Context, c *client, w serverWrite) error) *cobra.Command {
	var w serverWrite
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  exactArgs(1, "the name of a server"),
		RunE: func(cmd *cobra.Command, args []string) error {
			w.name = args[0]
			return withClient(cmd, s, w.flags, func(ctx context.Context, c *client) error { return f(ctx, c, w) })
		},
	}
	addClientFlags(cmd, &w.flags)
	addEtag(cmd, &w.etag)
	return cmd
}

func newServersSwitch(s Streams, use, short string, enabled bool) *cobra.Command {
	return serverCommand(s, use, short, func(ctx context.Context, c *client, w serverWrite) error {
		resp, err := c.registry.SetServerEnabled(ctx, &registryv1.SetServerEnabledRequest{Name: w.name, Enabled: enabled, Etag: w.etag})
		if err != nil {
			return err
		}
		if w.flags.output == outputJSON {
			return printMessage(s.Out, resp)
		}
		return printWritten(s, resp, nil)
	})
}

func newServersPut(s Streams) *cobra.Command {
	var content string
	cmd := serverCommand(s, "put NAME FILE", "Add or replace a server by the entry in a file; *** keeps a secret, - reads standard input",
		func(ctx context.Context, c *client, w serverWrite) error {
			resp, err := c.registry.PutServer(ctx, &registryv1.PutServerRequest{Name: w.name, ServerJson: content, Etag: w.etag})
			if err != nil {
				return err
			}
			if w.flags.output == outputJSON {
				return printMessage(s.Out, resp)
			}
			return printWritten(s, resp, resp.GetProblems())
		})
	cmd.Example = `  echo '{"command": "npx", "args": ["-y", "@scope/server"]}' | toolherd servers put files -`
	cmd.Args = exactArgs(2, "the name of a server and a file, or - for standard input")
	connect := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var err error
		if content, err = input(s, args[1]); err != nil {
			return err
		}
		return connect(cmd, args)
	}
	return cmd
}
