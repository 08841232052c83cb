package safehttp

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/toolherd/toolherd/pkg/fault"
)

// keptAcross are the request headers that may go to another origin: they say what is asked for and name nobody.
var keptAcross = []string{"Accept", "Accept-Encoding", "Accept-Language", "User-Agent", "Mcp-Protocol-Version"}

// redirectCheck returns the CheckRedirect function of a client.
func redirectCheck(r Redirects, limit int) func(req *http.Request, via []*http.Request) error {
	return func(req *http.Request, via []*http.Request) error {
		if r == RedirectNone {
			return http.ErrUseLastResponse
		}
		first, last := via[0], via[len(via)-1]
		if len(via) > limit {
			return refuse("%s redirected more than %d times; configure the address it ends at", host(first.URL), limit)
		}
		if req.Method != first.Method {
			return refuse("%s redirected a %s so that it became a %s; configure the address it redirects to: %s",
				host(last.URL), first.Method, req.Method, SafeString(req.URL))
		}
		if last.URL.Scheme == "https" && req.URL.Scheme != "https" {
			return refuse("%s redirected from https to %s; configure an https address", host(last.URL), SafeString(req.URL))
		}
		if !crossed(req, via) {
			return nil
		}
		if f := crossing(r, req, last); f != nil {
			return f
		}
		kept := http.Header{}
		for _, k := range keptAcross {
			if v := req.Header.Values(k); len(v) > 0 {
				kept[k] = v
			}
		}
		req.Header = kept //nolint:gosec // G119: fewer headers than net/http would keep
		return nil
	}
}

// crossed reports whether any step from the first request to req went to another origin. Once left, an origin's
// headers stay behind, even if a later step comes back.
func crossed(req *http.Request, via []*http.Request) bool {
	for _, v := range via {
		if !SameOrigin(v.URL, req.URL) || !SameOrigin(v.URL, via[0].URL) {
			return true
		}
	}
	return false
}

func crossing(r Redirects, req, last *http.Request) error {
	if r == RedirectSafe && (req.Method == http.MethodGet || req.Method == http.MethodHead) {
		return nil
	}
	return CrossOrigin(last.URL, req.URL)
}

// CrossOrigin returns the error for a request that from redirected to another origin and that is not sent there.
func CrossOrigin(from, to *url.URL) *fault.Error {
	return refuse("%s redirected to another origin, where no request is sent; configure %s as the URL if it is right",
		host(from), SafeString(to)).With("host", to.Hostname())
}

// SameOrigin reports whether scheme, host and port of a and b are the same, default ports included.
func SameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && canonical(a.Hostname()) == canonical(b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if strings.EqualFold(u.Scheme, "https") {
		return "443"
	}
	return "80"
}

func host(u *url.URL) string { return u.Host }

// SafeString returns u without userinfo, query and fragment, any of which may hold a credential.
func SafeString(u *url.URL) string {
	c := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return c.String()
}
