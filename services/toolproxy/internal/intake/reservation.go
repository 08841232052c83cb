package intake

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/fault"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

const (
	// lifetime is how long a reservation holds unless it is renewed.
	lifetime = 15 * time.Second
	// renewEvery is how often it is renewed, renewAgain how soon after a renewal that failed.
	renewEvery = 5 * time.Second
	renewAgain = time.Second
	// margin is what a remote submit must leave of the last renewal, for the commit.
	margin = 2 * time.Second
	// patience is how long a commit without a verdict is repeated when the reservation has surely expired: what the remote
	// has started should then be stopped.
	patience = 10 * time.Minute
	// maxCommit is how large a commit may be, in bytes. What a server gave that is larger is stored nowhere, and beyond the
	// limit of a message it would not even be refused.
	maxCommit = 1 << 20
	// maxWhy bounds the text of an abandoned reservation, in bytes, which is not above the limit in characters.
	maxWhy = 4000
)

// ErrLost is the cause of the end of a context of [Reservation.Keep] whose reservation is lost, or about to be.
var ErrLost = errors.New("the reservation of the task could not be renewed")

// Reservation is the right to turn one remote submit into a task. One goroutine at a time uses it.
type Reservation struct {
	c      *Client
	taskID string
	fence  int64

	mu    sync.Mutex
	until time.Time // it surely holds until then
}

// Reserve announces a submit. Either of the results is set: a reservation, or the task that the same request became
// before. The error is what intake says; NOT_READY where it says nothing of use, and nothing may be submitted then.
func (c *Client) Reserve(ctx context.Context, r *taskv1.ReserveTaskRequest) (*Reservation, *taskv1.Task, error) {
	if err := c.Off(); err != nil && c.o.Intake == nil {
		return nil, nil, err
	}
	start := time.Now()
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	answer, err := c.o.Intake.ReserveTask(bounded, r)
	c.learn(bounded, err)
	if err != nil {
		return nil, nil, unreserved(err)
	}
	if t := answer.GetCommitted(); t != nil {
		return nil, t, nil
	}
	return &Reservation{c: c, taskID: answer.GetTaskId(), fence: answer.GetFence(), until: start.Add(lifetime)}, nil, nil
}

// unreserved says what a failed reservation means to the caller. What is about its request stays as it is.
func unreserved(err error) error {
	if answered(err) || fault.KindOf(err) == fault.PermissionDenied || fault.Is(err, fault.TasksUnavailable) {
		return err
	}
	return fault.New(fault.NotReady, "durable tasks cannot be taken in at this moment, and nothing was submitted; try again (%v)", err).Because(err)
}

// TaskID is the id that the task has or will have.
func (r *Reservation) TaskID() string { return r.taskID }

// Until returns until when the reservation surely holds.
func (r *Reservation) Until() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.until
}

// Keep renews the reservation every 5 s until stop is called, which waits. The context that it returns ends with ctx, or
// with [ErrLost] while the last renewal still leaves time for a commit: what runs under it ends before the reservation
// does.
func (r *Reservation) Keep(ctx context.Context) (kept context.Context, stop func()) {
	kept, cancel := context.WithCancelCause(ctx)
	renewing, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { r.renew(renewing, func() { cancel(ErrLost) }) })
	return kept, func() {
		end()
		running.Wait()
		cancel(nil)
	}
}

// renew keeps the reservation until ctx ends or it is lost.
func (r *Reservation) renew(ctx context.Context, lost func()) {
	pause := renewEvery
	for {
		left := time.Until(r.Until().Add(-margin))
		if left <= 0 {
			lost()
			return
		}
		if backoff.Sleep(ctx, min(pause, left)) != nil {
			return
		}
		if left = time.Until(r.Until().Add(-margin)); left <= 0 {
			continue
		}
		pause = renewEvery
		switch err := r.extend(ctx, min(left, answerWithin)); {
		case fault.Is(err, fault.ReservationExpired):
			lost()
			return
		case err != nil:
			pause = renewAgain
		}
	}
}

