package dbtest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// guardScript reads process ids until its input ends, which happens when the test binary ends in whatever way. Then
// it stops the last process that it was told of (0 is none) and removes the directory $1, again if a dying child of
// the server has just written to it.
//
// A server that has ended may stay visible until somebody collects its exit status, so what counts as its end is that
// it removed its lock file, the last thing it does. Who has none after a moment is initdb, or has not begun.
const guardScript = `
trap '' INT QUIT TERM HUP
pid=0
while read -r told; do pid=$told; done
if [ "$pid" -gt 0 ]; then
	kill -QUIT "$pid"
	n=0
	while kill -0 "$pid" && [ "$n" -lt 200 ]; do
		if [ "$n" -ge 4 ] && [ ! -e "$1/data/postmaster.pid" ]; then break; fi
		n=$((n+1))
		sleep 0.05
	done
	kill -KILL "$pid"
fi
for n in 1 2 3 4 5; do rm -rf "$1" && break; sleep 0.2; done
`

// guard is a process that cleans up after us. It runs as ourselves, so it may end what we started.
type guard struct {
	cmd  *exec.Cmd
	pipe *os.File // held open for as long as we live; never inherited
}

func newGuard(dir string) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close() // the guard has its own descriptor
	cmd := exec.Command("/bin/sh", "-c", guardScript, "toolherd-test-guard", dir)
	cmd.Dir = "/"
	cmd.Stdin = r
	// Its output goes to the null device: go test waits until no process holds the test's own.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("start the guard of the test server: %w", err)
	}
	return &guard{cmd: cmd, pipe: w}, nil
}

// watch tells the guard which process to stop; 0 is none.
func (g *guard) watch(pid int) error {
	if _, err := fmt.Fprintln(g.pipe, pid); err != nil {
		return fmt.Errorf("the guard of the test server is gone: %w", err)
	}
	return nil
}

// close lets the guard do its work and returns when it is done.
func (g *guard) close() error {
	if err := g.pipe.Close(); err != nil {
		return err
	}
	return g.cmd.Wait()
}
