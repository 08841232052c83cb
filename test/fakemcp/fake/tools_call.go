package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// callTools show what can happen while a call runs.
func callTools() []tool {
	return []tool{
		{
			name: "sleep", about: "Returns after so many milliseconds, or never when it is cancelled; the tool stats tells of the cancel.",
			schema: `{"type":"object","properties":{"ms":{"type":"integer","minimum":0}},"required":["ms"]}`, run: sleep,
		},
		{
			name: "progress", about: "Sends so many progress notifications, interval_ms apart, and returns how many.",
			schema: `{"type":"object","properties":{"steps":{"type":"integer","minimum":0,"maximum":100000},"interval_ms":{"type":"integer","minimum":0},"message":{"type":"string"}},"required":["steps"]}`,
			run:    progress,
		},
		{
			name: "log", about: "Sends so many log messages of a level with the given data, any JSON value.",
			schema: `{"type":"object","properties":{"level":{"type":"string"},"logger":{"type":"string"},"data":{},"count":{"type":"integer","minimum":0,"maximum":100000}}}`,
			run:    logMessages,
		},
		{
			name: "notify", about: "Sends the client any notification.",
			schema: `{"type":"object","properties":{"method":{"type":"string"},"params":{"type":"object"}},"required":["method"]}`,
			run: func(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
				if err := c.notify(rawrpc.Text(c.args, "method"), rawrpc.Member(c.args, "params")); err != nil {
					return refused("notify: %v", err), nil
				}
				return text("sent"), nil
			},
		},
		{
			name: "ask", about: "Sends the client any request (before 2026-07-28) and returns its answer message.",
			schema: `{"type":"object","properties":{"method":{"type":"string"},"params":{"type":"object"}},"required":["method"]}`,
			run:    ask,
		},
		{
			name: "elicit", about: "Asks the user for an answer: by a request, or on 2026-07-28 by an input_required result.",
			schema: `{"type":"object","properties":{"message":{"type":"string"}}}`, run: elicit,
		},
	}
}

// wait returns false when ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// interrupted is the answer of a call that did not finish; it reaches the client only when the client
// did not give the call up.
func interrupted(ctx context.Context) *rawrpc.Error {
	return rawrpc.Errorf(rawrpc.CodeInternal, "interrupted: %v", context.Cause(ctx))
}

func sleep(ctx context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	var in struct {
		MS int64 `json:"ms"`
	}
	if e := c.decode(&in); e != nil {
		return nil, e
	}
	if !wait(ctx, time.Duration(in.MS)*time.Millisecond) {
		return nil, interrupted(ctx)
	}
	return structured(fmt.Appendf(nil, `{"slept_ms":%d}`, in.MS)), nil
}

func progress(ctx context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	var in struct {
		Steps      int    `json:"steps"`
		IntervalMS int64  `json:"interval_ms"`
		Message    string `json:"message"`
	}
	if e := c.decode(&in); e != nil {
		return nil, e
	}
	token := rawrpc.Member(c.params["_meta"], "progressToken")
	for i := range in.Steps {
		if !wait(ctx, time.Duration(in.IntervalMS)*time.Millisecond) {
			return nil, interrupted(ctx)
		}
		if token == nil {
			continue
		}
		params := fmt.Appendf(nil, `{"progressToken":%s,"progress":%d,"total":%d`, token, i+1, in.Steps)
		if in.Message != "" {
			params = fmt.Appendf(params, `,"message":%s`, rawrpc.Quote(fmt.Sprintf("%s %d", in.Message, i+1)))
		}
		if err := c.notify("notifications/progress", append(params, '}')); err != nil {
			return nil, rawrpc.Errorf(rawrpc.CodeInternal, "progress: %v", err)
		}
	}
	return structured(fmt.Appendf(nil, `{"steps":%d,"asked":%t}`, in.Steps, token != nil)), nil
}

func logMessages(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	in := struct {
		Level  string          `json:"level"`
		Logger string          `json:"logger"`
		Data   json.RawMessage `json:"data"`
		Count  *int            `json:"count"`
	}{Level: "info", Data: json.RawMessage(`"hello"`), Count: new(1)}
	if e := c.decode(&in); e != nil {
		return nil, e
	}
	if c.modern && rawrpc.Member(c.params["_meta"], rawrpc.MetaLogLevel) == nil {
		return structured(json.RawMessage(`{"sent":0}`)), nil // 2026-07-28 logs only to those who ask
	}
	params := fmt.Appendf(nil, `{"level":%s`, rawrpc.Quote(in.Level))
	if in.Logger != "" {
		params = fmt.Appendf(params, `,"logger":%s`, rawrpc.Quote(in.Logger))
	}
	params = fmt.Appendf(params, `,"data":%s}`, in.Data)
	for range *in.Count {
		if err := c.notify("notifications/message", params); err != nil {
			return nil, rawrpc.Errorf(rawrpc.CodeInternal, "log: %v", err)
		}
	}
	return structured(fmt.Appendf(nil, `{"sent":%d}`, *in.Count)), nil
}

func ask(ctx context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	if c.modern {
		return refused("servers send no requests on %s", rawrpc.V20260728), nil
	}
	return c.question(ctx, rawrpc.Text(c.args, "method"), rawrpc.Member(c.args, "params"))
}

// question asks the client and shows its answer.
func (c *call) question(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *rawrpc.Error) {
	m, err := c.ses.ask(ctx, c, method, params)
	if err != nil {
		return nil, rawrpc.Errorf(rawrpc.CodeInternal, "%s: %v", c.tool, err)
	}
	if m.Error != nil {
		return structured(fmt.Appendf(nil, `{"error":%s}`, m.Error)), nil
	}
	return structured(fmt.Appendf(nil, `{"result":%s}`, m.Result)), nil
}

const elicitState = "fake-elicit-state"

func elicit(ctx context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	message := rawrpc.Text(c.args, "message")
	if message == "" {
		message = "What is your name?"
	}
	if !c.can("elicitation") {
		return refused("the client cannot elicit"), nil
	}
	params := fmt.Appendf(nil, `{"message":%s,"requestedSchema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}`, rawrpc.Quote(message))
	if !c.modern {
		return c.question(ctx, "elicitation/create", params)
	}
	responses := c.params["inputResponses"]
	if responses == nil {
		return fmt.Appendf(nil, `{"resultType":"input_required","inputRequests":{"name":{"method":"elicitation/create","params":%s}},"requestState":%s}`,
			params, rawrpc.Quote(elicitState)), nil
	}
	if state := rawrpc.Text(c.msg.Params, "requestState"); state != elicitState {
		return nil, rawrpc.Errorf(rawrpc.CodeInvalidParams, "elicit: requestState is %q", state)
	}
	return structured(fmt.Appendf(nil, `{"result":%s}`, rawrpc.Member(responses, "name"))), nil
}
