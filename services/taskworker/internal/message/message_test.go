package message_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/taskworker/internal/message"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

func TestEveryStateHasAMessageAndBack(t *testing.T) {
	seen := 0
	values := corev1.TaskStatus(0).Descriptor().Values()
	for i := range values.Len() {
		m := corev1.TaskStatus(values.Get(i).Number())
		s, ok := message.StatusOf(m)
		if ok != (m != 0) || message.Status(s) != m {
			t.Errorf("%v becomes %q and %v", m, s, message.Status(s))
		}
		if ok {
			seen++
		}
	}
	if seen != 6 {
		t.Errorf("%d states", seen)
	}
}

func TestASnapshotKeepsWhatTheRemoteSaid(t *testing.T) {
	got, err := message.Snapshot(&toolproxyv1.RemoteTaskSnapshot{
		Status: corev1.TaskStatus_TASK_STATUS_COMPLETED, StatusMessage: "m", Progress: &toolproxyv1.TaskProgress{Current: 1, Total: new(2.5)},
		ResultJson: `{"n":1.50}`, IsError: true, PollAfter: durationpb.New(time.Second), Ttl: durationpb.New(time.Minute),
		ResultArtifactJson: `{"uri":"x"}`, Error: "e", FailureReason: "r",
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Status != task.Completed || got.StatusMessage != "m" || *got.Progress.Total != 2.5 || string(got.Result) != `{"n":1.50}` ||
		!got.IsError || got.PollAfter != time.Second || got.TTL != time.Minute || string(got.ResultArtifact) != `{"uri":"x"}` ||
		got.Error != "e" || got.FailureReason != "r" || got.InputRequired != nil {
		t.Errorf("got %+v", got)
	}
}

// Of a result that was too large to be passed on there is the beginning, whatever that is.
func TestAResultThatIsNotPassedOnIsTruncated(t *testing.T) {
	for preview, want := range map[string]string{"abc": "abc", "": "…"} {
		got, err := message.Snapshot(&toolproxyv1.RemoteTaskSnapshot{
			Status: corev1.TaskStatus_TASK_STATUS_COMPLETED, ResultTruncated: true, ResultPreview: preview,
		})
		if err != nil || got.Result != nil || got.Beginning != want {
			t.Errorf("preview %q: %+v, %v", preview, got, err)
		}
	}
}

// An error shown by an API has at most 500 characters, whatever is stored.
func TestAnErrorIsShownInPart(t *testing.T) {
	stored := &task.Task{Error: strings.Repeat("ü", 4000)}
	if got := message.Task(stored, message.View{}).GetError(); got != strings.Repeat("ü", 500) {
		t.Errorf("%d characters are shown", len([]rune(got)))
	}
	for n, want := range map[int]string{0: "", 2: "aü", 3: "aüb", 9: "aüb"} {
		if got := message.Clip("aüb", n); got != want {
			t.Errorf("%d characters: %q", n, got)
		}
	}
}

// A field that names the remote would be shown to agents.
func TestATaskHasNoFieldForTheRemote(t *testing.T) {
	fields := message.Task(&task.Task{}, message.View{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := fields.Get(i).Name()
		for _, word := range []protoreflect.Name{"remote", "handle", "binding", "address", "url"} {
			if strings.Contains(string(name), string(word)) {
				t.Errorf("field %s", name)
			}
		}
	}
}
