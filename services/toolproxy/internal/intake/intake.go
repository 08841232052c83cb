package intake

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/fault"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

const (
	// askEvery is how often a client asks whether tasks run while they do, askSoon while they do not.
	askEvery = 10 * time.Second
	askSoon  = 2 * time.Second
	// answerWithin bounds the wait for an answer to anything but a commit.
	answerWithin = 5 * time.Second
)

// Options configure a Client. Every field must be set but where it says otherwise.
type Options struct {
	// Intake takes tasks in. Nil: there is none, and Off says so.
	Intake taskv1.TaskIntakeServiceClient
	// Off is why there are no tasks where Intake is nil, with the next step.
	Off string
	// Changed is called when Off begins to say something else. It must not block; may be nil.
	Changed func()
	Log     *slog.Logger
}

// Client takes tasks in. It may be used concurrently.
type Client struct {
	o     Options
	state atomic.Pointer[state]
}

// state is what is known about intake. It is immutable.
type state struct {
	running bool
	off     error // TASKS_UNAVAILABLE: it said that there are no tasks
}

// New returns a Client. It starts nothing.
func New(o Options) *Client {
	c := &Client{o: o}
	c.state.Store(&state{})
	if o.Intake == nil {
		c.state.Store(&state{off: fault.New(fault.TasksUnavailable, "%s", o.Off)})
	}
	return c
}

// Run keeps up to date whether tasks run, until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	if c.o.Intake == nil {
		return nil
	}
	for ctx.Err() == nil {
		c.ask(ctx)
		wait := askSoon
		if c.Running() {
			wait = askEvery
		}
		_ = backoff.Sleep(ctx, wait) // ends early with ctx
	}
	return nil
}

// nobody is an id that no task has: its random part is not random.
const nobody = "mcp-task-00000000000000000000000000000000"

// ask makes two requests that come to nothing: an intake that takes tasks in finds the first one incomplete, and one whose
// store works knows no reservation of the second's.
func (c *Client) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := c.o.Intake.ReserveTask(ctx, &taskv1.ReserveTaskRequest{})
	if fault.KindOf(err) == fault.InvalidArgument {
		_, err = c.o.Intake.RenewReservation(ctx, &taskv1.RenewReservationRequest{TaskId: nobody, Fence: 1})
	}
	c.learn(ctx, err)
}

// learn takes the error of a request to take a task in, which may be nil, as news about intake.
func (c *Client) learn(ctx context.Context, err error) {
	next := &state{}
	switch {
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded), fault.KindOf(err) == fault.PermissionDenied:
		return // we gave the call up, or it was about the caller
	case fault.Is(err, fault.TasksUnavailable):
		next.off = err
	default:
		next.running = err == nil || answered(err)
	}
	before := c.state.Swap(next)
	switch {
	case next.running && !before.running:
		c.o.Log.InfoContext(ctx, "durable tasks can be taken in")
	case before.running && !next.running:
		c.o.Log.WarnContext(ctx, "durable tasks cannot be taken in", "err", err)
	}
	if (before.off == nil) != (next.off == nil) && c.o.Changed != nil {
		c.o.Changed()
	}
}

// answered reports whether an error is intake's own word about a request, so that it is there and has its store.
func answered(err error) bool {
	switch fault.KindOf(err) {
	case fault.Aborted, fault.InvalidArgument, fault.NotFound:
		return true
	default:
		return false
	}
}

// Running reports whether durable tasks really run, as far as is known. It asks nobody.
func (c *Client) Running() bool { return c.state.Load().running }

// Off returns TASKS_UNAVAILABLE where durable tasks are switched off, and nil where they are not, or it is not known. It
// asks nobody.
func (c *Client) Off() error { return c.state.Load().off }
