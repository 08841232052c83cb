package evil

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// processModes misbehave as a process: they die, hang or do not use their streams.
func processModes() []Mode {
	return []Mode{
		{
			Name: "exit-at-start", About: "exits with code 3 before reading anything; standard error explains, with secrets",
			process: func(_ context.Context, p *process) error {
				fmt.Fprintf(p.errs, "boom: cannot start\nAuthorization: Bearer %s\napi_key=%s token=%s\n", Secret, Secret, Secret)
				p.exit(3)
				return nil
			},
		},
		{
			Name: "exit-first-message", About: "exits with code 1 when the first message is not initialize",
			process: func(ctx context.Context, p *process) error {
				first := true
				p.around = func(m rawrpc.Message) bool {
					if first && m.Method != "initialize" {
						fmt.Fprintf(p.errs, "expected initialize, got %s\n", m.Method)
						p.exit(1)
					}
					first = false
					return false
				}
				return p.serve(ctx)
			},
		},
		{
			Name: "exit-after-init", About: "exits with code 4 once notifications/initialized has come",
			process: dieOn("notifications/initialized", func(p *process, _ rawrpc.Message) { p.exit(4) }),
		},
		{
			Name: "exit-mid-call", About: "exits with code 7 during tools/call, without an answer",
			process: dieOn("tools/call", func(p *process, _ rawrpc.Message) { p.exit(7) }),
		},
		{
			Name: "crash-mid-call", About: "writes a stack trace with secrets to standard error during tools/call and exits with code 2",
			process: dieOn("tools/call", func(p *process, _ rawrpc.Message) {
				fmt.Fprintf(p.errs, "panic: boom\n\ngoroutine 1 [running]:\nmain.main()\n\t/app/main.go:42 +0x1d\n\x1b[31mpassword=%s\x1b[0m\x07\n", Secret)
				p.exit(2)
			}),
		},
		{
			Name: "half-frame", About: "writes half of the answer to tools/call and exits with code 9",
			process: dieOn("tools/call", func(p *process, m rawrpc.Message) {
				_ = p.put(half(m))
				p.exit(9)
			}),
		},
		{
			Name: "half-frame-hang", About: "writes half of the answer to tools/call and nothing more",
			process: dieOn("tools/call", func(p *process, m rawrpc.Message) {
				_ = p.put(half(m))
				p.around = func(rawrpc.Message) bool { return true }
			}),
		},
		{
			Name: "silent", About: "reads everything and never answers",
			process: func(ctx context.Context, p *process) error {
				p.around = func(rawrpc.Message) bool { return true }
				return p.serve(ctx)
			},
		},
		{
			Name: "only-initialize", About: "answers initialize and nothing else",
			process: func(ctx context.Context, p *process) error {
				p.around = func(m rawrpc.Message) bool { return m.IsRequest() && m.Method != "initialize" }
				return p.serve(ctx)
			},
		},
		{
			Name: "no-list", About: "answers everything but tools/list",
			process: ignore("tools/list"),
		},
		{
			Name: "no-call", About: "answers everything but tools/call",
			process: ignore("tools/call"),
		},
		{
			Name: "slow-start", Delay: 2 * time.Second, About: "reads nothing for a while (-delay), then behaves",
			process: func(ctx context.Context, p *process) error {
				pause(ctx, p.o.Delay)
				return p.serve(ctx)
			},
		},
		{
			Name: "deaf-at-start", About: "never reads its input",
			process: func(ctx context.Context, _ *process) error {
				<-ctx.Done()
				return nil
			},
		},
		{
			Name: "deaf", About: "stops reading its input at the first tools/call, which it does not answer",
			process: func(ctx context.Context, p *process) error {
				p.around = func(m rawrpc.Message) bool {
					if m.Method != "tools/call" {
						return false
					}
					<-ctx.Done()
					return true
				}
				return p.serve(ctx)
			},
		},
		{
			Name: "closes-stdin", About: "closes its input after the answer to tools/list, so that writing to it fails, and lives on",
			process: func(ctx context.Context, p *process) error {
				p.answer = func(r *request) [][]byte {
					if r.msg.Method == "tools/list" {
						_ = p.in.Close() // the next read fails
					}
					return [][]byte{r.honest}
				}
				_ = p.serve(ctx) // ends with the read
				<-ctx.Done()
				return nil
			},
		},
		{
			Name: "closes-stdout", About: "closes its output at the first tools/call and lives on",
			process: dieOn("tools/call", func(p *process, _ rawrpc.Message) {
				_ = p.out.Close() // what is written from here on is lost
			}),
		},
		{
			Name: "stderr-flood", Size: 64 << 20, About: "writes -size bytes to standard error before the first answer and again with each call, one line in ten 1 MB long",
			process: func(ctx context.Context, p *process) error {
				flood(p.errs, p.o.Size)
				p.around = func(m rawrpc.Message) bool {
					if m.Method == "tools/call" {
						flood(p.errs, p.o.Size)
					}
					return false
				}
				return p.serve(ctx)
			},
		},
		{
			Name: "lingers", About: "ignores the end of its input",
			process: func(ctx context.Context, p *process) error {
				if err := p.serve(ctx); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			},
		},
		{
			Name: "ignores-sigterm", About: "ignores SIGTERM, SIGINT, SIGHUP and the end of its input: only SIGKILL ends it",
			process: func(ctx context.Context, p *process) error {
				if err := p.ignoreSignals(); err != nil {
					return err
				}
				if err := p.serve(ctx); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			},
		},
	}
}

// dieOn runs die when a message of the method comes, which then stays without an answer.
func dieOn(method string, die func(*process, rawrpc.Message)) func(context.Context, *process) error {
	return func(ctx context.Context, p *process) error {
		p.around = func(m rawrpc.Message) bool {
			if m.Method != method {
				return false
			}
			die(p, m)
			return true
		}
		return p.serve(ctx)
	}
}

func ignore(method string) func(context.Context, *process) error {
	return dieOn(method, func(*process, rawrpc.Message) {})
}

// half is the first half of an answer: it breaks off inside a string.
func half(m rawrpc.Message) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"half of the ans`, m.ID)
}

// flood writes n bytes of lines; a writer that fails ends it.
func flood(w io.Writer, n int) {
	b := bufio.NewWriterSize(w, 64<<10)
	defer b.Flush()
	short := "flood: token=" + Secret + " " + strings.Repeat("x", 80) + "\n"
	long := strings.Repeat("y", 1<<20) + "\n"
	for i := 0; n > 0; i++ {
		line := short
		if i%10 == 9 {
			line = long
		}
		if _, err := b.WriteString(line); err != nil {
			return
		}
		n -= len(line)
	}
}
