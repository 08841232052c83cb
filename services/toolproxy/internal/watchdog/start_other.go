//go:build !linux

package watchdog

import (
	"os"
	"syscall"
)

// selfPath is this program.
func selfPath() (string, error) { return os.Executable() }

// start executes the command in a session of its own.
func start(c Command) (*os.Process, *os.File, error) {
	p, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{
		Dir:   c.Dir,
		Env:   c.Env,
		Files: []*os.File{c.Stdin, c.Stdout, c.Stderr},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	return p, nil, err
}

// awaitExit returns when the process has exited and was reaped.
func awaitExit(p *os.Process, _ *os.File) (*os.ProcessState, error) { return p.Wait() }
