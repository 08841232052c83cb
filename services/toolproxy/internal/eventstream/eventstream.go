// Package eventstream reads server-sent events, the framing of both HTTP transports of MCP.
//
// It takes the whole grammar of the HTML standard: lines that end in LF, CR or CRLF, a byte order mark, comments,
// events of several data lines, unknown fields, ids and retry times. An event counts once the blank line after it
// has been read: what a broken stream cut off is dropped, its id too.
//
// One event is bounded, not the stream. A [Reader] is told of an event that is too large as soon as it is, and may
// go on with the next one.
package eventstream

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"
)

// ErrTooLarge is returned by [Reader.Next] for an event above the limit.
var ErrTooLarge = errors.New("server-sent event above the limit")

// Event is one event that carries data.
type Event struct {
	// Name is the event's type; "message" if the stream gave none.
	Name string
	// Data is its data lines joined by line feeds. It belongs to the caller.
	Data []byte
}

const (
	bufferBytes = 16 << 10
	keepBytes   = 256 << 10      // of a long line's buffer that is kept for the next one
	maxIDBytes  = 1 << 10        // longer ids are ignored: they would have to be sent back in a header
	maxRetry    = 24 * time.Hour // longer times are cut
	message     = "message"
	dataField   = "data:"
	bom         = "\xef\xbb\xbf"
)

// Reader reads the events of one stream after the other. It is not safe for concurrent use.
type Reader struct {
	source io.Reader
	max    int

	buf        []byte
	start, end int    // unread part of buf
	part       []byte // a line that did not end within buf, or its beginning; its memory is used again
	ended      bool   // part was a whole line
	first      bool   // at the first line, where a byte order mark may be
	skipLF     bool   // the last line ended in CR: a LF that follows belongs to it
	skipping   bool   // inside an event that is too large
	midLine    bool   // and inside a line of it
	skipsData  bool   // which is a data line

	name  string // of the event being read
	data  []byte
	lines int // of data
	id    string
	hasID bool

	lastID string
	retry  time.Duration
}

// NewReader returns a Reader for source whose events have at most limit bytes of data; 0 means no limit.
func NewReader(source io.Reader, limit int) *Reader {
	r := &Reader{max: limit, buf: make([]byte, bufferBytes)}
	r.Reset(source)
	return r
}

// Reset begins a new stream and forgets everything of the one before, also its last id and retry time.
func (r *Reader) Reset(source io.Reader) {
	*r = Reader{source: source, max: r.max, buf: r.buf, part: r.part[:0], first: true}
}

// LastID returns the id of the last complete event that had one, which resumes the stream behind it; "" if there
// was none.
func (r *Reader) LastID() string { return r.lastID }

// Retry returns how long the server asks clients to wait before they connect again; zero if it did not say.
func (r *Reader) Retry() time.Duration { return r.retry }

// Next returns the next event with data; those without, or with white space only, are read and left out.
// The error is io.EOF where the stream ends, whatever else reading gave, or [ErrTooLarge]. With ErrTooLarge the
// event holds the data read so far, and [Reader.Skip] or Next goes on behind it.
func (r *Reader) Next() (Event, error) {
	if r.skipping {
		if err := r.Skip(nil); err != nil {
			return Event{}, err
		}
	}
	for {
		line, err := r.line()
		if err != nil {
			if errors.Is(err, ErrTooLarge) {
				return r.overflow(), err
			}
			return Event{}, err
		}
		if len(line) > 0 {
			r.field(line)
			if r.max > 0 && len(r.data) > r.max {
				return r.overflow(), ErrTooLarge
			}
			continue
		}
		if ev, ok := r.dispatch(); ok {
			return ev, nil
		}
	}
}

// Skip reads to the end of an event that was too large and hands the rest of its data to pieces as it passes by;
// pieces may be nil and must not keep what it gets.
func (r *Reader) Skip(pieces func([]byte)) error {
	var prefix []byte // of a line whose field is not known yet
	for r.skipping {
		chunk, ended, err := r.chunk()
		if err != nil {
			return err
		}
		if !r.midLine {
			prefix = append(prefix, chunk...)
			if !ended && len(prefix) < len(dataField) {
				continue
			}
			if len(prefix) == 0 {
				r.skipping = false
				break
			}
			chunk, r.skipsData = bytes.CutPrefix(prefix, []byte(dataField))
			prefix = nil
		}
		if r.skipsData && pieces != nil && len(chunk) > 0 {
			pieces(chunk)
		}
		r.midLine = !ended
	}
	return nil
}

