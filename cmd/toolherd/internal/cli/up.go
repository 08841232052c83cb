package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/stack"
	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/run"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

func newUp(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run everything in one process",
		Long: `Run registry, toolproxy, taskworker and notifier in one process, with SQLite in the state directory or on Postgres.

"ready grpc=ADDR http=ADDR" goes to standard error once calls are served. Ctrl-C drains calls, ends every MCP server
and leaves no process behind; a second one ends at once.`,
		Example: `  toolherd up --mcp-config examples/mcp.json`,
		Args:    noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd, s, config.Defaults())
			if err != nil {
				return err
			}
			return stack.Up(cmd.Context(), cfg, s.Err, func(ctx context.Context, conn *grpc.ClientConn) error {
				return summarise(ctx, s.Out, toolproxyv1.NewToolProxyServiceClient(conn))
			})
		},
	}
	config.Register(cmd.Flags(), config.Defaults())
	return cmd
}

// summaryPatience is how long the first table waits for servers that are slow to start.
const summaryPatience = 3 * time.Second

// summarise prints a table of all servers once each has had its first verdict, or soon, and then a line per change.
func summarise(ctx context.Context, w io.Writer, proxy toolproxyv1.ToolProxyServiceClient) error {
	stream, err := proxy.WatchServers(ctx, &toolproxyv1.WatchServersRequest{})
	if err != nil {
		return endOf(ctx, err)
	}
	messages := make(chan *toolproxyv1.WatchServersResponse)
	sum := summary{w: w, servers: map[string]*toolproxyv1.Server{}}
	err = run.All(ctx,
		run.Task{Name: "watch servers", Run: func(ctx context.Context) error {
			for {
				msg, err := stream.Recv()
				if err != nil {
					return err
				}
				select {
				case messages <- msg:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}},
		run.Task{Name: "print servers", Run: func(ctx context.Context) error { return sum.print(ctx, messages) }},
	)
	return endOf(ctx, err)
}

// endOf makes nothing of an error that only says that the process ends.
func endOf(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil //nolint:nilerr // what fails while the process ends fails because it ends
	}
	return err
}

type summary struct {
	w       io.Writer
	servers map[string]*toolproxyv1.Server
	printed bool
}

func (s *summary) print(ctx context.Context, messages <-chan *toolproxyv1.WatchServersResponse) error {
	patience := time.NewTimer(summaryPatience)
	defer patience.Stop()
	for {
		var err error
		select {
		case msg := <-messages:
			err = s.take(msg)
		case <-patience.C:
			err = s.first()
		case <-ctx.Done():
			return ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) take(msg *toolproxyv1.WatchServersResponse) error {
	for _, srv := range msg.GetServers() {
		before := s.servers[srv.GetName()]
		s.servers[srv.GetName()] = srv
		if s.printed && changed(before, srv) {
			if err := s.line(srv); err != nil {
				return err
			}
		}
	}
	for _, name := range msg.GetRemoved() {
		delete(s.servers, name)
		if s.printed {
			if _, err := fmt.Fprintf(s.w, "%s  removed\n", terminal.Line(name)); err != nil {
				return err
			}
		}
	}
	for _, srv := range s.servers {
		if srv.GetStatus() == corev1.ServerStatus_SERVER_STATUS_STARTING {
			return nil
		}
	}
	return s.first()
}

func changed(before, after *toolproxyv1.Server) bool {
	return before.GetStatus() != after.GetStatus() || before.GetToolCount() != after.GetToolCount() ||
		before.GetReason() != after.GetReason() || before.GetStale() != after.GetStale()
}

// first prints the table, once.
func (s *summary) first() error {
	if s.printed {
		return nil
	}
	s.printed = true
	if len(s.servers) == 0 {
		_, err := fmt.Fprintln(s.w, "no MCP servers are configured: give a file with --mcp-config, or write one to ~/.toolherd/.mcp.json")
		return err
	}
	all := make([]*toolproxyv1.Server, 0, len(s.servers))
	for _, srv := range s.servers {
		all = append(all, srv)
	}
	slices.SortFunc(all, func(a, b *toolproxyv1.Server) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return table(s.w, serverHeader, serverRows(all))
}

func (s *summary) line(srv *toolproxyv1.Server) error {
	cells := serverRow(srv)
	for i, c := range cells {
		cells[i] = terminal.Line(c)
	}
	cells[3] += " tools"
	_, err := fmt.Fprintln(s.w, strings.TrimSpace(strings.Join(cells, "  ")))
	return err
}
