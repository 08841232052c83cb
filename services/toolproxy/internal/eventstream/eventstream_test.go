package eventstream_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/services/toolproxy/internal/eventstream"
)

type event struct{ Name, Data string }

// readAll returns every event, the reader and the error that ended the stream.
func readAll(r *eventstream.Reader) (got []event, err error) {
	for {
		ev, err := r.Next()
		if errors.Is(err, eventstream.ErrTooLarge) {
			got = append(got, event{"too large", string(ev.Data)})
			continue
		}
		if err != nil {
			return got, err
		}
		got = append(got, event{ev.Name, string(ev.Data)})
	}
}

func TestTheWholeGrammarIsRead(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     []event
		lastID   string
		retry    time.Duration
	}{
		{name: "one event", in: "data: x\n\n", want: []event{{"message", "x"}}},
		{name: "event name", in: "event: endpoint\ndata: /m\n\n", want: []event{{"endpoint", "/m"}}},
		{name: "no space after the colon", in: "data:x\n\n", want: []event{{"message", "x"}}},
		{name: "only one space is taken", in: "data:  x\n\n", want: []event{{"message", " x"}}},
		{name: "several data lines", in: "data: {\ndata: }\n\n", want: []event{{"message", "{\n}"}}},
		{name: "CRLF", in: "data: a\r\n\r\ndata: b\r\n\r\n", want: []event{{"message", "a"}, {"message", "b"}}},
		{name: "CR alone", in: "data: a\r\rdata: b\r\r", want: []event{{"message", "a"}, {"message", "b"}}},
		{name: "mixed ends", in: "data: a\r\n\ndata: b\r\rdata: c\n\r\ndata: d\n\n", want: []event{{"message", "a"}, {"message", "b"}, {"message", "c"}, {"message", "d"}}},
		{name: "comments and keep-alives", in: ": ping\n\n:\n\ndata: a\n: between\n\n", want: []event{{"message", "a"}}},
		{name: "empty data first", in: "data:\n\n: ping\n\nevent: message\ndata: {}\n\n", want: []event{{"message", "{}"}}},
		{name: "white space only", in: "data: \ndata: \n\ndata\n\n", want: nil},
		{name: "byte order mark", in: "\ufeffdata: a\n\n", want: []event{{"message", "a"}}},
		{name: "unknown fields", in: "foo: bar\nDATA: no\n data: no\ndata: a\n\n", want: []event{{"message", "a"}}},
		{name: "name is forgotten", in: "event: x\n\ndata: a\n\n", want: []event{{"message", "a"}}},
		{name: "ids", in: "id: 1\ndata: a\n\nid: 2\ndata:\n\n", want: []event{{"message", "a"}}, lastID: "2"},
		{name: "id of a cut event", in: "id: 1\ndata: a\n\nid: 2\ndata: b\n", want: []event{{"message", "a"}}, lastID: "1"},
		{name: "id with control characters", in: "id: 1\ndata: a\n\nid: 2\x00\ndata: b\n\n", want: []event{{"message", "a"}, {"message", "b"}}, lastID: "1"},
		{name: "id too long", in: "id: " + strings.Repeat("x", 1025) + "\ndata: a\n\n", want: []event{{"message", "a"}}},
		{name: "id is taken back", in: "id: 1\ndata: a\n\nid\ndata: b\n\n", want: []event{{"message", "a"}, {"message", "b"}}},
		{name: "retry", in: "retry: 1500\n\n", retry: 1500 * time.Millisecond},
		{name: "retry not a number", in: "retry: -5\nretry: 1e3\nretry:\n\n"},
		{name: "retry beyond reason", in: "retry: 99999999999999999999999\n\n", retry: 24 * time.Hour},
		{name: "cut event", in: "data: a\n\ndata: b\n", want: []event{{"message", "a"}}},
		{name: "long lines", in: "data: " + strings.Repeat("y", 40_000) + "\n\ndata: z\n\n", want: []event{{"message", strings.Repeat("y", 40_000)}, {"message", "z"}}},
		{name: "value with colons", in: "data: {\"a\":1}\n\n", want: []event{{"message", `{"a":1}`}}},
		{name: "empty stream", in: ""},
	} {
		for how, source := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "bytewise": iotest.OneByteReader, "halved": iotest.HalfReader, "with error": iotest.DataErrReader,
		} {
			r := eventstream.NewReader(source(strings.NewReader(tt.in)), 1<<20)
			got, err := readAll(r)
			if !errors.Is(err, io.EOF) {
				t.Errorf("%s, %s: %v", tt.name, how, err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s, %s: %s", tt.name, how, diff)
			}
			if r.LastID() != tt.lastID || r.Retry() != tt.retry {
				t.Errorf("%s, %s: id %q, retry %v", tt.name, how, r.LastID(), r.Retry())
			}
		}
	}
}

