package evil

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// sleeperLife bounds the life of a child that nobody kills.
const sleeperLife = 5 * time.Minute

// childModes leave processes behind.
func childModes() []Mode {
	return []Mode{
		{
			Name: "grandchild", About: "starts a child in its process group that ignores SIGTERM and holds all three streams open; itself it behaves",
			process: func(ctx context.Context, p *process) error {
				return p.besides(ctx, nil)
			},
		},
		{
			Name: "grandchild-setsid", About: "like grandchild, but the child leaves the session and with it the process group",
			process: func(ctx context.Context, p *process) error {
				return p.besides(ctx, &syscall.SysProcAttr{Setsid: true})
			},
		},
		{
			Name: "npx", About: "like npx: starts a child that serves and ignores SIGTERM, and waits for it; itself it ends on SIGTERM",
			process: func(ctx context.Context, p *process) error {
				cmd, err := p.child(nil, "ignores-sigterm")
				if err != nil {
					return err
				}
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }() // at the latest when the process ends
				select {
				case err := <-ended:
					return err
				case <-ctx.Done():
					return nil
				}
			},
		},
		{
			Name: "orphan", About: "starts a child that holds all three streams open and exits with code 5 at once",
			process: func(_ context.Context, p *process) error {
				if _, err := p.child(nil, "sleeper"); err != nil {
					return err
				}
				p.exit(5)
				return nil
			},
		},
		{
			Name: "sleeper", About: "the child of the modes above: ignores SIGTERM, SIGINT and SIGHUP and keeps its streams for five minutes",
			process: func(ctx context.Context, p *process) error {
				if err := p.ignoreSignals(); err != nil {
					return err
				}
				pause(ctx, sleeperLife)
				return nil
			},
		},
	}
}

// besides serves beside a child that sleeps.
func (p *process) besides(ctx context.Context, attr *syscall.SysProcAttr) error {
	if _, err := p.child(attr, "sleeper"); err != nil {
		return err
	}
	return p.serve(ctx)
}

// child starts this program in another mode on the same streams and waits until it ignores signals.
func (p *process) child(attr *syscall.SysProcAttr, mode string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ready, closed, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	cmd := exec.Command(self, "-mode", mode, "-ready", "3")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.in, p.out, p.errs
	cmd.ExtraFiles = []*os.File{closed} // descriptor 3
	cmd.SysProcAttr = attr
	if err := errors.Join(cmd.Start(), closed.Close()); err != nil {
		return nil, fmt.Errorf("start a child: %w", err)
	}
	if _, err := io.Copy(io.Discard, ready); err != nil {
		return nil, fmt.Errorf("wait for the child: %w", err)
	}
	return cmd, p.o.started(cmd.Process.Pid)
}

// ignoreSignals leaves SIGKILL as the only way to end the process from outside.
func (p *process) ignoreSignals() error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if p.o.Ready == nil {
		return nil
	}
	return p.o.Ready.Close()
}
