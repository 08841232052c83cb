package demoserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	_ "time/tzdata" // `now` knows time zones on machines without them

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addTools registers every tool; each gets its schemas from the types of its arguments and results.
func addTools(s *mcp.Server, started time.Time) {
	mcp.AddTool(s, readOnly("echo", "Return the text it is given."), echo)
	mcp.AddTool(s, readOnly("add", "Add two numbers."), add)
	mcp.AddTool(s, readOnly("now", "Return the current time, in a time zone if one is given."), now)
	slow := readOnly("slow_count", "Count to a number, one step at a time, and report progress on the way.")
	slow.InputSchema = slowCountSchema()
	mcp.AddTool(s, slow, slowCount)
	mcp.AddTool(s, readOnly("fail", "Fail with a message, to see what a tool error looks like."), fail)
	c := &counter{started: started}
	mcp.AddTool(s, &mcp.Tool{
		Name:        "counter",
		Description: "Count the calls that this process has had, and tell which process it is. Calls in one session reach the same one.",
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(false), OpenWorldHint: new(false)},
	}, c.count)
	mcp.AddTool(s, readOnly("env_names", "List the names of the environment variables that the server was given, without their values."), envNames)
}

func readOnly(name, description string) *mcp.Tool {
	return &mcp.Tool{
		Name: name, Description: description,
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)},
	}
}

type echoed struct {
	Text string `json:"text" jsonschema:"the text"`
}

func echo(_ context.Context, _ *mcp.CallToolRequest, in echoed) (*mcp.CallToolResult, echoed, error) {
	return text(in.Text), in, nil
}

type summands struct {
	A float64 `json:"a" jsonschema:"the first number"`
	B float64 `json:"b" jsonschema:"the second number"`
}

type sum struct {
	Sum float64 `json:"sum" jsonschema:"a + b"`
}

func add(_ context.Context, _ *mcp.CallToolRequest, in summands) (*mcp.CallToolResult, sum, error) {
	out := sum{Sum: in.A + in.B}
	b, err := json.Marshal(out.Sum)
	if err != nil {
		return nil, sum{}, errors.New("the sum is too large for a number")
	}
	return text(string(b)), out, nil
}

type zone struct {
	Timezone string `json:"timezone,omitempty" jsonschema:"an IANA time zone such as Europe/Berlin; UTC when left out"`
}

type moment struct {
	Time     string `json:"time" jsonschema:"RFC 3339, to the second"`
	Unix     int64  `json:"unix" jsonschema:"seconds since 1970-01-01T00:00:00Z"`
	Timezone string `json:"timezone" jsonschema:"the time zone of time"`
}

func now(_ context.Context, _ *mcp.CallToolRequest, in zone) (*mcp.CallToolResult, moment, error) {
	location, err := time.LoadLocation(in.Timezone)
	if err != nil {
		return nil, moment{}, fmt.Errorf("unknown time zone %q: give an IANA name such as Europe/Berlin", in.Timezone)
	}
	t := time.Now().In(location)
	out := moment{Time: t.Format(time.RFC3339), Unix: t.Unix(), Timezone: location.String()}
	return text(out.Time), out, nil
}

type steps struct {
	Steps      int `json:"steps,omitempty" jsonschema:"how far to count"`
	IntervalMS int `json:"interval_ms,omitempty" jsonschema:"milliseconds between two steps"`
}

type counted struct {
	Counted int `json:"counted" jsonschema:"the number counted to"`
}

// slowCountSchema bounds the arguments, so that no call takes longer than 100 × 10 s.
func slowCountSchema() *jsonschema.Schema {
	schema, err := jsonschema.For[steps](nil)
	if err != nil {
		panic(fmt.Sprintf("schema of slow_count: %v", err)) // the type is fixed
	}
	bound := func(name string, low, high float64, standard string) {
		p := schema.Properties[name]
		p.Minimum, p.Maximum, p.Default = new(low), new(high), json.RawMessage(standard)
	}
	bound("steps", 1, 100, "5")
	bound("interval_ms", 0, 10_000, "200")
	return schema
}

func slowCount(ctx context.Context, req *mcp.CallToolRequest, in steps) (*mcp.CallToolResult, counted, error) {
	token := req.Params.GetProgressToken()
	tick := time.NewTicker(max(time.Duration(in.IntervalMS)*time.Millisecond, time.Nanosecond))
	defer tick.Stop()
	for i := range in.Steps {
		select {
		case <-ctx.Done():
			return nil, counted{}, fmt.Errorf("stopped at %d of %d: %w", i, in.Steps, context.Cause(ctx))
		case <-tick.C:
		}
		if token == nil {
			continue
		}
		progress := &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: float64(i + 1), Total: float64(in.Steps), Message: fmt.Sprintf("step %d of %d", i+1, in.Steps),
		}
		if err := req.Session.NotifyProgress(ctx, progress); err != nil {
			return nil, counted{}, fmt.Errorf("report progress: %w", err)
		}
	}
	return text(fmt.Sprintf("counted to %d", in.Steps)), counted{Counted: in.Steps}, nil
}

type failure struct {
	Message string `json:"message,omitempty" jsonschema:"what the error says"`
}

func fail(_ context.Context, _ *mcp.CallToolRequest, in failure) (*mcp.CallToolResult, any, error) {
	if in.Message == "" {
		in.Message = "this tool always fails"
	}
	return nil, nil, errors.New(in.Message)
}

// counter is the state of one server.
type counter struct {
	started time.Time
	calls   atomic.Int64
}

type nothing struct{}

type count struct {
	Count   int64  `json:"count" jsonschema:"calls so far, this one included"`
	PID     int    `json:"pid" jsonschema:"the id of the process"`
	Started string `json:"started" jsonschema:"when the process started, RFC 3339"`
}

func (c *counter) count(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, count, error) {
	out := count{Count: c.calls.Add(1), PID: os.Getpid(), Started: c.started.UTC().Format(time.RFC3339)}
	return text(fmt.Sprintf("call %d of process %d", out.Count, out.PID)), out, nil
}

type variables struct {
	Names []string `json:"names" jsonschema:"sorted"`
}

func envNames(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, variables, error) {
	names := []string{}
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return text(strings.Join(names, "\n")), variables{Names: names}, nil
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}
