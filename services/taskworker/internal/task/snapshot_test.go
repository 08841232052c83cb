package task

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// TASK-002 TASK-005
func TestReportsThatMakeNoSnapshot(t *testing.T) {
	object := func(n int) []byte { return []byte(`{"a":"` + strings.Repeat("x", n-8) + `"}`) }
	nested := func(n int) []byte {
		return []byte(`{"[\"[":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`)
	}
	for name, c := range map[string]struct {
		report Report
		word   string // of the error
	}{
		"no status":                     {Report{}, "status"},
		"an unknown status":             {Report{Status: "running"}, "running"},
		"a status in capitals":          {Report{Status: "WORKING"}, "WORKING"},
		"a hint of zero":                {Report{Status: "working", PollAfter: new(time.Duration(0))}, "polled"},
		"a hint below zero":             {Report{Status: "working", PollAfter: new(-5 * time.Second)}, "polled"},
		"input without a payload":       {Report{Status: "input_required"}, "input_required"},
		"input with null":               {Report{Status: "input_required", InputRequired: []byte("null")}, "input_required"},
		"input with an array":           {Report{Status: "input_required", InputRequired: []byte(" [1]")}, "input_required"},
		"input with a text":             {Report{Status: "input_required", InputRequired: []byte(`"which?"`)}, "input_required"},
		"input that is no JSON":         {Report{Status: "input_required", InputRequired: []byte(`{"a":NaN}`)}, "JSON"},
		"input that is too large":       {Report{Status: "input_required", InputRequired: object(65537)}, "65536"},
		"input that is nested too deep": {Report{Status: "input_required", InputRequired: nested(1001)}, "1000 deep"},
		"input at the parser's limit":   {Report{Status: "input_required", InputRequired: nested(10000)}, "1000 deep"},
		"an artifact that is":           {Report{Status: "completed", ResultArtifact: nested(1001)}, "1000 deep"},
		"a result with infinity":        {Report{Status: "completed", Result: []byte(`[Infinity]`)}, "JSON"},
		"a result with text after it":   {Report{Status: "completed", Result: []byte(`1 2`)}, "JSON"},
		"an artifact that is no JSON":   {Report{Status: "completed", ResultArtifact: []byte(`{'a':1}`)}, "JSON"},
		"an artifact that is too large": {Report{Status: "completed", ResultArtifact: object(65537)}, "65536"},
	} {
		if s, err := NewSnapshot(c.report); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s made %+v, %v, want an error that says %q", name, s, err, c.word)
		}
	}
	for name, r := range map[string]Report{
		"a bare state":         {Status: "submitted"},
		"the smallest hint":    {Status: "working", PollAfter: new(time.Duration(1))},
		"input at the limit":   {Status: "input_required", InputRequired: object(65536)},
		"input of the depth":   {Status: "input_required", InputRequired: nested(1000)},
		"a result of the next": {Status: "completed", Result: nested(10000)},
		"an artifact at it":    {Status: "completed", ResultArtifact: object(65536)},
		"an empty object":      {Status: "input_required", InputRequired: []byte(" {}")},
		"a result of any size": {Status: "completed", Result: object(17 << 20)},
		"a failed task":        {Status: "failed", Error: "boom"},
		"a cancelled task":     {Status: "cancelled"},
	} {
		if _, err := NewSnapshot(r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TASK-004
func TestSnapshotsKeepWhatCanBeKept(t *testing.T) {
	got, err := NewSnapshot(Report{
		Status: "failed", Error: strings.Repeat("日", 5000), StatusMessage: "a\x00b", TTL: -time.Second,
		Progress: &Progress{Current: 1, Total: new(math.NaN())}, Result: []byte("\"\xff\""),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Snapshot{
		Status: Failed, Error: strings.Repeat("日", 4000), StatusMessage: "a\uFFFDb",
		Progress: &Progress{Current: 1}, Result: json.RawMessage("\"\uFFFD\""),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

// TASK-006
func TestPreviewsAreOfTheTextItself(t *testing.T) {
	for _, c := range []struct{ result, want string }{
		{`"plain \"text\" é"`, `plain "text`},
		{`"日本語日本語日本語日本語日本語"`, "日本語日本語日本語日本"},
		{`{ "a" : [ 1.0 , 2 ] }`, `{"a":[1.0,2`},
		{` null `, "null"},
		{`"a\u0000b"`, "a\uFFFDb"},
		{`"\ud800"`, "\uFFFD"},
		{`12345678901234567890`, "12345678901"},
	} {
		if got := preview(json.RawMessage(c.result), 11); got != c.want {
			t.Errorf("the preview of %s is %q, want %q", c.result, got, c.want)
		}
	}
}

func FuzzClip(f *testing.F) {
	f.Add("é\x00\xffabc", 3)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = min(max(n, 0), 100)
		got := clip(s, n)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || utf8.RuneCountInString(got) > n {
			t.Errorf("clip(%q, %d) is %q", s, n, got)
		}
		if utf8.ValidString(s) && !strings.ContainsRune(s, 0) && !strings.HasPrefix(s, got) {
			t.Errorf("clip(%q, %d) is %q, which is not its beginning", s, n, got)
		}
	})
}

// Whatever a page token holds, it is refused or names a place that makes the same token.
func FuzzCursor(f *testing.F) {
	f.Add(Cursor{time.UnixMicro(1).UTC(), "mcp-task-1"}.Token())
	f.Add("e30")
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		c, err := ParseCursor(token)
		if err != nil || token == "" {
			return
		}
		again, err := ParseCursor(c.Token())
		if err != nil || again != c || !c.Created.Before(time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)) {
			t.Errorf("%q is %+v, and again %+v, %v", token, c, again, err)
		}
	})
}

// TASK-025
func TestBackoffIsBounded(t *testing.T) {
	p := Policy{PollInterval: 5 * time.Second, MaxPollBackoff: time.Hour * 24 * 365}
	for n, want := range map[int]time.Duration{
		-1: 5 * time.Second, 0: 5 * time.Second, 1: 10 * time.Second, 10: 5120 * time.Second,
		16: 327680 * time.Second, 17: 327680 * time.Second, 1 << 40: 327680 * time.Second,
	} {
		if got := p.backoff(n); got != want {
			t.Errorf("after %d failures it is %v, want %v", n, got, want)
		}
	}
	p.MaxPollBackoff = time.Minute
	if got := p.backoff(1000); got != time.Minute {
		t.Errorf("capped it is %v", got)
	}
}

// TASK-023
func TestPollGapsAreBounded(t *testing.T) {
	for _, c := range []struct {
		interval  time.Duration
		unchanged int
		want      time.Duration
	}{
		{5 * time.Second, 0, 5 * time.Second},
		{5 * time.Second, 1, 7500 * time.Millisecond},
		{5 * time.Second, 1 << 40, time.Minute},
		{90 * time.Second, 5, 90 * time.Second}, // an interval above what polls grow to stays
		{48 * time.Hour, 0, 24 * time.Hour},
	} {
		p := Policy{PollInterval: c.interval}
		if got := p.nextPoll(Working, 0, c.unchanged, 0.9); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
