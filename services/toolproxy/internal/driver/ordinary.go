package driver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// OrdinaryName names the driver [Ordinary] in bindings.
const OrdinaryName = "ordinary"

const (
	maxDetailChars = 500 // of what a tool says went wrong
	maxTaskID      = 255 // characters of a remote id in a status answer
)

// Ordinary runs tasks by three ordinary tools, which answer in structuredContent; members that are not named here are
// ignored, and null is as good as absent:
//
//	submit  the agent's arguments ─▶ {task_id, status: "running"}
//	status  {task_id} ─▶ {task_id, status, result?, result_artifact?: {uri, mime_type}, error?, error_code?,
//	                      input_required?: object, poll_after_seconds?, progress?: {current, total?}, status_message?}
//	cancel  {task_id} ─▶ the same; a task that still runs was told to stop
//
// Status is running (here working), input_required, completed, failed or cancelled. A tool that reports an error may be
// asked again. An error_code task_not_found means that the remote has lost the task. A poll hint that is no number above
// zero is dropped; progress and status_message that are not what they should be are left out.
type Ordinary struct{ o Options }

// Options configure an [Ordinary].
type Options struct {
	// Redact removes secrets from what servers say went wrong.
	Redact func(string) string
	// BadHint hears of each poll hint that was dropped, and of the tool that gave it. It must not block.
	BadHint func(ctx context.Context, tool string)
}

// NewOrdinary returns the driver. Every option must be set.
func NewOrdinary(o Options) *Ordinary { return &Ordinary{o} }

// handle is what an Ordinary keeps of a task.
type handle struct {
	Version int    `json:"v"`
	TaskID  string `json:"task_id"`
}

// Submit implements [Driver].
func (d *Ordinary) Submit(ctx context.Context, conn Conn, tools Tools, arguments json.RawMessage) (Submission, error) {
	raw, err := conn.CallTool(ctx, tools.Submit, arguments)
	if err != nil {
		return Submission{}, err
	}
	if isError(raw) || asksForInput(raw) {
		return Submission{Result: raw}, nil
	}
	structured, err := structuredContent(raw)
	if err != nil {
		return Submission{}, about(tools.Submit, err)
	}
	id, ok := jsonrpc.String(jsonrpc.Member(structured, "task_id"))
	if !ok || id == "" {
		return Submission{}, about(tools.Submit, broken("its structuredContent has no task_id"))
	}
	if status, _ := jsonrpc.String(jsonrpc.Member(structured, "status")); status != "running" {
		return Submission{}, about(tools.Submit, broken("the status of a task that was just submitted must be running"))
	}
	snapshot, err := NewSnapshot(Fields{Status: string(Submitted)})
	if err != nil {
		return Submission{}, err
	}
	kept, err := json.Marshal(handle{Version: 1, TaskID: id})
	if err != nil {
		return Submission{}, err
	}
	started, err := NewStarted(id, kept, snapshot)
	if err != nil {
		return Submission{}, about(tools.Submit, err)
	}
	return Submission{Started: started}, nil
}

// Status implements [Driver].
func (d *Ordinary) Status(ctx context.Context, conn Conn, t Task) (Snapshot, error) {
	return d.ask(ctx, conn, t, t.Tools.Status)
}

// Cancel implements [Driver].
func (d *Ordinary) Cancel(ctx context.Context, conn Conn, t Task) (*Snapshot, error) {
	s, err := d.ask(ctx, conn, t, t.Tools.Cancel)
	if err != nil || !s.Status().Terminal() {
		return nil, err
	}
	return &s, nil
}

// Answer implements [Driver].
func (d *Ordinary) Answer(context.Context, Conn, Task, json.RawMessage) (*Snapshot, error) {
	return nil, fault.New(fault.AnswerUnsupported, "tasks of this kind take no answers; cancel the task and submit it again with all it needs")
}

// ask calls a tool that answers how the task stands.
func (d *Ordinary) ask(ctx context.Context, conn Conn, t Task, tool string) (Snapshot, error) {
	var h handle
	if err := json.Unmarshal(t.Handle, &h); err != nil || h.Version != 1 || h.TaskID == "" {
		return Snapshot{}, fault.New(fault.InvalidArguments, "the handle of the task cannot be read: it was made by another version or another driver")
	}
	arguments := append(jsonrpc.AppendString([]byte(`{"task_id":`), h.TaskID), '}')
	raw, err := conn.CallTool(ctx, tool, arguments)
	if err != nil {
		return Snapshot{}, err
	}
	if isError(raw) {
		return Snapshot{}, d.reported(tool, h.TaskID, raw)
	}
	structured, err := structuredContent(raw)
	if err != nil {
		return Snapshot{}, about(tool, err)
	}
	show := func(text string) string { return d.o.Redact(hide(text, h.TaskID)) }
	a, err := readAnswer(structured, show)
	if err != nil {
		return Snapshot{}, about(tool, err)
	}
	if a.taskID != h.TaskID {
		return Snapshot{}, about(tool, broken("it speaks of another task than the one it was asked about"))
	}
	fields := a.fields(show)
	if a.hint != nil && fields.PollAfter == nil {
		d.o.BadHint(ctx, tool)
	}
	s, err := NewSnapshot(fields)
	if err != nil {
		return Snapshot{}, about(tool, err)
	}
	return s, nil
}

