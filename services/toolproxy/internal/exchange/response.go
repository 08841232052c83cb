package exchange

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

const (
	maxErrorBytes  = 64 << 10        // of an error's body that are read
	errorTimeout   = 2 * time.Second // for them to come
	maxSnippet     = 300             // characters of it that are shown
	maxDrainBytes  = 64 << 10        // of a body that are read only so that its connection can be used again
	maxHeaderValue = 2 << 10         // of a header that is kept in an error
	firstBytes     = 1 << 20         // that are allocated on a Content-Length's word alone
)

// MediaType returns the type of a response's body in lower case without parameters; "" if there is none or it
// cannot be read.
func MediaType(resp *http.Response) string {
	v := resp.Header.Get("Content-Type")
	if v == "application/json" || v == "text/event-stream" {
		return v // most answers; parsing costs more than all else that is done to their headers
	}
	t, _, err := mime.ParseMediaType(v)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return ""
	}
	return t
}

// Body reads a whole body that is one message. The error is [Client.TooLarge] or [Client.Lost].
func (c *Client) Body(what string, resp *http.Response) ([]byte, error) {
	limit := int64(c.maxMessage)
	if resp.ContentLength > limit {
		return nil, c.TooLarge(what)
	}
	if n := resp.ContentLength; n >= 0 && n <= firstBytes {
		b := make([]byte, n)
		if _, err := io.ReadFull(resp.Body, b); err != nil {
			return nil, c.Lost(what, err)
		}
		return b, nil
	}
	b, err := readAll(resp.Body, limit)
	if err != nil {
		return nil, c.Lost(what, err)
	}
	if int64(len(b)) > limit {
		return nil, c.TooLarge(what)
	}
	return b, nil
}

// readAll reads to the end or to one byte past limit.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b := make([]byte, 0, 4<<10)
	for {
		if len(b) == cap(b) {
			grown := make([]byte, len(b), 2*cap(b))
			copy(grown, b)
			b = grown
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil || int64(len(b)) > limit {
			return b, err
		}
	}
}

// Drain reads what is left of a body, within bounds, so that its connection can be used again, and closes it.
func Drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxDrainBytes)
	_ = body.Close()
}

// Refusal reads a response with status >= 400 to r and closes it. Where its body is the server's answer to message
// m, it returns that; otherwise the error: [SessionLostError] if the request was part of a session and the server
// says that it is gone, else [StatusError]. m is nil for requests that are no message.
func (c *Client) Refusal(m *jsonrpc.Message, r *Request, resp *http.Response) (answer []byte, err error) {
	// The status says most of it: a body that does not end holds up nobody.
	late := time.AfterFunc(errorTimeout, func() { _ = resp.Body.Close() })
	defer late.Stop()
	body, readErr := readAll(io.LimitReader(resp.Body, maxErrorBytes), maxErrorBytes)
	if readErr == nil {
		Drain(resp.Body)
	} else {
		_ = resp.Body.Close()
	}
	said := c.snippet(resp.Request, body)
	failure, whose := failureIn(body, m)
	if r.InSession && lost(resp.StatusCode, failure, whose, string(body)) {
		return nil, &SessionLostError{
			Server: c.server, What: r.What, Code: resp.StatusCode, Detail: said,
			// A gateway may answer 503 for a backend that was already at work.
			Untouched: resp.StatusCode < 500,
		}
	}
	if whose != others && resp.StatusCode != http.StatusUnauthorized {
		return body, nil
	}
	return nil, &StatusError{Server: c.server, What: r.What, Code: resp.StatusCode, Header: kept(resp.Header), Body: said}
}

// owner says whose failure a body is.
type owner uint8

const (
	others  owner = iota // of another id, or no failure at all
	implied              // it has no id, which can only mean the request
	own
)

// failureIn returns the error object if body is a JSON-RPC failure, and whether it is the answer to request m.
func failureIn(body []byte, m *jsonrpc.Message) (*jsonrpc.Error, owner) {
	got, parseErr := jsonrpc.Parse(body)
	if parseErr != nil || got.Kind != jsonrpc.Failure {
		return nil, others //nolint:nilerr // the result is no outcome of this function but what was found
	}
	e, decodeErr := jsonrpc.DecodeError(got.Error)
	switch {
	case decodeErr != nil:
		return nil, others //nolint:nilerr // as above
	case m == nil || m.Kind != jsonrpc.Request:
		return e, others
	case got.ID == nil:
		return e, implied
	case sameID(got.ID, m.ID):
		return e, own
	default:
		return e, others
	}
}

