//go:build linux

package stdio

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// heard is a sink that notes what it is told.
type heard struct {
	messages [][]byte
	dropped  []string // ids
	err      error
}

func (h *heard) Deliver(msg []byte)                  { h.messages = append(h.messages, msg) }
func (h *heard) DeliverFor(_ jsonrpc.ID, msg []byte) { h.Deliver(msg) }
func (h *heard) Drop(head *jsonrpc.Head, err error) {
	h.dropped = append(h.dropped, string(head.ID()))
	h.err = err
}

func TestFramerFindsTheIDOfWhatItDiscards(t *testing.T) {
	large := strings.Repeat("x", 200)
	stream := "\ufeff" + `{"first":1}` + "\r\n" +
		`{"jsonrpc":"2.0","id":1,"result":"` + large + `"}` + "\n" +
		`{"jsonrpc":"2.0","result":{"id":9,"t":"` + large + `"},"id":"two"}` + "\n" +
		large + "\n\n" +
		strings.Repeat("y", 100) + "\n" +
		`{"last":1}`
	for _, size := range []int{1, 3, 64, 101, 1 << 16} {
		t.Run(fmt.Sprintf("in pieces of %d", size), func(t *testing.T) {
			var h heard
			f := framer{server: "demo", max: 100, sink: &h}
			for rest := []byte(stream); len(rest) > 0; {
				n := min(size, len(rest))
				if err := f.write(rest[:n]); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			want := []string{`{"first":1}`, strings.Repeat("y", 100)} // the last line has not ended
			if size < len(byteOrderMark) {
				want[0] = "\ufeff" + want[0] // a mark in pieces is noise
			}
			if diff := cmp.Diff(want, texts(h.messages)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"1", `"two"`, ""}, h.dropped); diff != "" {
				t.Errorf("dropped (-want +got):\n%s", diff)
			}
			if !fault.Is(h.err, fault.PayloadTooLarge) || !strings.Contains(h.err.Error(), "message of 200 bytes, the limit is 100") {
				t.Errorf("error %v", h.err)
			}
		})
	}
}

func TestALineWithoutEndEndsTheSession(t *testing.T) {
	f := framer{max: 100, sink: &heard{}}
	var err error
	n := 0
	for ; err == nil; n++ {
		err = f.write(bytes.Repeat([]byte("x"), 50))
	}
	if n != 100*discardFactor/50+1 {
		t.Errorf("it ended after %d bytes: %v", n*50, err)
	}
}

func texts(messages [][]byte) []string {
	var list []string
	for _, m := range messages {
		list = append(list, string(m))
	}
	return list
}

// However a stream is cut into pieces, the framer hears the same lines.
func FuzzFramer(f *testing.F) {
	f.Add([]byte("{\"a\":1}\n\n noise \r\n{\"id\":7,\"result\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}\n"), uint8(5))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		const limit = 32
		var h heard
		fr := framer{max: limit, sink: &h}
		fr.begun = true // no byte order mark
		for rest := stream; len(rest) > 0; {
			n := min(int(size)+1, len(rest))
			if err := fr.write(rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
		var want []string
		large := 0
		lines := strings.Split(string(stream), "\n")
		for _, line := range lines[:len(lines)-1] {
			if len(line) > limit {
				large++
			} else if trimmed := string(bytes.TrimSpace([]byte(line))); trimmed != "" {
				want = append(want, trimmed)
			}
		}
		if diff := cmp.Diff(want, texts(h.messages)); diff != "" || len(h.dropped) != large {
			t.Errorf("%d dropped, want %d; messages (-want +got):\n%s", len(h.dropped), large, diff)
		}
	})
}