// reported is the error of a tool that reported one: asking again may help.
func (d *Ordinary) reported(tool, id string, raw json.RawMessage) error {
	detail := "it does not say which"
	for block := range jsonrpc.Elements(jsonrpc.Member(raw, "content")) {
		kind, _ := jsonrpc.String(jsonrpc.Member(block, "type"))
		text, _ := jsonrpc.String(jsonrpc.Member(block, "text"))
		if text = clean(d.o.Redact(hide(text, id))); kind == "text" && text != "" {
			detail = shorten(text, maxDetailChars)
			break
		}
	}
	return fault.New(fault.UpstreamError, "tool %q reported an error: %s", tool, detail)
}

// answer is what the status tool says.
type answer struct {
	taskID, status, errorText, errorCode string
	result, artifact, inputRequired      json.RawMessage
	hint, progress, message              json.RawMessage
}

// readAnswer checks structuredContent against the schema of a status answer. Texts in its errors are passed through show.
func readAnswer(raw json.RawMessage, show func(string) string) (answer, error) {
	var a answer
	for _, text := range []struct {
		name string
		to   *string
	}{{"task_id", &a.taskID}, {"status", &a.status}, {"error", &a.errorText}, {"error_code", &a.errorCode}} {
		v := jsonrpc.Member(raw, text.name)
		var ok bool
		if *text.to, ok = jsonrpc.String(v); !ok && !jsonrpc.IsNull(v) {
			return answer{}, broken("its %s is not a string", text.name)
		}
	}
	if n := utf8.RuneCountInString(a.taskID); n < 1 || n > maxTaskID {
		return answer{}, broken("its task_id has %d characters, of 1 to %d", n, maxTaskID)
	}
	a.result, a.artifact = jsonrpc.Member(raw, "result"), jsonrpc.Member(raw, "result_artifact")
	if _, err := artifact(a.artifact); err != nil {
		return answer{}, err
	}
	if a.inputRequired = jsonrpc.Member(raw, "input_required"); !jsonrpc.IsNull(a.inputRequired) && !jsonrpc.IsObject(a.inputRequired) {
		return answer{}, broken("its input_required is not an object")
	}
	if a.hint = jsonrpc.Member(raw, "poll_after_seconds"); jsonrpc.IsNull(a.hint) {
		a.hint = nil
	}
	a.progress, a.message = jsonrpc.Member(raw, "progress"), jsonrpc.Member(raw, "status_message")
	switch a.status {
	case "running":
		a.status = string(Working)
	case string(InputRequired), string(Completed), string(Failed), string(Cancelled):
	default:
		return answer{}, broken("its status is %q, which is none of running, input_required, completed, failed and cancelled", shorten(clean(show(a.status)), 40))
	}
	return a, nil
}

// fields returns what the answer says of the task, its texts passed through show.
func (a *answer) fields(show func(string) string) Fields {
	message, _ := jsonrpc.String(a.message)
	f := Fields{
		Status: a.status, StatusMessage: show(message), Progress: progress(a.progress),
		Result: a.result, ResultArtifact: a.artifact, Error: show(a.errorText), InputRequired: a.inputRequired,
	}
	if seconds, ok := number(a.hint); ok && seconds > 0 {
		f.PollAfter = &seconds
	}
	if a.errorCode == "task_not_found" {
		f.Status, f.FailureReason = string(Failed), RemoteLost
		f.Error = cmp.Or(strings.TrimSpace(f.Error), "the server no longer knows the task; submit it again if its outcome is still wanted")
	}
	return f
}

func progress(raw json.RawMessage) *Progress {
	current, ok := number(jsonrpc.Member(raw, "current"))
	if !ok {
		return nil
	}
	p := &Progress{Current: current}
	if total, ok := number(jsonrpc.Member(raw, "total")); ok {
		p.Total = &total
	}
	return p
}

// number returns the value of a finite JSON number, and false of all else.
func number(raw json.RawMessage) (float64, bool) {
	n, err := strconv.ParseFloat(string(bytes.TrimSpace(raw)), 64)
	return n, err == nil && finite(n)
}

// structuredContent returns the object that a tool answered with. Its text is for models and is not looked at.
func structuredContent(raw json.RawMessage) (json.RawMessage, error) {
	switch structured := jsonrpc.Member(raw, "structuredContent"); {
	case !jsonrpc.IsObject(raw):
		return nil, broken("its result is not an object")
	case jsonrpc.IsNull(structured):
		return nil, broken("its result has no structuredContent")
	case !jsonrpc.IsObject(structured):
		return nil, broken("its structuredContent is not an object")
	default:
		return structured, nil
	}
}

func isError(raw json.RawMessage) bool {
	return string(bytes.TrimSpace(jsonrpc.Member(raw, "isError"))) == "true"
}

// asksForInput reports whether a result is an interim one: the server did nothing yet and wants to know more.
func asksForInput(raw json.RawMessage) bool {
	kind, _ := jsonrpc.String(jsonrpc.Member(raw, "resultType"))
	return kind == "input_required"
}

// hide removes the remote id from a text that people will read. An id so short that it may be any word stays.
func hide(text, id string) string {
	if utf8.RuneCountInString(id) < secret.MinLength {
		return text
	}
	return strings.ReplaceAll(text, id, secret.Mask)
}

// about says which tool gave an answer that makes no sense.
func about(tool string, err error) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return err
	}
	return fault.New(f.Reason(), "tool %q gave an answer that makes no sense, which only a change of that tool mends: %s", tool, f.Error())
}