// lost decides whether an answer to a message that named a session says that the session is gone. Servers say it
// with 404 as the protocol wants, with 400 or 503 and words, or with an error object; one that repeats the id of
// the request has understood the request, so there the words must be plain.
func lost(status int, failure *jsonrpc.Error, whose owner, body string) bool {
	text := body
	if failure != nil {
		text = failure.Message
	}
	switch status {
	case http.StatusNotFound:
		return whose != own || speaksOfSession(text)
	case http.StatusBadRequest, http.StatusServiceUnavailable, http.StatusGone:
		if whose == own && failure.Code != jsonrpc.CodeInvalidRequest && failure.Code != -32000 && failure.Code != -32001 {
			return false
		}
		return speaksOfSession(text)
	default:
		return failure != nil && namesLostSession(failure.Code, failure.Message)
	}
}

// LostInBand returns the [SessionLostError] if an answer that came with HTTP 200 to a request within a session says
// that the session is gone, else nil.
func (c *Client) LostInBand(what string, answer []byte) error {
	e, _ := failureIn(answer, nil)
	if e == nil || !namesLostSession(e.Code, e.Message) {
		return nil
	}
	return &SessionLostError{Server: c.server, What: what, Code: http.StatusOK, Detail: c.redactor.Redact(e.Message)}
}

// snippet is the beginning of what a server said, fit for a log line: credentials removed, those above all that
// the request itself carried, and on one line.
func (c *Client) snippet(req *http.Request, body []byte) string {
	if !utf8.Valid(body) {
		body = bytes.ToValidUTF8(body, []byte("\uFFFD"))
	}
	own := secret.NewRedactor()
	for name, values := range req.Header {
		if reserved[name] && name != SessionIDHeader {
			continue
		}
		for _, v := range values {
			own.Add(v)
			if _, credential, ok := strings.Cut(v, " "); ok {
				own.Add(credential)
			}
		}
	}
	text := c.redactor.Redact(own.Redact(string(body)))
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 }), " ")
	if runes := []rune(text); len(runes) > maxSnippet {
		return string(runes[:maxSnippet]) + "…"
	}
	return text
}

// kept returns the headers of an error that a caller may need.
func kept(h http.Header) http.Header {
	out := http.Header{}
	for _, name := range []string{"Www-Authenticate", "Retry-After"} {
		for _, v := range h[name] {
			out[name] = append(out[name], v[:min(len(v), maxHeaderValue)])
		}
	}
	return out
}

// Answers reports whether msg is the answer to the request with this id: a response, or a failure, also one
// without an id, which on the stream of a request can only mean that request. A broken message that bears the
// marks of the answer counts too, because its caller must hear of it.
//
// It is called for each message of a stream, large ones too, so what the usual encoders write is told by its ends.
func Answers(msg []byte, id jsonrpc.ID) bool {
	if endsAsAnswer(msg, id) {
		return true
	}
	m, err := jsonrpc.Parse(msg)
	if err != nil {
		return m.Answers() && sameID(m.ID, id)
	}
	return m.Kind == jsonrpc.Response && sameID(m.ID, id) || m.Kind == jsonrpc.Failure && (m.ID == nil || sameID(m.ID, id))
}

// endsAsAnswer looks at the beginning of a message, where most encoders put the id, and at its end, where the others do.
func endsAsAnswer(msg []byte, id jsonrpc.ID) bool {
	rest, versioned := bytes.CutPrefix(msg, []byte(`{"jsonrpc":"2.0",`))
	if !versioned {
		rest, _ = bytes.CutPrefix(msg, []byte(`{`))
	}
	if afterKey, found := bytes.CutPrefix(rest, []byte(`"id":`)); versioned && found {
		tail, mine := bytes.CutPrefix(afterKey, id)
		return mine && (bytes.HasPrefix(tail, []byte(`,"result":`)) || bytes.HasPrefix(tail, []byte(`,"error":`)))
	}
	if !bytes.HasPrefix(rest, []byte(`"result":`)) && !bytes.HasPrefix(rest, []byte(`"error":`)) {
		return false // it may be a request of the server's own with the same id
	}
	head, object := bytes.CutSuffix(msg, []byte(`}`))
	head, mine := bytes.CutSuffix(head, id)
	return object && mine && bytes.HasSuffix(head, []byte(`,"id":`))
}

func sameID(a, b jsonrpc.ID) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, ok := a.Int()
	y, ok2 := b.Int()
	return ok && ok2 && x == y
}
