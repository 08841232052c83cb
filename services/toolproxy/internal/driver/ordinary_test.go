package driver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
)

var tools = driver.Tools{Submit: "start_job", Status: "job_status", Cancel: "stop_job"}

const remoteID = "remote-1234"

// remote is a server that answers every call with one result, and what it was sent.
type remote struct {
	*driver.Ordinary

	answer string
	err    error
	sent   []string
	hints  []string
}

func newRemote(answer string) *remote {
	r := &remote{answer: answer}
	r.Ordinary = driver.NewOrdinary(driver.Options{
		Redact:  secret.NewRedactor().Redact,
		BadHint: func(_ context.Context, tool string) { r.hints = append(r.hints, tool) },
	})
	return r
}

func (r *remote) CallTool(_ context.Context, name string, arguments json.RawMessage) (json.RawMessage, error) {
	r.sent = append(r.sent, name+" "+string(arguments))
	return json.RawMessage(r.answer), r.err
}

func structured(s string) string { return `{"content":[],"structuredContent":` + s + `}` }

// started submits a task that the remote knows as id.
func started(t *testing.T, id string) driver.Task {
	t.Helper()
	encoded, err := json.Marshal(id)
	if err != nil {
		t.Fatal(err)
	}
	r := newRemote(structured(fmt.Sprintf(`{"task_id":%s,"status":"running"}`, encoded)))
	s, err := r.Submit(t.Context(), r, tools, json.RawMessage(`{}`))
	if err != nil || s.Started.RemoteID() != id {
		t.Fatalf("submit: %+v, %v", s, err)
	}
	return driver.Task{Tools: tools, Handle: s.Started.Handle()}
}

func (r *remote) status(t *testing.T) (driver.Snapshot, error) {
	t.Helper()
	return r.Status(t.Context(), r, started(t, remoteID))
}

// TASK-035
func TestSubmitSendsTheAgentsArgumentsToTheRawTool(t *testing.T) {
	const arguments = `{ "n": 9007199254740993.10, "b":"<é\u00e9>", "a":{}, "b":2 }`
	r := newRemote(structured(`{"status":"running","extra":{"a":[1]},"poll_after_seconds":-1,"task_id":"remote-1234"}`))
	s, err := r.Submit(t.Context(), r, tools, json.RawMessage(arguments))
	if err != nil || s.Result != nil || s.Started == nil {
		t.Fatalf("submit: %+v, %v", s, err)
	}
	if want := []string{"start_job " + arguments}; !slices.Equal(r.sent, want) {
		t.Errorf("sent %q, want %q", r.sent, want)
	}
	if s.Started.RemoteID() != remoteID || s.Started.Snapshot().Status() != driver.Submitted {
		t.Errorf("started %s as %s", s.Started.RemoteID(), s.Started.Snapshot().Status())
	}
}

// TASK-035
func TestSubmitAcceptsNothingButARunningTask(t *testing.T) {
	for _, answer := range []string{
		`{"content":[{"type":"text","text":"{\"task_id\":\"remote-1234\",\"status\":\"running\"}"}]}`,
		`{"content":[],"structuredContent":null}`,
		`{"content":[],"structuredContent":[]}`,
		structured(`{}`),
		structured(`{"status":"running"}`),
		structured(`{"task_id":"","status":"running"}`),
		structured(`{"task_id":" ","status":"running"}`),
		structured(`{"task_id":7,"status":"running"}`),
		structured(`{"task_id":null,"status":"running"}`),
		structured(`{"Task_ID":"remote-1234","status":"running"}`),
		structured(`{"task_id":"remote-1234"}`),
		structured(`{"task_id":"remote-1234","status":"completed","result":1}`),
		structured(`{"task_id":"remote-1234","status":"Running"}`),
		structured(`{"task_id":"remote-1234","status":["running"]}`),
		`{"task":{"taskId":"remote-1234","status":"working"},"resultType":"task"}`,
		`[]`, `null`, `"remote-1234"`,
	} {
		r := newRemote(answer)
		s, err := r.Submit(t.Context(), r, tools, nil)
		if !fault.Is(err, fault.UpstreamProtocol) || s.Started != nil || s.Result != nil {
			t.Errorf("%s: %+v, %v", answer, s, err)
		} else if !strings.Contains(err.Error(), "start_job") || strings.Contains(err.Error(), remoteID) {
			t.Errorf("%s: the message is %v", answer, err)
		}
	}
}

