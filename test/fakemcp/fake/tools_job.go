package fake

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// jobSpec is how a job behaves: the arguments of start_job. A zero field is the plain case. A file that is waited for is
// looked for until it exists, so that a test says when.
type jobSpec struct {
	Name  string `json:"name"`   // the test's own
	JobID string `json:"job_id"` // instead of a random one

	SubmitMS     int64  `json:"submit_ms"`     // how long the submit takes, after the job is on record
	SubmitFile   string `json:"submit_file"`   // the submit waits for this file
	SubmitAnswer string `json:"submit_answer"` // is_error, asks, rpc_error, no_structured, no_task_id, not_running, exit

	Polls      int    `json:"polls"`       // calls of job_status that end it, 1 by default
	DurationMS int64  `json:"duration_ms"` // and not before
	File       string `json:"file"`        // and not before this file exists
	Asks       int    `json:"asks"`        // the first calls of job_status that answer input_required; negative: all
	Progress   bool   `json:"progress"`

	Outcome     string          `json:"outcome"` // completed, failed or cancelled
	Result      json.RawMessage `json:"result"`
	ResultBytes int             `json:"result_bytes"` // a result with a string of that length
	Artifact    json.RawMessage `json:"artifact"`
	Error       string          `json:"error"`
	ErrorCode   string          `json:"error_code"`

	PollAfter     string   `json:"poll_after"`     // poll_after_seconds, written as it is
	StatusMS      int64    `json:"status_ms"`      // how long a call of job_status takes
	StatusFile    string   `json:"status_file"`    // each waits for this file
	StatusAnswers []string `json:"status_answers"` // of the first calls: ok, is_error, rpc_error, hang, not_found, other_id, no_structured, unknown_status, no_question, exit

	Cancel         string `json:"cancel"`          // ack: acknowledged, and cancelled at a later poll; late: it completes; ignore
	CancelPolls    int    `json:"cancel_polls"`    // calls of job_status until an acknowledged cancel shows, 1 by default
	CancelFailures int    `json:"cancel_failures"` // the first calls of cancel_job answer isError
	CancelMS       int64  `json:"cancel_ms"`
	CancelFile     string `json:"cancel_file"`
}

func parseSpec(arguments json.RawMessage) (jobSpec, error) {
	var s jobSpec
	if arguments != nil {
		if err := json.Unmarshal(arguments, &s); err != nil {
			return s, fmt.Errorf("arguments of %s: %w", SubmitJob, err)
		}
	}
	if s.Outcome == "" {
		s.Outcome = "completed"
	}
	s.Polls, s.CancelPolls = max(s.Polls, 1), max(s.CancelPolls, 1)
	return s, nil
}

// What a call answers instead of a status.
const (
	answerIsError = "is_error"
	answerAsks    = "asks"
	answerAcked   = "acked"
	answerGone    = "gone" // the caller gave the call up
)

// jobTools are a submit, a status and a cancel tool.
func jobTools() []tool {
	const ofOne = `{"type":"object","properties":{"task_id":{"type":"string","minLength":1}},"required":["task_id"]}`
	return []tool{
		{
			name: SubmitJob, about: "Starts a job that takes its time; its arguments say how it behaves.",
			schema: `{"type":"object","properties":{"name":{"type":"string"},"polls":{"type":"integer","minimum":1},"duration_ms":{"type":"integer","minimum":0}}}`,
			run:    startJob,
		},
		{name: JobStatus, about: "Tells how a job stands.", schema: ofOne, run: jobStatus},
		{name: CancelJob, about: "Ends a job early.", schema: ofOne, run: cancelJob},
	}
}

// recorded runs a call of a job's tool between its two records.
func (c *call) recorded(id string, run func(j job, known bool) (answer string, result json.RawMessage, e *rawrpc.Error)) (json.RawMessage, *rawrpc.Error) {
	n, j, known, err := c.srv.jobs.begin(c.tool, id, c.args)
	if err != nil {
		return nil, rawrpc.Errorf(rawrpc.CodeInvalidParams, "%v", err)
	}
	answer, result, e := run(j, known)
	if err := c.srv.jobs.end(c.tool, id, n, answer); err != nil {
		return nil, rawrpc.Errorf(rawrpc.CodeInternal, "%v", err)
	}
	return result, e
}

