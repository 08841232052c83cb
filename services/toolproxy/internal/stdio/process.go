package stdio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/watchdog"
)

const (
	defaultStall = 10 * time.Second
	defaultGrace = 2 * time.Second
	exitNotice   = 200 * time.Millisecond // for a process that closed a stream to turn out to have exited
	drainTimeout = time.Second            // for the rest of its output to be read once nobody writes it any more
	killTimeout  = 10 * time.Second       // for a killed process to be gone, unless it hangs in the kernel
)

// Launcher starts processes through a guard. It may be used concurrently.
type Launcher struct {
	guard   *watchdog.Guard
	buffers sync.Pool // of *[]byte of chunkBytes, for all sessions
}

// NewLauncher returns a launcher. Whoever owns the guard runs it.
func NewLauncher(guard *watchdog.Guard) *Launcher {
	return &Launcher{guard: guard, buffers: sync.Pool{New: func() any { return new(make([]byte, chunkBytes)) }}}
}

// Process is one MCP server process and the wire to it.
type Process struct {
	spec   Spec
	log    *slog.Logger
	child  *watchdog.Child
	stdin  *writer
	stdout *os.File
	stderr *os.File
	ring   *ring
	pool   *sync.Pool

	closing chan struct{} // closed by Close
	killing chan struct{} // closed by Kill
	ended   chan struct{} // closed when the process is reaped and nothing runs any more

	mu     sync.Mutex
	began  bool // RunSink was called, or Close did without
	closed bool // closing is closed
	killed bool // killing is closed
}

// Start executes the command and returns when it runs. The caller must call RunSink or Run, or Close.
//
// Errors are faults SERVER_ERROR that name the command, what is wrong with it and, where it was searched, the PATH;
// ctx.Err(); and watchdog.ErrStopped. Only ctx's end before the process runs has an effect.
func (l *Launcher) Start(ctx context.Context, spec Spec) (*Process, error) {
	spec.MaxMessageBytes = cmp.Or(spec.MaxMessageBytes, link.DefaultMaxMessageBytes)
	spec.WriteStall = cmp.Or(spec.WriteStall, defaultStall)
	spec.Grace = cmp.Or(spec.Grace, defaultGrace)
	spec.Log = cmp.Or(spec.Log, slog.New(slog.DiscardHandler))
	if spec.Redact == nil {
		spec.Redact = func(s string) string { return s }
	}
	env, err := environ(os.LookupEnv, spec.Env)
	if err != nil {
		return nil, spec.fail(err, "%v", err)
	}
	if err := spec.checkDir(); err != nil {
		return nil, err
	}
	path, err := spec.find(env)
	if err != nil {
		return nil, err
	}
	var p pipes
	if err := p.open(); err != nil {
		return nil, spec.fail(err, "no pipes for it: %v", err)
	}
	child, err := l.guard.Start(ctx, watchdog.Command{
		Path: path, Args: append([]string{spec.Command}, spec.Args...), Env: env, Dir: spec.Dir,
		Stdin: p.stdin.child, Stdout: p.stdout.child, Stderr: p.stderr.child,
	})
	p.closeChild()
	if err != nil {
		p.closeOurs()
		if ctx.Err() != nil || errors.Is(err, watchdog.ErrStopped) {
			return nil, fmt.Errorf("start server %q: %w", spec.Server, err)
		}
		return nil, spec.notStarted(path, err)
	}
	process := &Process{
		spec: spec, log: spec.Log, child: child, pool: &l.buffers,
		stdin:   newWriter(p.stdin.ours, spec.WriteStall, 2*spec.MaxMessageBytes),
		stdout:  p.stdout.ours,
		stderr:  p.stderr.ours,
		closing: make(chan struct{}),
		killing: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	process.ring = &ring{redact: spec.Redact, seen: func(line string) {
		process.log.Debug("server wrote to stderr", "line", line)
	}}
	return process, nil
}

// PID returns the number of the process, which is that of its process group too.
func (p *Process) PID() int { return p.child.PID() }

// Tail returns the last lines of stderr so far, redacted.
func (p *Process) Tail() string { return p.ring.Tail() }

// Send implements [link.Wire]. It returns once the message is written or queued for a process that reads slowly.
func (p *Process) Send(ctx context.Context, msg []byte) error { return p.stdin.Send(ctx, msg) }

// Run implements [link.Wire]. A Link calls RunSink instead.
func (p *Process) Run(ctx context.Context, deliver func(msg []byte)) error {
	return p.RunSink(ctx, deliverer(deliver))
}

// deliverer is a sink that knows nothing but messages.
type deliverer func(msg []byte)

func (d deliverer) Deliver(msg []byte)                  { d(msg) }
func (d deliverer) DeliverFor(_ jsonrpc.ID, msg []byte) { d(msg) }
func (d deliverer) Drop(*jsonrpc.Head, error)           {}

// RunSink implements [link.SinkWire]: it reads until the session ends, and returns an *[ExitError] when the process
// and all that ran below it are gone. When ctx ends it stops the process first.
func (p *Process) RunSink(ctx context.Context, sink link.Sink) error {
	if !p.begin() {
		return errors.New("the session was closed before it began")
	}
	return p.run(ctx, sink)
}

func (p *Process) run(ctx context.Context, sink link.Sink) error {
	defer close(p.ended)
	group := run.NewGroup(context.WithoutCancel(ctx), p.log)
	p.stdin.attach(func(f func(context.Context)) bool { return group.Go("stdin", f) })
	s := &session{Process: p, exited: make(chan struct{}), drained: make(chan struct{}), silent: make(chan struct{})}
	group.Go("exit", s.awaitExit)
	group.Go("output", func(context.Context) { s.read(sink) })

	reason := s.supervise(ctx)
	p.stdin.close()
	_ = p.stdout.Close()
	_ = p.stderr.Close()
	if err := group.Wait(); err != nil {
		return errors.Join(reason, err)
	}
	reason.words = p.ring.Tail()
	return reason
}

// begin reports whether this is the first time that the process is run.
func (p *Process) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := !p.began
	p.began = true
	return first
}