// overflow returns the beginning of the event that became too large and puts the reader behind it.
func (r *Reader) overflow() Event {
	ev := Event{Name: r.eventName(), Data: r.data}
	rest, isData := bytes.CutPrefix(r.part, []byte(dataField))
	if isData {
		ev.Data = append(ev.Data, rest...)
	}
	r.skipping, r.midLine, r.skipsData = true, len(r.part) > 0, isData
	r.part = r.part[:0]
	r.clear()
	return ev
}

func (r *Reader) clear() {
	r.name, r.data, r.lines, r.id, r.hasID = "", nil, 0, "", false
}

func (r *Reader) eventName() string {
	if r.name == "" {
		return message
	}
	return r.name
}

// dispatch ends an event at its blank line.
func (r *Reader) dispatch() (Event, bool) {
	if r.hasID {
		r.lastID = r.id
	}
	ev := Event{Name: r.eventName(), Data: r.data}
	r.clear()
	return ev, len(bytes.TrimSpace(ev.Data)) > 0
}

// field takes one line that is not blank.
func (r *Reader) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(name) {
	case "data":
		switch {
		case r.lines > 0:
			r.data = append(append(r.data, '\n'), value...)
		case r.ended && cap(r.part) > keepBytes:
			r.data, r.part, r.ended = value, nil, false // memory that would not be kept is given away
		default:
			r.data = append(make([]byte, 0, len(value)), value...)
		}
		r.lines++
	case "event":
		if string(value) == message {
			r.name = message
		} else {
			r.name = string(value)
		}
	case "id":
		if len(value) <= maxIDBytes && !bytes.ContainsFunc(value, isControl) {
			r.id, r.hasID = string(value), true
		}
	case "retry":
		r.setRetry(string(value))
	}
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

func (r *Reader) setRetry(value string) {
	for i := range len(value) {
		if value[i] < '0' || value[i] > '9' {
			return
		}
	}
	ms, err := strconv.ParseUint(value, 10, 64)
	if err != nil || ms > uint64(maxRetry/time.Millisecond) {
		ms = uint64(maxRetry / time.Millisecond)
	}
	if value != "" {
		r.retry = time.Duration(ms) * time.Millisecond
	}
}

// line returns the next line without its end. It is valid until the next call.
func (r *Reader) line() ([]byte, error) {
	if r.ended {
		r.ended = false
		r.part = r.part[:0]
	}
	if cap(r.part) > keepBytes {
		r.part = nil
	}
	for {
		line, ended, err := r.chunk()
		if err != nil {
			return nil, err
		}
		if !ended || len(r.part) > 0 {
			if free := cap(r.part) - len(r.part); free < len(line) {
				r.part = slices.Grow(r.part, max(len(line), cap(r.part)))
			}
			r.part = append(r.part, line...)
		}
		if !ended {
			// Fields other than data have no limit of their own; together with the data they have this one.
			if r.max > 0 && len(r.part)+len(r.data) > r.max+len(dataField)+1 {
				return nil, ErrTooLarge
			}
			continue
		}
		if len(r.part) > 0 {
			line, r.ended = r.part, true
		}
		if r.first {
			r.first = false
			line = bytes.TrimPrefix(line, []byte(bom))
		}
		return line, nil
	}
}

// chunk returns unread bytes up to the end of their line, which is consumed but not part of them, or all that is
// there if it does not end yet. They are valid until the next call.
func (r *Reader) chunk() (b []byte, ended bool, err error) {
	if r.start == r.end {
		if err := r.fill(); err != nil {
			return nil, false, err
		}
	}
	if r.skipLF {
		r.skipLF = false
		if r.buf[r.start] == '\n' {
			r.start++
			return r.chunk()
		}
	}
	b = r.buf[r.start:r.end]
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b, ended = b[:i], true
	}
	if i := bytes.IndexByte(b, '\r'); i >= 0 {
		r.skipLF = i+1 == r.end-r.start || r.buf[r.start+i+1] == '\n'
		b, ended = b[:i], true
	}
	r.start += len(b)
	if ended {
		r.start++
	}
	return b, ended, nil
}

// fill reads more into the empty buffer.
func (r *Reader) fill() error {
	r.start, r.end = 0, 0
	for range 100 {
		n, err := r.source.Read(r.buf)
		if n > 0 {
			r.end = n // an error comes again with the next Read
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}
