package tasktest

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

func asks(q string) task.Snapshot {
	return task.Snapshot{Status: task.InputRequired, InputRequired: json.RawMessage(q)}
}

// TASK-033
func questions(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	version := int64(0)
	for k, step := range []struct {
		says  task.Snapshot
		event bool
	}{
		{working(), false},
		{asks(`{"a":1,"b":[1.0,2]}`), true},
		{asks(`{"a":1,"b":[1.0,2]}`), false},
		{asks(`{ "b": [1.0, 2], "a": 1 }`), false}, // written another way
		{asks(`{"a":2}`), true},
		{working(), false},
		{asks(`{"a":2}`), true}, // asked again
		{completed(`"yes"`), true},
	} {
		s := b.done(t, says(b.next(t, task.Poll), step.says))
		if step.event {
			version++
		}
		if got := b.get(t, id); s.Event != step.event || got.EventVersion != version {
			t.Errorf("step %d: event %v, version %d, want %v and %d", k, s.Event, got.EventVersion, step.event, version)
		}
	}
	for k, e := range b.Events(t) {
		if e.Version != int64(k+1) {
			t.Errorf("event %d has version %d", k, e.Version)
		}
	}
}

// TASK-032
func events(t *testing.T, b Bench) {
	// A task that is born final is told of, too.
	c := commitment(b.reserve(t, 1), 1)
	c.Status = task.Completed
	made, err := b.Commit(t.Context(), c)
	if err != nil || made.Status != task.Completed || made.Ended.IsZero() {
		t.Fatalf("committed as %+v, %v", made, err)
	}
	if e := b.Events(t); len(e) != 1 || e[0].TaskID != made.ID || e[0].Version != 1 {
		t.Errorf("events of the task born final: %+v", e)
	}

	id := b.submit(t, 2).ID
	end := task.Snapshot{
		Status: task.Completed, StatusMessage: "done", Result: json.RawMessage(`{"a": "<&>"}`), IsError: true,
		ResultArtifact: json.RawMessage(`{"uri":"file:///x","mime_type":"text/plain"}`),
	}
	b.done(t, says(b.next(t, task.Poll), end))
	got := b.Events(t)
	if len(got) != 1 {
		t.Fatalf("%d events", len(got))
	}
	i := intent(2)
	want := outbox.Event{
		TaskID: id, Version: 1, Scope: ada, Sink: "ops", TaskName: "task 2", RunID: "run", Traceparent: i.Traceparent,
		Body: got[0].Body, Created: got[0].Created,
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	body := fmt.Sprintf(`{"event_id":"%s:1","task_id":"%s","event_version":1,"task_name":"task 2","user_id":"ada","thread_id":"t1",`+
		`"run_id":"run","tool_call_id":"call","status":"completed","status_message":"done","is_error":true,`+
		`"result_preview":"{\"a\":\"<&>\"}","result_truncated":false,"result_artifact":{"uri":"file:///x","mime_type":"text/plain"},`+
		`"tracking_degraded":false}`, id, id)
	if diff := cmp.Diff(body, string(got[0].Body)); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
}

// TASK-006
func results(t *testing.T, b Bench) {
	quoted := func(n int) string { return `"` + strings.Repeat("é", n/2-1) + `"` }
	for n, c := range map[int]struct {
		result            string
		inside, truncated bool
	}{
		1: {quoted(65536), true, false},
		2: {quoted(65538), false, false},
		3: {quoted(16 << 20), false, false},
		4: {quoted(16<<20 + 2), false, true},
		5: {`{"n":12345678901234567890.10, "u":"\u00e9\u0000\ud800"}`, true, false},
		6: {`null`, true, false},
	} {
		id := b.submit(t, n).ID
		b.done(t, says(b.next(t, task.Poll), completed(c.result)))
		got := b.get(t, id)
		if (got.Result != nil) != c.inside || got.ResultStored == c.truncated || got.ResultTruncated != c.truncated {
			t.Errorf("a result of %d bytes: in the task %v, stored %v, truncated %v", len(c.result), got.Result != nil, got.ResultStored, got.ResultTruncated)
		}
		whole, err := b.Result(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if want := c.result; !c.truncated && string(whole) != want || c.truncated && whole != nil {
			t.Errorf("a result of %d bytes comes back with %d", len(c.result), len(whole))
		}
		want := strings.Repeat("é", 2000)
		switch n {
		case 5:
			want = `{"n":12345678901234567890.10,"u":"\u00e9\u0000\ud800"}`
		case 6:
			want = "null"
		}
		if got.ResultPreview != want {
			t.Errorf("the preview of a result of %d bytes is %.80q (%d bytes)", len(c.result), got.ResultPreview, len(got.ResultPreview))
		}
	}
	large := b.submit(t, 8).ID
	b.done(t, says(b.next(t, task.Poll), task.Snapshot{Status: task.Completed, Beginning: strings.Repeat("é\x00", 2000)}))
	got, err := b.Get(t.Context(), large)
	if err != nil || !got.ResultTruncated || got.ResultStored || got.ResultPreview != strings.Repeat("é\uFFFD", 1000) {
		t.Errorf("a result of which only the beginning came: %+v, %v", got, err)
	}
	id := b.submit(t, 7).ID
	if r, err := b.Result(t.Context(), id); err != nil || r != nil {
		t.Errorf("a task that runs has the result %q, %v", r, err)
	}
}

// TASK-004
func hostileTexts(t *testing.T, b Bench) {
	id := b.submit(t, 1).ID
	nested := json.RawMessage(strings.Repeat("[", 9000) + strings.Repeat("]", 9000))
	s, err := task.NewSnapshot(task.Report{
		Status: "failed", StatusMessage: "a\x00b\xff", Error: strings.Repeat("é", 4001), FailureReason: "x\x00",
		Progress: &task.Progress{Current: math.Inf(1)}, Result: nested, ResultArtifact: []byte(`{"uri":"\u0000"}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	deep, err := task.NewSnapshot(task.Report{
		Status: "input_required", InputRequired: []byte(`{"q":` + strings.Repeat("[", 999) + strings.Repeat("]", 999) + `}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	b.done(t, fails(b.next(t, task.Poll), task.Failure{Reason: "a\x00", Message: "b\x00\xff"}))
	b.done(t, says(b.next(t, task.Poll), deep))
	b.done(t, says(b.next(t, task.Poll), s))
	got := b.get(t, id)
	if got.StatusMessage != "a\uFFFDb\uFFFD" || got.Error != strings.Repeat("é", 4000) || got.FailureReason != "x\uFFFD" || got.Progress != nil {
		t.Errorf("stored as %q, %d bytes of error, %q, %v", got.StatusMessage, len(got.Error), got.FailureReason, got.Progress)
	}
	if string(got.Result) != string(nested) || string(got.ResultArtifact) != `{"uri":"\u0000"}` {
		t.Errorf("payloads came back with %d and %d bytes", len(got.Result), len(got.ResultArtifact))
	}
	if e := b.Events(t); len(e) != 2 || !json.Valid(e[0].Body) || !json.Valid(e[1].Body) {
		t.Errorf("events: %v", e)
	}
}