func TestAnEventAboveTheLimitIsReportedAtOnceAndSkipped(t *testing.T) {
	const limit = 100
	for name, in := range map[string]string{
		"one line":      "data: " + strings.Repeat("x", 5000) + "\n\n",
		"huge line":     "data: " + strings.Repeat("x", 20_000) + "\n\n",
		"many lines":    strings.Repeat("data: xxxxxxxxxxxxxxxxxxx\n", 200) + "\n",
		"long comment":  ":" + strings.Repeat("x", 20_000) + "\n\n",
		"long field":    "event: " + strings.Repeat("x", 20_000) + "\n\n",
		"line and rest": "data: " + strings.Repeat("x", 20_000) + "\nid: 7\ndata: more\nda: x\n\n",
	} {
		for how, source := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "bytewise": iotest.OneByteReader,
		} {
			r := eventstream.NewReader(source(strings.NewReader("data: a\n\n"+in+"data: b\n\n")), limit)
			got, err := readAll(r)
			if !errors.Is(err, io.EOF) {
				t.Fatalf("%s, %s: %v", name, how, err)
			}
			var names []string
			for _, ev := range got {
				names = append(names, ev.Name)
			}
			if !slices.Equal(names, []string{"message", "too large", "message"}) {
				t.Errorf("%s, %s: %v", name, how, names)
			}
		}
	}
	exact := "data: " + strings.Repeat("x", limit) + "\n\n"
	if got, _ := readAll(eventstream.NewReader(strings.NewReader(exact), limit)); len(got) != 1 || got[0].Name != "message" {
		t.Errorf("an event of exactly the limit: %v", got)
	}
}

func TestSkipHandsOnTheRestOfTheData(t *testing.T) {
	want := strings.Repeat("0123456789", 2000)
	in := "id: 1\ndata: a\n\nid: 2\nevent: message\ndata: " + want + "\r\ndata:tail\r\nevent: x\r\n\r\ndata: next\r\n\r\n"
	for how, source := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "bytewise": iotest.OneByteReader,
	} {
		r := eventstream.NewReader(source(strings.NewReader(in)), 1000)
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		ev, err := r.Next()
		if !errors.Is(err, eventstream.ErrTooLarge) {
			t.Fatalf("%s: %v", how, err)
		}
		all := strings.TrimPrefix(string(ev.Data), " ")
		if err := r.Skip(func(p []byte) { all += string(p) }); err != nil {
			t.Fatal(err)
		}
		if all != want+"tail" {
			t.Errorf("%s: %d bytes, want %d", how, len(all), len(want)+4)
		}
		if ev, err := r.Next(); err != nil || string(ev.Data) != "next" {
			t.Errorf("%s: then %q, %v", how, ev.Data, err)
		}
	}
}

func TestEventsOutliveTheReader(t *testing.T) {
	r := eventstream.NewReader(strings.NewReader("data: first\n\ndata: second\n\n"), 0)
	a, _ := r.Next()
	b, _ := r.Next()
	r.Reset(strings.NewReader("data: XXXXX\n\n"))
	_, _ = r.Next()
	if string(a.Data) != "first" || string(b.Data) != "second" || r.LastID() != "" {
		t.Errorf("%q %q", a.Data, b.Data)
	}
}

func TestAReaderThatGivesNothingEnds(t *testing.T) {
	r := eventstream.NewReader(iotest.ErrReader(io.ErrUnexpectedEOF), 0)
	if _, err := r.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	if _, err := eventstream.NewReader(idle{}, 0).Next(); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("%v", err)
	}
}

type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

// simple is a reading of the grammar that trades everything for being plain: the whole stream is split at once.
func simple(in string) (got []event) {
	in = strings.ReplaceAll(strings.ReplaceAll(strings.TrimPrefix(in, "\ufeff"), "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(in, "\n")
	lines = lines[:len(lines)-1] // cut or empty
	var name string
	var data []string
	for _, l := range lines {
		if l == "" {
			if d := strings.Join(data, "\n"); strings.TrimSpace(d) != "" {
				if name == "" {
					name = "message"
				}
				got = append(got, event{name, d})
			}
			name, data = "", nil
			continue
		}
		field, value, _ := strings.Cut(l, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "data":
			data = append(data, value)
		case "event":
			name = value
		}
	}
	return got
}

func FuzzReaderAgreesWithAPlainReading(f *testing.F) {
	for _, s := range []string{"data: x\n\n", "event: a\r\ndata: b\rdata: c\n\n", "\ufeffdata\n\n", ":c\n\nid: 1\nretry: 5\ndata:\n\n", "data: \r\r\n\n", "\r\n\r\n\r"} {
		f.Add(s, uint8(3))
	}
	f.Fuzz(func(t *testing.T, in string, size uint8) {
		got, err := readAll(eventstream.NewReader(&pieces{rest: in, size: int(size) + 1}, 0))
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if diff := cmp.Diff(simple(in), got); diff != "" {
			t.Errorf("%q in pieces of %d: %s", in, size+1, diff)
		}
		// A bound must neither lose the stream nor deliver more than it allows.
		limited, err := readAll(eventstream.NewReader(&pieces{rest: in, size: int(size) + 1}, 8))
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		for _, ev := range limited {
			if ev.Name != "too large" && len(ev.Data) > 8 {
				t.Errorf("%q: %d bytes passed a limit of 8", in, len(ev.Data))
			}
		}
	})
}

// pieces gives its text a few bytes at a time.
type pieces struct {
	rest string
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.rest == "" {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.size)], p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

func BenchmarkNext(b *testing.B) {
	for _, size := range []int{100, 10 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			in := "event: message\nid: 7\ndata: " + strings.Repeat("x", size) + "\n\n"
			r := eventstream.NewReader(nil, 16<<20)
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			for b.Loop() {
				r.Reset(strings.NewReader(in))
				if ev, err := r.Next(); err != nil || len(ev.Data) != size {
					b.Fatal(err)
				}
			}
		})
	}
}
