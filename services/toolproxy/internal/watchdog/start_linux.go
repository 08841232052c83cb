package watchdog

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// selfPath is this program, even after its file was replaced.
func selfPath() (string, error) { return "/proc/self/exe", nil }

// start executes the command in a session of its own. It must be called on a thread that outlives the child.
func start(c Command) (*os.Process, *os.File, error) {
	pidfd := -1
	p, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{
		Dir:   c.Dir,
		Env:   c.Env,
		Files: []*os.File{c.Stdin, c.Stdout, c.Stderr},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd},
	})
	if err != nil {
		return nil, nil, err
	}
	if pidfd < 0 {
		return p, nil, nil
	}
	_ = unix.SetNonblock(pidfd, true) // for the runtime to poll it: a thread less for each child
	f := os.NewFile(uintptr(pidfd), "pidfd")
	if f.SetDeadline(time.Time{}) == nil {
		return p, f, nil
	}
	// It cannot be polled here.
	_ = f.Close()
	return p, nil, nil
}

// awaitExit returns when the process has exited, or pidfd was closed. It does not reap it.
func awaitExit(p *os.Process, pidfd *os.File) (*os.ProcessState, error) {
	if pidfd == nil {
		hasExited(unix.P_PID, p.Pid, 0)
		return nil, nil
	}
	conn, err := pidfd.SyscallConn()
	if err == nil {
		err = conn.Read(func(fd uintptr) bool { return hasExited(unix.P_PIDFD, int(fd), unix.WNOHANG) })
	}
	if err != nil {
		return nil, fmt.Errorf("wait for process %d: %w", p.Pid, err)
	}
	return nil, nil
}

func hasExited(kind, id, flags int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(kind, id, &info, unix.WEXITED|unix.WNOWAIT|flags, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err != nil || info.Signo != 0
	}
}
