package evil

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/rawrpc"
)

// process is a stdio server that runs one mode.
type process struct {
	o    Options
	in   *os.File
	out  *os.File
	errs io.Writer
	exit func(int)

	write sync.Mutex
	// around, when set, is called for each message before it is answered; true means it is dealt with.
	around func(m rawrpc.Message) (done bool)
	// answer turns an honest answer into what is written; nil writes it as it is.
	answer func(r *request) [][]byte
}

// Streams are what a process reads and writes. They are files because modes close them, hand them to
// children and stop reading them.
type Streams struct {
	In, Out *os.File
	Err     io.Writer
	Exit    func(code int)
}

// Stdio runs a mode over stdio until the input ends, ctx ends or the mode has it otherwise.
func Stdio(ctx context.Context, m Mode, o Options, s Streams) error {
	p := &process{o: m.with(o), in: s.In, out: s.Out, errs: s.Err, exit: s.Exit}
	switch {
	case m.process != nil:
		return m.process(ctx, p)
	case m.wire != nil:
		return errors.New("the mode " + m.Name + " is for HTTP only")
	}
	p.answer = m.answered
	return p.serve(ctx)
}

// put writes bytes as they are.
func (p *process) put(b []byte) error {
	p.write.Lock()
	defer p.write.Unlock()
	_, err := p.out.Write(b)
	return err
}

func (p *process) line(b []byte) error { return p.put(append(b[:len(b):len(b)], '\n')) }

// serve answers messages until the input ends. Requests run side by side.
func (p *process) serve(ctx context.Context) error {
	srv := honest(p.exit)
	defer srv.Close()
	ses := srv.Open(p.line)
	var running sync.WaitGroup
	defer running.Wait()
	defer ses.Close()
	seen := map[string]int{}
	r := bufio.NewReaderSize(p.in, 64<<10)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		m, err := rawrpc.Parse(line)
		if err != nil {
			continue
		}
		if p.around != nil && p.around(m) {
			continue
		}
		before := seen[m.Method]
		seen[m.Method]++
		handle := func() {
			response := ses.Handle(ctx, m, &fake.Incoming{Send: p.line})
			if response == nil {
				return
			}
			for _, frame := range p.frames(&request{o: p.o, msg: m, honest: response, seen: before}) {
				if p.line(frame) != nil {
					return // nobody reads any more
				}
			}
		}
		if m.Method != "tools/call" {
			handle()
			continue
		}
		running.Go(handle)
	}
}

func (p *process) frames(r *request) [][]byte {
	if p.answer == nil {
		return [][]byte{r.honest}
	}
	return p.answer(r)
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
