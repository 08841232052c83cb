package evil

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// noiseModes write what is no message.
func noiseModes() []Mode {
	noise := []string{
		"Starting up…", "", "   ", "\x1b[32mready\x1b[0m", "\xef\xbb\xbfBOM", "{", "}", "[]", "[1]", "42", "null", "true", `"text"`, "{}",
		`{"level":"info","msg":"listening"}`, `{"id":1}`, `{"jsonrpc":"1.0","id":1,"result":{}}`, "a\x00b\xff\xfe",
		`{"jsonrpc":"2.0","id":`, strings.Repeat("-", 100_000),
	}
	return []Mode{
		{
			Name: "noise", On: "*", About: "writes lines that are no JSON-RPC before and after every answer, the first one included",
			frames: func(r *request) [][]byte {
				var out [][]byte
				for i, n := range noise {
					if i == len(noise)/2 {
						out = append(out, r.honest)
					}
					out = append(out, []byte(n))
				}
				return out
			},
		},
		{
			Name: "crlf", On: "*", About: "ends lines with CR LF and puts blanks around answers",
			frames: func(r *request) [][]byte { return [][]byte{[]byte("  " + string(r.honest) + " \t\r"), []byte("\r")} },
		},
		{
			Name: "noise-long", Size: 20 << 20, About: "writes a line of -size bytes that is no JSON before the answer",
			frames: func(r *request) [][]byte { return [][]byte{fill(r.o.Size, '#'), r.honest} },
		},
		{
			Name: "invalid-utf8", About: "answers with bytes in a text that are no UTF-8",
			frames: func(r *request) [][]byte {
				return [][]byte{r.result("{\"content\":[{\"type\":\"text\",\"text\":\"a\xff\xfeb\xc3(\"}]}")}
			},
		},
		lines("bom", "puts a byte order mark before the answer",
			"\xef\xbb\xbf"+`{"jsonrpc":"2.0","id":%ID%,"result":{"content":[]}}`),
	}
}

// sizeModes write messages that are too long, or nearly.
func sizeModes() []Mode {
	idFirst := func(r *request) [][]byte { return [][]byte{r.text(string(fill(r.o.Size, 'a')))} }
	idLast := func(r *request) [][]byte {
		return [][]byte{fmt.Appendf(nil, `{"jsonrpc":"2.0","result":{"content":[{"type":"text","text":"%s"}]},"id":%s}`, fill(r.o.Size, 'a'), r.msg.ID)}
	}
	return []Mode{
		{Name: "long-70k", Size: 70_000, About: "answers with a line of 70 KB", frames: idFirst},
		{Name: "long-5m", Size: 5 << 20, About: "answers with a line of 5 MiB", frames: idFirst},
		{Name: "long-20m", Size: 20 << 20, About: "answers with a line of 20 MiB, the id before the result", frames: idFirst},
		{Name: "long-20m-id-last", Size: 20 << 20, About: "answers with a line of 20 MiB, the id after the result", frames: idLast},
		{
			Name: "long-20m-decoy", Size: 20 << 20,
			About: "answers with a line of 20 MiB whose result holds another id, before the real one",
			frames: func(r *request) [][]byte {
				return [][]byte{fmt.Appendf(nil, `{"jsonrpc":"2.0","result":{"id":%d,"content":[{"id":0,"type":"text","text":"\"id\":0,%s"}]},"id":%s}`, 1<<30, fill(r.o.Size, 'a'), r.msg.ID)}
			},
		},
		{
			Name: "long-20m-error", Size: 20 << 20, About: "answers with a JSON-RPC error of 20 MiB",
			frames: func(r *request) [][]byte {
				return [][]byte{rawrpc.Failure(r.msg.ID, rawrpc.Errorf(rawrpc.CodeInternal, "%s", fill(r.o.Size, 'e')))}
			},
		},
		{
			Name: "long-20m-notification", Size: 20 << 20, About: "sends a log message of 20 MiB before the answer",
			frames: func(r *request) [][]byte {
				return [][]byte{fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%s"}}`, fill(r.o.Size, 'n')), r.honest}
			},
		},
		{
			Name: "endless-line", Size: 256 << 20, About: "answers with a line of -size bytes that never ends",
			process: dieOn("tools/call", func(p *process, m rawrpc.Message) {
				if p.put(half(m)) != nil {
					return
				}
				chunk := fill(1<<20, 'a')
				for n := 0; n < p.o.Size && p.put(chunk) == nil; n += len(chunk) {
				}
			}),
		},
		{
			Name: "deep", Size: 200_000, About: "answers with -size arrays in each other",
			frames: func(r *request) [][]byte {
				return [][]byte{r.result(`{"content":[],"structuredContent":{"deep":` + strings.Repeat("[", r.o.Size) + strings.Repeat("]", r.o.Size) + `}}`)}
			},
		},
		{
			Name: "many-blocks", Size: 100_000, About: "answers with -size content blocks",
			frames: func(r *request) [][]byte {
				block := []byte(`{"type":"text","text":"x"}`)
				return [][]byte{r.result(`{"content":[` + string(bytes.Join(repeat(block, r.o.Size), []byte(","))) + `]}`)}
			},
		},
	}
}

func repeat(b []byte, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = b
	}
	return out
}

