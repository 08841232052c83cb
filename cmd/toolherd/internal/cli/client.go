package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/stack"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// composition are the flags that say what a client's own composition would be made of.
var composition = []string{"project", "mcp-config", "no-mcp", "trust-project-mcp", "postgres"}

// clientFlags are the flags of every client command.
type clientFlags struct {
	addr, tokenFile, caFile, output string
}

func addClientFlags(cmd *cobra.Command, f *clientFlags) {
	base := clientBase()
	config.Register(cmd.Flags(), base, append([]string{"state-dir", "log-level", "log-file"}, composition...)...)
	cmd.Flags().StringVar(&f.addr, "addr", "", "gRPC address of the Toolherd to ask (default: the one that runs on the state directory, else one composed in this process)")
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "", "file with the token to show (default: the variable TOOLHERD_TOKEN)")
	cmd.Flags().StringVar(&f.caFile, "ca-file", "", "CA of the server's certificate; without it the connection is plaintext")
	addOutput(cmd, &f.output)
}

func clientBase() config.Config {
	base := config.Defaults()
	base.LogLevel, base.HTTPListen = "warn", ""
	return base
}

// client is a connection to a Toolherd, running elsewhere or composed here.
type client struct {
	toolproxyv1.ToolProxyServiceClient
	tasks         taskv1.TaskServiceClient
	notifications notifierv1.NotifierServiceClient
	registry      registryv1.RegistryServiceClient
	health        healthv1.HealthClient
	address       string // where it was reached; empty if it was composed here
	composed      bool
}

func newClient(conn *grpc.ClientConn, address string) *client {
	return &client{
		ToolProxyServiceClient: toolproxyv1.NewToolProxyServiceClient(conn),
		tasks:                  taskv1.NewTaskServiceClient(conn),
		notifications:          notifierv1.NewNotifierServiceClient(conn),
		registry:               registryv1.NewRegistryServiceClient(conn),
		health:                 healthv1.NewHealthClient(conn),
		address:                address, composed: address == "",
	}
}

// withClient connects, runs f and takes everything down again.
func withClient(cmd *cobra.Command, s Streams, flags clientFlags, f func(ctx context.Context, c *client) error) error {
	if err := checkOutput(flags.output); err != nil {
		return usageError{err}
	}
	cfg, err := loadConfig(cmd, s, clientBase())
	if err != nil {
		return err
	}
	return connection{cmd, s, flags, cfg}.open(f)
}

// connection is what a client command was told about whom to ask.
type connection struct {
	cmd     *cobra.Command
	streams Streams
	flags   clientFlags
	config  config.Config
}

// open connects, runs f and takes everything down again.
func (n connection) open(f func(ctx context.Context, c *client) error) error {
	ctx := n.cmd.Context()
	addr := n.flags.addr
	if addr == "" {
		running, ok, err := stack.Find(n.config.StateDir)
		if err != nil {
			return err
		}
		if ok {
			addr = running.GRPC
		}
	}
	if addr == "" {
		err := stack.Compose(ctx, n.config, n.streams.Err, func(ctx context.Context, conn *grpc.ClientConn) error {
			return f(ctx, newClient(conn, ""))
		})
		running, ok := errors.AsType[*stack.RunningError](err)
		if !ok {
			return err
		}
		addr = running.Address.GRPC
	}
	for _, name := range composition {
		if n.cmd.Flags().Changed(name) {
			return usageError{fmt.Errorf("--%s is for a composition of its own, but a toolherd runs at %s: leave the flag out to use that one, or give another --state-dir", name, addr)}
		}
	}
	return n.remote(ctx, addr, f)
}

// remote runs f with a connection to the Toolherd at addr.
func (n connection) remote(ctx context.Context, addr string, f func(ctx context.Context, c *client) error) (err error) {
	opts := rpc.ClientOptions{MaxMessageBytes: 1 << 30}
	token, err := callerToken(n.streams, n.flags)
	if err != nil {
		return err
	}
	if token != "" {
		opts.Token = func() (string, error) { return token, nil }
	}
	if ca := n.flags.caFile; ca != "" {
		if opts.TLS, err = rpc.ClientTLS(rpc.ClientTLSFiles{CAFile: ca}, nil); err != nil {
			return err
		}
	}
	conn, err := rpc.Dial(addr, opts)
	if err != nil && token != "" && opts.TLS == nil {
		return fmt.Errorf("%w (here the authority is given with --ca-file)", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return f(ctx, newClient(conn, addr))
}

func callerToken(s Streams, flags clientFlags) (string, error) {
	if flags.tokenFile != "" {
		content, err := os.ReadFile(flags.tokenFile)
		if err != nil {
			return "", fmt.Errorf("read token (--token-file): %w", err)
		}
		token := strings.TrimSpace(string(content))
		if token == "" {
			return "", fault.New(fault.InvalidArguments, "the token file %s (--token-file) is empty: put the token in it that 'toolherd token new' printed", flags.tokenFile)
		}
		return token, nil
	}
	for _, kv := range s.Environ {
		if v, ok := strings.CutPrefix(kv, "TOOLHERD_TOKEN="); ok {
			return v, nil
		}
	}
	return "", nil
}

// listServers returns every server.
func (c *client) listServers(ctx context.Context) (*toolproxyv1.ListServersResponse, error) {
	all := &toolproxyv1.ListServersResponse{}
	for token := ""; ; {
		page, err := c.ListServers(ctx, &toolproxyv1.ListServersRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			return nil, err
		}
		all.Servers = append(all.Servers, page.GetServers()...)
		all.SnapshotId, all.Revision = page.GetSnapshotId(), page.GetRevision()
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

// listTools returns every tool, with the status of every server.
func (c *client) listTools(ctx context.Context, scope *corev1.Scope, servers []string) (*toolproxyv1.ListToolsResponse, error) {
	all := &toolproxyv1.ListToolsResponse{}
	for token := ""; ; {
		page, err := c.ListTools(ctx, &toolproxyv1.ListToolsRequest{Scope: scope, Servers: servers, PageToken: token})
		if err != nil {
			return nil, err
		}
		all.Tools = append(all.Tools, page.GetTools()...)
		all.Servers, all.SnapshotId, all.TasksAvailable = page.GetServers(), page.GetSnapshotId(), page.GetTasksAvailable()
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

// settle waits until every server has had its first verdict. Only a composition of this very process needs it: its
// servers have just been started.
func (c *client) settle(ctx context.Context) error {
	if !c.composed {
		return nil
	}
	return c.watch(ctx, func(servers map[string]*toolproxyv1.Server) bool {
		for _, srv := range servers {
			if srv.GetStatus() == corev1.ServerStatus_SERVER_STATUS_STARTING {
				return false
			}
		}
		return true
	})
}

// watch follows the servers until done says so.
func (c *client) watch(ctx context.Context, done func(map[string]*toolproxyv1.Server) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.WatchServers(ctx, &toolproxyv1.WatchServersRequest{})
	if err != nil {
		return err
	}
	servers := map[string]*toolproxyv1.Server{}
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return fault.New(fault.NotReady, "the toolherd ended while its servers started")
		}
		if err != nil {
			return err
		}
		for _, srv := range msg.GetServers() {
			servers[srv.GetName()] = srv
		}
		for _, name := range msg.GetRemoved() {
			delete(servers, name)
		}
		if done(servers) {
			return nil
		}
	}
}
