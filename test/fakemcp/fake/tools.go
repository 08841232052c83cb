package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// tool is one entry of tools/list and what it does.
type tool struct {
	name   string
	about  string // "" leaves the member out
	schema string // inputSchema, `{"type":"object"}` when empty
	more   string // further members of the definition, as JSON without braces
	run    func(ctx context.Context, c *call) (json.RawMessage, *rawrpc.Error)
}

// definition is the tool as tools/list shows it.
func (t tool) definition() json.RawMessage {
	schema := t.schema
	if schema == "" {
		schema = `{"type":"object"}`
	}
	b := fmt.Appendf(nil, `{"name":%s`, rawrpc.Quote(t.name))
	if t.about != "" {
		b = fmt.Appendf(b, `,"description":%s`, rawrpc.Quote(t.about))
	}
	b = fmt.Appendf(b, `,"inputSchema":%s`, schema)
	if t.more != "" {
		b = fmt.Appendf(b, `,%s`, t.more)
	}
	return append(b, '}')
}

func filler(i int) tool {
	return tool{name: fmt.Sprintf("filler_%04d", i), about: "Returns its arguments; one of many.", run: echo}
}

// Definitions returns the tools as tools/list shows them, over all pages.
func (s *Server) Definitions() []json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []json.RawMessage
	for _, t := range s.tools {
		all = append(all, t.definition())
	}
	return all
}

const cursorPrefix = "after:"

// list answers tools/list, a page at a time. The cursor is the number of tools already shown.
func (c *call) list() (json.RawMessage, *rawrpc.Error) {
	all := c.srv.Definitions()
	start := 0
	if cursor := rawrpc.Text(c.msg.Params, "cursor"); cursor != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(cursor, cursorPrefix))
		if err != nil || !strings.HasPrefix(cursor, cursorPrefix) || n < 0 || n > len(all) {
			return nil, rawrpc.Errorf(rawrpc.CodeInvalidParams, "invalid cursor %q", cursor)
		}
		start = n
	}
	end := len(all)
	if size := c.srv.o.PageSize; size > 0 {
		end = min(end, start+size)
	}
	b := []byte("{")
	if c.modern {
		b = append(b, `"resultType":"complete","ttlMs":0,"cacheScope":"private",`...)
	}
	b = append(b, `"tools":[`...)
	for i, definition := range all[start:end] {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, definition...)
	}
	b = append(b, ']')
	if end < len(all) {
		b = fmt.Appendf(b, `,"nextCursor":"%s%d"`, cursorPrefix, end)
	}
	return fmt.Appendf(b, `,"_meta":{"fake.test/first":%d}}`, start), nil
}

// run answers tools/call.
func (c *call) run(ctx context.Context) (json.RawMessage, *rawrpc.Error) {
	c.srv.mu.Lock()
	i := slices.IndexFunc(c.srv.tools, func(t tool) bool { return t.name == c.tool })
	var t tool
	if i >= 0 {
		t = c.srv.tools[i]
	}
	c.srv.mu.Unlock()
	if i < 0 {
		return nil, rawrpc.Errorf(rawrpc.CodeInvalidParams, "unknown tool: %s", c.tool)
	}
	result, e := t.run(ctx, c)
	if e == nil && c.modern && t.name != "raw" && !bytes.HasPrefix(result, []byte(`{"resultType":`)) {
		result = rawrpc.Prepend(result, "resultType", json.RawMessage(`"complete"`))
	}
	return result, e
}

// text is a result of one text block; members, like `"isError":true`, follow it.
func text(s string, members ...string) json.RawMessage {
	b := fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}]`, rawrpc.Quote(s))
	for _, m := range members {
		b = append(append(b, ','), m...)
	}
	return append(b, '}')
}

// structured is a result whose text is its structured content.
func structured(raw json.RawMessage) json.RawMessage {
	return text(string(raw), `"structuredContent":`+string(raw))
}

// refused is a result that tells the model what was wrong with the call.
func refused(format string, args ...any) json.RawMessage {
	return text(fmt.Sprintf(format, args...), `"isError":true`)
}

// decode reads the arguments into v; absent arguments leave v as it is.
func (c *call) decode(v any) *rawrpc.Error {
	if c.args == nil {
		return nil
	}
	if err := json.Unmarshal(c.args, v); err != nil {
		return rawrpc.Errorf(rawrpc.CodeInvalidParams, "arguments of %s: %v", c.tool, err)
	}
	return nil
}

func builtin() []tool {
	return slices.Concat(byteTools(), callTools(), processTools(), strangeTools(), jobTools())
}
