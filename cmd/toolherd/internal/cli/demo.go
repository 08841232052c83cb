package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/demo"
	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
)

func newDemo(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Show a durable task: submitted, followed, killed in the middle, completed, notified",
		Long: `Show a durable task in about fifteen seconds. A toolherd and a tool server run as processes of this program in a temporary
directory; the toolherd is killed with SIGKILL while the task runs and started again. The line for grpcurl that does the same
is printed at each step. Nothing is left behind, and nothing of your own configuration is read.`,
		Args: noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			executable, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			return demo.Run(cmd.Context(), demo.Options{
				Executable: executable, Out: s.Out, Rewrite: terminal.Is(s.Out, s.Environ), Environ: s.Environ,
			})
		},
	}
}
