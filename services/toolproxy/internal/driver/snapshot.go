package driver

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// Status is the state of a remote task.
type Status string

// The states. The last three are final.
const (
	Submitted     Status = "submitted"
	Working       Status = "working"
	InputRequired Status = "input_required"
	Completed     Status = "completed"
	Failed        Status = "failed"
	Cancelled     Status = "cancelled"
)

// Terminal reports whether the state never changes again.
func (s Status) Terminal() bool { return s == Completed || s == Failed || s == Cancelled }

// Proto returns the state on the wire.
func (s Status) Proto() corev1.TaskStatus {
	switch s {
	case Submitted:
		return corev1.TaskStatus_TASK_STATUS_SUBMITTED
	case Working:
		return corev1.TaskStatus_TASK_STATUS_WORKING
	case InputRequired:
		return corev1.TaskStatus_TASK_STATUS_INPUT_REQUIRED
	case Completed:
		return corev1.TaskStatus_TASK_STATUS_COMPLETED
	case Failed:
		return corev1.TaskStatus_TASK_STATUS_FAILED
	case Cancelled:
		return corev1.TaskStatus_TASK_STATUS_CANCELLED
	default:
		return corev1.TaskStatus_TASK_STATUS_UNSPECIFIED
	}
}

// RemoteLost is the failure reason of a task that the remote no longer knows.
const RemoteLost = "remote_lost"

// The limits of a snapshot.
const (
	MinPoll = 250 * time.Millisecond // a shorter hint is taken as this
	MaxPoll = 24 * time.Hour         // a longer one as this

	maxObjectBytes = 64 << 10 // of questions, and of a reference to a result
	maxTextChars   = 4000     // of an error or a message about the status
	maxResultBytes = 16 << 20 // of a result that is passed on; the limit of a message between peers is above
	previewBytes   = 64 << 10 // of a larger one's beginning
)

// Progress is how far a task is, in units of the remote's own.
type Progress struct {
	Current float64
	Total   *float64 // nil if unknown
}

// Fields are what a remote says about a task. What its state cannot have is left out of the snapshot: a result of a task
// that runs, questions of one that does not wait, a poll hint of one that has ended.
type Fields struct {
	Status         string
	StatusMessage  string
	Progress       *Progress
	Result         json.RawMessage // of a final state; empty or null means none
	IsError        bool            // of a final state
	Error          string          // of a final state
	FailureReason  string          // of Failed
	InputRequired  json.RawMessage // of InputRequired, which must have one
	ResultArtifact json.RawMessage // of a final state; empty or null means none
	PollAfter      *float64        // seconds; nil without a hint
	TTL            time.Duration   // 0 if the remote does not say
}

// Snapshot is how a remote task stands, and always makes sense:
//
//   - its status is one of the six;
//   - its poll hint is 0 or within [MinPoll] and [MaxPoll], and 0 in a final state;
//   - with InputRequired, and only then, it has questions, a JSON object of at most 64 KiB;
//   - its result is valid JSON of at most 16 MiB, of a larger one there is the beginning; its reference to a result {uri, mime_type}, both texts that are not empty;
//   - its texts have no control characters and at most 4000 characters.
//
// Only [NewSnapshot] makes one; the zero Snapshot is none.
type Snapshot struct {
	status Status
	p      *toolproxyv1.RemoteTaskSnapshot
}

// NewSnapshot checks what a remote says and returns it as a snapshot. The error is a fault UPSTREAM_PROTOCOL.
func NewSnapshot(f Fields) (Snapshot, error) {
	status := Status(f.Status)
	if status.Proto() == corev1.TaskStatus_TASK_STATUS_UNSPECIFIED {
		return Snapshot{}, broken("it has the status %q, which is none", shorten(f.Status, 40))
	}
	after, err := pollAfter(f.PollAfter)
	if err != nil {
		return Snapshot{}, err
	}
	p := &toolproxyv1.RemoteTaskSnapshot{
		Status: status.Proto(), StatusMessage: clean(f.StatusMessage), Progress: f.Progress.proto(),
	}
	if f.TTL > 0 {
		p.Ttl = durationpb.New(f.TTL)
	}
	if status.Terminal() {
		err = f.finish(p, status)
	} else {
		err = f.pend(p, status, after)
	}
	if err != nil {
		return Snapshot{}, err
	}
	return Snapshot{status, p}, nil
}

// pend sets what a state that is polled has.
func (f *Fields) pend(p *toolproxyv1.RemoteTaskSnapshot, status Status, after time.Duration) (err error) {
	if after > 0 {
		p.PollAfter = durationpb.New(after)
	}
	if status == InputRequired {
		p.InputRequiredJson, err = questions(f.InputRequired)
	}
	return err
}

// finish sets what a final state has.
func (f *Fields) finish(p *toolproxyv1.RemoteTaskSnapshot, status Status) (err error) {
	p.IsError, p.Error = f.IsError, clean(f.Error)
	if status == Failed {
		p.FailureReason = f.FailureReason
	}
	if !jsonrpc.IsNull(f.Result) {
		if !jsonrpc.Valid(f.Result) {
			return broken("its result is not JSON")
		}
		p.ResultJson = strings.ToValidUTF8(string(bytes.TrimSpace(f.Result)), "\uFFFD")
		if len(p.ResultJson) > maxResultBytes {
			p.ResultPreview, p.ResultTruncated = beginning(p.ResultJson), true
			p.ResultJson = ""
		}
	}
	p.ResultArtifactJson, err = artifact(f.ResultArtifact)
	return err
}