func TestSubmitHandsBackWhatWasNotExecuted(t *testing.T) {
	for _, answer := range []string{
		`{"content":[{"type":"text","text":"quota"}],"isError":true,"structuredContent":{"task_id":"remote-1234","status":"running"}}`,
		`{"resultType":"input_required","inputRequests":{"a":{}},"requestState":"x"}`,
	} {
		r := newRemote(answer)
		s, err := r.Submit(t.Context(), r, tools, nil)
		if err != nil || s.Started != nil || string(s.Result) != answer {
			t.Errorf("%s: %+v, %v", answer, s, err)
		}
	}
}

// TASK-036
func TestStatusIsMapped(t *testing.T) {
	one := structured
	for name, tc := range map[string]struct {
		answer string
		want   *toolproxyv1.RemoteTaskSnapshot
	}{
		"running": {
			one(`{"task_id":"remote-1234","status":"running","progress":{"current":3,"total":4.5,"unit":"x"},"status_message":"going","poll_after_seconds":2,"other":[]}`),
			&toolproxyv1.RemoteTaskSnapshot{
				Status: corev1.TaskStatus_TASK_STATUS_WORKING, StatusMessage: "going", PollAfter: durationpb.New(2 * time.Second),
				Progress: &toolproxyv1.TaskProgress{Current: 3, Total: new(4.5)},
			},
		},
		"running, with nulls and a result too early": {
			one(`{"task_id":"remote-1234","status":"running","result":{"a":1},"error":null,"error_code":null,"input_required":null,"result_artifact":null,"poll_after_seconds":null,"progress":null,"status_message":null}`),
			&toolproxyv1.RemoteTaskSnapshot{Status: corev1.TaskStatus_TASK_STATUS_WORKING},
		},
		"running, with progress and message that are none": {
			one(`{"task_id":"remote-1234","status":"running","progress":{"current":"half"},"status_message":{"a":1}}`),
			&toolproxyv1.RemoteTaskSnapshot{Status: corev1.TaskStatus_TASK_STATUS_WORKING},
		},
		"input_required": {
			one(`{"task_id":"remote-1234","status":"input_required","input_required":{"q":{"default":1e400}}}`),
			&toolproxyv1.RemoteTaskSnapshot{Status: corev1.TaskStatus_TASK_STATUS_INPUT_REQUIRED, InputRequiredJson: `{"q":{"default":1e400}}`},
		},
		"completed": {
			one(`{"task_id":"remote-1234","status":"completed","result":{"big":12345678901234567890,"e":1.0},"result_artifact":{"uri":"s3://b/k","mime_type":"text/csv","size":9}}`),
			&toolproxyv1.RemoteTaskSnapshot{
				Status: corev1.TaskStatus_TASK_STATUS_COMPLETED, ResultJson: `{"big":12345678901234567890,"e":1.0}`,
				ResultArtifactJson: `{"uri":"s3://b/k","mime_type":"text/csv"}`,
			},
		},
		"failed": {
			one(`{"task_id":"remote-1234","status":"failed","error":"disk full on remote-1234, password=hunter2secret","error_code":"io"}`),
			&toolproxyv1.RemoteTaskSnapshot{Status: corev1.TaskStatus_TASK_STATUS_FAILED, Error: "disk full on ***, password=***"},
		},
		"cancelled": {
			one(`{"task_id":"remote-1234","status":"cancelled"}`),
			&toolproxyv1.RemoteTaskSnapshot{Status: corev1.TaskStatus_TASK_STATUS_CANCELLED},
		},
		"lost, with a text": {
			one(`{"task_id":"remote-1234","status":"failed","error_code":"task_not_found","error":"gone since Monday"}`),
			&toolproxyv1.RemoteTaskSnapshot{Status: corev1.TaskStatus_TASK_STATUS_FAILED, FailureReason: "remote_lost", Error: "gone since Monday"},
		},
		"lost, without one": {
			one(`{"task_id":"remote-1234","status":"running","error_code":"task_not_found"}`),
			&toolproxyv1.RemoteTaskSnapshot{
				Status: corev1.TaskStatus_TASK_STATUS_FAILED, FailureReason: "remote_lost",
				Error: "the server no longer knows the task; submit it again if its outcome is still wanted",
			},
		},
	} {
		r := newRemote(tc.answer)
		s, err := r.status(t)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(tc.want, s.Proto(), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if want := []string{`job_status {"task_id":"remote-1234"}`}; !slices.Equal(r.sent, want) {
			t.Errorf("%s: sent %q", name, r.sent)
		}
	}
}

// TASK-037
func TestStatusThatMakesNoSenseIsPermanent(t *testing.T) {
	for _, answer := range []string{
		`{"content":[{"type":"text","text":"{\"task_id\":\"remote-1234\",\"status\":\"completed\"}"}]}`,
		`{"content":[]}`, `{"structuredContent":"completed"}`, `7`, `null`,
		structured(`{}`),
		structured(`{"status":"running"}`),
		structured(`{"task_id":"","status":"running"}`),
		structured(`{"task_id":1234,"status":"running"}`),
		structured(`{"task_id":"` + strings.Repeat("x", 256) + `","status":"running"}`),
		structured(`{"task_id":"remote-1234"}`),
		structured(`{"task_id":"remote-1234","status":"working"}`),
		structured(`{"task_id":"remote-1234","status":"working on remote-1234"}`),
		structured(`{"task_id":"remote-1234","status":"submitted"}`),
		structured(`{"task_id":"remote-1234","status":"RUNNING"}`),
		structured(`{"task_id":"remote-1234","status":null}`),
		structured(`{"task_id":"another-id","status":"completed","result":1}`),
		structured(`{"task_id":"remote-1234 ","status":"running"}`),
		structured(`{"task_id":"remote-1234","status":"input_required"}`),
		structured(`{"task_id":"remote-1234","status":"input_required","input_required":null}`),
		structured(`{"task_id":"remote-1234","status":"input_required","input_required":"which?"}`),
		structured(`{"task_id":"remote-1234","status":"running","input_required":[]}`),
		structured(`{"task_id":"remote-1234","status":"failed","error":{"message":"x"}}`),
		structured(`{"task_id":"remote-1234","status":"failed","error_code":404}`),
		structured(`{"task_id":"remote-1234","status":"completed","result_artifact":"s3://b/k"}`),
		structured(`{"task_id":"remote-1234","status":"completed","result_artifact":{"uri":"s3://b/k"}}`),
		structured(`{"task_id":"remote-1234","status":"completed","result_artifact":{"uri":"s3://b/k","mime_type":""}}`),
		structured(`{"task_id":"remote-1234","status":"running","result_artifact":{"mime_type":"a/b"}}`),
	} {
		r := newRemote(answer)
		_, err := r.status(t)
		if !fault.Is(err, fault.UpstreamProtocol) {
			t.Errorf("%s: %v", answer, err)
		} else if text := err.Error(); !strings.Contains(text, "job_status") || strings.Contains(text, "another-id") || strings.Contains(text, remoteID) || len(text) > 500 {
			t.Errorf("%s: the message is %s", answer, text)
		}
	}
}

// TASK-038
func TestErrorsOfTheStatusToolMayHeal(t *testing.T) {
	long := strings.Repeat("é", 600)
	for answer, want := range map[string]string{
		`{"isError":true,"content":[{"type":"image","text":"no"},{"type":"text","text":" \n"},{"type":"text","text":"  backend down \n"},{"type":"text","text":"second"}]}`: "backend down",
		`{"isError":true,"content":[{"type":"text","text":"` + long + `"}]}`:                                                                                                long[:2*499] + "…",
		`{"isError":true,"content":[{"type":"text","text":"no remote-1234, api_key=abcdef123456"}],"structuredContent":{"task_id":"x","status":"failed"}}`:                  "no ***, api_key=***",
		`{"isError":true,"content":[]}`: "it does not say which",
		`{"isError":true}`:              "it does not say which",
	} {
		r := newRemote(answer)
		_, err := r.status(t)
		if fault.Is(err, fault.UpstreamProtocol) || fault.Is(err, fault.ServerUntrusted) || err == nil {
			t.Errorf("%s: %v", answer, err)
		} else if got := err.Error(); got != `tool "job_status" reported an error: `+want {
			t.Errorf("%s: the message is %s", answer, got)
		}
	}
	r := newRemote("")
	r.err = errors.New("the wire broke")
	if _, err := r.status(t); !errors.Is(err, r.err) {
		t.Errorf("an error of the wire: %v", err)
	}
}

// TASK-024 (dropping and clamping; the interval is the worker's)
// Case 149
func TestPollHints(t *testing.T) {
	for hint, want := range map[string]time.Duration{
		`0.25`: 250 * time.Millisecond, `0.001`: 250 * time.Millisecond, `1e-300`: 250 * time.Millisecond,
		`2.5`: 2500 * time.Millisecond, `86400`: 24 * time.Hour, `86400.5`: 24 * time.Hour, `1e9`: 24 * time.Hour, `1e12`: 24 * time.Hour, `1e300`: 24 * time.Hour,
		`null`: 0,
		// These are dropped and counted. NaN and Infinity are no JSON; servers that mean them write what stands here.
		`0`: -1, `-0.0`: -1, `-1`: -1, `-5`: -1, `"5"`: -1, `"soon"`: -1, `"NaN"`: -1, `"Infinity"`: -1, `1e999`: -1, `-1e999`: -1, `true`: -1, `[5]`: -1, `{"seconds":5}`: -1,
	} {
		r := newRemote(structured(`{"task_id":"remote-1234","status":"running","poll_after_seconds":` + hint + `}`))
		s, err := r.status(t)
		if err != nil {
			t.Errorf("%s: %v", hint, err)
			continue
		}
		if s.PollAfter() != max(want, 0) {
			t.Errorf("%s: the hint is %v, want %v", hint, s.PollAfter(), want)
		}
		if dropped := len(r.hints) == 1; dropped != (want < 0) {
			t.Errorf("%s: counted %q", hint, r.hints)
		}
	}
}

func TestCancelIsFinalOrAcknowledged(t *testing.T) {
	for answer, want := range map[string]driver.Status{
		structured(`{"task_id":"remote-1234","status":"cancelled"}`):                               driver.Cancelled,
		structured(`{"task_id":"remote-1234","status":"completed","result":[1]}`):                  driver.Completed,
		structured(`{"task_id":"remote-1234","status":"failed","error":"x"}`):                      driver.Failed,
		structured(`{"task_id":"remote-1234","status":"running"}`):                                 "",
		structured(`{"task_id":"remote-1234","status":"input_required","input_required":{"a":1}}`): "",
		structured(`{"task_id":"remote-1234","status":"failed","error_code":"task_not_found"}`):    driver.Failed,
	} {
		r := newRemote(answer)
		s, err := r.Cancel(t.Context(), r, started(t, remoteID))
		if err != nil || (s == nil) != (want == "") || s != nil && s.Status() != want {
			t.Errorf("%s: %v, %v", answer, s, err)
		}
		if want := []string{`stop_job {"task_id":"remote-1234"}`}; !slices.Equal(r.sent, want) {
			t.Errorf("%s: sent %q", answer, r.sent)
		}
	}
	r := newRemote(`{"content":[{"type":"text","text":"cancelled"}]}`)
	if _, err := r.Cancel(t.Context(), r, started(t, remoteID)); !fault.Is(err, fault.UpstreamProtocol) {
		t.Errorf("an answer in words: %v", err)
	}
	r = newRemote(`{"isError":true,"content":[{"type":"text","text":"busy"}]}`)
	if _, err := r.Cancel(t.Context(), r, started(t, remoteID)); err == nil || fault.Is(err, fault.UpstreamProtocol) {
		t.Errorf("an error of the tool: %v", err)
	}
}

func TestIdsGoBackAsTheyCame(t *testing.T) {
	for _, id := range []string{"1", `a"b\c`, "ä/€?&=", strings.Repeat("x", 255)} {
		r := newRemote("")
		encoded, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		r.answer = structured(fmt.Sprintf(`{"task_id":%s,"status":"running"}`, encoded))
		if _, err := r.Status(t.Context(), r, started(t, id)); err != nil {
			t.Errorf("id %q: %v", id, err)
		}
		var arguments map[string]string
		_, sent, _ := strings.Cut(r.sent[0], " ")
		if err := json.Unmarshal([]byte(sent), &arguments); err != nil || arguments["task_id"] != id {
			t.Errorf("id %q went back as %s", id, sent)
		}
	}
}

func TestAHandleOfAnotherDriverIsNotSent(t *testing.T) {
	for _, handle := range []string{"", "{}", `{"v":2,"task_id":"x"}`, `{"v":1}`, "\x00"} {
		r := newRemote("")
		_, err := r.Status(t.Context(), r, driver.Task{Tools: tools, Handle: []byte(handle)})
		if err == nil || fault.Is(err, fault.UpstreamProtocol) || len(r.sent) != 0 {
			t.Errorf("handle %q: %v, sent %q", handle, err, r.sent)
		}
	}
}

func FuzzStatus(f *testing.F) {
	f.Add(structured(`{"task_id":"remote-1234","status":"running","poll_after_seconds":1,"progress":{"current":1}}`))
	f.Add(structured(`{"task_id":"remote-1234","status":"completed","result_artifact":{"uri":"a","mime_type":"b"}}`))
	f.Add(`{"isError":true,"content":[{"type":"text","text":"x"}]}`)
	f.Fuzz(func(t *testing.T, answer string) {
		if !json.Valid([]byte(answer)) {
			return
		}
		r := newRemote(answer)
		s, err := r.status(t)
		if err != nil {
			return
		}
		p := s.Proto()
		if p.GetStatus() == 0 || p.GetResultJson() != "" && !json.Valid([]byte(p.GetResultJson())) ||
			(s.Status() == driver.InputRequired) != (p.GetInputRequiredJson() != "") {
			t.Errorf("%q gives %v", answer, p)
		}
	})
}
