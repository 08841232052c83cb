package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// Report is what a peer says about a remote task, unchecked. See [Snapshot] for the fields.
type Report struct {
	Status         string // a [Status]
	StatusMessage  string
	Progress       *Progress
	Result         []byte // empty: none
	IsError        bool
	FailureReason  string
	Error          string
	Beginning      string         // of a result that is too large to be passed on; empty: there is none such
	InputRequired  []byte         // empty: none
	ResultArtifact []byte         // empty: none
	PollAfter      *time.Duration // nil: no hint
	TTL            time.Duration
}

// NewSnapshot checks a report. Its error says in words for people what is wrong with the report; asking again will not
// mend it, so the task fails with [ProtocolError].
//
//   - The status is one of the six.
//   - A poll hint is above zero. (That it is finite, its type says.)
//   - Payloads are strict JSON, without NaN or infinity; questions and artifact have at most 64 KiB each, and are nested at
//     most 1000 deep, so that what embeds them stays JSON for everyone.
//   - A task that waits for input says for which, as an object.
//
// What a snapshot cannot say is dropped: progress that is no finite number, a time to live below zero.
// Texts keep [MaxErrorChars] characters.
func NewSnapshot(r Report) (Snapshot, error) {
	s := Snapshot{
		Status: Status(r.Status), StatusMessage: text(r.StatusMessage), Progress: finite(r.Progress),
		IsError: r.IsError, FailureReason: text(r.FailureReason), Error: text(r.Error), TTL: max(r.TTL, 0),
	}
	switch s.Status {
	case Submitted, Working, InputRequired, Completed, Failed, Cancelled:
	default:
		return Snapshot{}, fmt.Errorf("the remote gave the unknown status %.40q", r.Status)
	}
	if r.PollAfter != nil {
		if *r.PollAfter <= 0 {
			return Snapshot{}, fmt.Errorf("the remote asked to be polled after %v, which is not above zero", *r.PollAfter)
		}
		s.PollAfter = *r.PollAfter
	}
	var err error
	if s.Result, err = payload("result", r.Result, math.MaxInt); err != nil {
		return Snapshot{}, err
	}
	if s.Result == nil {
		s.Beginning = r.Beginning
	}
	if s.ResultArtifact, err = embedded("result_artifact", r.ResultArtifact); err != nil {
		return Snapshot{}, err
	}
	if s.InputRequired, err = embedded("input_required", r.InputRequired); err != nil {
		return Snapshot{}, err
	}
	if s.Status == InputRequired && !isObject(s.InputRequired) {
		return Snapshot{}, errors.New("the remote waits for input and does not say for which: input_required is not an object")
	}
	return s, nil
}

// payload checks JSON of the field name.
func payload(name string, raw []byte, limit int) (json.RawMessage, error) {
	switch {
	case len(raw) == 0:
		return nil, nil
	case len(raw) > limit:
		return nil, fmt.Errorf("the remote's %s has %d bytes, more than the %d that are kept", name, len(raw), limit)
	case !json.Valid(raw):
		return nil, fmt.Errorf("the remote's %s is not JSON", name)
	}
	return bytes.ToValidUTF8(raw, []byte("\uFFFD")), nil
}

// embedded checks JSON of the field name that events contain. Parsers refuse what is nested too deeply, encoding/json at
// 10000, and whoever passes an event on wraps it once more.
func embedded(name string, raw []byte) (json.RawMessage, error) {
	out, err := payload(name, raw, maxPayloadBytes)
	if err == nil && depth(out) > maxPayloadDepth {
		return nil, fmt.Errorf("the remote's %s is nested more than %d deep", name, maxPayloadDepth)
	}
	return out, err
}

// depth returns how deep arrays and objects are nested in valid JSON.
func depth(raw json.RawMessage) int {
	deepest, now, text := 0, 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

func isObject(raw json.RawMessage) bool {
	trimmed := bytes.TrimLeft(raw, " \t\r\n")
	return len(trimmed) > 0 && trimmed[0] == '{'
}

func finite(p *Progress) *Progress {
	if p == nil || math.IsNaN(p.Current) || math.IsInf(p.Current, 0) {
		return nil
	}
	if p.Total != nil && (math.IsNaN(*p.Total) || math.IsInf(*p.Total, 0)) {
		return &Progress{Current: p.Current}
	}
	return p
}

// placed says where a result goes.
type placed struct {
	inside    json.RawMessage // the task
	beside    json.RawMessage // task_result
	preview   string
	truncated bool // kept in the preview alone
}

// place finds the place for the result of a snapshot, which is kept whole or not at all.
func (p Policy) place(s Snapshot) placed {
	result := s.Result
	switch {
	case s.Beginning != "":
		return placed{preview: clip(s.Beginning, p.ResultPreviewMaxChars), truncated: true}
	case len(result) == 0:
		return placed{}
	}
	out := placed{preview: preview(result, p.ResultPreviewMaxChars)}
	switch {
	case len(result) <= p.MaxResultBytes:
		out.inside = result
	case len(result) <= maxResultBytes:
		out.beside = result
	default:
		out.truncated = true
	}
	return out
}

// preview returns the first characters of a JSON string itself, or of the compact text of any other value.
func preview(result json.RawMessage, chars int) string {
	var s string
	if json.Unmarshal(result, &s) == nil && !bytes.Equal(bytes.TrimSpace(result), []byte("null")) {
		return clip(s, chars)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, result); err != nil {
		return "" // NewSnapshot lets only JSON pass
	}
	return clip(compact.String(), chars)
}

// text is what is kept of words for people.
func text(s string) string { return clip(s, MaxErrorChars) }

// clip returns at most n characters of s in a form that every engine can hold: valid UTF-8 without NUL.
func clip(s string, n int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	end := 0
	for range n {
		_, size := utf8.DecodeRuneInString(s[end:])
		end += size
	}
	return s[:end]
}