// beginning returns the first bytes of a result, as a person reads it.
func beginning(result string) string {
	text, ok := jsonrpc.String(json.RawMessage(result))
	if !ok {
		var compact bytes.Buffer
		text = result
		if json.Compact(&compact, []byte(result)) == nil {
			text = compact.String()
		}
	}
	return strings.ToValidUTF8(strings.Clone(text[:min(len(text), previewBytes-len("\uFFFD"))]), "\uFFFD") // ends in a whole character
}

// proto returns p on the wire, as far as it has finite numbers.
func (p *Progress) proto() *toolproxyv1.TaskProgress {
	if p == nil || !finite(p.Current) {
		return nil
	}
	out := &toolproxyv1.TaskProgress{Current: p.Current}
	if p.Total != nil && finite(*p.Total) {
		out.Total = new(*p.Total)
	}
	return out
}

// pollAfter turns a hint, which must be a finite number above zero, into a time within the limits.
func pollAfter(seconds *float64) (time.Duration, error) {
	if seconds == nil {
		return 0, nil
	}
	s := *seconds
	if !finite(s) || s <= 0 {
		return 0, broken("its poll hint is not a number of seconds above zero")
	}
	if s >= MaxPoll.Seconds() {
		return MaxPoll, nil
	}
	return max(MinPoll, time.Duration(s*float64(time.Second))), nil
}

func questions(raw json.RawMessage) (string, error) {
	switch {
	case !jsonrpc.IsObject(raw) || !jsonrpc.Valid(raw):
		return "", broken("it requires input and does not say which: its input_required is not an object")
	case len(raw) > maxObjectBytes:
		return "", broken("its input_required has %d bytes, of %d at most", len(raw), maxObjectBytes)
	}
	return strings.ToValidUTF8(string(bytes.TrimSpace(raw)), "\uFFFD"), nil
}

// artifact returns a reference to a result with the two members that it has.
func artifact(raw json.RawMessage) (string, error) {
	if jsonrpc.IsNull(raw) {
		return "", nil
	}
	if !jsonrpc.IsObject(raw) || !jsonrpc.Valid(raw) {
		return "", broken("its result_artifact is not an object")
	}
	out := []byte("{")
	for _, name := range []string{"uri", "mime_type"} {
		text, ok := jsonrpc.String(jsonrpc.Member(raw, name))
		if !ok || text == "" {
			return "", broken("its result_artifact has no %s", name)
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = jsonrpc.AppendString(out, name)
		out = append(out, ':')
		out = jsonrpc.AppendString(out, strings.ToValidUTF8(text, "\uFFFD"))
	}
	if out = append(out, '}'); len(out) > maxObjectBytes {
		return "", broken("its result_artifact has %d bytes, of %d at most", len(out), maxObjectBytes)
	}
	return string(out), nil
}

// Status returns the state.
func (s Snapshot) Status() Status { return s.status }

// PollAfter returns when to ask again; 0 without a hint.
func (s Snapshot) PollAfter() time.Duration { return s.p.GetPollAfter().AsDuration() }

// TTL returns how long the remote keeps the task from its creation; 0 if it does not say.
func (s Snapshot) TTL() time.Duration { return s.p.GetTtl().AsDuration() }

// Proto returns the snapshot on the wire. The caller must not change it.
func (s Snapshot) Proto() *toolproxyv1.RemoteTaskSnapshot { return s.p }

// Started is a task that a submit made. Only [NewStarted] makes one.
type Started struct {
	remoteID string
	handle   []byte
	snapshot Snapshot
}

// NewStarted returns a task with the id that its server gave it, which must not be blank, the driver's handle and its first
// snapshot. The error is a fault UPSTREAM_PROTOCOL. How long a remote id may be is for the one who stores it to say, since
// only with the handle in hand can the task be cancelled.
func NewStarted(remoteID string, handle []byte, s Snapshot) (*Started, error) {
	switch {
	case strings.TrimSpace(remoteID) == "":
		return nil, broken("its task has no id")
	case !utf8.ValidString(remoteID) || strings.ContainsFunc(remoteID, unicode.IsControl):
		return nil, broken("its task id has characters that no id has")
	}
	return &Started{remoteID: remoteID, handle: slices.Clip(handle), snapshot: s}, nil
}

// RemoteID is the id that the server gave the task. Agents must not see it.
func (s *Started) RemoteID() string { return s.remoteID }

// Handle finds the task again, for the driver that made it.
func (s *Started) Handle() []byte { return s.handle }

// Snapshot is how the task stood then.
func (s *Started) Snapshot() Snapshot { return s.snapshot }

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// clean makes a text of a server fit to be stored and shown.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return shorten(strings.TrimSpace(text), maxTextChars)
}

// shorten returns at most limit characters of text, the last of which shows that some are missing.
func shorten(text string, limit int) string {
	if len(text) <= limit || utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit-1]) + "…"
}

func broken(format string, args ...any) error {
	return fault.New(fault.UpstreamProtocol, format, args...)
}
