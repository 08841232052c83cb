package watchdog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	readyTimeout = 10 * time.Second // for the watchdog process to come up
	tellTimeout  = time.Second      // for it to take a line; it reads all the time
	exitTimeout  = 5 * time.Second  // for it to kill what is left and exit
)

// dog is a running watchdog process, seen from the service.
type dog struct {
	process *os.Process
	in      *os.File // its standard input: what it is told, and the sign that the service lives
	out     *os.File // its standard output: the sign that it lives itself
	died    chan struct{}
	once    sync.Once // process is reaped
}

func startDog() (*dog, error) {
	path, err := selfPath()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = childIn.Close() }()
	out, childOut, err := os.Pipe()
	if err != nil {
		_ = in.Close()
		return nil, err
	}
	defer func() { _ = childOut.Close() }()
	process, err := os.StartProcess(path, []string{name}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{"GOMAXPROCS=1", "GOGC=25"},
		Files: []*os.File{childIn, childOut, os.Stderr},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	d := &dog{process: process, in: in, out: out, died: make(chan struct{})}
	if err := d.awaitReady(); err != nil {
		d.kill()
		d.reap()
		return nil, errors.Join(err, out.Close())
	}
	return d, nil
}

func (d *dog) awaitReady() error {
	if err := d.out.SetReadDeadline(time.Now().Add(readyTimeout)); err != nil {
		return err
	}
	got := make([]byte, len(ready))
	if _, err := io.ReadFull(d.out, got); err != nil || string(got) != ready {
		return fmt.Errorf("it did not come up: %w; does this program's main function call watchdog.Main first thing?",
			errors.Join(err, errors.New("no sign of readiness")))
	}
	return d.out.SetReadDeadline(time.Time{})
}

// watch closes died when the process has.
func (d *dog) watch() {
	defer close(d.died)
	_, _ = io.Copy(io.Discard, d.out)
	_ = d.out.Close()
}

// tell writes one line. After an error half of it may be in the pipe, and this dog is of no use any more.
func (d *dog) tell(line string) error {
	if err := d.in.SetWriteDeadline(time.Now().Add(tellTimeout)); err != nil {
		return err
	}
	_, err := d.in.WriteString(line)
	return err
}

// kill ends the process without letting it see the end of its pipe, at which it would kill the children.
func (d *dog) kill() {
	_ = d.process.Kill()
	_ = d.in.Close()
}

func (d *dog) reap() { d.once.Do(func() { _, _ = d.process.Wait() }) }

// dismiss lets the process kill what is left, and exit.
func (d *dog) dismiss() error {
	_ = d.in.Close()
	timer := time.NewTimer(exitTimeout)
	defer timer.Stop()
	var err error
	select {
	case <-d.died:
	case <-timer.C:
		err = errors.New("the watchdog process did not exit in time")
		_ = d.process.Kill()
		<-d.died
	}
	d.reap()
	return err
}
