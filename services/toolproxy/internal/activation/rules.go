package activation

import (
	"encoding/json"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// rules returns what the entry says about its tools.
func (a *Activator) rules(e *Entry) catalog.Rules {
	c := e.config
	return catalog.Rules{
		Server:    e.Name,
		Prefix:    c.ToolNamePrefix,
		Filter:    catalog.Filter{Allowed: c.AllowedTools, Disabled: c.DisabledTools},
		MaxLength: a.o.MaxNameLength,
		Toolsets:  c.TaskToolsets,
		Routing:   func(original string) *toolproxyv1.Routing { return routing(c.Routing, c.Tools[original]) },
	}
}

// routing returns the effective hints of a tool: the server's, overlaid by what the tool's own settings say. It is nil
// where they are off.
func routing(r serverconfig.Routing, tool json.RawMessage) *toolproxyv1.Routing {
	for key, value := range jsonrpc.Members(jsonrpc.Member(tool, "routing")) {
		switch string(key) {
		case "mode":
			if mode, ok := jsonrpc.String(value); ok {
				r.Mode = mode
			}
		case "priority":
			var n float64
			if json.Unmarshal(value, &n) == nil {
				r.Priority = int(max(0, min(100, n)))
			}
		case "keywords":
			var words []string
			if json.Unmarshal(value, &words) == nil {
				r.Keywords = words
			}
		}
	}
	if r.Mode != "prefer" {
		return nil
	}
	return &toolproxyv1.Routing{Mode: r.Mode, Priority: int32(r.Priority), Keywords: r.Keywords}
}
