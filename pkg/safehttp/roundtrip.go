package safehttp

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
)

// RoundTrip sends one request. A response body must be read to its end or closed, as with any transport.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	first := firstURL(req)
	if err := t.checkURL(req.URL, first != nil); err != nil {
		closeBody(req)
		return nil, err
	}
	pool, private := t.direct, t.options.AllowPrivate
	if first != nil && canonical(first.Hostname()) != canonical(req.URL.Hostname()) {
		pool, private = t.redirected, nil
	}
	if t.options.Proxy != nil {
		var err error
		if req, err = t.chooseProxy(req, private); err != nil {
			closeBody(req)
			return nil, err
		}
	}
	if req.Header.Get("Accept-Encoding") == "" {
		// A transport must not change its caller's request; callers on a hot path set the header themselves.
		c := *req
		c.Header = req.Header.Clone()
		if c.Header == nil {
			c.Header = http.Header{}
		}
		c.Header.Set("Accept-Encoding", t.acceptEncoding())
		req = &c
	}
	resp, err := pool.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if err := t.bound(resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

func (t *Transport) acceptEncoding() string {
	if t.options.AskGzip {
		return "gzip"
	}
	return "identity"
}

// firstURL returns the URL that a redirected request was first sent to, or nil where req is no redirect.
func firstURL(req *http.Request) *url.URL {
	var first *url.URL
	for r := req; r.Response != nil && r.Response.Request != nil; {
		r = r.Response.Request
		first = r.URL
	}
	return first
}

// chooseProxy attaches the proxy for req to its context. The proxy resolves the name, so what can be checked is
// checked here: literal addresses and known names.
func (t *Transport) chooseProxy(req *http.Request, private Policy) (*http.Request, error) {
	proxy, err := t.options.Proxy(req)
	if err != nil || proxy == nil {
		return req, err
	}
	host := canonical(req.URL.Hostname())
	if a, err := netip.ParseAddr(host); err == nil {
		d := dialer{private: private, setting: t.options.Setting}
		if err := d.check(host, a); err != nil {
			return req, err
		}
	}
	if !ascii(host) {
		return req, refuse("the host of the URL is not ASCII, which cannot be checked behind a proxy; write it in its xn-- form")
	}
	return req.WithContext(context.WithValue(req.Context(), proxyKey{}, proxy)), nil
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func (t *Transport) checkURL(u *url.URL, redirected bool) error {
	if u == nil {
		return refuse("the request has no URL")
	}
	if u.User != nil && (redirected || !t.options.AllowUserinfo) {
		return refuse("a URL with user:password@ is not accepted here; put the credential into a header").With("host", u.Hostname())
	}
	return CheckURL(u)
}

// CheckURL returns an error that wraps [ErrRefused] if no client of this package would ever send a request to u,
// whatever its policy and whatever the host resolves to: another scheme than http and https, no host, a bad port,
// a number-like host, a cloud metadata name or address. It asks no resolver, so it suits configuration.
func CheckURL(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" {
		return refuse("the scheme %q is not accepted; write http:// or https://", u.Scheme)
	}
	if u.Opaque != "" {
		return refuse("the URL has no host; write %s://host:port/path", u.Scheme)
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return refuse("port %q is not a port; write a number from 1 to 65535", p).With("host", u.Hostname())
		}
	}
	host := canonical(u.Hostname())
	if !ascii(host) {
		return nil // net/http turns it into ASCII; the dialler sees and checks the result
	}
	if err := checkHost(host); err != nil {
		return err
	}
	if a, err := netip.ParseAddr(host); err == nil {
		d := dialer{private: AnyHost}
		return d.check(host, a)
	}
	return nil
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}
