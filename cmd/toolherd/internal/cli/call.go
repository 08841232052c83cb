package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

func newCall(s Streams) *cobra.Command {
	var flags clientFlags
	var scope scopeFlags
	var raw string
	var timeout, ttl time.Duration
	var requestID, sink string
	cmd := &cobra.Command{
		Use:   "call NAME [key=value | key:=json …]",
		Short: "Call a tool and print its result",
		Long: `Call a tool and print its result.

key=value is read as the tool's input schema says: text for a string, JSON for anything else. key:=json is always JSON.
--json gives all arguments at once, token for token; "-" reads them from standard input.
Progress goes to standard error. The exit status is 1 if the tool reports an error.

A tool that works in the background answers with a task: 'toolherd tasks watch' follows it.`,
		Example: `  toolherd call demo_echo text=hello
  toolherd call demo_add a=1 b=2
  toolherd call demo_echo --json '{"text": "hello"}' --output json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("want the name of a tool: 'toolherd tools' lists them")}
			}
			if raw != "" && len(args) > 1 {
				return usageError{errors.New("--json and key=value exclude each other: leave one out")}
			}
			// Whatever the types are, wrong usage is told before a server is asked or started.
			_, err := buildArguments(args[1:], nil)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 {
				return usageError{fmt.Errorf("--timeout is %s, want a duration above 0", timeout)}
			}
			if ttl < 0 {
				return usageError{fmt.Errorf("--task-ttl is %s, want a duration above 0", ttl)}
			}
			raw, err := rawArguments(s, raw)
			if err != nil {
				return err
			}
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				req := &toolproxyv1.CallToolRequest{Name: args[0], Scope: scope.message(), RequestId: requestID, NotifySink: sink}
				if ttl > 0 {
					req.TaskTtl = durationpb.New(ttl)
				}
				if timeout > 0 {
					req.Timeout = durationpb.New(timeout)
				}
				if flags.output == outputJSON {
					req.View = toolproxyv1.ResultView_RESULT_VIEW_JSON
				}
				arguments, err := c.arguments(ctx, callArgs{name: args[0], pairs: args[1:], raw: raw, scope: req.GetScope()})
				if err != nil {
					return err
				}
				req.Args = &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: arguments}
				out, err := c.stream(ctx, s, req)
				if err != nil {
					return err
				}
				if flags.output == outputTable && out.GetTask() != nil {
					return c.printHandle(s, out.GetTask(), scope)
				}
				return printOutcome(s, flags.output, out)
			})
		},
	}
	addClientFlags(cmd, &flags)
	scope.add(cmd)
	cmd.Flags().StringVar(&raw, "json", "", "all arguments as a JSON object; - reads standard input")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "the longest the call may take (default: the server's limit)")
	cmd.Flags().StringVar(&requestID, "request-id", "", "makes a submit of long work safe to repeat: the same id gives the same task")
	cmd.Flags().StringVar(&sink, "notify-sink", "", "where the events of a task go (default: notifier.default_sink)")
	cmd.Flags().DurationVar(&ttl, "task-ttl", 0, "the longest a task may live (default: tasks.max_age)")
	return cmd
}

type callArgs struct {
	name  string
	pairs []string
	raw   string
	scope *corev1.Scope
}

// rawArguments returns what --json gives, read and checked before anything is started.
func rawArguments(s Streams, raw string) (string, error) {
	switch raw {
	case "":
		return "", nil
	case "-":
		content, err := io.ReadAll(s.In)
		if err != nil {
			return "", fmt.Errorf("read arguments from standard input: %w", err)
		}
		raw = string(content)
	}
	if !json.Valid([]byte(raw)) {
		return "", usageError{errors.New("the arguments of --json are not JSON: give an object, such as '{\"text\": \"hello\"}'")}
	}
	return raw, nil
}

// arguments makes the JSON object of a call.
func (c *client) arguments(ctx context.Context, a callArgs) (string, error) {
	switch {
	case a.raw != "":
		return a.raw, nil
	case len(a.pairs) == 0:
		return "{}", nil
	}
	tool, err := c.findTool(ctx, a)
	if err != nil {
		return "", err
	}
	return buildArguments(a.pairs, schemaTypes(tool.GetInputSchemaJson()))
}

// findTool returns the tool, waiting while servers have their first start.
func (c *client) findTool(ctx context.Context, a callArgs) (*toolproxyv1.Tool, error) {
	var found *toolproxyv1.Tool
	var failed error
	err := c.watch(ctx, func(servers map[string]*toolproxyv1.Server) bool {
		list, err := c.listTools(ctx, a.scope, nil)
		if err != nil {
			failed = err
			return true
		}
		for _, t := range list.GetTools() {
			if t.GetName() == a.name {
				found = t
				return true
			}
		}
		for _, srv := range servers {
			if srv.GetStatus() == corev1.ServerStatus_SERVER_STATUS_STARTING {
				return false
			}
		}
		return true
	})
	if err := errors.Join(failed, err); err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fault.New(fault.ToolNotFound, "tool %q is not found: 'toolherd tools' lists the tools, 'toolherd servers' the servers that are not well", a.name)
	}
	return found, nil
}

// schemaTypes returns the JSON types that each property of an input schema admits; none means anything.
func schemaTypes(schema string) map[string][]string {
	var s struct {
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
	if json.Unmarshal([]byte(schema), &s) != nil {
		return nil
	}
	out := map[string][]string{}
	for name, p := range s.Properties {
		switch t := p.Type.(type) {
		case string:
			out[name] = []string{t}
		case []any:
			for _, one := range t {
				if word, ok := one.(string); ok {
					out[name] = append(out[name], word)
				}
			}
		}
	}
	return out
}

func buildArguments(pairs []string, types map[string][]string) (string, error) {
	var b strings.Builder
	b.WriteByte('{')
	seen := map[string]bool{}
	for i, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		asJSON := false
		if ok {
			key, asJSON = strings.CutSuffix(key, ":")
		}
		if !ok || key == "" {
			return "", usageError{fmt.Errorf("argument %q is not key=value or key:=json", pair)}
		}
		if seen[key] {
			return "", usageError{fmt.Errorf("argument %q is given twice", key)}
		}
		seen[key] = true
		encoded, err := encodeValue(value, types[key], asJSON)
		if err != nil {
			return "", usageError{fmt.Errorf("argument %q: %w", key, err)}
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(quote(key))
		b.WriteByte(':')
		b.WriteString(encoded)
	}
	b.WriteByte('}')
	return b.String(), nil
}

func encodeValue(value string, types []string, asJSON bool) (string, error) {
	text := len(types) == 0
	for _, t := range types {
		text = text || t == "string"
	}
	valid := json.Valid([]byte(value))
	switch {
	case asJSON && !valid:
		return "", fmt.Errorf("%q is not JSON", value)
	case asJSON, !text && valid:
		return value, nil
	case !text:
		return "", fmt.Errorf("%q is not a JSON %s", value, strings.Join(types, " or "))
	default:
		return quote(value), nil
	}
}

// quote encodes a string as JSON without escaping what only HTML would mind.
func quote(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

// stream runs the call, showing progress on the way.
func (c *client) stream(ctx context.Context, s Streams, req *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
	stream, err := c.StreamCallTool(ctx, &toolproxyv1.StreamCallToolRequest{Call: req})
	if err != nil {
		return nil, err
	}
	var encoded []byte
	for {
		msg, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		switch e := msg.GetEvent().(type) {
		case *toolproxyv1.StreamCallToolResponse_Progress:
			fmt.Fprintln(s.Err, terminal.Line(progressLine(e.Progress)))
		case *toolproxyv1.StreamCallToolResponse_Log:
			fmt.Fprintf(s.Err, "%s: %s\n", terminal.Line(e.Log.GetLevel()), terminal.Line(e.Log.GetDataJson()))
		case *toolproxyv1.StreamCallToolResponse_Outcome:
			encoded = append(encoded, e.Outcome.GetData()...)
			if !e.Outcome.GetLast() {
				continue
			}
			out := &toolproxyv1.CallToolResponse{}
			if err := proto.Unmarshal(encoded, out); err != nil {
				return nil, fmt.Errorf("decode outcome: %w", err)
			}
			return out, nil
		}
	}
}
