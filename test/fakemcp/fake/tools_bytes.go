package fake

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// byteTools return exactly known bytes.
func byteTools() []tool {
	return []tool{
		{
			name: "echo", about: "Returns its arguments, as text and as structured content, byte for byte as they came.",
			schema: `{"type":"object","additionalProperties":true}`, run: echo,
		},
		{
			name: "raw",
			about: "Returns a literal answer, byte for byte: `result` is a JSON object, `literal` a string that holds one, " +
				"`base64` the same for bytes that are no UTF-8, `error` a JSON-RPC error object.",
			schema: `{"type":"object","properties":{"result":{"type":"object"},"literal":{"type":"string"},"base64":{"type":"string"},"error":{"type":"object"}}}`,
			run:    raw,
		},
		{
			name: "big", about: "Returns a text of so many bytes of the letter a.",
			schema: `{"type":"object","properties":{"bytes":{"type":"integer","minimum":0,"maximum":67108864}},"required":["bytes"]}`,
			run:    big,
		},
		{name: "blocks", about: "Returns a content block of each kind, an unknown one among them, with annotations and _meta.", run: fixed(blocks)},
		{
			name: "structured_error", about: "Returns structured content together with isError.",
			run: fixed(`{"content":[],"structuredContent":{"code":"RATE_LIMITED","retry_after":1.50},"isError":true}`),
		},
		{
			name: "structured_value", about: "Returns structured content that is any JSON value.",
			schema: `{"type":"object","properties":{"value":{}},"required":["value"]}`,
			run: func(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
				return text("a value", `"structuredContent":`+string(rawrpc.Member(c.args, "value"))), nil
			},
		},
		{
			name: "fail", about: "Returns isError with the given message.",
			schema: `{"type":"object","properties":{"message":{"type":"string"}}}`,
			run: func(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
				return refused("%s", rawrpc.Text(c.args, "message")), nil
			},
		},
		{
			name: "meta", about: "Returns the _meta of the request, and a _meta of its own.",
			run: func(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
				meta := c.params["_meta"]
				if meta == nil {
					meta = json.RawMessage("{}")
				}
				return text(string(meta), `"structuredContent":`+string(meta),
					`"_meta":{"fake.test/number":9007199254740993,"fake.test/nested":{"b":1.10,"a":[]}}`), nil
			},
		},
	}
}

func fixed(result string) func(context.Context, *call) (json.RawMessage, *rawrpc.Error) {
	return func(context.Context, *call) (json.RawMessage, *rawrpc.Error) { return json.RawMessage(result), nil }
}

func echo(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	if c.args == nil {
		return text(""), nil
	}
	return structured(c.args), nil
}

func raw(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	var in struct {
		Literal string `json:"literal"`
		Base64  []byte `json:"base64"`
	}
	if e := c.decode(&in); e != nil {
		return nil, e
	}
	if object := rawrpc.Member(c.args, "error"); object != nil {
		e := new(rawrpc.Error)
		if err := json.Unmarshal(object, e); err != nil {
			return nil, rawrpc.Errorf(rawrpc.CodeInvalidParams, "raw: error: %v", err)
		}
		return nil, e
	}
	result := []byte(rawrpc.Member(c.args, "result"))
	switch {
	case in.Literal != "":
		result = []byte(in.Literal)
	case in.Base64 != nil:
		result = in.Base64
	}
	if !json.Valid(result) || bytes.TrimSpace(result)[0] != '{' || bytes.ContainsAny(result, "\r\n") {
		return nil, rawrpc.Errorf(rawrpc.CodeInvalidParams, "raw: give result, literal, base64 or error; a literal is a JSON object without line breaks")
	}
	return result, nil
}

func big(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	var in struct {
		Bytes int `json:"bytes"`
	}
	if e := c.decode(&in); e != nil {
		return nil, e
	}
	if in.Bytes < 0 || in.Bytes > 64<<20 {
		return refused("bytes is out of range"), nil
	}
	return fmt.Appendf(nil, `{"content":[{"type":"text","text":"%s"}]}`, strings.Repeat("a", in.Bytes)), nil
}

// A PNG of one pixel and a WAV without samples, so that a strict client accepts the blocks.
const (
	pixel   = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
	silence = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
)

const blocks = `{"content":[` +
	`{"type":"text","text":"one <b>&\u00e9\u2028","annotations":{"audience":["user"],"priority":0.50},"_meta":{"fake.test/block":1}},` +
	`{"type":"image","data":"` + pixel + `","mimeType":"image/png","_meta":{"fake.test/block":2}},` +
	`{"type":"audio","data":"` + silence + `","mimeType":"audio/wav"},` +
	`{"type":"resource_link","uri":"file:///tmp/a%20b.txt","name":"a b.txt","title":"A and B","description":"a link","mimeType":"text/plain","size":9007199254740993,"icons":[{"src":"data:,"}],"_meta":{"fake.test/block":4}},` +
	`{"type":"resource","resource":{"uri":"memo:insights","mimeType":"text/plain","text":"embedded","_meta":{"fake.test/block":5}},"annotations":{"lastModified":"2026-01-02T03:04:05Z"}},` +
	`{"type":"resource","resource":{"uri":"ui://fake/app","mimeType":"application/octet-stream","blob":"AAEC"}},` +
	`{"type":"hologram","x":1,"depth":1.10,"nested":{"type":"text","text":"inside"}},` +
	`{"type":"text","text":"last","x-unknown":[1e5,1E400]}` +
	`],"isError":false,"x-future":{"z":1,"a":2},"_meta":{"ui":{"resourceUri":"ui://fake/app"},"fake.test/number":1.0}}`

// Base64 encodes bytes for the argument base64 of the tool `raw`.
func Base64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
