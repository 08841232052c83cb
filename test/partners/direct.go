package partners

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// Direct connects the SDK's client to a stdio server until the test ends. Version pins the protocol
// version; "" negotiates.
func Direct(t testing.TB, c Command, version string) *mcp.ClientSession {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel) // after the session is closed
	cmd, errs := c.cmd(ctx), new(output)
	cmd.Stderr = errs
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("standard error of %v:\n%s", c.Argv(), errs)
		}
	})
	// The transport waits that long for the server to end by itself before it signals.
	return connect(t, &mcp.CommandTransport{Command: cmd, TerminateDuration: 200 * time.Millisecond}, version)
}

// DirectHTTP connects the SDK's client to a streamable HTTP server until the test ends.
func DirectHTTP(t testing.TB, url, version string) *mcp.ClientSession {
	t.Helper()
	return connect(t, &mcp.StreamableClientTransport{Endpoint: url}, version)
}

// DirectSSE connects the SDK's client to a server of the older SSE transport until the test ends.
func DirectSSE(t testing.TB, url string) *mcp.ClientSession {
	t.Helper()
	return connect(t, &mcp.SSEClientTransport{Endpoint: url}, rawrpc.V20250618)
}

func connect(t testing.TB, transport mcp.Transport, version string) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "direct", Version: "1.0.0"}, nil)
	// An SSE stream lives as long as the context of Connect.
	session, err := client.Connect(context.WithoutCancel(t.Context()), transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatalf("connect directly: %v", err)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil && !endedBySignal(err) {
			t.Errorf("close the direct session: %v", err)
		}
	})
	return session
}

// endedBySignal reports that the server did not end by itself, as server-everything never does.
func endedBySignal(err error) bool {
	e, ok := errors.AsType[*exec.ExitError](err)
	return ok && e.ExitCode() != 0
}

// Raw connects a raw client to a stdio server until the test ends: its results are the server's bytes.
// A version before 2026-07-28 is initialized, with 2026-07-28 each request says so, and "" leaves the
// handshake to the test.
func Raw(t testing.TB, c Command, version string, o rawrpc.ClientOptions) *rawrpc.Stdio {
	t.Helper()
	p := StartStdio(t, c)
	o.Modern = version == rawrpc.V20260728
	client := rawrpc.NewStdio(p.Out, p.In, o)
	t.Cleanup(func() {
		_ = p.In.Close() // the server may have closed it
		p.stop(t)
		_ = p.Out.Close() // a grandchild may hold the other end
		<-client.Done()
	})
	handshake(t, client, version, o)
	return client
}

// RawHTTP connects a raw client to a streamable HTTP server until the test ends, as [Raw] does.
func RawHTTP(t testing.TB, url, version string, o rawrpc.ClientOptions) *rawrpc.HTTP {
	t.Helper()
	o.Modern = version == rawrpc.V20260728
	client := rawrpc.NewHTTP(url, nil, o)
	t.Cleanup(func() {
		_ = client.Close() // the server may be gone
	})
	handshake(t, client, version, o)
	return client
}

func handshake(t testing.TB, c rawrpc.Caller, version string, o rawrpc.ClientOptions) {
	t.Helper()
	if version == "" || o.Modern {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if _, err := rawrpc.Initialize(ctx, c, version, o.Capabilities); err != nil {
		t.Fatalf("connect directly: %v", err)
	}
}

// Stdio is a running stdio server without a client.
type Stdio struct {
	In  io.WriteCloser // its input
	Out io.ReadCloser  // its output; ends when no process holds it any more
	PID int            // leader of its process group

	errs   *output
	exited chan struct{}
	err    error
}

// StartStdio starts a stdio server with nobody to talk to it. The end of the test kills its group and
// closes Out, which ends a client that still reads.
func StartStdio(t testing.TB, c Command) *Stdio {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := c.cmd(ctx)
	p := &Stdio{errs: new(output), exited: make(chan struct{})}
	cmd.Stderr = p.errs
	in, err := cmd.StdinPipe()
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	// A pipe of our own ends when the last process closes it, not when the first has ended.
	out, writer, err := os.Pipe()
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	cmd.Stdout = writer
	p.In, p.Out = in, out
	err = errors.Join(cmd.Start(), writer.Close())
	if err != nil {
		cancel()
		t.Fatalf("start %v: %v", c.Argv(), err)
	}
	p.PID = cmd.Process.Pid
	go func() { // ends with the process, which the clean-up kills
		p.err = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		cancel()
		<-p.exited
		_ = out.Close() // a reader may have closed it
	})
	return p
}

// stop gives the server the grace to end with its input, then kills its group.
func (p *Stdio) stop(t testing.TB) {
	select {
	case <-p.exited:
	case <-time.After(stopGrace / 4):
		if err := killGroup(p.PID, 9); err != nil {
			t.Errorf("kill: %v", err)
		}
		<-p.exited
	}
}

// Stderr returns the last 64 KiB of the server's standard error.
func (p *Stdio) Stderr() string { return p.errs.String() }

// Wait waits for the server to end and returns its exit code, -1 after a signal.
func (p *Stdio) Wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(startTimeout):
		t.Fatalf("waited %s for the server to end\n%s", startTimeout, p.Stderr())
	}
	code, err := exitCode(p.err)
	if err != nil {
		t.Fatal(err)
	}
	return code
}
