package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

func newServers(s Streams) *cobra.Command {
	var flags clientFlags
	cmd := &cobra.Command{
		Use:   "servers",
		Short: "List the MCP servers and how they fare, or change one",
		Args:  noArgs("no argument, or put, delete, enable or disable"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				if err := c.settle(ctx); err != nil {
					return err
				}
				list, err := c.listServers(ctx)
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, list)
				}
				return table(s.Out, serverHeader, serverRows(list.GetServers()))
			})
		},
	}
	addClientFlags(cmd, &flags)
	addServerWrites(cmd, s)
	return cmd
}

var serverHeader = []string{"NAME", "STATUS", "TRANSPORT", "TOOLS", "REASON", "NEXT STEP"}

func serverRows(servers []*toolproxyv1.Server) [][]string {
	rows := make([][]string, len(servers))
	for i, srv := range servers {
		rows[i] = serverRow(srv)
	}
	return rows
}

func serverRow(srv *toolproxyv1.Server) []string {
	return []string{
		srv.GetName(), statusWord(srv), srv.GetTransport(), strconv.Itoa(int(srv.GetToolCount())), srv.GetReason(), srv.GetFixCommand(),
	}
}

func statusWord(srv *toolproxyv1.Server) string {
	word := strings.ToLower(strings.TrimPrefix(srv.GetStatus().String(), "SERVER_STATUS_"))
	if srv.GetStale() {
		word += " (stale)"
	}
	return word
}

func newTools(s Streams) *cobra.Command {
	var flags clientFlags
	var servers []string
	var scope scopeFlags
	cmd := &cobra.Command{
		Use:   "tools",
		Short: "List the tools of all servers, or of some",
		Args:  noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				if err := c.settle(ctx); err != nil {
					return err
				}
				list, err := c.listTools(ctx, scope.message(), servers)
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, list)
				}
				return printTools(s, list)
			})
		},
	}
	addClientFlags(cmd, &flags)
	scope.add(cmd)
	cmd.Flags().StringArrayVar(&servers, "server", nil, "only tools of this server; repeatable")
	return cmd
}

// printTools writes the tools to Out and, so that an empty list is never a riddle, the servers that are not well to Err.
func printTools(s Streams, list *toolproxyv1.ListToolsResponse) error {
	rows := make([][]string, len(list.GetTools()))
	for i, t := range list.GetTools() {
		rows[i] = []string{t.GetName(), t.GetServer(), firstLine(cmp.Or(t.GetDescription(), t.GetTitle()), 80)}
	}
	if err := table(s.Out, []string{"NAME", "SERVER", "DESCRIPTION"}, rows); err != nil {
		return err
	}
	for _, srv := range list.GetServers() {
		if st := srv.GetStatus(); st != corev1.ServerStatus_SERVER_STATUS_OK && st != corev1.ServerStatus_SERVER_STATUS_DISABLED {
			fmt.Fprintf(s.Err, "server %s is %s: %s\n", terminal.Line(srv.GetName()), statusWord(srv), terminal.Line(cmp.Or(srv.GetReason(), "no verdict yet")))
		}
	}
	return nil
}

// scopeFlags are the flags for whom a command acts.
type scopeFlags struct{ user, thread string }

func (f *scopeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.user, "user", "", "act for this user (default: the token's, else 'default')")
	cmd.Flags().StringVar(&f.thread, "thread", "", "act in this thread (default: 'default')")
}

func (f *scopeFlags) message() *corev1.Scope {
	if f.user == "" && f.thread == "" {
		return nil
	}
	return &corev1.Scope{UserId: f.user, ThreadId: f.thread}
}

// arguments returns the flags as another command takes them, with a space before each.
func (f *scopeFlags) arguments() string {
	out := ""
	if f.user != "" {
		out += " --user " + terminal.Line(f.user)
	}
	if f.thread != "" {
		out += " --thread " + terminal.Line(f.thread)
	}
	return out
}
