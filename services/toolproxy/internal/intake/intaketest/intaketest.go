// Package intaketest is a taskworker in memory, for tests: it takes tasks in by the rules of reservations, on the clock of
// whoever runs it, and lets itself be interrupted at every step. It polls nothing.
package intaketest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// lifetime is how long a reservation holds.
const lifetime = 15 * time.Second

// Server is the taskworker. It serves TaskIntakeService and CancelTask of TaskService. Set its fields before the first call.
type Server struct {
	taskv1.UnimplementedTaskIntakeServiceServer
	taskv1.UnimplementedTaskServiceServer

	// Before is called with the step that is about to happen, such as "commit", and how often it was tried before; an error
	// is the answer, and nothing happens. It may wait. Nil does nothing.
	Before func(ctx context.Context, step string, n int) error
	// After is Before for the answer of what has happened: an error takes its place.
	After func(ctx context.Context, step string, n int) error

	mu           sync.Mutex
	steps        []string
	tries        map[string]int
	reservations map[string]*Reservation
}

// Reservation is a reservation, or what came of it.
type Reservation struct {
	Intent *taskv1.ReserveTaskRequest
	Commit *taskv1.CommitTaskRequest // nil unless it became a task
	Failed string                    // why it became a failed task instead; empty if it did not
	Late   *taskv1.CommitTaskRequest // the commit that came too late, if any

	id      string
	fence   int64
	until   time.Time
	settled bool // abandoned without a trace
	wishes  []authn.Principal
}

// ID is the task's id.
func (r Reservation) ID() string { return r.id }

// CancelledBy returns for whom the task was asked to be cancelled, in order.
func (r Reservation) CancelledBy() []authn.Principal { return r.wishes }

// Steps returns what happened, in order: "reserve", "renew", "commit", "abandon NOT_EXECUTED", "abandon UNKNOWN", "cancel".
// Steps that were refused or interrupted are not among them. A question whether tasks are taken in is the step "ask", and
// one whether the store works "probe".
func (s *Server) Steps() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.steps)
}

// Tries returns how often a step was tried.
func (s *Server) Tries(step string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tries[step]
}

// All returns the reservations in the order they were made, those that are gone included.
func (s *Server) All() []Reservation {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Reservation, len(s.reservations))
	for _, r := range s.reservations {
		s.reap(r)
		out[r.fence-1] = *r
	}
	return out
}

// reap makes a failed task of a reservation that ran out. The caller holds the lock.
func (s *Server) reap(r *Reservation) {
	if r.open() && !time.Now().Before(r.until) {
		r.Failed = "it expired"
	}
}

func (r *Reservation) open() bool { return r.Commit == nil && r.Failed == "" && !r.settled }

// do runs one step between its two hooks.
func (s *Server) do(ctx context.Context, step string, f func() error) error {
	s.mu.Lock()
	n := s.tries[step]
	if s.tries == nil {
		s.tries = map[string]int{}
	}
	s.tries[step]++
	s.mu.Unlock()
	if s.Before != nil {
		if err := s.Before(ctx, step, n); err != nil {
			return err
		}
	}
	s.mu.Lock()
	for _, r := range s.reservations {
		s.reap(r)
	}
	err := f()
	s.mu.Unlock()
	if err == nil && s.After != nil {
		err = s.After(ctx, step, n)
	}
	return err
}

func (s *Server) note(step string) { s.steps = append(s.steps, step) }