// pause waits as long as a spec says; false if the caller gave up first.
func pause(ctx context.Context, ms int64, file string) bool {
	if !wait(ctx, time.Duration(ms)*time.Millisecond) {
		return false
	}
	for file != "" {
		if exists(file) {
			break
		}
		if !wait(ctx, 10*time.Millisecond) {
			return false
		}
	}
	return true
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func startJob(ctx context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	spec, err := parseSpec(c.args)
	if err != nil {
		return nil, rawrpc.Errorf(rawrpc.CodeInvalidParams, "%v", err)
	}
	id := spec.JobID
	if id == "" {
		id = "job-" + strings.ToLower(rand.Text()[:16])
	}
	return c.recorded(id, func(job, bool) (string, json.RawMessage, *rawrpc.Error) {
		if !pause(ctx, spec.SubmitMS, spec.SubmitFile) {
			return answerGone, nil, interrupted(ctx)
		}
		members := fmt.Appendf(nil, `{"task_id":%s,"status":"running"}`, rawrpc.Quote(id))
		switch spec.SubmitAnswer {
		case answerIsError:
			return answerIsError, refused("no capacity for %s", spec.Name), nil
		case answerAsks:
			result, e := elicit(ctx, c)
			return answerAsks, result, e
		case "rpc_error":
			return spec.SubmitAnswer, nil, rawrpc.Errorf(rawrpc.CodeInternal, "the job may run")
		case "no_structured":
			return spec.SubmitAnswer, text(string(members)), nil
		case "no_task_id":
			return spec.SubmitAnswer, structured(json.RawMessage(`{"status":"running"}`)), nil
		case "not_running":
			return spec.SubmitAnswer, structured(bytes.Replace(members, []byte("running"), []byte("completed"), 1)), nil
		case "exit":
			c.exit()
		}
		return "running", structured(members), nil
	})
}

// exit ends the process, where it may.
func (c *call) exit() {
	if c.srv.o.Exit != nil {
		c.srv.o.Exit(3)
	}
}

func jobStatus(ctx context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	id := rawrpc.Text(c.args, "task_id")
	return c.recorded(id, func(j job, known bool) (string, json.RawMessage, *rawrpc.Error) {
		answer := "ok"
		if known && j.statuses <= len(j.spec.StatusAnswers) {
			answer = j.spec.StatusAnswers[j.statuses-1]
		}
		if !known || answer == "not_found" {
			return "not_found", structured(fmt.Appendf(nil, `{"task_id":%s,"status":"failed","error_code":"task_not_found"}`, rawrpc.Quote(id))), nil
		}
		if !pause(ctx, j.spec.StatusMS, j.spec.StatusFile) {
			return answerGone, nil, interrupted(ctx)
		}
		switch answer {
		case answerIsError:
			return answer, refused("\n  the queue of %s is busy  \n", j.spec.Name), nil
		case "rpc_error":
			return answer, nil, rawrpc.Errorf(rawrpc.CodeInternal, "the queue is busy")
		case "hang":
			<-ctx.Done()
			return answerGone, nil, interrupted(ctx)
		case "other_id":
			return answer, structured(json.RawMessage(`{"task_id":"job-of-somebody-else","status":"running"}`)), nil
		case "no_structured":
			return answer, text(`{"task_id":"x","status":"running"}`), nil
		case "unknown_status":
			return answer, structured(fmt.Appendf(nil, `{"task_id":%s,"status":"paused"}`, rawrpc.Quote(id))), nil
		case "no_question":
			return answer, structured(fmt.Appendf(nil, `{"task_id":%s,"status":"input_required"}`, rawrpc.Quote(id))), nil
		case "exit":
			c.exit()
		}
		status := j.now()
		return status, structured(j.show(status)), nil
	})
}

// now is the status of the job at a call of job_status that has been counted.
func (j job) now() string {
	switch s := j.spec; {
	case j.ended != "":
		return j.ended
	case s.Cancel == "ack" && j.ackedAt > 0 && j.statuses >= j.ackedAt-1+s.CancelPolls:
		return "cancelled"
	case s.Asks < 0 || j.statuses <= s.Asks:
		return "input_required"
	case j.statuses < s.Polls+s.Asks, time.Since(j.created) < time.Duration(s.DurationMS)*time.Millisecond, s.File != "" && !exists(s.File):
		return "running"
	default:
		return s.Outcome
	}
}

// show is the structured content that tells of the job.
func (j job) show(status string) json.RawMessage {
	s := j.spec
	b := fmt.Appendf(nil, `{"task_id":%s,"status":%s`, rawrpc.Quote(j.id), rawrpc.Quote(status))
	add := func(name string, value json.RawMessage) { b = fmt.Appendf(b, `,%q:%s`, name, value) }
	switch {
	case status == "completed" && s.ResultBytes > 0:
		add("result", fmt.Appendf(nil, `{"data":"%s"}`, strings.Repeat("d", s.ResultBytes)))
	case status == "completed" && s.Result != nil:
		add("result", s.Result)
	case status == "failed" && s.Error != "":
		add("error", rawrpc.Quote(s.Error))
	case status == "input_required":
		add("input_required", json.RawMessage(`{"prompt":"Which colour?","options":["red","green"]}`))
	}
	if status == "completed" && s.Artifact != nil {
		add("result_artifact", s.Artifact)
	}
	if status == "failed" && s.ErrorCode != "" {
		add("error_code", rawrpc.Quote(s.ErrorCode))
	}
	if s.Progress {
		add("progress", fmt.Appendf(nil, `{"current":%d,"total":%d}`, min(j.statuses, s.Polls), s.Polls))
		add("status_message", rawrpc.Quote(fmt.Sprintf("step %d", j.statuses)))
	}
	if s.PollAfter != "" && !final(status) {
		add("poll_after_seconds", json.RawMessage(s.PollAfter))
	}
	add("shard", json.RawMessage(`"extra members mean nothing"`))
	return append(b, '}')
}

func cancelJob(ctx context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	id := rawrpc.Text(c.args, "task_id")
	return c.recorded(id, func(j job, known bool) (string, json.RawMessage, *rawrpc.Error) {
		if !known {
			return "not_found", structured(fmt.Appendf(nil, `{"task_id":%s,"status":"failed","error_code":"task_not_found"}`, rawrpc.Quote(id))), nil
		}
		if !pause(ctx, j.spec.CancelMS, j.spec.CancelFile) {
			return answerGone, nil, interrupted(ctx)
		}
		if j.cancels <= j.spec.CancelFailures {
			return answerIsError, refused("cannot cancel %s at the moment", j.spec.Name), nil
		}
		status := "cancelled"
		switch {
		case j.ended != "":
			status = j.ended
		case j.spec.Cancel == "late":
			status = "completed"
		case j.spec.Cancel == "ack", j.spec.Cancel == "ignore":
			return answerAcked, structured(j.show("running")), nil
		}
		return status, structured(j.show(status)), nil
	})
}
