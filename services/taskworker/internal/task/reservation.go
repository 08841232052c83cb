package task

import (
	"bytes"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
)

// Faults of stores. All name the task by its own id.

// NotFound is the fault of an id that no task has.
func NotFound(id string) error {
	return fault.New(fault.TaskNotFound, "task %.100q is not found: ListTasks shows those there are", id).With("task_id", clip(id, 100))
}

// InProgress is the fault of a request whose first submit is still under way, until expires at the latest.
func InProgress(requestID string, expires, now time.Time) error {
	return fault.New(fault.RequestInProgress,
		"request %q is being submitted: repeat it to learn what it became", requestID).
		RetryIn(min(max(expires.Sub(now), time.Second), ReservationTTL))
}

// IDConflict is the fault of a request id that stood for something else.
func IDConflict(requestID string) error {
	return fault.New(fault.RequestIDConflict,
		"request_id %q was used for another tool or other arguments: choose a new id for a new request", requestID)
}

// ReservationLost is the fault of a reservation that ran out or was given up.
func ReservationLost(id string) error {
	return fault.New(fault.ReservationExpired, "the reservation of task %q has run out: submit again", id).With("task_id", id)
}

// Duplicate is the fault of a remote task that another task stands for already.
func Duplicate(server string) error {
	return fault.New(fault.DuplicateRemoteTask,
		"server %q answered with a task that it had already given to another submit of this user: its tool must begin a new one each time", server)
}

// RunOut reports whether a reservation that expires then has done so.
func RunOut(expires, now time.Time) bool { return !expires.After(now) }

// Recorded is what a store has under the id of a commitment that has no reservation.
type Recorded struct {
	Fence     int64 // of the reservation
	Handle    []byte
	Committed bool // and not failed for want of a word in time
}

// Repeated reports whether c was made before, as this task.
func (r Recorded) Repeated(c Commitment) bool {
	return r.Committed && r.Fence == c.Fence && bytes.Equal(r.Handle, c.Handle)
}

// Late reports whether c came too late, and is to be recorded on the task that failed meanwhile.
func (r Recorded) Late(c Commitment) bool {
	return !r.Committed && r.Fence == c.Fence && r.Handle == nil
}
