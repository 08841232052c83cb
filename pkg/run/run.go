// Package run owns goroutines.
//
// Two shapes cover what a service needs. [All] runs the fixed set of loops of a service and is the body of its
// Run method. [Group] owns goroutines that come and go while Run runs, such as one per session. Both wait for
// every goroutine they started, so that nothing outlives the Run that owns it, and both turn a panic into an
// error that carries its stack.
//
//	All:   start all ──▶ first error, panic or end of ctx ──▶ cancel the rest ──▶ wait for all ──▶ return
//
// A task must return soon after its context ends; neither All nor Group can end one that does not.
package run

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// Task is one long-lived piece of work. Name appears in errors.
// Run works until ctx ends or it cannot go on, and waits for what it started.
type Task struct {
	Name string
	Run  func(ctx context.Context) error
}

// All runs the tasks, each in its own goroutine, and returns when every one of them has returned.
//
// The first task that fails or panics cancels the context of the others; a task that returns nil leaves them
// running. All returns that first error, under the task's name, joined with those errors that others returned
// while they stopped. It returns nil when all tasks returned nil.
//
// A cancelled ctx is the ordinary way to stop: errors that only say so count as nil. A ctx whose deadline passed
// is an error like any other.
func All(ctx context.Context, tasks ...Task) error {
	all, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	for _, t := range tasks {
		wg.Go(func() {
			protect(all, t.Run, func(err error) {
				if err == nil || stopped(all, err) {
					return
				}
				err = fmt.Errorf("%s: %w", t.Name, err)
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				cancel(err)
			})
		})
	}
	wg.Wait()

	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// stopped reports whether err says no more than that ctx was cancelled.
func stopped(ctx context.Context, err error) bool {
	if !errors.Is(ctx.Err(), context.Canceled) {
		return false
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))
}

// PanicError is a panic of a task, or its call of [runtime.Goexit]. Its message holds the stack, so it belongs
// in a log and never in an answer to a caller.
type PanicError struct {
	Value any    // what was passed to panic
	Stack []byte // the goroutine's stack at that time
}

// Error returns the panic's value and stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap returns the panic's value where it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// errGoexit is the value of a PanicError that stands for runtime.Goexit.
var errGoexit = errors.New("the task called runtime.Goexit")

// protect calls f and then done with its error, which is a PanicError where f did not return.
func protect(ctx context.Context, f func(context.Context) error, done func(error)) {
	returned := false
	var err error
	defer func() {
		if !returned {
			v := recover()
			if v == nil {
				v = errGoexit // nil means Goexit: panic(nil) carries a *runtime.PanicNilError
			}
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
		done(err) // deferred because a goroutine in Goexit runs nothing else
	}()
	err = f(ctx)
	returned = true
}
