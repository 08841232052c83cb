package stdio

import (
	"fmt"
	"os"
	"syscall"
)

// ExitError says how the session with a process ended. It is a [link.Witness].
type ExitError struct {
	// Cause is why this side ended the process, such as "it stopped reading its stdin for 10s"; "" if it exited
	// without being asked to.
	Cause string
	// Code is the exit code, -1 if a signal ended the process or its end could not be observed.
	Code int
	// Signal is the name of the signal that ended the process, such as "killed"; "" if none did.
	Signal string

	words string
}

// Error names the cause, and how the process ended.
func (e *ExitError) Error() string {
	how := fmt.Sprintf("the process exited with code %d", e.Code)
	if e.Signal != "" {
		how = fmt.Sprintf("the process was ended by the signal %q", e.Signal)
	} else if e.Code < 0 {
		how = "the process could not be ended"
	}
	if e.Cause == "" {
		return how
	}
	return e.Cause + "; " + how
}

// LastWords returns the last lines of the process's stderr, redacted; "" if it wrote none.
func (e *ExitError) LastWords() string { return e.words }

// observe fills in how the process ended; state may be nil.
func (e *ExitError) observe(state *os.ProcessState) {
	e.Code = -1
	if state == nil {
		return
	}
	e.Code = state.ExitCode()
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		e.Signal = status.Signal().String()
	}
}
