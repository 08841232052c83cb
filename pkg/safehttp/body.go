package safehttp

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"

	"github.com/toolherd/toolherd/pkg/fault"
)

// bound makes the body of resp fail past the limit and decodes gzip. An error means that the body must not be used.
func (t *Transport) bound(resp *http.Response) error {
	if resp.Body == nil || resp.Body == http.NoBody {
		return nil
	}
	limit := t.options.MaxBodyBytes
	switch encoding := strings.ToLower(resp.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
		if limit >= 0 && resp.ContentLength > limit && resp.Request.Method != http.MethodHead {
			return tooLarge(limit)
		}
	case "gzip", "x-gzip":
		resp.Body = &gunzip{source: resp.Body}
		resp.Header.Del("Content-Encoding")
		resp.Header.Del("Content-Length")
		resp.ContentLength = -1
		resp.Uncompressed = true
	default:
		return fault.New(fault.UpstreamProtocol, "%s answered with content encoding %q although none was asked for; only gzip is understood",
			resp.Request.URL.Host, encoding)
	}
	if limit >= 0 {
		resp.Body = &limited{source: resp.Body, left: limit, limit: limit}
	}
	return nil
}

func tooLarge(limit int64) error {
	return fault.New(fault.PayloadTooLarge, "the response is larger than %d bytes, the limit for this request", limit)
}

// limited fails once more than limit bytes have been read.
type limited struct {
	source io.ReadCloser
	left   int64
	limit  int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, tooLarge(l.limit)
	}
	if int64(len(p))-1 > l.left {
		p = p[:l.left+1] // one byte more tells a body of exactly limit bytes from a larger one
	}
	n, err := l.source.Read(p)
	if int64(n) <= l.left {
		l.left -= int64(n)
		return n, err
	}
	n = int(l.left)
	l.left = -1
	return n, tooLarge(l.limit)
}

func (l *limited) Close() error { return l.source.Close() }

// gunzip decodes while it is read. The header is read with the first Read, so that a response is returned as soon
// as its own headers are there.
type gunzip struct {
	source io.ReadCloser
	reader *gzip.Reader
	err    error
}

func (g *gunzip) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	if g.reader == nil {
		if g.reader, g.err = gzip.NewReader(g.source); g.err != nil {
			return 0, g.err
		}
	}
	n, err := g.reader.Read(p)
	g.err = err
	return n, err
}

func (g *gunzip) Close() error { return g.source.Close() }
