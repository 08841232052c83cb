package exchange

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/safehttp"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
)

// DefaultMaxMessageBytes bounds a message of the server where Options set no limit.
const DefaultMaxMessageBytes = 16 << 20

// Options describe the server to talk to.
type Options struct {
	// Server is the MCP server's name, for messages.
	Server string
	// URL is the address of the entry; user:password@ in it becomes Basic authentication below every other header.
	URL string
	// Transport sends the requests; it is a *safehttp.Transport, one per server entry, with no limit on bodies.
	Transport http.RoundTripper
	// Header is what the entry adds to every request.
	Header http.Header
	// MaxMessageBytes bounds one message of the server; 0 means [DefaultMaxMessageBytes].
	MaxMessageBytes int
	// Redactor removes credentials from what a server says in an error; nil knows patterns only. What a request
	// itself carried in its headers is always removed.
	Redactor *secret.Redactor
	// Inject adds trace headers to a request; nil adds none.
	Inject func(ctx context.Context, h http.Header)
	// OwnHeader returns the header layer for requests that no caller asked for, such as the DELETE that ends a
	// session; nil means none.
	OwnHeader func(ctx context.Context) (http.Header, error)
	// Log gets what is not returned; nil discards.
	Log *slog.Logger
}

// Client sends requests to one server. It is safe for concurrent use.
type Client struct {
	server     string
	url        *url.URL
	transport  http.RoundTripper
	static     http.Header
	maxMessage int
	redactor   *secret.Redactor
	inject     func(ctx context.Context, h http.Header)
	ownHeader  func(ctx context.Context) (http.Header, error)
	log        *slog.Logger

	keepAlive atomic.Int64 // nanoseconds for which the server keeps an idle connection, if it says so
	lastUse   atomic.Int64 // when an answer last came, in Unix nanoseconds
}

// New returns a client, or CONFIG_INVALID or CREDENTIAL_ILLEGAL for an address or a header that cannot work.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, fault.New(fault.ConfigInvalid, "server %q: its url cannot be read; write http://host:port/path", o.Server)
	}
	c := &Client{
		server:     o.Server,
		transport:  o.Transport,
		static:     http.Header{},
		maxMessage: cmp.Or(o.MaxMessageBytes, DefaultMaxMessageBytes),
		redactor:   o.Redactor,
		inject:     o.Inject,
		ownHeader:  o.OwnHeader,
		log:        cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
	}
	if u.User != nil {
		password, _ := u.User.Password()
		r := http.Request{Header: c.static}
		r.SetBasicAuth(u.User.Username(), password)
		u.User = nil
	}
	u.Fragment = ""
	if u.Path == "" {
		u.Path = "/"
	}
	if err := safehttp.CheckURL(u); err != nil {
		return nil, fault.New(fault.ConfigInvalid, "server %q: %v", o.Server, err).Because(err)
	}
	c.url = u
	if err := layer(c.static, o.Header); err != nil {
		return nil, err
	}
	if names := Reserved(o.Header); len(names) > 0 {
		c.log.Warn("headers of the server entry belong to the protocol and are left out", "server", o.Server, "headers", names)
	}
	return c, nil
}

// Server returns the MCP server's name.
func (c *Client) Server() string { return c.server }

// URL returns the address, which must not be changed.
func (c *Client) URL() *url.URL { return c.url }

// MaxMessageBytes returns the limit of one message.
func (c *Client) MaxMessageBytes() int { return c.maxMessage }

// Log returns the logger.
func (c *Client) Log() *slog.Logger { return c.log }

// Request is one HTTP request.
type Request struct {
	Method    string
	URL       *url.URL    // nil means the client's
	What      string      // what errors call it: the JSON-RPC method
	Protocol  http.Header // headers of the protocol, the last layer; Do may change and keep it
	Body      []byte
	Own       bool // asked for by no caller: takes its layer from Options.OwnHeader
	InSession bool // belongs to a session that the server may have lost
}

const maxRedirects = 3

// Do sends r and returns the response, whatever its status but a redirect; its body must be closed. ctx ends the
// exchange, the reading of the body included. An error is about this request alone; see the package comment.
func (c *Client) Do(ctx context.Context, r *Request) (*http.Response, error) {
	header, err := c.header(ctx, r)
	if err != nil {
		return nil, notSent(err)
	}
	c.avoidStaleConnections()
	to := cmp.Or(r.URL, c.url)
	for range 1 + maxRedirects {
		req := (&http.Request{
			Method: r.Method, URL: to, Host: to.Host, Header: header,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}).WithContext(ctx)
		if r.Body != nil {
			req.ContentLength = int64(len(r.Body))
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.Body)), nil }
			req.Body, _ = req.GetBody()
		}
		resp, err := c.transport.RoundTrip(req)
		if err != nil {
			return nil, c.transportError(r.What, err)
		}
		c.noteKeepAlive(resp)
		if resp.StatusCode < 300 || resp.StatusCode > 399 {
			return resp, nil
		}
		_ = resp.Body.Close()
		if to, err = c.redirected(r, to, resp); err != nil {
			return nil, err
		}
	}
	return nil, notSent(fault.New(fault.ServerError, "server %q redirects again and again; set its url to the address it ends at", c.server))
}

