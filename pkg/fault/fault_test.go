package fault

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestAFaultIsFoundThroughWrapping(t *testing.T) {
	cause := errors.New("disk")
	err := fmt.Errorf("claim batch: %w", New(TaskNotFound, "task %q is not found", "t1").With("task_id", "t1").RetryIn(time.Second).Because(cause))
	if !Is(err, TaskNotFound) || Is(err, ToolNotFound) || KindOf(err) != NotFound || ReasonOf(err) != TaskNotFound {
		t.Errorf("got reason %q and kind %d", ReasonOf(err), KindOf(err))
	}
	if !errors.Is(err, cause) || !errors.Is(err, New(TaskNotFound, "another message")) || errors.Is(err, New(ToolNotFound, "")) {
		t.Error("a fault matches its cause and every fault of its reason, and no other")
	}
	f, _ := errors.AsType[*Error](err)
	if f.Metadata()["task_id"] != "t1" || f.RetryDelay() != time.Second || f.Error() != `task "t1" is not found` {
		t.Errorf("got %v, %v, %q", f.Metadata(), f.RetryDelay(), f.Error())
	}
}

func TestFaultsWithoutAReasonMatchThemselvesAlone(t *testing.T) {
	a, b := Of(Unauthenticated, "no token"), Of(Unauthenticated, "no token")
	if errors.Is(a, b) || !errors.Is(fmt.Errorf("x: %w", a), a) || Is(a, "") {
		t.Error("two faults without a reason are not the same")
	}
}

func TestMethodsReturnCopies(t *testing.T) {
	base := New(RateLimited, "slow down")
	one, two := base.With("server", "a"), base.With("server", "b").WithViolations(Violation{"x", "y"})
	if len(base.Metadata()) != 0 || one.Metadata()["server"] != "a" || two.Metadata()["server"] != "b" || len(one.Violations()) != 0 {
		t.Errorf("got %v, %v, %v", base.Metadata(), one.Metadata(), two.Metadata())
	}
}

func TestWhatNobodyClassifiedIsInternal(t *testing.T) {
	if err := errors.New("plain"); KindOf(err) != Internal || ReasonOf(err) != "" {
		t.Error("a plain error is internal and has no reason")
	}
	if Reason("NEWER_THAN_THIS_BUILD").Kind() != Unknown {
		t.Error("an unknown reason is of kind Unknown")
	}
}
