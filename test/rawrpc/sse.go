package rawrpc

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
)

// Event is one server-sent event.
type Event struct {
	Name string // "" means message
	ID   string
	Data []byte // lines joined by \n
}

// Bytes encodes e as it goes on the wire, one data line for each line of Data.
func (e Event) Bytes() []byte {
	var b bytes.Buffer
	if e.Name != "" {
		fmt.Fprintf(&b, "event: %s\n", e.Name)
	}
	if e.ID != "" {
		fmt.Fprintf(&b, "id: %s\n", e.ID)
	}
	for line := range bytes.SplitSeq(e.Data, []byte("\n")) {
		b.WriteString("data: ")
		b.Write(line)
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// Events reads server-sent events until r ends or yield returns false. Comments are skipped; events
// without data are yielded with empty Data. The error is that of r; a clean end is nil.
func Events(r io.Reader, yield func(Event) bool) error {
	br := bufio.NewReader(r)
	var e Event
	var data [][]byte
	seen := false
	for {
		line, err := br.ReadBytes('\n')
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return fmt.Errorf("read event stream: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			if seen {
				e.Data = bytes.Join(data, []byte("\n"))
				if !yield(e) {
					return nil
				}
			}
			e, data, seen = Event{}, nil, false
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			e.Name, seen = string(value), true
		case "id":
			e.ID, seen = string(value), true
		case "data":
			data, seen = append(data, bytes.Clone(value)), true
		}
	}
}