// ReserveTask keeps an intent.
func (s *Server) ReserveTask(ctx context.Context, q *taskv1.ReserveTaskRequest) (out *taskv1.ReserveTaskResponse, err error) {
	step := "reserve"
	if q.GetScope() == nil {
		step = "ask"
	}
	err = s.do(ctx, step, func() error {
		if step == "ask" {
			return fault.New(fault.InvalidArguments, "scope is missing")
		}
		for _, r := range s.reservations {
			if q.GetRequestId() == "" || r.settled || r.Intent.GetRequestId() != q.GetRequestId() ||
				r.Intent.GetPrincipal() != q.GetPrincipal() || r.Intent.GetScope().GetUserId() != q.GetScope().GetUserId() {
				continue
			}
			switch {
			case r.Intent.GetRequestHash() != q.GetRequestHash():
				return fault.New(fault.RequestIDConflict, "request_id %q was used with other arguments", q.GetRequestId())
			case r.open():
				return fault.New(fault.RequestInProgress, "the first request with this id is still running").RetryIn(time.Second)
			}
			out = &taskv1.ReserveTaskResponse{TaskId: r.id, Fence: r.fence, Committed: r.task()}
			return nil
		}
		if s.reservations == nil {
			s.reservations = map[string]*Reservation{}
		}
		n := len(s.reservations) + 1
		r := &Reservation{Intent: q, id: fmt.Sprintf("mcp-task-%032x", n), fence: int64(n), until: time.Now().Add(lifetime)}
		s.reservations[r.id] = r
		s.note("reserve")
		out = &taskv1.ReserveTaskResponse{TaskId: r.id, Fence: r.fence, ExpireTime: timestamppb.New(r.until)}
		return nil
	})
	return out, err
}

func (r *Reservation) task() *taskv1.Task {
	t := &taskv1.Task{TaskId: r.id, TaskName: r.Intent.GetTaskName(), Scope: r.Intent.GetScope(), Status: corev1.TaskStatus_TASK_STATUS_FAILED}
	if r.Commit != nil {
		t.Status = r.Commit.GetStatus()
	}
	return t
}

// find returns a reservation that is open. The caller holds the lock.
func (s *Server) find(id string, fence int64) (*Reservation, error) {
	r := s.reservations[id]
	if r == nil || r.fence != fence || !r.open() {
		return r, fault.New(fault.ReservationExpired, "the reservation of %s has run out", id)
	}
	return r, nil
}

// RenewReservation keeps a reservation for longer.
func (s *Server) RenewReservation(ctx context.Context, q *taskv1.RenewReservationRequest) (out *taskv1.RenewReservationResponse, err error) {
	step := "renew"
	if strings.HasSuffix(q.GetTaskId(), strings.Repeat("0", 32)) {
		step = "probe"
	}
	err = s.do(ctx, step, func() error {
		if q.GetFence() < 1 {
			return fault.New(fault.InvalidArguments, "fence is not one that ReserveTask gave")
		}
		r, err := s.find(q.GetTaskId(), q.GetFence())
		if err != nil {
			return err
		}
		r.until = time.Now().Add(lifetime)
		s.note("renew")
		out = &taskv1.RenewReservationResponse{ExpireTime: timestamppb.New(r.until)}
		return nil
	})
	return out, err
}

// CommitTask makes a task of a reservation.
func (s *Server) CommitTask(ctx context.Context, q *taskv1.CommitTaskRequest) (out *taskv1.CommitTaskResponse, err error) {
	err = s.do(ctx, "commit", func() error {
		r := s.reservations[q.GetTaskId()]
		if r != nil && r.Commit != nil && r.fence == q.GetFence() && r.Commit.GetRemoteTaskId() == q.GetRemoteTaskId() {
			out = &taskv1.CommitTaskResponse{Task: r.task()}
			return nil
		}
		if len(q.GetRemoteTaskId()) > 255 {
			return fault.New(fault.InvalidArguments, "remote_task_id is longer than 255 characters")
		}
		r, err := s.find(q.GetTaskId(), q.GetFence())
		if err != nil {
			if r != nil {
				r.Late = q
			}
			return err
		}
		for _, other := range s.reservations {
			if other.Commit != nil && other.Commit.GetRemoteTaskId() == q.GetRemoteTaskId() && other.Intent.GetServer() == r.Intent.GetServer() {
				return fault.New(fault.DuplicateRemoteTask, "the server handed out a task id that is tracked already")
			}
		}
		r.Commit = q
		s.note("commit")
		out = &taskv1.CommitTaskResponse{Task: r.task()}
		return nil
	})
	return out, err
}

