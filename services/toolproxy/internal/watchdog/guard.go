package watchdog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
)

// childrenGrace is how long children may take to be ended by their owners after Run's ctx has ended.
const childrenGrace = 10 * time.Second

// ErrStopped is the error of a start after the guard's Run has ended or was told to.
var ErrStopped = errors.New("the service is stopping, no process is started")

// Command is what a child executes. All fields but Dir and Env are required.
type Command struct {
	Path                  string   // of the executable, not looked up
	Args                  []string // with the name of the command first
	Env                   []string // the whole environment, KEY=value
	Dir                   string   // "" is the service's own
	Stdin, Stdout, Stderr *os.File // the child's ends of pipes made for it alone: who else holds one is killed with it
}

// Guard starts children and keeps the watchdog process informed, and alive. Its methods may be called concurrently.
type Guard struct {
	log      *slog.Logger
	grace    time.Duration
	requests chan request
	stopped  chan struct{} // closed when Run takes no more requests

	mu       sync.Mutex
	lastSeq  uint64
	children map[uint64]*Child
	dog      *dog          // nil while there is none
	up       chan struct{} // closed while there is one
	fewer    chan struct{} // holds one: a child was forgotten
}

type request struct {
	cmd   Command
	reply chan started // holds one
}

type started struct {
	child *Child
	err   error
}

// New returns a guard. Nothing happens before [Guard.Run]. log may be nil.
func New(log *slog.Logger) *Guard {
	return &Guard{
		log:      cmp.Or(log, slog.New(slog.DiscardHandler)),
		grace:    childrenGrace,
		requests: make(chan request),
		stopped:  make(chan struct{}),
		children: map[uint64]*Child{},
		up:       make(chan struct{}),
		fewer:    make(chan struct{}, 1),
	}
}

// Run executes the watchdog process, again whenever it dies, and starts children until ctx ends. Then it waits for
// the children's owners to end them, ten seconds at most, kills those that are left, and returns.
//
// It fails only if the watchdog cannot be started the first time: then no child is ever started.
func (g *Guard) Run(ctx context.Context) error {
	// What follows the end of ctx has bounds of its own.
	after := context.WithoutCancel(ctx)
	if IsWatchdog(os.Args) {
		close(g.stopped)
		return errors.New("start the watchdog: this process is one; its main function must call watchdog.Main first thing")
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	d, err := g.launch(&wg)
	if err != nil {
		close(g.stopped)
		return fmt.Errorf("start the watchdog: %w", err)
	}
	over := make(chan struct{}) // no child may live any longer
	wg.Go(func() { g.serve(ctx, over) })
	defer close(over)

	next := backoff.New(backoff.Config{Base: 100 * time.Millisecond, Cap: 5 * time.Second})
	for {
		select {
		case <-ctx.Done():
			g.awaitChildren(after)
			g.mu.Lock()
			g.dog = nil
			g.mu.Unlock()
			return d.dismiss()
		case <-d.died:
		}
		g.log.WarnContext(ctx, "the watchdog process died, starting it again")
		g.mu.Lock()
		g.drop()
		g.mu.Unlock()
		d.reap()
		for d, err = g.launch(&wg); err != nil; d, err = g.launch(&wg) {
			g.log.ErrorContext(ctx, "cannot start the watchdog process, no MCP server is started until it runs", "err", err)
			if backoff.Sleep(ctx, next.Next()) != nil {
				g.awaitChildren(after)
				return nil
			}
		}
		next.Reset()
	}
}

// awaitChildren waits until every child has been reaped, for a bounded time.
func (g *Guard) awaitChildren(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.grace)
	defer cancel()
	for {
		g.mu.Lock()
		left := len(g.children)
		g.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-g.fewer:
		case <-ctx.Done():
			g.log.ErrorContext(ctx, "child processes were not ended in time, killing them", "count", left)
			return
		}
	}
}

// Start executes a command and returns once it runs, in a session and process group of its own. The guard must be
// running, or about to. The caller must see the child to its end: [Child.AwaitExit], then [Child.Reap].
//
// Errors: ErrStopped, ctx.Err(), and that of os.StartProcess.
func (g *Guard) Start(ctx context.Context, c Command) (*Child, error) {
	r := request{cmd: c, reply: make(chan started, 1)}
	select {
	case g.requests <- r:
	case <-g.stopped:
		return nil, ErrStopped
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s := <-r.reply
	return s.child, s.err
}

// serve starts children on a thread of its own, which ends, and kills them by doing so, when over is closed.
func (g *Guard) serve(ctx context.Context, over <-chan struct{}) {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	for ctx.Err() == nil {
		select {
		case r := <-g.requests:
			child, err := g.fork(ctx, r.cmd)
			r.reply <- started{child, err}
		case <-ctx.Done():
		}
	}
	close(g.stopped)
	<-over
}

func (g *Guard) fork(ctx context.Context, cmd Command) (*Child, error) {
	child := &Child{guard: g, streams: streamsOf(cmd.Stdin, cmd.Stdout, cmd.Stderr)}
	for !g.announce(child) {
		g.mu.Lock()
		up := g.up
		g.mu.Unlock()
		select {
		case <-up:
		case <-ctx.Done():
			return nil, ErrStopped
		}
	}
	var err error
	if child.process, child.pidfd, err = start(cmd); err != nil {
		g.forget(child)
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	child.pgid = child.process.Pid
	g.tell(groupLine(child.seq, child.pgid)) // if that fails, it is told again when the next watchdog comes up
	return child, nil
}

// announce tells the watchdog that child is about to be started, and reports whether there is a watchdog.
func (g *Guard) announce(child *Child) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lastSeq++
	child.seq = g.lastSeq
	if !g.tell(startLine(child.seq, child.streams)) {
		return false
	}
	g.children[child.seq] = child
	return true
}

// forget removes a child whose group is gone, but whose leader is not reaped, from the watchdog's table.
func (g *Guard) forget(child *Child) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.children, child.seq)
	g.tell(endLine(child.seq))
	select {
	case g.fewer <- struct{}{}:
	default:
	}
}

// tell writes one line to the watchdog and reports whether it did. g.mu is held.
func (g *Guard) tell(line string) bool {
	if g.dog == nil {
		return false
	}
	if err := g.dog.tell(line); err != nil {
		g.log.Warn("the watchdog process does not listen, replacing it", "err", err)
		g.drop()
		return false
	}
	return true
}

// drop gives up the watchdog process, if there is one; Run will start another. g.mu is held.
func (g *Guard) drop() {
	if g.dog == nil {
		return
	}
	g.dog.kill()
	g.dog = nil
	g.up = make(chan struct{})
}

// launch starts the watchdog process and tells it of every child.
func (g *Guard) launch(wg *sync.WaitGroup) (*dog, error) {
	d, err := startDog()
	if err != nil {
		return nil, err
	}
	wg.Go(d.watch)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dog = d
	close(g.up)
	for seq, child := range g.children {
		g.tell(startLine(seq, child.streams))
		if child.pgid != 0 {
			g.tell(groupLine(seq, child.pgid))
		}
	}
	return d, nil
}
