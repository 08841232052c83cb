// Package demo shows what a durable task is worth: it submits one to a real toolherd, kills that with SIGKILL in the middle,
// starts it again, and sees the task come to its end and its owner told.
//
//	this process ─ gRPC ─▶ toolherd up ─ MCP over HTTP ─▶ toolherd demo-server
//	                        (killed)                       (works on)
//
// Both are processes of this program's own binary, in a temporary directory and with an environment of their own. All that
// is shown has happened: an answer that is not as expected ends the demo with an error. At the end, whatever it is, no
// process and no directory is left; only a demo that is itself killed with SIGKILL leaves them.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/rpc"
)

// limit bounds the whole demo.
const limit = 90 * time.Second

// Options say how the demo is shown.
type Options struct {
	// Executable is the path of this program.
	Executable string
	// Out receives the story.
	Out io.Writer
	// Rewrite says that Out is a terminal, on which a progress bar moves.
	Rewrite bool
	// Environ is the environment in the form of os.Environ. Children get PATH and TMPDIR from it, and nothing else.
	Environ []string
}

// Run runs the demo. Its error says which step failed, and why.
func Run(ctx context.Context, o Options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dir, err := os.MkdirTemp("", "toolherd-demo-*")
	if err != nil {
		return fmt.Errorf("make a directory for the demo (TMPDIR says where): %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := &story{Options: o, dir: dir, began: time.Now()}
	defer func() { err = errors.Join(err, s.end()) }()
	s.print("A durable task, from its submit to its event, with a kill -9 in between. Everything is in\n%s, which is removed at the end.\n", dir)
	for i, step := range s.steps() {
		s.print("\n%d. %s\n", i+1, step.title)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("step %d (%s): %w%s", i+1, step.title, err, s.trouble())
		}
	}
	s.print("\nThat took %.1f s. Try it yourself:\n  toolherd up --mcp-config examples/mcp.json\n", time.Since(s.began).Seconds())
	return nil
}

// story is a running demo.
type story struct {
	Options
	dir   string
	began time.Time

	server, herd *child
	serverURL    string
	address      string // of the toolherd, the same after its restart
	conn         *grpc.ClientConn

	taskID string
}

// step is a chapter of the story.
type step struct {
	title string
	run   func(ctx context.Context) error
}

func (s *story) steps() []step {
	return []step{
		{"A tool server, and a toolherd in front of it", s.startAll},
		{"What tools are there?", s.listTools},
		{"An ordinary call answers at once", s.call},
		{"Long work answers with a task", s.submit},
		{"The task survives kill -9 of the toolherd", s.follow},
		{"Its owner is told, until it says that it knows", s.notified},
	}
}

func (s *story) print(format string, a ...any) { fmt.Fprintf(s.Out, format, a...) }

// say prints a line of what happened.
func (s *story) say(format string, a ...any) { s.print("   "+format+"\n", a...) }

// trouble returns what a child said last, if it is gone.
func (s *story) trouble() string {
	for _, c := range []*child{s.herd, s.server} {
		if c == nil {
			continue
		}
		select {
		case <-c.exited:
			return "\n" + c.name + " has ended" + c.tail()
		default:
		}
	}
	return ""
}

// end ends what runs.
func (s *story) end() error {
	var errs []error
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	for _, c := range []*child{s.herd, s.server} {
		if c != nil {
			errs = append(errs, c.stop())
		}
	}
	return errors.Join(errs...)
}

var (
	serverReady = regexp.MustCompile(`^ready (http://\S+)$`)
	herdReady   = regexp.MustCompile(`^ready grpc=(\S+) `)
)

// seconds is how long the task takes.
const seconds = 8

func (s *story) startAll(ctx context.Context) (err error) {
	for _, name := range []string{"home", "state", "project", "tmp"} {
		if err := os.Mkdir(filepath.Join(s.dir, name), 0o700); err != nil {
			return err
		}
	}
	args := []string{"demo-server", "--listen", "127.0.0.1:0", "--reports-dir", filepath.Join(s.dir, "reports")}
	s.server, s.serverURL, err = start(ctx, spawn{
		name: "the tool server", executable: s.Executable, args: args, env: s.childEnv(), dir: s.dir, ready: serverReady,
	})
	if err != nil {
		return err
	}
	s.say("tool server: process %d at %s", s.server.pid(), s.serverURL)
	if err := s.writeServers(); err != nil {
		return err
	}
	if err := s.startHerd(ctx, "127.0.0.1:0"); err != nil {
		return err
	}
	s.say("toolherd:    process %d at %s", s.herd.pid(), s.address)
	s.conn, err = rpc.Dial(s.address, rpc.ClientOptions{})
	return err
}

// startHerd starts the toolherd and learns its address.
func (s *story) startHerd(ctx context.Context, listen string) (err error) {
	s.herd, s.address, err = start(ctx, spawn{
		name: "toolherd", executable: s.Executable, env: s.childEnv(), dir: filepath.Join(s.dir, "project"), ready: herdReady,
		args: []string{
			"up", "--listen", listen, "--http-listen", "", "--log-level", "warn", "--state-dir", filepath.Join(s.dir, "state"),
			"--project", filepath.Join(s.dir, "project"), "--mcp-config", filepath.Join(s.dir, "mcp.json"),
		},
	})
	return err
}

// childEnv is what a child needs: nothing of the user's own configuration.
func (s *story) childEnv() []string {
	env := []string{
		"HOME=" + filepath.Join(s.dir, "home"), "TMPDIR=" + filepath.Join(s.dir, "tmp"),
		// A worker that was killed in the middle of a poll holds its task no longer than this.
		"TOOLHERD_TASKS_LEASE=5s", "TOOLHERD_TASKS_POLL_INTERVAL=1s",
	}
	for _, kv := range s.Environ {
		if strings.HasPrefix(kv, "PATH=") {
			env = append(env, kv)
		}
	}
	return env
}

// writeServers writes the file of MCP servers: the tool server, whose reports are durable tasks.
func (s *story) writeServers() error {
	content, err := json.MarshalIndent(map[string]any{"mcpServers": map[string]any{"demo": map[string]any{
		"url": s.serverURL,
		"task_toolsets": []any{map[string]any{
			"name": "report", "submit_tool": "start_report", "status_tool": "report_status", "cancel_tool": "stop_report",
		}},
	}}}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, "mcp.json"), content, 0o600)
}
