package evil

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// bodyModes misuse the body of an HTTP answer.
func bodyModes() []Mode {
	return []Mode{
		{
			Name: "gzip-bomb", Size: 1 << 30, About: "answers with gzip that unpacks to -size bytes of JSON, whatever the client accepts",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				if _, err := z.Write(half(h.msg)); err != nil {
					return
				}
				if fillTo(z, h.o.Size) {
					_, _ = io.WriteString(z, `"}]}}`)
					_ = z.Close()
				}
			},
		},
		{
			Name: "gzip-unasked", About: "answers honestly, but with gzip, whatever the client accepts",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				_, _ = z.Write(h.honest)
				_ = z.Close()
			},
		},
		{
			Name: "body-endless", Size: 1 << 30, About: "answers with JSON that goes on for -size bytes",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				w.Header().Set("Content-Type", "application/json")
				if _, err := w.Write(half(h.msg)); err == nil {
					fillTo(w, h.o.Size)
				}
			},
		},
		{
			Name: "body-drip", Delay: 100 * time.Millisecond, About: "sends the answer a byte at a time, -delay apart",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				w.Header().Set("Content-Type", "application/json")
				for i := range h.honest {
					if _, err := w.Write(h.honest[i : i+1]); err != nil || h.r.Context().Err() != nil {
						return
					}
					flush(w)
					pause(h.r.Context(), h.o.Delay)
				}
			},
		},
		{
			Name: "body-hangs", About: "sends half of a JSON answer and then nothing",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write(half(h.msg))
				flush(w)
				<-h.r.Context().Done()
			},
		},
		{
			Name: "body-short", About: "promises more bytes than it sends and cuts the connection",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Length", fmt.Sprint(len(h.honest)+1000))
				_, _ = w.Write(h.honest)
				flush(w)
				panic(http.ErrAbortHandler)
			},
		},
		{
			Name: "body-reset", About: "cuts the connection in the middle of an event",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				startEvents(w)
				_, _ = io.WriteString(w, "event: message\ndata: "+string(half(h.msg)))
				flush(w)
				panic(http.ErrAbortHandler)
			},
		},
		{
			Name: "conn-reset", About: "cuts the connection without a byte of an answer",
			wire: func(http.ResponseWriter, *httpRequest) { panic(http.ErrAbortHandler) },
		},
		events("sse-cut", "ends the event stream without an answer", ": hello\n\n"),
		events("sse-cut-resumable", "ends the event stream with an event id and an invitation to resume at once, every time", "id: 1\nretry: 0\ndata: \n\n"),
		events("sse-odd", "an honest answer in an odd stream: empty events, comments, unknown fields, CR LF, a byte order mark, no blank after the colon",
			"\xef\xbb\xbfdata:\r\n\r\n: ping\r\n\r\ndata\r\n\r\nnonsense\r\nretry: x\r\nid: \x00\r\nevent:message\r\ndata:%HONEST%\r\n\r\n"),
		events("sse-no-event-name", "an honest answer without an event name", "data: %HONEST%\n\n"),
		events("sse-other-name", "an honest answer under an unknown event name, then the real one", "event: surprise\ndata: %HONEST%\n\nevent: message\ndata: %HONEST%\n\n"),
		events("sse-two-lines", "an honest answer over two data lines", "event: message\ndata: %HONEST1%\ndata: %HONEST2%\n\n"),
		events("sse-no-blank-line", "an honest answer without the blank line that ends an event", "event: message\ndata: %HONEST%\n"),
		{
			Name: "sse-comments-forever", Delay: 50 * time.Millisecond, About: "keeps the stream alive with a comment every -delay and never answers",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				startEvents(w)
				for h.r.Context().Err() == nil {
					if _, err := io.WriteString(w, ": still here\n\n"); err != nil {
						return
					}
					flush(w)
					pause(h.r.Context(), h.o.Delay)
				}
			},
		},
		{
			Name: "sse-endless-event", Size: 1 << 30, About: "sends an event whose data goes on for -size bytes",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				startEvents(w)
				if _, err := io.WriteString(w, "event: message\ndata: "+string(half(h.msg))); err == nil {
					fillTo(w, h.o.Size)
				}
			},
		},
		{
			Name: "sse-endless-lines", Size: 1 << 30, About: "sends an event of -size bytes of short data lines without an end",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				startEvents(w)
				line := []byte("data: x\n")
				for n := 0; n < h.o.Size; n += len(line) {
					if _, err := w.Write(line); err != nil {
						return
					}
				}
			},
		},
		{
			Name: "sse-open-after", About: "answers honestly and keeps the stream open",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				startEvents(w)
				_, _ = w.Write(rawrpc.Event{Name: "message", Data: h.honest}.Bytes())
				flush(w)
				<-h.r.Context().Done()
			},
		},
	}
}

func startEvents(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
}

// events makes a mode that answers with a literal stream; %HONEST% in it becomes the honest answer and
// %HONEST1%, %HONEST2% its parts before and after the first comma.
func events(name, about, stream string) Mode {
	return Mode{Name: name, About: about, wire: func(w http.ResponseWriter, h *httpRequest) {
		startEvents(w)
		first, second, _ := strings.Cut(string(h.honest), ",")
		insert := strings.NewReplacer("%HONEST%", string(h.honest), "%HONEST1%", first+",", "%HONEST2%", second)
		_, _ = insert.WriteString(w, stream)
	}}
}

// fillTo writes n bytes of the letter a and reports whether all were taken.
func fillTo(w io.Writer, n int) bool {
	chunk := fill(64<<10, 'a')
	for ; n > 0; n -= len(chunk) {
		if _, err := w.Write(chunk); err != nil {
			return false
		}
	}
	return true
}
