package call

import (
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/toolherd/toolherd/pkg/fault"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// CALL-003: view JSON is the result token for token, and nothing else.
func TestJSONViewIsTokenForToken(t *testing.T) {
	const raw = `{"future":[1e400],"content":[{"type":"text","text":"\u00e9\/<&>"}],"structuredContent":{"b":9007199254740993,"a":1.10},"isError":false}`
	got, err := view(json.RawMessage(raw), toolproxyv1.ResultView_RESULT_VIEW_JSON)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&toolproxyv1.ToolResult{ResultJson: raw}, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	got, _ = view(json.RawMessage("{\"a\":\"x\xffy\"}"), toolproxyv1.ResultView_RESULT_VIEW_JSON)
	if want := "{\"a\":\"x\uFFFDy\"}"; got.GetResultJson() != want {
		t.Errorf("invalid UTF-8 became %q, want %q", got.GetResultJson(), want)
	}
}

// CALL-004: the typed view fills its fields; unknown content is other_json, never an error and never dropped.
// CALL-005: every known content type is complete, with annotations and _meta.
func TestTypedView(t *testing.T) {
	image := base64.StdEncoding.EncodeToString([]byte{1, 2, 3})
	raw := `{"content":[
		{"type":"text","text":"hi\ud800","annotations":{"priority":1.0},"_meta":{"k":1.10}},
		{"type":"image","data":"` + image + `","mimeType":"image/png"},
		{"type":"audio","data":"` + image + `","mimeType":"audio/wav"},
		{"type":"resource_link","uri":"memo:x","name":"n","title":"T","description":"d","mimeType":"a/b","size":12,"icons":[{"src":"s"}]},
		{"type":"resource","resource":{"uri":"file:///t","mimeType":"text/plain","text":"t","_meta":{"m":1}},"annotations":null},
		{"type":"resource","resource":{"uri":"file:///b","blob":"` + image + `"}},
		{"type":"hologram","depth":1e400},
		{"type":"image","data":"not base64!"},
		{"type":"text"},
		{"type":"resource_link","name":"no uri"},
		{"type":"resource","resource":{"uri":"u"}},
		{"type":"resource_link","uri":"u","size":1.5},
		"bare", null, {"type":7}
	],"structuredContent":{"n":9007199254740993},"isError":true,"_meta":{"a":1}}`
	got, err := view(json.RawMessage(raw), toolproxyv1.ResultView_RESULT_VIEW_UNSPECIFIED)
	if err != nil {
		t.Fatal(err)
	}
	other := func(s string) *toolproxyv1.ContentBlock {
		return &toolproxyv1.ContentBlock{Block: &toolproxyv1.ContentBlock_OtherJson{OtherJson: s}}
	}
	want := &toolproxyv1.ToolResult{
		IsError: true, StructuredContentJson: `{"n":9007199254740993}`, MetaJson: `{"a":1}`,
		Content: []*toolproxyv1.ContentBlock{
			{Block: &toolproxyv1.ContentBlock_Text{Text: &toolproxyv1.TextContent{Text: "hi\uFFFD"}}, AnnotationsJson: `{"priority":1.0}`, MetaJson: `{"k":1.10}`},
			{Block: &toolproxyv1.ContentBlock_Image{Image: &toolproxyv1.MediaContent{Data: []byte{1, 2, 3}, MimeType: "image/png"}}},
			{Block: &toolproxyv1.ContentBlock_Audio{Audio: &toolproxyv1.MediaContent{Data: []byte{1, 2, 3}, MimeType: "audio/wav"}}},
			{Block: &toolproxyv1.ContentBlock_ResourceLink{ResourceLink: &toolproxyv1.ResourceLink{
				Uri: "memo:x", Name: "n", Title: "T", Description: "d", MimeType: "a/b", Size: new(int64(12)), IconsJson: `[{"src":"s"}]`,
			}}},
			{Block: &toolproxyv1.ContentBlock_Resource{Resource: &toolproxyv1.EmbeddedResource{
				Uri: "file:///t", MimeType: "text/plain", MetaJson: `{"m":1}`, Contents: &toolproxyv1.EmbeddedResource_Text{Text: "t"},
			}}},
			{Block: &toolproxyv1.ContentBlock_Resource{Resource: &toolproxyv1.EmbeddedResource{
				Uri: "file:///b", Contents: &toolproxyv1.EmbeddedResource_Blob{Blob: []byte{1, 2, 3}},
			}}},
			other(`{"type":"hologram","depth":1e400}`),
			other(`{"type":"image","data":"not base64!"}`),
			other(`{"type":"text"}`),
			other(`{"type":"resource_link","name":"no uri"}`),
			other(`{"type":"resource","resource":{"uri":"u"}}`),
			other(`{"type":"resource_link","uri":"u","size":1.5}`),
			other(`"bare"`), other(`null`), other(`{"type":7}`),
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestStructuredContentThatIsNullIsAbsent(t *testing.T) {
	for raw, want := range map[string]string{
		`{"content":[],"structuredContent":null}`: "", `{"content":null,"structuredContent":[1]}`: "[1]", `{"structuredContent":"x"}`: `"x"`,
	} {
		got, err := view(json.RawMessage(raw), toolproxyv1.ResultView_RESULT_VIEW_TYPED)
		if err != nil || got.GetStructuredContentJson() != want || len(got.GetContent()) != 0 {
			t.Errorf("%s: %v, %v", raw, got, err)
		}
	}
}

func TestResultsThatBreakTheProtocol(t *testing.T) {
	for _, raw := range []string{`{"content":{}}`, `{"content":"x"}`, `{"content":[],"isError":"yes"}`} {
		if got, err := view(json.RawMessage(raw), toolproxyv1.ResultView_RESULT_VIEW_TYPED); !fault.Is(err, fault.UpstreamProtocol) {
			t.Errorf("%s: %v, %v", raw, got, err)
		}
	}
}

// Interim answers are never taken for empty results.
func TestInterimAnswersAreNotResults(t *testing.T) {
	for _, tc := range []struct {
		raw    string
		modern bool
		ok     bool
	}{
		{`{"content":[]}`, false, true},
		{`{"content":[],"resultType":"complete"}`, true, true},
		{`{"content":[],"resultType":null}`, true, true},
		{`{"content":[],"resultType":"from the future"}`, false, true},
		{`{"content":[],"task":{"taskId":"mine"}}`, false, true},
		{`{"content":[],"resultType":"from the future"}`, true, false},
		{`{"resultType":"task","taskId":"t"}`, true, false},
		{`{"resultType":"task","taskId":"t"}`, false, false},
		{`{"task":{"taskId":"t","status":"working"}}`, false, false},
		{`{"resultType":"input_required","inputRequests":{}}`, true, false},
		{`{"resultType":7}`, false, false},
		{`null`, false, false}, {`[]`, false, false}, {`"text"`, true, false},
	} {
		err := checkResult(json.RawMessage(tc.raw), tc.modern)
		if (err == nil) != tc.ok || err != nil && !fault.Is(err, fault.UpstreamProtocol) {
			t.Errorf("%s, modern %v: %v", tc.raw, tc.modern, err)
		}
	}
}

func FuzzViewNeverPanics(f *testing.F) {
	f.Add([]byte(`{"content":[{"type":"text","text":"x"}],"isError":true}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) {
			return
		}
		if checkResult(raw, true) == nil {
			_, _ = view(raw, toolproxyv1.ResultView_RESULT_VIEW_TYPED)
			_, _ = view(raw, toolproxyv1.ResultView_RESULT_VIEW_JSON)
		}
	})
}