// answerModes answer with envelopes and results of a wrong shape.
func answerModes() []Mode {
	call := func(name, about, result string) Mode { return answers(name, "tools/call", about, result) }
	return []Mode{
		{
			Name: "duplicate-answer", About: "answers twice, the second time with another text",
			frames: func(r *request) [][]byte { return [][]byte{r.honest, r.text("the second answer")} },
		},
		{
			Name: "unknown-ids", About: "answers requests that were never made, then the real one",
			frames: func(r *request) [][]byte {
				out := make([][]byte, 0, 6)
				for _, id := range []string{"987654321", `"no-such-id"`, "null", "-1", "1.5", `"` + strings.Trim(string(r.msg.ID), `"`) + `x"`} {
					out = append(out, rawrpc.Result([]byte(id), []byte(`{"content":[{"type":"text","text":"for someone else"}]}`)))
				}
				return append(out, r.honest)
			},
		},
		{
			Name: "id-other-type", About: "answers with the id as a string where it was a number, and the other way round",
			frames: func(r *request) [][]byte {
				id := strings.Trim(string(r.msg.ID), `"`)
				if id == string(r.msg.ID) {
					id = `"` + id + `"`
				}
				return [][]byte{rawrpc.Result([]byte(id), []byte(`{"content":[]}`))}
			},
		},
		{
			Name: "swapped-answers", About: "keeps the first answer and gives it to the second request, and the other way round",
			process: swapped,
		},
		lines("no-version", "answers without the member jsonrpc", `{"id":%ID%,"result":{"content":[]}}`),
		lines("no-outcome", "answers with neither result nor error", `{"jsonrpc":"2.0","id":%ID%}`),
		lines("both-outcomes", "answers with both a result and an error", `{"jsonrpc":"2.0","id":%ID%,"result":{"content":[]},"error":{"code":-32000,"message":"both"}}`),
		lines("duplicate-members", "answers with id and result twice", `{"jsonrpc":"2.0","id":999999,"id":%ID%,"result":{"content":[{"type":"text","text":"first"}]},"result":{"content":[{"type":"text","text":"last"}]}}`),
		lines("other-case", "answers with members in capitals before the real ones", `{"JSONRPC":"1.0","ID":999999,"RESULT":null,"jsonrpc":"2.0","id":%ID%,"result":{"content":[{"type":"text","text":"small"}],"IsError":true}}`),
		lines("batch", "answers with a batch of one", `[{"jsonrpc":"2.0","id":%ID%,"result":{"content":[]}}]`),
		lines("error-string", "answers with an error that is a string", `{"jsonrpc":"2.0","id":%ID%,"error":"it broke"}`),
		lines("error-null", "answers with an error that is null", `{"jsonrpc":"2.0","id":%ID%,"error":null}`),
		lines("error-no-code", "answers with an error without a code", `{"jsonrpc":"2.0","id":%ID%,"error":{"message":"no code"}}`),
		lines("error-secret", "answers with an error whose message has a secret and control characters", `{"jsonrpc":"2.0","id":%ID%,"error":{"code":-32603,"message":"upstream said: Authorization: Bearer `+Secret+`\u001b[2J\r\nforged: line"}}`),
		call("result-null", "answers with the result null", "null"),
		call("result-array", "answers with an array", "[]"),
		call("result-string", "answers with a string", `"done"`),
		call("result-number", "answers with a number", "1e400"),
		call("content-missing", "answers with an empty object", "{}"),
		call("content-null", "answers with content null", `{"content":null}`),
		call("content-object", "answers with content that is an object", `{"content":{"type":"text","text":"x"}}`),
		call("content-null-block", "answers with a content block that is null", `{"content":[null,{"type":"text","text":"after null"}]}`),
		call("content-bad-blocks", "answers with blocks that are no objects, have no type or the wrong members", `{"content":["x",1,[],{},{"type":7},{"type":"text"},{"type":"text","text":5},{"type":"image"},{"type":"resource"},{"type":"resource","resource":null}]}`),
		call("is-error-string", "answers with isError that is a string", `{"content":[],"isError":"yes"}`),
		call("structured-values", "answers with structured content that is null", `{"content":[{"type":"text","text":"x"}],"structuredContent":null}`),
		call("meta-array", "answers with _meta that is an array", `{"content":[],"_meta":[1]}`),
		call("task-handle", "answers with a task nobody asked for", `{"resultType":"task","taskId":"t-1","status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttlMs":60000,"pollIntervalMs":1000}`),
		call("input-required", "answers with an input request nobody can meet", `{"resultType":"input_required","inputRequests":{"x":{"method":"evil/method","params":{}}},"requestState":"s"}`),
	}
}
