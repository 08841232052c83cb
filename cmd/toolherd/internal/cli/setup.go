package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/setup"
)

func newSetup(s Streams) *cobra.Command {
	var dir string
	var hosts []string
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Make certificates, tokens and keys for a split deployment",
		Long: `Make what the services of a split deployment know each other by: an authority and a certificate for each service, a token
for each, one for agents and one for operators, tokens.yaml, and the key of literal secrets. A directory that was filled
before stays as it is.`,
		Example: `  toolherd setup --dir /etc/toolherd/identity --host toolherd.example.com`,
		Args:    noArgs("no argument"),
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return usageError{errors.New("want a directory: --dir")}
			}
			made, err := setup.Make(dir, hosts)
			if err != nil {
				return err
			}
			did := "was filled before and stays as it is"
			if made {
				did = "is filled"
			}
			_, err = fmt.Fprintf(s.Out, "%s %s\n", dir, did)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "where the files go; it is made if it is missing")
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "a further name or IP address that the certificates are for; repeatable")
	return cmd
}
