package watchdog

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// drainTimeout is how long the child's pipes may take to end after its group was killed.
const drainTimeout = 100 * time.Millisecond

// Child is a process that a [Guard] started, with all that runs below it. Its methods may be called concurrently,
// but for Reap, which is called last.
type Child struct {
	guard   *Guard
	seq     uint64
	pgid    int // guarded by guard.mu while the child is being started
	streams []uint64
	process *os.Process
	pidfd   *os.File // nil where the system has none

	mu    sync.Mutex
	gone  bool             // reaped: its numbers may belong to others
	seen  map[process]bool // what was found below it
	state *os.ProcessState // where waiting reaps
}

// PID returns the number of the process, which is that of its group and session too.
func (c *Child) PID() int { return c.process.Pid }

// AwaitExit returns when the leader has exited, nil then. It remains a zombie, and so its number remains its own,
// until Reap. It is called once.
func (c *Child) AwaitExit() error {
	state, err := awaitExit(c.process, c.pidfd)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = state
	return err
}

// Look remembers what runs below the leader now, for Reap to kill even if it has left the group. Owners call it
// before they ask the child to end: a process whose parent has ended can no longer be told from others.
func (c *Child) Look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return
	}
	for _, p := range descendants(c.process.Pid) {
		if c.seen == nil {
			c.seen = map[process]bool{}
		}
		c.seen[p] = true
	}
}

// Signal sends a signal to every process of the group. After Reap it does nothing.
func (c *Child) Signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		_ = syscall.Kill(-c.process.Pid, s)
	}
}

// Reap kills what is left below a leader that has exited, and then reaps it. drained is closed when all that
// read the child's standard streams have met their end, which happens when no process holds them any more: if it
// is not soon, those who hold them are killed. It returns how the leader ended.
func (c *Child) Reap(drained <-chan struct{}) (*os.ProcessState, error) {
	c.Signal(syscall.SIGKILL)
	if !closesWithin(drained, drainTimeout) {
		killHolders(c.streams)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for p := range c.seen {
		p.kill()
	}
	c.guard.forget(c)
	if c.pidfd != nil {
		_ = c.pidfd.Close()
	}
	if c.state != nil {
		return c.state, nil
	}
	state, err := c.process.Wait()
	if err != nil {
		return nil, fmt.Errorf("reap process %d: %w", c.process.Pid, err)
	}
	return state, nil
}

// Abandon gives up a child that does not exit even though it was killed: one that hangs in the kernel. AwaitExit
// returns. The watchdog keeps its group in mind.
func (c *Child) Abandon() error {
	if c.pidfd == nil {
		return errors.New("cannot stop waiting for a process here")
	}
	return c.pidfd.Close()
}

func closesWithin(c <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}