// Close implements [link.Wire]: it stops the process, gracefully, and waits until it is gone, or ctx ends; the
// stopping goes on then, in Run. If nobody runs the process, Close itself sees it to its end, whatever ctx says.
func (p *Process) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.closing)
	}
	p.mu.Unlock()
	if p.begin() {
		_ = p.run(ctx, deliverer(func([]byte) {}))
		return nil
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop server %q: %w", p.spec.Server, ctx.Err())
	}
}

// Kill ends the process and its group without grace. It does not wait: Close does.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.killed {
		p.killed = true
		close(p.killing)
	}
}

// session is the state of RunSink.
type session struct {
	*Process
	exited  chan struct{} // closed when the leader has exited; it is not reaped
	silent  chan struct{} // closed when stdout has ended
	drained chan struct{} // closed when stdout and stderr have ended

	mu        sync.Mutex
	outputErr error // why reading stdout ended, if not because it did
}

func (s *session) awaitExit(ctx context.Context) {
	if err := s.child.AwaitExit(); err != nil {
		s.log.ErrorContext(ctx, "gave up waiting for a server's process", "pid", s.PID(), "err", err)
		return
	}
	close(s.exited)
}

// read reads both streams until they end.
func (s *session) read(sink link.Sink) {
	defer close(s.drained)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(s.silent)
	wg.Go(func() {
		errs := puller{buffers: s.pool}
		_ = errs.pull(s.stderr, func(chunk []byte) error { s.ring.Write(chunk); return nil })
	})
	out := puller{buffers: s.pool}
	f := framer{server: s.spec.Server, max: s.spec.MaxMessageBytes, sink: sink}
	err := out.pull(s.stdout, f.write)
	if !errors.Is(err, io.EOF) {
		s.mu.Lock()
		s.outputErr = err
		s.mu.Unlock()
	}
}

// supervise waits until there is a reason to end the session, sees the process to its end, and says why and how.
func (s *session) supervise(ctx context.Context) *ExitError {
	reason := &ExitError{}
	hard := false
	select {
	case <-s.exited:
	case <-s.killing:
		reason.Cause, hard = "it was killed", true
	case <-s.closing:
		reason.Cause = "it was stopped"
	case <-ctx.Done():
		reason.Cause = "it was stopped"
	case <-s.silent:
		s.mu.Lock()
		err := s.outputErr
		s.mu.Unlock()
		switch {
		case err != nil:
			reason.Cause, hard = err.Error(), true
		case !closes(s.exited, exitNotice):
			reason.Cause = "it closed its stdout"
		}
	case <-s.stdin.broken:
		stall, stalled := errors.AsType[stallError](s.stdin.err)
		switch {
		case stalled:
			reason.Cause, hard = stall.Error(), true
		case !closes(s.exited, exitNotice):
			reason.Cause = "it closed its stdin"
		}
	}
	if reason.Cause != "" && !s.stop(hard) {
		s.log.ErrorContext(ctx, "a server's process cannot be killed: it hangs in the kernel", "pid", s.PID())
		if err := s.child.Abandon(); err != nil {
			s.log.ErrorContext(ctx, "cannot give up a server's process", "pid", s.PID(), "err", err)
		}
		reason.observe(nil)
		return reason
	}
	state, err := s.child.Reap(s.drained)
	if err != nil {
		s.log.ErrorContext(ctx, "cannot reap a server's process", "pid", s.PID(), "err", err)
	}
	reason.observe(state)
	closes(s.drained, drainTimeout)
	return reason
}

// stop asks the process to end, and makes it. It reports whether the leader has exited.
func (s *session) stop(hard bool) bool {
	s.child.Look()
	if !hard {
		s.stdin.close()
		if s.gone() {
			return true
		}
		s.child.Look()
		s.child.Signal(syscall.SIGTERM)
		if s.gone() {
			return true
		}
		s.child.Look()
	}
	s.child.Signal(syscall.SIGKILL)
	return closes(s.exited, killTimeout)
}

// gone waits, within the grace, until the leader has exited and nobody holds its streams any more: what it
// started has the same time to end.
func (s *session) gone() bool {
	timer := time.NewTimer(s.spec.Grace)
	defer timer.Stop()
	for _, c := range []<-chan struct{}{s.exited, s.drained} {
		select {
		case <-c:
		case <-timer.C:
			return false
		case <-s.killing:
			return false
		}
	}
	return true
}

func closes(c <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}

// pipe is one standard stream.
type pipe struct{ ours, child *os.File }

// pipes are the three.
type pipes struct{ stdin, stdout, stderr pipe }

func (p *pipes) open() (err error) {
	defer func() {
		if err != nil {
			p.closeOurs()
			p.closeChild()
		}
	}()
	if p.stdin.child, p.stdin.ours, err = os.Pipe(); err != nil {
		return err
	}
	if p.stdout.ours, p.stdout.child, err = os.Pipe(); err != nil {
		return err
	}
	p.stderr.ours, p.stderr.child, err = os.Pipe()
	return err
}

func (p *pipes) closeOurs() {
	for _, f := range []*os.File{p.stdin.ours, p.stdout.ours, p.stderr.ours} {
		_ = f.Close() // nil where it was not opened
	}
}

func (p *pipes) closeChild() {
	for _, f := range []*os.File{p.stdin.child, p.stdout.child, p.stderr.child} {
		_ = f.Close()
	}
}
