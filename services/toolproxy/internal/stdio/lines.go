package stdio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

const (
	chunkBytes    = 64 << 10 // of one read: what a pipe holds
	discardFactor = 64       // a line of so many times the message limit is no message: the session ends
	byteOrderMark = "\xef\xbb\xbf"
)

// puller reads a pipe to its end and holds no buffer while nothing comes.
type puller struct {
	buffers *sync.Pool // of *[]byte of chunkBytes
	buf     *[]byte
	n       int
	err     error
}

// pull passes what it reads to take, which must not keep it, until the pipe ends, io.EOF then, is closed, or take
// fails.
func (p *puller) pull(file *os.File, take func(chunk []byte) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	try := p.try
	for {
		if err := conn.Read(try); err != nil {
			return err
		}
		var err error
		switch {
		case p.err != nil:
			err = os.NewSyscallError("read", p.err)
		case p.n == 0:
			err = io.EOF
		default:
			err = take((*p.buf)[:p.n])
		}
		p.buffers.Put(p.buf)
		if err != nil {
			return err
		}
	}
}

// try reads once. It reports false, with no buffer held, if there is nothing yet.
func (p *puller) try(fd uintptr) bool {
	p.buf, _ = p.buffers.Get().(*[]byte)
	for {
		p.n, p.err = syscall.Read(int(fd), *p.buf)
		if !errors.Is(p.err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(p.err, syscall.EAGAIN) {
		p.buffers.Put(p.buf)
		return false
	}
	return true
}

// framer cuts what it is given into messages, one a line.
type framer struct {
	server string
	max    int // of a message, in bytes
	sink   link.Sink

	begun bool          // anything was read
	line  []byte        // the message so far; nil between messages
	head  *jsonrpc.Head // of a message that is too large; nil else
	size  int64         // of that message so far
}

// write takes the next piece. It fails if what comes cannot be messages.
func (f *framer) write(chunk []byte) error {
	if !f.begun {
		f.begun = true
		chunk = bytes.TrimPrefix(chunk, []byte(byteOrderMark))
	}
	for {
		end := bytes.IndexByte(chunk, '\n')
		if end < 0 {
			return f.extend(chunk)
		}
		if f.line == nil && f.head == nil && end <= f.max {
			if line := bytes.TrimSpace(chunk[:end]); len(line) > 0 {
				f.sink.Deliver(bytes.Clone(line))
			}
		} else {
			if err := f.extend(chunk[:end]); err != nil {
				return err
			}
			f.endLine()
		}
		chunk = chunk[end+1:]
	}
}

// extend takes a piece of a message that goes on.
func (f *framer) extend(piece []byte) error {
	if f.head != nil {
		f.head.Write(piece)
		f.size += int64(len(piece))
		if f.size > int64(f.max)*discardFactor {
			return fmt.Errorf("it sent more than %d bytes in one line", int64(f.max)*discardFactor)
		}
		return nil
	}
	if n := len(f.line) + len(piece); n <= f.max {
		if n > cap(f.line) {
			// append alone would grow a large slice by a quarter each time.
			grown := make([]byte, len(f.line), min(max(2*cap(f.line), n), f.max))
			copy(grown, f.line)
			f.line = grown
		}
		f.line = append(f.line, piece...)
		return nil
	}
	f.head = &jsonrpc.Head{}
	f.size = int64(len(f.line))
	f.head.Write(f.line)
	f.line = nil
	return f.extend(piece)
}

func (f *framer) endLine() {
	if f.head == nil {
		line := bytes.TrimSpace(f.line)
		f.line = nil
		if len(line) > 0 {
			f.sink.Deliver(line)
		}
		return
	}
	head, size := f.head, f.size
	f.head = nil
	f.sink.Drop(head, fault.New(fault.PayloadTooLarge,
		"server %q sent a message of %d bytes, the limit is %d: ask for less, or raise toolproxy.max_message_bytes",
		f.server, size, f.max))
}
