// Package server serves the RPCs of a taskworker: TaskService for those who follow tasks, TaskIntakeService for toolproxy.
//
// # Who sees what
//
// A call is for the principal that [authn.Acting] names. An operator sees every task and may narrow that by a scope. All
// others see the tasks of one scope, user and thread, which they must give; another's task and an unknown id answer the
// same, TASK_NOT_FOUND. Only operators see servers and workers; nobody sees a remote's id.
package server

import (
	"context"
	"errors"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/message"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// access is what a call may see.
type access struct {
	view  message.View
	scope authn.Scope // a part that is empty stands for all; only operators have such parts
}

// accessOf returns what the call of ctx may see, if it asked for this scope.
func accessOf(ctx context.Context, m *corev1.Scope) (access, error) {
	p, ok := authn.Acting(ctx)
	if !ok {
		return access{}, errors.New("the caller of a task RPC is not known")
	}
	want := authn.Scope{UserID: m.GetUserId(), ThreadID: m.GetThreadId()}
	// A toolproxy that names nobody is no operator: what it asks for is for some agent.
	operator := p.Has(authn.Operator) && !p.Has(authn.Toolproxy)
	if !operator && m == nil {
		return access{}, invalid("scope", "is missing: give the user_id and thread_id that the task was submitted with")
	}
	scope, err := p.Resolve(want)
	if operator && !fault.Is(err, fault.InvalidArguments) {
		return access{view: message.View{Operator: true}, scope: want}, nil
	}
	return access{scope: scope}, err
}

// admits reports whether t may be seen.
func (a access) admits(t *task.Task) bool {
	return (a.scope.UserID == "" || a.scope.UserID == t.Scope.UserID) && (a.scope.ThreadID == "" || a.scope.ThreadID == t.Scope.ThreadID)
}

func invalid(field, wrong string) error {
	return fault.New(fault.InvalidArguments, "%s %s", field, wrong).
		WithViolations(fault.Violation{Field: field, Description: wrong})
}

// readFault returns err for the caller of a read: what the store did not say itself means that its database is away, and
// a read that did not happen may be tried again.
func readFault(err error) error {
	if err == nil || stated(err) {
		return err
	}
	return fault.New(fault.NotReady, "the database of the tasks does not answer: try again, and see the taskworker's log").Because(err)
}

// writeFault returns err for the caller of a write, of which nobody knows whether it was done.
func writeFault(err error) error {
	if err == nil || stated(err) {
		return err
	}
	return fault.Of(fault.Unknown, "the database of the tasks does not answer, and whether it took the change is unknown: ask again, which is safe").Because(err)
}

// stated reports whether err says by itself what its caller may know.
func stated(err error) bool {
	_, ok := errors.AsType[*fault.Error](err)
	return ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