func (r *Reservation) extend(ctx context.Context, within time.Duration) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := r.c.o.Intake.RenewReservation(ctx, &taskv1.RenewReservationRequest{TaskId: r.taskID, Fence: r.fence})
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.until = start.Add(lifetime)
	}
	return err
}

// Commit makes the task of a remote's handle. An attempt that fails without saying whether the task exists is repeated
// with the same fence, which changes nothing if it does. When the reservation has surely expired without a verdict, late is
// called, once, with the last error; the attempts go on, more slowly, since only a verdict allows to stop the remote.
//
// Errors: RESERVATION_EXPIRED, DUPLICATE_REMOTE_TASK and INVALID_ARGUMENTS are verdicts: the task does not exist. Any other
// says that there was none until ctx or patience ended.
func (r *Reservation) Commit(ctx context.Context, q *taskv1.CommitTaskRequest, late func(error)) (*taskv1.Task, error) {
	q.TaskId, q.Fence = r.taskID, r.fence
	if n := proto.Size(q); n > maxCommit {
		return nil, fault.New(fault.InvalidArguments, "the handle of the task has %d bytes, of %d at most", n, maxCommit)
	}
	until := r.Until()
	pause := backoff.New(backoff.Config{Base: 50 * time.Millisecond, Cap: 10 * time.Second, Factor: 2, Jitter: 0.2})
	for {
		within := answerWithin
		if left := time.Until(until); left > 0 {
			within = min(within, left)
		}
		t, err := r.commit(ctx, q, within)
		if err == nil || verdict(err) {
			return t, err
		}
		left := time.Until(until)
		if left <= 0 && late != nil {
			late(err)
			late = nil
		}
		wait := pause.Next()
		if left > 0 {
			wait = min(wait, time.Second, left)
		}
		if left < -patience || backoff.Sleep(ctx, wait) != nil {
			if late != nil {
				late(err)
			}
			return nil, err
		}
	}
}

func (r *Reservation) commit(ctx context.Context, q *taskv1.CommitTaskRequest, within time.Duration) (*taskv1.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answer, err := r.c.o.Intake.CommitTask(ctx, q)
	if err == nil && answer.GetTask() == nil {
		err = fault.Of(fault.Internal, "taskworker answered a commit without the task")
	}
	return answer.GetTask(), err
}

// verdict reports whether an error of a commit says that there is no task.
func verdict(err error) bool {
	return fault.Is(err, fault.ReservationExpired) || fault.Is(err, fault.DuplicateRemoteTask) || fault.KindOf(err) == fault.InvalidArgument
}

// Abandon gives the reservation up, trying until it would expire. first is called after the first attempt, successful or
// not: the rest is for nobody to wait for. One that cannot be given up becomes a failed task by its expiry.
func (r *Reservation) Abandon(ctx context.Context, outcome taskv1.AbandonOutcome, why string, first func()) error {
	if len(why) > maxWhy {
		why = strings.ToValidUTF8(why[:maxWhy], "")
	}
	pause := backoff.New(backoff.Config{Base: 50 * time.Millisecond, Cap: time.Second, Factor: 2, Jitter: 0.2})
	for {
		err := r.abandon(ctx, outcome, why)
		if first != nil {
			first()
			first = nil
		}
		switch {
		case err == nil:
			return nil
		case fault.Is(err, fault.ReservationExpired), fault.KindOf(err) == fault.InvalidArgument, time.Until(r.Until()) <= 0:
			return err
		}
		if sleepErr := backoff.Sleep(ctx, pause.Next()); sleepErr != nil {
			return cmp.Or(err, sleepErr)
		}
	}
}

func (r *Reservation) abandon(ctx context.Context, outcome taskv1.AbandonOutcome, why string) error {
	ctx, cancel := context.WithTimeout(ctx, margin)
	defer cancel()
	_, err := r.c.o.Intake.AbandonTask(ctx, &taskv1.AbandonTaskRequest{TaskId: r.taskID, Fence: r.fence, Outcome: outcome, Error: why})
	return err
}