func (c *Client) header(ctx context.Context, r *Request) (http.Header, error) {
	h := make(http.Header, len(c.static)+len(r.Protocol)+4)
	maps.Copy(h, c.static)
	call, _ := ctx.Value(headerKey{}).(http.Header)
	if r.Own && c.ownHeader != nil {
		var err error
		if call, err = c.ownHeader(ctx); err != nil {
			return nil, err
		}
	}
	if err := layer(h, call); err != nil {
		return nil, err
	}
	if c.inject != nil {
		c.inject(ctx, h)
	}
	maps.Copy(h, r.Protocol)
	h["Accept-Encoding"] = identity
	return h, nil
}

var identity = []string{"identity"}

// redirected returns the address that a 3xx response leads to, if it may be followed.
func (c *Client) redirected(r *Request, from *url.URL, resp *http.Response) (*url.URL, error) {
	to, err := resp.Location()
	if err != nil {
		return nil, c.BrokeProtocol(r.What, "HTTP %d and no address to go to", resp.StatusCode)
	}
	keeps := resp.StatusCode == http.StatusTemporaryRedirect || resp.StatusCode == http.StatusPermanentRedirect
	switch {
	case !safehttp.SameOrigin(from, to):
		err = fault.New(fault.ServerError, "server %q: %v", c.server, safehttp.CrossOrigin(from, to))
	case !keeps && r.Method != http.MethodGet:
		err = fault.New(fault.ServerError, "server %q redirects a %s with HTTP %d, which would lose the message; set its url to %s",
			c.server, r.Method, resp.StatusCode, safehttp.SafeString(to))
	default:
		to.Fragment = ""
		return to, nil
	}
	if resp.StatusCode == http.StatusSeeOther {
		return nil, err // "see the outcome there": the message may have been acted upon
	}
	return nil, notSent(err)
}

// transportError turns what a round trip returned into the error of this package.
func (c *Client) transportError(what string, err error) error {
	if _, ok := errors.AsType[*safehttp.DialError](err); ok && !errors.Is(err, safehttp.ErrRefused) {
		return notSent(fault.New(fault.ServerError, "server %q cannot be reached: %v; see whether it runs and its url is right", c.server, err).Because(err))
	}
	if errors.Is(err, safehttp.ErrRefused) {
		return notSent(fault.New(fault.ServerError, "server %q: %v", c.server, err).Because(err))
	}
	if isTLS(err) {
		return notSent(fault.New(fault.ServerError, "server %q: its TLS certificate or handshake is not accepted: %v", c.server, err).Because(err))
	}
	return c.Lost(what, err)
}

// isTLS reports whether err is about the handshake, before which nothing of a request is sent.
func isTLS(err error) bool {
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	_, name := errors.AsType[x509.HostnameError](err)
	return certificate || record || alert || authority || name
}

// Lost returns the error of a message whose answer did not come or came cut: its outcome is unknown.
func (c *Client) Lost(what string, cause error) error {
	if f, ok := errors.AsType[*fault.Error](cause); ok && f.Reason() != "" {
		return cause
	}
	return fault.New(fault.SessionClosed, "the connection to server %q was lost before %s was answered, so its outcome is unknown: %s",
		c.server, what, withoutAddresses(cause)).Because(cause)
}

// withoutAddresses returns the text of err without the addresses that the net package puts into it: it is kept with tasks
// and shown to agents.
func withoutAddresses(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// BrokeProtocol returns the error of a message whose answer is not what the protocol allows.
func (c *Client) BrokeProtocol(what, format string, args ...any) error {
	return fault.New(fault.UpstreamProtocol, "server %q answered %s against the protocol: %s", c.server, what, fmt.Sprintf(format, args...))
}

// TooLarge returns the error of a message whose answer is above the limit.
func (c *Client) TooLarge(what string) error {
	return fault.New(fault.PayloadTooLarge, "the answer of server %q to %s is larger than %d bytes; raise toolproxy.max_message_bytes or ask for less",
		c.server, what, c.maxMessage)
}

// notSent marks err as that of a message of which no byte left, or none that was acted upon.
func notSent(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.Because(errors.Join(link.ErrNotSent, f.Unwrap()))
	}
	return errors.Join(link.ErrNotSent, err)
}

// noteKeepAlive remembers for how long the server keeps a connection that is not used.
func (c *Client) noteKeepAlive(resp *http.Response) {
	c.lastUse.Store(time.Now().UnixNano())
	values := resp.Header["Keep-Alive"]
	if len(values) == 0 {
		return
	}
	for part := range strings.SplitSeq(values[0], ",") {
		if v, ok := strings.CutPrefix(strings.TrimSpace(part), "timeout="); ok {
			if s, err := strconv.ParseUint(v, 10, 16); err == nil && s > 0 {
				c.keepAlive.Store(int64(time.Duration(s) * time.Second))
			}
		}
	}
}

// avoidStaleConnections drops connections that the server is about to close, because a request that meets the
// closing half-way fails with an unknown outcome. Servers on Node.js close after five seconds, and say so.
func (c *Client) avoidStaleConnections() {
	keep := c.keepAlive.Load()
	if keep == 0 || time.Now().UnixNano()-c.lastUse.Load() < keep-int64(time.Second) {
		return
	}
	if t, ok := c.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}
