package cli

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/demoserver"
	"github.com/toolherd/toolherd/pkg/version"
)

func newDemoServer(s Streams) *cobra.Command {
	var listen, reports string
	cmd := &cobra.Command{
		Use:   "demo-server",
		Short: "An MCP server to try things with, on stdio or over HTTP; Toolherd starts it, see examples/mcp.json",
		Long: `An MCP server to try things with. On stdio Toolherd starts it, see examples/mcp.json.

With --listen it serves streamable HTTP at /mcp without authentication: bind it to loopback or to a network of its own.`,
		Args: noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			options := demoserver.Options{Version: version.Number, ReportsDir: reports}
			if listen == "" {
				return demoserver.Run(cmd.Context(), s.In, s.Out, options)
			}
			var lc net.ListenConfig
			l, err := lc.Listen(cmd.Context(), "tcp", listen)
			if err != nil {
				return fmt.Errorf("listen on %s (--listen gives another address): %w", listen, err)
			}
			fmt.Fprintf(s.Err, "ready http://%s/mcp\n", l.Addr())
			return demoserver.Serve(cmd.Context(), l, options)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "serve streamable HTTP here, host:port; port 0 picks a free one and prints it (default: stdio)")
	cmd.Flags().StringVar(&reports, "reports-dir", "", "where jobs are kept (default: a directory below that for temporary files)")
	return cmd
}
