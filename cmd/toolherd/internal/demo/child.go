package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startPatience bounds how long a child may take to say that it is ready.
const startPatience = 20 * time.Second

// stopPatience bounds how long a child may take to end in order.
const stopPatience = 15 * time.Second

// shownLines is how many of a child's last lines an error shows.
const shownLines = 8

// child is a process of this program's own binary.
type child struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{} // closed once it has ended and everything it wrote was read

	mu    sync.Mutex
	lines []string // the last that it wrote
}

// spawn describes a child to start.
type spawn struct {
	name       string
	executable string
	args, env  []string
	dir        string
	ready      *regexp.Regexp // its first group is the address
}

// start starts a child and returns it with its address once it says that it is ready.
func start(ctx context.Context, s spawn) (*child, string, error) {
	c := &child{name: s.name, exited: make(chan struct{})}
	// The child is ended by its owner, in order, and not when ctx ends.
	c.cmd = exec.CommandContext(context.WithoutCancel(ctx), s.executable, s.args...)
	c.cmd.Env, c.cmd.Dir = s.env, s.dir
	// A Ctrl-C in the terminal is for the demo, which then ends its children.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	c.cmd.Stdout, c.cmd.Stderr = write, write
	err = c.cmd.Start()
	if closeErr := write.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("start %s: %w", s.name, err), read.Close())
	}
	ready := make(chan string, 1)
	go func() {
		defer close(c.exited)
		c.collect(read, s.ready, ready)
		_ = read.Close() // it was read to its end
		_ = c.cmd.Wait() // how it ended is not what an error is about: what it said is
	}()
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	select {
	case address := <-ready:
		return c, address, nil
	case <-c.exited:
		return nil, "", c.failed("it ended before it was ready")
	case <-patience.C:
		c.kill()
		return nil, "", c.failed(fmt.Sprintf("it was not ready after %s", startPatience))
	case <-ctx.Done():
		c.kill()
		return nil, "", ctx.Err()
	}
}

// collect keeps what the child writes, and reports its address.
func (c *child) collect(r io.Reader, pattern *regexp.Regexp, ready chan<- string) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			if m := pattern.FindStringSubmatch(line); m != nil {
				select {
				case ready <- m[1]:
				default:
				}
			}
			c.mu.Lock()
			c.lines = append(c.lines, line)
			if len(c.lines) > shownLines {
				c.lines = slices.Delete(c.lines, 0, len(c.lines)-shownLines)
			}
			c.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

func (c *child) failed(what string) error {
	return fmt.Errorf("%s: %s%s", c.name, what, c.tail())
}

// tail returns what the child wrote last, for the end of an error.
func (c *child) tail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lines) == 0 {
		return ""
	}
	return "; the last it said:\n  " + strings.Join(c.lines, "\n  ")
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends the child with SIGKILL and waits until it is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // an error means that it is gone already
	<-c.exited
}

// stop ends the child in order, or, if that takes too long, with SIGKILL.
func (c *child) stop() error {
	_ = c.cmd.Process.Signal(os.Interrupt) // an error means that it is gone already
	patience := time.NewTimer(stopPatience)
	defer patience.Stop()
	select {
	case <-c.exited:
		return nil
	case <-patience.C:
		c.kill()
		return c.failed(fmt.Sprintf("it did not end within %s and was killed", stopPatience))
	}
}
