// Package message turns tasks into messages and messages into what the model knows. Nothing else knows both, and no
// message has a field for what must not be shown: the remote's id, its handle and its binding.
package message

import (
	"cmp"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/toolherd/toolherd/pkg/authn"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// maxErrorChars is how much of an error an API shows.
const maxErrorChars = 500

// View is how much of a task is shown.
type View struct {
	Operator bool // server and workers, too
}

// Task returns a task as its owner may see it, or as an operator may.
func Task(t *task.Task, v View) *taskv1.Task {
	out := &taskv1.Task{
		TaskId: t.ID, TaskName: t.Name, Scope: Scope(t.Scope),
		Status: Status(t.Status), StatusMessage: t.StatusMessage, Progress: progress(t.Progress), Version: t.Version,
		IsError: t.IsError, FailureReason: t.FailureReason, Error: Clip(t.Error, maxErrorChars),
		ResultJson: string(t.Result), ResultPreview: t.ResultPreview, ResultTruncated: t.ResultTruncated,
		ResultArtifactJson: string(t.ResultArtifact), InputRequiredJson: string(t.InputRequired),
		TrackingDegraded: t.TrackingDegraded, CancelRequestedTime: timestamp(t.CancelRequested),
		NextPollTime: timestamp(t.NextPoll), LastPollTime: timestamp(t.LastPoll),
		CreateTime: timestamp(t.Created), UpdateTime: timestamp(t.Updated), EndTime: timestamp(t.Ended),
		ExpireTime: timestamp(t.Expires), RunId: t.RunID, ToolCallId: t.ToolCallID, NotifySink: t.NotifySink,
	}
	if v.Operator {
		out.Server = t.Server
	}
	for _, a := range t.Attempts {
		m := &taskv1.Attempt{Kind: string(a.Kind), Time: timestamp(a.Time), Outcome: a.Outcome, NextDueTime: timestamp(a.NextDue)}
		if v.Operator {
			m.Worker = a.Worker
		}
		out.Attempts = append(out.Attempts, m)
	}
	return out
}

func progress(p *task.Progress) *taskv1.Progress {
	if p == nil {
		return nil
	}
	return &taskv1.Progress{Current: p.Current, Total: p.Total}
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Scope returns a scope as a message.
func Scope(s authn.Scope) *corev1.Scope { return &corev1.Scope{UserId: s.UserID, ThreadId: s.ThreadID} }

// Status returns a state as messages call it.
func Status(s task.Status) corev1.TaskStatus {
	switch s {
	case task.Submitted:
		return corev1.TaskStatus_TASK_STATUS_SUBMITTED
	case task.Working:
		return corev1.TaskStatus_TASK_STATUS_WORKING
	case task.InputRequired:
		return corev1.TaskStatus_TASK_STATUS_INPUT_REQUIRED
	case task.Completed:
		return corev1.TaskStatus_TASK_STATUS_COMPLETED
	case task.Failed:
		return corev1.TaskStatus_TASK_STATUS_FAILED
	case task.Cancelled:
		return corev1.TaskStatus_TASK_STATUS_CANCELLED
	}
	return corev1.TaskStatus_TASK_STATUS_UNSPECIFIED
}

// StatusOf is the inverse of [Status]; false for what is no state.
func StatusOf(s corev1.TaskStatus) (task.Status, bool) {
	switch s {
	case corev1.TaskStatus_TASK_STATUS_SUBMITTED:
		return task.Submitted, true
	case corev1.TaskStatus_TASK_STATUS_WORKING:
		return task.Working, true
	case corev1.TaskStatus_TASK_STATUS_INPUT_REQUIRED:
		return task.InputRequired, true
	case corev1.TaskStatus_TASK_STATUS_COMPLETED:
		return task.Completed, true
	case corev1.TaskStatus_TASK_STATUS_FAILED:
		return task.Failed, true
	case corev1.TaskStatus_TASK_STATUS_CANCELLED:
		return task.Cancelled, true
	case corev1.TaskStatus_TASK_STATUS_UNSPECIFIED:
	}
	return "", false
}

// Snapshot returns a valid snapshot, or an error that says what makes the message none.
func Snapshot(m *toolproxyv1.RemoteTaskSnapshot) (*task.Snapshot, error) {
	status, ok := StatusOf(m.GetStatus())
	if !ok {
		status = task.Status(m.GetStatus().String())
	}
	r := task.Report{
		Status: string(status), StatusMessage: m.GetStatusMessage(),
		Result: []byte(m.GetResultJson()), IsError: m.GetIsError(), FailureReason: m.GetFailureReason(), Error: m.GetError(),
		InputRequired: []byte(m.GetInputRequiredJson()), ResultArtifact: []byte(m.GetResultArtifactJson()),
	}
	if m.GetResultTruncated() {
		r.Beginning = cmp.Or(m.GetResultPreview(), "…")
	}
	if p := m.GetProgress(); p != nil {
		r.Progress = &task.Progress{Current: p.GetCurrent(), Total: p.Total}
	}
	if d := m.GetPollAfter(); d != nil {
		r.PollAfter = new(d.AsDuration())
		if !d.IsValid() {
			*r.PollAfter = -1 // which is as invalid
		}
	}
	if d := m.GetTtl(); d.IsValid() {
		r.TTL = d.AsDuration()
	}
	s, err := task.NewSnapshot(r)
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// Clip returns the first n characters of s.
func Clip(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}
