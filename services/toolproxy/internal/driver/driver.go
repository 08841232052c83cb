// Package driver speaks with remote tasks, one kind of protocol per [Driver], behind one neutral contract.
//
// A driver submits a task, asks how it stands, cancels it and answers its questions. What it needs to find the task again
// is a handle that only the driver itself reads; what it learns is a [Snapshot], which means the same whatever the
// protocol. Snapshots and the outcome of a submit are made by [NewSnapshot] and [NewStarted] alone, which hold what
// everybody above relies on.
//
// Errors have two classes. A fault UPSTREAM_PROTOCOL says that the remote's answer makes no sense, so that asking again is
// of no use; everything else may heal. A driver quotes at most 500 characters of what a server says, and never a remote id.
//
// Drivers keep no state and no session: whoever calls one lends it a [Conn]. What is quoted is not redacted here.
package driver

import (
	"context"
	"encoding/json"
)

// Conn carries a driver's calls to the server that has the task.
type Conn interface {
	// CallTool calls a tool by the name it has on its server, with a JSON object that goes on token for token, and returns
	// the server's result as it came: valid JSON of any type. The error is whatever kept it from coming.
	CallTool(ctx context.Context, name string, arguments json.RawMessage) (json.RawMessage, error)
}

// ConnFunc is a function that is a Conn.
type ConnFunc func(ctx context.Context, name string, arguments json.RawMessage) (json.RawMessage, error)

// CallTool calls f.
func (f ConnFunc) CallTool(ctx context.Context, name string, arguments json.RawMessage) (json.RawMessage, error) {
	return f(ctx, name, arguments)
}

// Tools are the tools of one kind of task, by the names they have on their server.
type Tools struct {
	Submit string
	Status string
	Cancel string
	Answer string // may be empty
}

// Task names a remote task to the driver that made it.
type Task struct {
	Tools  Tools
	Handle []byte
}

// Submission is what came of a submit: exactly one of the two.
type Submission struct {
	// Started is the task.
	Started *Started
	// Result says that there is none: the tool reported an error, or asks for input, and did nothing. It is the tool's
	// result as it came, for the agent.
	Result json.RawMessage
}

// Driver is one way to run remote tasks. Its methods may be called concurrently. A method makes at most one call on its
// Conn; the error of that call is returned as it is.
type Driver interface {
	// Submit starts a task with the agent's arguments, unchanged. After an error UPSTREAM_PROTOCOL nobody knows whether
	// the remote has started something.
	Submit(ctx context.Context, conn Conn, tools Tools, arguments json.RawMessage) (Submission, error)
	// Status asks how a task stands.
	Status(ctx context.Context, conn Conn, t Task) (Snapshot, error)
	// Cancel asks the remote to stop a task. Nil says that it will, or will try to, and that the task has not ended yet.
	Cancel(ctx context.Context, conn Conn, t Task) (*Snapshot, error)
	// Answer gives answers, a JSON object by the keys of the questions. Nil says that they were taken, and not how the task
	// stands. A driver that cannot returns ANSWER_UNSUPPORTED.
	Answer(ctx context.Context, conn Conn, t Task, answers json.RawMessage) (*Snapshot, error)
}
