package fake

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// ServeStdio speaks to one client over a pair of line streams until in ends, which is a clean end, or
// ctx ends. Requests run side by side. A reader blocked on in stays behind when ctx ends first: only the
// owner of in can end it.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	var write sync.Mutex
	send := func(msg []byte) error {
		write.Lock()
		defer write.Unlock()
		_, err := out.Write(append(msg, '\n'))
		return err
	}
	ses := s.Open(send)
	var running sync.WaitGroup
	defer running.Wait()
	defer ses.Close()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lines := make(chan []byte)
	go func() {
		r := bufio.NewReaderSize(in, 64<<10)
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				cancel(err)
				return
			}
			select {
			case lines <- line:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		case line := <-lines:
			m, err := rawrpc.Parse(line)
			if err != nil {
				s.violated("a line that is no message: %v", err)
				e := rawrpc.Errorf(rawrpc.CodeParse, "%v", err)
				if errors.Is(err, rawrpc.ErrBatch) {
					e.Code = rawrpc.CodeInvalidRequest
				}
				if err := send(rawrpc.Failure(nil, e)); err != nil {
					return err
				}
				continue
			}
			incoming := &Incoming{Send: send}
			begun := make(chan struct{})
			handle := func() {
				if response := ses.handle(ctx, m, incoming, func() { close(begun) }); response != nil {
					_ = send(response) // a client that is gone ends the loop by closing in
				}
			}
			if !m.IsRequest() || m.Method == "initialize" {
				handle() // what follows depends on it
				continue
			}
			running.Go(handle)
			<-begun
		}
	}
}
