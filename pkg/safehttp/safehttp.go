package safehttp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Redirects says which redirects a client follows.
type Redirects uint8

const (
	// RedirectNone follows no redirect: the 3xx answer is returned as it is.
	RedirectNone Redirects = iota
	// RedirectSameOrigin follows redirects within one origin that keep the method; others are errors.
	RedirectSameOrigin
	// RedirectSafe also lets GET and HEAD go to another origin, without the request's headers.
	RedirectSafe
)

// Defaults of [Options].
const (
	DefaultMaxBodyBytes   = 16 << 20
	DefaultMaxHeaderBytes = 64 << 10
	DefaultMaxRedirects   = 5
	DefaultDialTimeout    = 10 * time.Second
	DefaultTLSTimeout     = 10 * time.Second
	DefaultIdleTimeout    = 90 * time.Second
	DefaultMaxIdleConns   = 256
)

// Options configures a client. The zero value is the strictest: public addresses only, no redirects, bodies of
// at most 16 MiB, no total time limit.
type Options struct {
	// AllowPrivate permits private addresses per host; nil permits none.
	AllowPrivate Policy
	// Setting ends the message of a refused private address: what a person changes to allow it.
	// Empty means a text that suits discovered addresses.
	Setting string
	// AllowUserinfo permits user:password@ in the URL of a first request, never in that of a redirect.
	AllowUserinfo bool
	// Redirects says which redirects a [Client] follows; a [Transport] alone follows none.
	Redirects Redirects
	// MaxRedirects bounds the redirects of one request; zero means [DefaultMaxRedirects].
	MaxRedirects int

	// MaxBodyBytes bounds a response body after decompression; reading past it fails with PAYLOAD_TOO_LARGE.
	// Zero means [DefaultMaxBodyBytes], a negative value no limit, for callers that bound what they read.
	MaxBodyBytes int64
	// MaxHeaderBytes bounds the headers of a response; zero means [DefaultMaxHeaderBytes].
	MaxHeaderBytes int64
	// AskGzip asks servers to compress. Otherwise they are asked not to; a gzip body is decoded either way.
	AskGzip bool

	// Timeout bounds a whole exchange of a [Client], redirects and body included; zero means no limit but the
	// request's context.
	Timeout time.Duration
	// DialTimeout bounds name resolution and connecting together; zero means [DefaultDialTimeout].
	DialTimeout time.Duration
	// TLSTimeout bounds the TLS handshake; zero means [DefaultTLSTimeout].
	TLSTimeout time.Duration
	// HeaderTimeout bounds the wait for response headers once the request is written; zero means no limit but
	// the request's context.
	HeaderTimeout time.Duration
	// IdleTimeout is how long an unused connection is kept; zero means [DefaultIdleTimeout].
	IdleTimeout time.Duration
	// MaxIdleConns bounds the unused connections kept per host; zero means [DefaultMaxIdleConns].
	MaxIdleConns int
	// MaxConns bounds the connections per host, unused ones included; zero means no limit.
	MaxConns int

	// TLS is the client side of TLS, such as further certificate authorities; nil means the system's, TLS 1.2 up.
	TLS *tls.Config
	// Proxy chooses a forward proxy per request, such as [http.ProxyFromEnvironment]; nil means none. The proxy's
	// own address may be private.
	Proxy func(*http.Request) (*url.URL, error)
	// Resolver finds addresses; nil means the system's.
	Resolver Resolver
}

// discovered is the message for what no setting allows.
const discovered = "only the configured host itself may be private here; if the address is right, configure it as the URL"

// New returns a client with one connection pool of its own. Make one per upstream and keep it: a client per
// request would connect anew each time. CloseIdleConnections frees its connections.
//
// Errors of its methods carry the URL with its query in their text, as those of every [http.Client] do;
// [Cause] removes it.
func New(o Options) *http.Client {
	return &http.Client{
		Transport:     NewTransport(o),
		CheckRedirect: redirectCheck(o.Redirects, cmp.Or(o.MaxRedirects, DefaultMaxRedirects)),
		Timeout:       o.Timeout,
	}
}

// Cause returns what went wrong without the URL, whose query or userinfo may hold a credential, that
// [http.Client] puts before it. Other errors are returned as they are.
func Cause(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// Transport is the checked and bounded http.RoundTripper below a client. It is safe for concurrent use.
type Transport struct {
	direct     *http.Transport // hosts that were asked for
	redirected *http.Transport // other hosts that a redirect named, with their own pool: a pooled connection is not checked again
	options    Options
}

// NewTransport returns a Transport with one connection pool of its own.
func NewTransport(o Options) *Transport {
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, DefaultMaxBodyBytes)
	o.Setting = cmp.Or(o.Setting, discovered)
	t := &Transport{options: o}
	t.direct = t.pool(o.AllowPrivate, o.Setting)
	t.redirected = t.pool(nil, "a redirect to another host may not lead to a private one; configure that address as the URL if it is right")
	return t
}

// CloseIdleConnections closes the connections that are not in use.
func (t *Transport) CloseIdleConnections() {
	t.direct.CloseIdleConnections()
	t.redirected.CloseIdleConnections()
}

func (t *Transport) pool(private Policy, setting string) *http.Transport {
	o := t.options
	d := &dialer{
		private:  private,
		setting:  setting,
		resolver: o.Resolver,
		timeout:  cmp.Or(o.DialTimeout, DefaultDialTimeout),
		dial:     (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext,
	}
	if d.resolver == nil {
		d.resolver = net.DefaultResolver
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLS != nil {
		tlsConfig = o.TLS.Clone()
		tlsConfig.MinVersion = max(tlsConfig.MinVersion, tls.VersionTLS12)
	}
	return &http.Transport{
		Proxy:                  proxyOf,
		DialContext:            t.dialVia(d),
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    cmp.Or(o.TLSTimeout, DefaultTLSTimeout),
		ResponseHeaderTimeout:  o.HeaderTimeout,
		IdleConnTimeout:        cmp.Or(o.IdleTimeout, DefaultIdleTimeout),
		MaxIdleConnsPerHost:    cmp.Or(o.MaxIdleConns, DefaultMaxIdleConns),
		MaxConnsPerHost:        o.MaxConns,
		MaxResponseHeaderBytes: cmp.Or(o.MaxHeaderBytes, DefaultMaxHeaderBytes),
		DisableCompression:     true, // decoded here, with a bound
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
}

type proxyKey struct{}

// proxyOf returns the proxy that RoundTrip chose for the request.
func proxyOf(r *http.Request) (*url.URL, error) {
	u, _ := r.Context().Value(proxyKey{}).(*url.URL)
	return u, nil
}

// dialVia dials the proxy chosen for a request without the policy for private addresses, which is about targets.
func (t *Transport) dialVia(d *dialer) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if t.options.Proxy == nil {
		return d.DialContext
	}
	viaProxy := *d
	viaProxy.private = AnyHost
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if u, _ := ctx.Value(proxyKey{}).(*url.URL); u != nil {
			return viaProxy.DialContext(ctx, network, addr)
		}
		return d.DialContext(ctx, network, addr)
	}
}
