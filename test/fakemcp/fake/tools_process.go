package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// processTools tell of the process and its sessions, and change them.
func processTools() []tool {
	return []tool{
		{name: "counter", about: "Counts its calls in this session.", run: counter},
		{name: "pid", about: "Returns pid, ppid, cwd and arguments of the process.", run: pid},
		{
			name: "env", about: "Returns the environment of the process, all of it or the given names.",
			schema: `{"type":"object","properties":{"names":{"type":"array","items":{"type":"string"}}}}`, run: env,
		},
		{name: "headers", about: "Returns the HTTP headers of this request.", run: headers},
		{name: "stats", about: "Returns what the server has seen: counts, cancels, breaches of the protocol.", run: stats},
		{
			name: "list_changed", about: "Adds and removes tools for all clients and tells them, unless silent.",
			schema: `{"type":"object","properties":{"add":{"type":"array","items":{"type":"string"}},"remove":{"type":"array","items":{"type":"string"}},"silent":{"type":"boolean"}}}`,
			run:    listChanged,
		},
		{name: "forget_sessions", about: "Forgets every HTTP session, this one included.", run: forgetSessions},
		{
			name: "http_status", about: "Over HTTP the request is answered with this status, body and headers.",
			schema: `{"type":"object","properties":{"status":{"type":"integer","minimum":200,"maximum":599},"body":{"type":"string"},"headers":{"type":"object","additionalProperties":{"type":"string"}}},"required":["status"]}`,
			run:    fixed(string(refused("there is no HTTP status over stdio"))), // HTTP answers it before it gets here
		},
		{
			name: "exit", about: "Ends the process with a code, at once; in-flight calls are lost.",
			schema: `{"type":"object","properties":{"code":{"type":"integer"}}}`, run: exit,
		},
		{
			name: "stderr", about: "Writes the text to standard error, so many times.",
			schema: `{"type":"object","properties":{"text":{"type":"string"},"count":{"type":"integer","minimum":0,"maximum":100000}},"required":["text"]}`,
			run:    stderr,
		},
	}
}

func counter(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	c.ses.mu.Lock()
	c.ses.counter++
	n := c.ses.counter
	c.ses.mu.Unlock()
	return structured(fmt.Appendf(nil, `{"count":%d,"session":%s,"pid":%d}`, n, rawrpc.Quote(c.ses.id), os.Getpid())), nil
}

func pid(context.Context, *call) (json.RawMessage, *rawrpc.Error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, rawrpc.Errorf(rawrpc.CodeInternal, "pid: %v", err)
	}
	return structured(rawrpc.JSON(map[string]any{"pid": os.Getpid(), "ppid": os.Getppid(), "cwd": cwd, "args": os.Args})), nil
}

func env(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	var in struct {
		Names []string `json:"names"`
	}
	if e := c.decode(&in); e != nil {
		return nil, e
	}
	found := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		if len(in.Names) == 0 || slices.Contains(in.Names, name) {
			found[name] = value
		}
	}
	return structured(rawrpc.JSON(found)), nil
}

func headers(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	if c.in.Header == nil {
		return refused("there are no headers over stdio"), nil
	}
	return structured(rawrpc.JSON(c.in.Header)), nil
}

func stats(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	return structured(rawrpc.JSON(c.srv.Stats())), nil
}

func listChanged(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	var in struct {
		Add    []string `json:"add"`
		Remove []string `json:"remove"`
		Silent bool     `json:"silent"`
	}
	if e := c.decode(&in); e != nil {
		return nil, e
	}
	c.srv.ChangeTools(in.Add, in.Remove)
	told := 0
	if !in.Silent {
		told = c.srv.changed()
	}
	return structured(fmt.Appendf(nil, `{"told":%d}`, told)), nil
}

// ChangeTools adds tools that echo and removes tools by name, without telling anyone.
func (s *Server) ChangeTools(add, remove []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tools = slices.DeleteFunc(s.tools, func(t tool) bool { return slices.Contains(remove, t.name) })
	for _, name := range add {
		s.tools = append(s.tools, tool{name: name, about: "Added while the server ran.", run: echo})
	}
}

func forgetSessions(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	return structured(fmt.Appendf(nil, `{"forgotten":%d}`, c.srv.ForgetSessions())), nil
}

func exit(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	var in struct {
		Code int `json:"code"`
	}
	if e := c.decode(&in); e != nil {
		return nil, e
	}
	c.srv.o.Exit(in.Code)
	return text("exit did not end the process"), nil
}

func stderr(_ context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
	in := struct {
		Text  string `json:"text"`
		Count *int   `json:"count"`
	}{Count: new(1)}
	if e := c.decode(&in); e != nil {
		return nil, e
	}
	for range *in.Count {
		if _, err := fmt.Fprintln(c.srv.o.Stderr, in.Text); err != nil {
			return refused("stderr: %v", err), nil
		}
	}
	return text("written"), nil
}
