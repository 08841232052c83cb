package toolproxy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// The test binary is also the MCP server that the tests start: a hand-written one, so that it can misbehave. Its
// environment variables say how:
//
//	PEER            must be set
//	PEER_TOOLS      the JSON array of tools; default below
//	PEER_TOOLS_FILE a file with that array
//	PEER_ERA        modern, or legacy (the default)
//	PEER_DISCOVER   exit or hang: what happens on a server/discover that a legacy server does not know
//	PEER_START      exit (3, with a line on stderr) or hang: what happens at once
//	PEER_LIST       hang or null: what tools/list answers
//	PEER_CHILD      start a grandchild and write its pid to this file
//	PEER_STARTS     append a byte to this file at each start
//	PEER_NOISE      print lines that are no JSON-RPC before every answer

const peerTools = `[{"name":"echo","description":"says it again","inputSchema":{"type":"object","properties":{"n":{"maximum":9007199254740993}}},"annotations":{"readOnlyHint":true},"_meta":{"k":1.10}},` +
	`{"name":"count","inputSchema":{"type":"object"}},{"name":"result","inputSchema":{"type":"object"}},{"name":"fail","inputSchema":{"type":"object"}},` +
	`{"name":"wait","inputSchema":{"type":"object"}},{"name":"work","inputSchema":{"type":"object"}},{"name":"die","inputSchema":{"type":"object"}},{"name":"environ","inputSchema":{"type":"object"}}]`

type peer struct {
	mu        sync.Mutex
	out       *bufio.Writer
	count     int
	jobs      map[string]string // status by id
	cancelled map[string]chan struct{}
}

func runPeer() int {
	if path := os.Getenv("PEER_STARTS"); path != "" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return 4
		}
		_, _ = f.WriteString("x")
		_ = f.Close()
	}
	switch os.Getenv("PEER_START") {
	case "exit":
		fmt.Fprintln(os.Stderr, "cannot find my configuration, token="+os.Getenv("PEER_TOKEN"))
		return 3
	case "hang":
		select {}
	}
	if path := os.Getenv("PEER_CHILD"); path != "" {
		child := exec.Command("sleep", "600")
		if err := child.Start(); err != nil {
			return 4
		}
		if err := os.WriteFile(path, []byte(strconv.Itoa(child.Process.Pid)), 0o600); err != nil {
			return 4
		}
	}
	p := &peer{out: bufio.NewWriter(os.Stdout), jobs: map[string]string{}, cancelled: map[string]chan struct{}{}}
	in := bufio.NewReaderSize(os.Stdin, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return 0
		}
		m, err := jsonrpc.Parse(line)
		if err != nil {
			continue
		}
		p.receive(m)
	}
}

func (p *peer) emit(line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if os.Getenv("PEER_NOISE") != "" {
		_, _ = p.out.WriteString("Starting up…\n{\"not\":\"json-rpc\"}\n\n")
	}
	_, _ = p.out.Write(append(line, '\n'))
	_ = p.out.Flush()
}

func (p *peer) reply(id jsonrpc.ID, result string) {
	p.emit(jsonrpc.AppendResult(nil, id, json.RawMessage(result)))
}

func (p *peer) refuse(id jsonrpc.ID, code int64, message string) {
	p.emit(jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: code, Message: message}))
}

func (p *peer) receive(m jsonrpc.Message) {
	modern := os.Getenv("PEER_ERA") == "modern"
	switch m.Method {
	case "initialize":
		if modern {
			p.refuse(m.ID, -32601, "method not found")
			return
		}
		p.reply(m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"peer","version":"1"}}`)
	case "server/discover":
		switch {
		case modern:
			p.reply(m.ID, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`)
		case os.Getenv("PEER_DISCOVER") == "exit":
			os.Exit(1)
		case os.Getenv("PEER_DISCOVER") == "hang":
			select {}
		default:
			p.refuse(m.ID, -32601, "method not found")
		}
	case "tools/list":
		p.list(m.ID)
	case "tools/call":
		p.call(m)
	case "notifications/cancelled":
		p.mu.Lock()
		if ch := p.cancelled[string(jsonrpc.Member(m.Params, "requestId"))]; ch != nil {
			close(ch)
		}
		p.mu.Unlock()
	default:
		if m.Kind == jsonrpc.Request {
			p.refuse(m.ID, -32601, "method not found")
		}
	}
}

func (p *peer) list(id jsonrpc.ID) {
	switch os.Getenv("PEER_LIST") {
	case "hang":
	case "null":
		p.reply(id, `{"tools":null}`)
	default:
		tools := os.Getenv("PEER_TOOLS")
		if file, err := os.ReadFile(os.Getenv("PEER_TOOLS_FILE")); err == nil {
			tools = string(file)
		}
		if tools == "" {
			tools = peerTools
		}
		p.reply(id, `{"tools":`+tools+`}`)
	}
}

func textResult(text string) string {
	return `{"content":[{"type":"text","text":` + string(jsonrpc.AppendString(nil, text)) + `}]}`
}

func (p *peer) call(m jsonrpc.Message) {
	name, _ := jsonrpc.String(jsonrpc.Member(m.Params, "name"))
	args := jsonrpc.Member(m.Params, "arguments")
	switch name {
	case "echo":
		p.reply(m.ID, textResult(string(args)))
	case "count": // state of this process
		p.count++
		p.reply(m.ID, textResult(strconv.Itoa(p.count)))
	case "result": // exactly what the caller wants
		result, _ := jsonrpc.String(jsonrpc.Member(args, "json"))
		result = strings.ReplaceAll(result, "GROW", strings.Repeat("y", 2<<20))
		p.reply(m.ID, strings.ReplaceAll(result, "BAD", "\xff"))
	case "fail":
		p.refuse(m.ID, -32042, "no such thing as token=abcdef123456")
	case "die":
		os.Exit(7)
	case "environ":
		p.reply(m.ID, textResult(strings.Join(os.Environ(), "\n")))
	case "wait": // until it is cancelled
		ch := make(chan struct{})
		p.mu.Lock()
		p.cancelled[string(m.ID)] = ch
		p.mu.Unlock()
		go func() {
			<-ch
			if file, ok := jsonrpc.String(jsonrpc.Member(args, "file")); ok {
				_ = os.WriteFile(file, []byte("cancelled"), 0o600)
			}
		}()
	case "work": // {steps, pause_ms}: progress and log messages, then a result
		token := jsonrpc.Member(jsonrpc.Member(m.Params, "_meta"), "progressToken")
		steps, _ := jsonrpc.Int(jsonrpc.Member(args, "steps"))
		pause, _ := jsonrpc.Int(jsonrpc.Member(args, "pause_ms"))
		if began, ok := jsonrpc.String(jsonrpc.Member(args, "began")); ok {
			_ = os.WriteFile(began, nil, 0o600)
		}
		go func() {
			for i := range steps {
				<-time.After(time.Duration(pause) * time.Millisecond)
				p.emit(jsonrpc.AppendNotification(nil, "notifications/progress",
					fmt.Appendf(nil, `{"progressToken":%s,"progress":%d,"total":%d,"message":"step %d"}`, token, i+1, steps, i+1)))
				p.emit(jsonrpc.AppendNotification(nil, "notifications/message",
					fmt.Appendf(nil, `{"level":"info","logger":"peer","data":{"step":%d}}`, i+1)))
			}
			p.reply(m.ID, textResult("done"))
		}()
	default:
		if answer := p.job(name, args); answer != "" {
			p.reply(m.ID, answer)
			return
		}
		p.refuse(m.ID, -32602, "unknown tool")
	}
}
