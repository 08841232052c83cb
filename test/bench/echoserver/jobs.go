package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// jobs are background tasks that never end by themselves. They cost nothing: a status call only counts.
type jobs struct {
	pollAfter float64 // what a status answer asks for, in seconds
	started   atomic.Int64
	asked     atomic.Int64
}

// register adds the tools `start_job`, `job_status` and `cancel_job`, a toolset, and `asked`, how often a status was asked for.
func (j *jobs) register(server *mcp.Server) {
	add := func(name string, f func(id string) (*mcp.CallToolResult, error)) {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				var in struct {
					TaskID string `json:"task_id"`
				}
				if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
					return nil, err
				}
				return f(in.TaskID)
			})
	}
	add("start_job", func(string) (*mcp.CallToolResult, error) {
		return structured(`{"task_id":"job-%d","status":"running"}`, j.started.Add(1)), nil
	})
	add("job_status", func(id string) (*mcp.CallToolResult, error) {
		j.asked.Add(1)
		return structured(`{"task_id":%q,"status":"running","poll_after_seconds":%g}`, id, j.pollAfter), nil
	})
	add("cancel_job", func(id string) (*mcp.CallToolResult, error) {
		return structured(`{"task_id":%q,"status":"cancelled"}`, id), nil
	})
	add("asked", func(string) (*mcp.CallToolResult, error) {
		return text(strconv.FormatInt(j.asked.Load(), 10)), nil
	})
}

func structured(format string, args ...any) *mcp.CallToolResult {
	content := fmt.Sprintf(format, args...)
	res := text(content)
	res.StructuredContent = json.RawMessage(content)
	return res
}