// AbandonTask gives a reservation up.
func (s *Server) AbandonTask(ctx context.Context, q *taskv1.AbandonTaskRequest) (*taskv1.AbandonTaskResponse, error) {
	err := s.do(ctx, "abandon", func() error {
		r, err := s.find(q.GetTaskId(), q.GetFence())
		if err != nil {
			return err
		}
		if q.GetOutcome() == taskv1.AbandonOutcome_ABANDON_OUTCOME_UNKNOWN {
			r.Failed = q.GetError()
		} else {
			r.settled = true
		}
		s.note("abandon " + strings.TrimPrefix(q.GetOutcome().String(), "ABANDON_OUTCOME_"))
		return nil
	})
	return &taskv1.AbandonTaskResponse{}, err
}

// CancelTask records for whom a task was asked to be cancelled.
func (s *Server) CancelTask(ctx context.Context, q *taskv1.CancelTaskRequest) (out *taskv1.CancelTaskResponse, err error) {
	err = s.do(ctx, "cancel", func() error {
		r := s.reservations[q.GetTaskId()]
		if r == nil || r.Commit == nil || q.GetScope().GetUserId() != r.Intent.GetScope().GetUserId() ||
			q.GetScope().GetThreadId() != r.Intent.GetScope().GetThreadId() {
			return fault.New(fault.TaskNotFound, "no task %s", q.GetTaskId())
		}
		p, _ := authn.Acting(ctx)
		r.wishes = append(r.wishes, p)
		s.note("cancel")
		out = &taskv1.CancelTaskResponse{Task: r.task()}
		return nil
	})
	return out, err
}

// Intake calls a Server without a connection.
type Intake struct{ *Server }

// ReserveTask implements taskv1.TaskIntakeServiceClient.
func (c Intake) ReserveTask(ctx context.Context, q *taskv1.ReserveTaskRequest, _ ...grpc.CallOption) (*taskv1.ReserveTaskResponse, error) {
	return direct(ctx, q, c.Server.ReserveTask)
}

// RenewReservation implements taskv1.TaskIntakeServiceClient.
func (c Intake) RenewReservation(
	ctx context.Context, q *taskv1.RenewReservationRequest, _ ...grpc.CallOption,
) (*taskv1.RenewReservationResponse, error) {
	return direct(ctx, q, c.Server.RenewReservation)
}

// CommitTask implements taskv1.TaskIntakeServiceClient.
func (c Intake) CommitTask(ctx context.Context, q *taskv1.CommitTaskRequest, _ ...grpc.CallOption) (*taskv1.CommitTaskResponse, error) {
	return direct(ctx, q, c.Server.CommitTask)
}

// AbandonTask implements taskv1.TaskIntakeServiceClient.
func (c Intake) AbandonTask(ctx context.Context, q *taskv1.AbandonTaskRequest, _ ...grpc.CallOption) (*taskv1.AbandonTaskResponse, error) {
	return direct(ctx, q, c.Server.AbandonTask)
}

// Tasks calls CancelTask of a Server without a connection.
type Tasks struct {
	taskv1.TaskServiceClient

	S *Server
}

// CancelTask implements taskv1.TaskServiceClient.
func (c Tasks) CancelTask(ctx context.Context, q *taskv1.CancelTaskRequest, _ ...grpc.CallOption) (*taskv1.CancelTaskResponse, error) {
	return direct(ctx, q, c.S.CancelTask)
}

// direct calls a method and, as a connection would, does not wait for it longer than ctx.
func direct[Q, R any](ctx context.Context, q *Q, method func(context.Context, *Q) (*R, error)) (*R, error) {
	type answer struct {
		r   *R
		err error
	}
	ch := make(chan answer, 1)
	go func() {
		r, err := method(ctx, q)
		ch <- answer{r, err}
	}()
	select {
	case a := <-ch:
		if a.err != nil {
			return nil, a.err
		}
		return a.r, nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, fault.New(fault.Timeout, "no answer in time").Because(ctx.Err())
		}
		return nil, fault.Of(fault.Canceled, "the call was cancelled").Because(ctx.Err())
	}
}
