package session

import (
	"context"
	"encoding/json"

	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// Call is one tools/call.
type Call struct {
	Name      string          // the tool's name on its server
	Arguments json.RawMessage // a JSON object, sent token for token; empty means {}
	Meta      string          // further members of _meta, `"key":value,…`; empty if there are none
	Listen    link.CallOptions
}

// CallTool calls a tool and returns the server's result as it came, which is valid JSON of any type.
//
// Errors are those of [link.Link.CallWith]: a *[jsonrpc.Error] where the server refused, SESSION_CLOSED where the
// connection ended in flight (matching [link.ErrNotSent] where the call never left), that of ctx where it ended first,
// in which case the server is told, and otherwise what the wire reports for this message.
func (s *Session) CallTool(ctx context.Context, c Call) (json.RawMessage, error) {
	return s.link.CallWith(ctx, "tools/call", s.callParams(c), c.Listen)
}

func (s *Session) callParams(c Call) json.RawMessage {
	const frame = len(`{"name":"","arguments":{},"_meta":{},}`)
	b := make([]byte, 0, frame+len(c.Name)+len(c.Arguments)+len(c.Meta)+len(s.meta))
	b = append(b, `{"name":`...)
	b = jsonrpc.AppendString(b, c.Name)
	b = append(b, `,"arguments":`...)
	if len(c.Arguments) == 0 {
		b = append(b, "{}"...)
	} else {
		b = append(b, c.Arguments...)
	}
	if meta := joinMembers(s.meta, c.Meta); meta != "" {
		b = append(b, `,"_meta":{`...)
		b = append(b, meta...)
		b = append(b, '}')
	}
	return append(b, '}')
}

// joinMembers joins two lists of object members, each of which may be empty.
func joinMembers(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "," + b
}
