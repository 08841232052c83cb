// Package demoserver is the MCP server behind `toolherd demo-server`: a handful of small tools that show
// a newcomer what passes through Toolherd, without a network, a key or anything to install.
//
// Its tools never return a secret: env_names tells names, not values. All of them return structured content that an
// output schema describes. start_report, report_status and stop_report are a toolset for durable tasks; their jobs are
// files in one directory, the only thing outside the process that a tool touches, and so outlive the server.
package demoserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Options are what a demo server may be told. The zero value is useful.
type Options struct {
	// Version is the version the server introduces itself with; "dev" when empty.
	Version string
	// Log gets what the MCP SDK has to say; nothing is logged when nil. Over stdio it must not write to
	// the stream that the server answers on.
	Log *slog.Logger
	// ReportsDir is where jobs are kept; a directory below that for temporary files when empty. Servers may share it.
	ReportsDir string
}

const instructions = "Tools to try Toolherd with. Call counter twice in one thread, then in another, " +
	"to see which process answers; call slow_count to see progress, start_report to see a durable task."

// New makes a demo server with its own state: the counter of one server is not that of another. It can
// serve several connections, which then share that state.
func New(o Options) *mcp.Server {
	if o.Version == "" {
		o.Version = "dev"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := mcp.NewServer(
		&mcp.Implementation{Name: "toolherd-demo", Title: "Toolherd demo server", Version: o.Version},
		&mcp.ServerOptions{Instructions: instructions, Logger: o.Log},
	)
	addTools(s, time.Now())
	addReports(s, reports{dir: cmp.Or(o.ReportsDir, defaultDir())})
	return s
}

// Run serves one client over a pair of line streams, as a stdio server does, until in ends or ctx ends.
// Both are a clean end and return nil. Run closes in and out when they can be closed; a read from in that
// cannot be interrupted stays behind when ctx ends first.
func Run(ctx context.Context, in io.Reader, out io.Writer, o Options) error {
	err := New(o).Run(ctx, &mcp.IOTransport{Reader: readCloser(in), Writer: writeCloser(out)})
	if err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("serve demo tools: %w", err)
	}
	return nil
}

// Serve serves any number of clients over streamable HTTP at /mcp until ctx ends, which is a clean end. It closes l.
// Whoever reaches l may call: bind it to loopback or a network of its own.
func Serve(ctx context.Context, l net.Listener, o Options) error {
	server := New(o)
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		_ = web.Close() // cuts the streams that clients hold open; jobs are files and go on
	})
	err := web.Serve(l)
	if !stop() {
		<-closed
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve demo tools: %w", err)
}

func readCloser(r io.Reader) io.ReadCloser {
	if rc, ok := r.(io.ReadCloser); ok {
		return rc
	}
	return io.NopCloser(r)
}

func writeCloser(w io.Writer) io.WriteCloser {
	if wc, ok := w.(io.WriteCloser); ok {
		return wc
	}
	return nopCloser{w}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
