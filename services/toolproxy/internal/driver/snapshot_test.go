package driver_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
)

// TASK-002 (the driver's half; taskworker checks again what it receives)
func TestSnapshotsThatMakeNoSenseCannotBeMade(t *testing.T) {
	hint := func(seconds float64) driver.Fields { return driver.Fields{Status: "working", PollAfter: &seconds} }
	for name, f := range map[string]driver.Fields{
		"no status":                     {},
		"an unknown status":             {Status: "running"},
		"a status in another case":      {Status: "Completed"},
		"a poll hint of 0":              hint(0),
		"a negative poll hint":          hint(-5),
		"a poll hint of NaN":            hint(math.NaN()),
		"a poll hint of infinity":       hint(math.Inf(1)),
		"a poll hint of minus infinity": hint(math.Inf(-1)),
		"no questions":                  {Status: "input_required"},
		"null for questions":            {Status: "input_required", InputRequired: json.RawMessage("null")},
		"a list of questions":           {Status: "input_required", InputRequired: json.RawMessage("[1]")},
		"broken questions":              {Status: "input_required", InputRequired: json.RawMessage(`{"a":`)},
		"too many questions":            {Status: "input_required", InputRequired: json.RawMessage(`{"a":"` + strings.Repeat("x", 64<<10) + `"}`)},
		"a result that is not JSON":     {Status: "completed", Result: json.RawMessage("{]")},
		"an artifact without a type":    {Status: "completed", ResultArtifact: json.RawMessage(`{"uri":"file:///x"}`)},
		"an artifact without a place":   {Status: "completed", ResultArtifact: json.RawMessage(`{"uri":"","mime_type":"a/b"}`)},
		"an artifact that is a text":    {Status: "failed", ResultArtifact: json.RawMessage(`"file:///x"`)},
	} {
		if s, err := driver.NewSnapshot(f); !fault.Is(err, fault.UpstreamProtocol) || s != (driver.Snapshot{}) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	working, err := driver.NewSnapshot(driver.Fields{Status: "working"})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", " ", "\t\n", "a\x00b"} {
		if s, err := driver.NewStarted(id, nil, working); !fault.Is(err, fault.UpstreamProtocol) || s != nil {
			t.Errorf("remote id %q: %v, %v", id, s, err)
		}
	}
}

// The limit of a message between peers is 20 MiB: what is larger would be asked for again and again. Bytes that are no UTF-8
// triple in size.
func TestAResultThatIsTooLargeIsNotPassedOn(t *testing.T) {
	for name, c := range map[string]struct{ result, beginning string }{
		"an object": {`{ "a": "` + strings.Repeat("x", 16<<20) + `"}`, `{"a":"xx`},
		"a text":    {`"` + strings.Repeat("é", 8<<20) + `"`, "éé"},
		"not UTF-8": {`"` + strings.Repeat("\xffa", 6<<20) + `"`, "\uFFFDa\uFFFDa"},
	} {
		s, err := driver.NewSnapshot(driver.Fields{Status: "completed", Result: json.RawMessage(c.result)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p := s.Proto()
		if p.GetResultJson() != "" || !p.GetResultTruncated() || !strings.HasPrefix(p.GetResultPreview(), c.beginning) || len(p.GetResultPreview()) > 64<<10 {
			t.Errorf("%s: %d bytes, truncated %v, begins with %.20q of %d bytes",
				name, len(p.GetResultJson()), p.GetResultTruncated(), p.GetResultPreview(), len(p.GetResultPreview()))
		}
	}
	whole := `"` + strings.Repeat("x", 16<<20-2) + `"`
	s, err := driver.NewSnapshot(driver.Fields{Status: "completed", Result: json.RawMessage(whole)})
	if err != nil || s.Proto().GetResultJson() != whole || s.Proto().GetResultTruncated() {
		t.Errorf("a result at the limit: %v, truncated %v", err, s.Proto().GetResultTruncated())
	}
}

func TestSnapshotsHaveWhatTheirStateCanHave(t *testing.T) {
	all := func(status string) driver.Fields {
		seconds := 1.5
		return driver.Fields{
			Status: status, StatusMessage: " half\x00 way ", Progress: &driver.Progress{Current: 1, Total: new(2.0)},
			Result: json.RawMessage(` {"n":1.10} `), IsError: true, Error: "why", FailureReason: "because",
			InputRequired:  json.RawMessage(`{"q":{"n":10000000000000000001}}`),
			ResultArtifact: json.RawMessage(`{"mime_type":"a/b","more":1,"uri":"x:y"}`), PollAfter: &seconds, TTL: time.Hour,
		}
	}
	base := func(status corev1.TaskStatus) *toolproxyv1.RemoteTaskSnapshot {
		return &toolproxyv1.RemoteTaskSnapshot{
			Status: status, StatusMessage: "half way", Progress: &toolproxyv1.TaskProgress{Current: 1, Total: new(2.0)}, Ttl: durationpb.New(time.Hour),
		}
	}
	working := base(corev1.TaskStatus_TASK_STATUS_WORKING)
	working.PollAfter = durationpb.New(1500 * time.Millisecond)
	waiting := base(corev1.TaskStatus_TASK_STATUS_INPUT_REQUIRED)
	waiting.PollAfter, waiting.InputRequiredJson = working.PollAfter, `{"q":{"n":10000000000000000001}}`
	completed := base(corev1.TaskStatus_TASK_STATUS_COMPLETED)
	completed.ResultJson, completed.IsError, completed.Error = `{"n":1.10}`, true, "why"
	completed.ResultArtifactJson = `{"uri":"x:y","mime_type":"a/b"}`
	failed := base(corev1.TaskStatus_TASK_STATUS_FAILED)
	failed.ResultJson, failed.IsError, failed.Error, failed.ResultArtifactJson = completed.ResultJson, true, "why", completed.ResultArtifactJson
	failed.FailureReason = "because"
	for status, want := range map[string]*toolproxyv1.RemoteTaskSnapshot{
		"working": working, "input_required": waiting, "completed": completed, "failed": failed,
	} {
		s, err := driver.NewSnapshot(all(status))
		if err != nil {
			t.Errorf("%s: %v", status, err)
			continue
		}
		if diff := cmp.Diff(want, s.Proto(), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", status, diff)
		}
		if string(s.Status()) != status || s.PollAfter() != want.GetPollAfter().AsDuration() || s.TTL() != time.Hour {
			t.Errorf("%s: %v, %v, %v", status, s.Status(), s.PollAfter(), s.TTL())
		}
	}
}

func TestTextsOfSnapshotsAreBounded(t *testing.T) {
	s, err := driver.NewSnapshot(driver.Fields{Status: "failed", Error: strings.Repeat("é", 5000), StatusMessage: "a\r\nb\x1b[31m\xff"})
	if err != nil {
		t.Fatal(err)
	}
	if n := len([]rune(s.Proto().GetError())); n != 4000 {
		t.Errorf("an error of %d characters", n)
	}
	if got := s.Proto().GetStatusMessage(); got != "a\nb[31m\uFFFD" {
		t.Errorf("the message is %q", got)
	}
}
