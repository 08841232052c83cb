package safehttp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/safehttp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// loopback resolves every name to 127.0.0.1 and remembers the names.
type loopback struct {
	mu    sync.Mutex
	names []string
}

func (l *loopback) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = append(l.names, host)
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// hits is a server that records the requests it got.
type hits struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	conns    atomic.Int64
}

func serve(t *testing.T, h http.HandlerFunc) *hits {
	t.Helper()
	s := &hits{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Clone(context.WithoutCancel(r.Context())))
		s.mu.Unlock()
		h(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			s.conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func (s *hits) seen() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func (s *hits) port() string {
	u, _ := url.Parse(s.URL)
	return u.Port()
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

func newClient(t *testing.T, o safehttp.Options) *http.Client {
	t.Helper()
	c := safehttp.New(o)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func get(t *testing.T, c *http.Client, u string, h http.Header) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h != nil {
		req.Header = h
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

func TestAURLThatMustNotBeAskedForIsRefusedWithItsReason(t *testing.T) {
	s := serve(t, ok)
	c := newClient(t, safehttp.Options{AllowPrivate: safehttp.AnyHost})
	for u, want := range map[string]string{
		"ftp://example.com/":                                     "http:// or https://",
		"file:///etc/passwd":                                     "http:// or https://",
		"http:///path":                                           "no host",
		"http://127.1:" + s.port() + "/":                         "write 127.0.0.1",
		"http://0x7f000001:" + s.port() + "/":                    "write 127.0.0.1",
		"http://2130706433:" + s.port() + "/":                    "write 127.0.0.1",
		"http://user:pw-secret@127.0.0.1:" + s.port():            "user:password@",
		"http://169.254.169.254/latest/meta-data":                "cloud metadata",
		"http://[::ffff:169.254.169.254]/":                       "cloud metadata",
		"http://[fd00:ec2::254]/":                                "cloud metadata",
		"http://metadata.google.internal/":                       "cloud metadata",
		"http://METADATA.google.internal./":                      "cloud metadata",
		"http://example.com@169.254.169.254/":                    "user:password@",
		"http://127.0.0.1:0/":                                    "1 to 65535",
		"http://metadata\u3002google\uff0einternal/computeMeta":  "cloud metadata",
		"http://\u2460\u2461\u2466.1:" + s.port() + "/fullwidth": "write 127.0.0.1",
	} {
		_, _, err := get(t, c, u, nil)
		if !errors.Is(err, safehttp.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a refusal that says %q", u, err, want)
		}
		if fault.KindOf(err) != fault.FailedPrecondition {
			t.Errorf("%s: kind %d", u, fault.KindOf(err))
		}
		if cause := safehttp.Cause(err); cause == nil || strings.Contains(cause.Error(), "pw-secret") {
			t.Errorf("%s: the cause %v shows the password", u, cause)
		}
	}
	if n := len(s.seen()); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

func TestPrivateAddressesFollowThePolicyOfTheHost(t *testing.T) {
	s := serve(t, ok)
	home, _ := url.Parse("http://home.example:" + s.port())
	for _, tt := range []struct {
		name, url string
		policy    safehttp.Policy
		ok        bool
	}{
		{"nobody, literal", s.URL, nil, false},
		{"nobody, name", "http://home.example:" + s.port(), nil, false},
		{"anybody, literal", s.URL, safehttp.AnyHost, true},
		{"anybody, name with root dot", "http://home.example.:" + s.port(), safehttp.AnyHost, true},
		{"same host", "http://HOME.example:" + s.port(), safehttp.SameHost(home), true},
		{"other host", "http://other.example:" + s.port(), safehttp.SameHost(home), false},
		{"public-looking name for a private address", "http://home.example:" + s.port(), safehttp.VisiblyPrivate(home), false},
	} {
		c := newClient(t, safehttp.Options{AllowPrivate: tt.policy, Setting: "allow it in the entry", Resolver: &loopback{}})
		_, body, err := get(t, c, tt.url, nil)
		if tt.ok && (err != nil || body != "ok") || !tt.ok && !errors.Is(err, safehttp.ErrRefused) {
			t.Errorf("%s: %q, %v", tt.name, body, err)
		}
		if !tt.ok && !strings.Contains(err.Error(), "allow it in the entry") {
			t.Errorf("%s: the message does not name the setting: %v", tt.name, err)
		}
	}
}

func TestRedirectsNeverCarryCredentialsToAnotherOrigin(t *testing.T) {
	other := serve(t, ok)
	same := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/here":
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		case "/away":
			http.Redirect(w, r, "http://"+r.Host[:strings.LastIndex(r.Host, ":")]+":"+other.port()+"/x", http.StatusTemporaryRedirect)
		case "/roundtrip":
			http.Redirect(w, r, "http://away.example:"+other.port()+"/back", http.StatusFound)
		case "/get":
			http.Redirect(w, r, "/there", http.StatusSeeOther)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/userinfo":
			http.Redirect(w, r, "http://u:p@"+r.Host+"/there", http.StatusFound)
		case "/meta":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		case "/localhost":
			http.Redirect(w, r, "http://localhost:"+other.port()+"/", http.StatusFound)
		default:
			ok(w, r)
		}
	})
	creds := func() http.Header {
		return http.Header{"Authorization": {"Bearer tok"}, "Cookie": {"a=b"}, "X-Api-Key": {"k"}, "Accept": {"application/json"}}
	}
	base := "http://127.0.0.1:" + same.port()
	do := func(o safehttp.Options, method, path string) error {
		o.AllowPrivate, o.Resolver = safehttp.AnyHost, &loopback{}
		c := newClient(t, o)
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = creds()
		resp, err := c.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %d", resp.StatusCode)
			}
		}
		return err
	}
	safe, origin := safehttp.Options{Redirects: safehttp.RedirectSafe}, safehttp.Options{Redirects: safehttp.RedirectSameOrigin}

	if err := do(origin, http.MethodPost, "/here"); err != nil {
		t.Errorf("a 307 within the origin: %v", err)
	}
	if got := same.seen()[1]; got.Header.Get("Authorization") != "Bearer tok" || got.Method != http.MethodPost {
		t.Errorf("a 307 within the origin lost its method or headers: %s %v", got.Method, got.Header)
	}
	for _, tt := range []struct {
		options      safehttp.Options
		method, path string
		says         string
	}{
		{origin, http.MethodPost, "/away", "another origin"},
		{safe, http.MethodPost, "/away", "another origin"},
		{origin, http.MethodGet, "/away", "another origin"},
		{origin, http.MethodPost, "/get", "became a GET"},
		{safe, http.MethodGet, "/loop", "more than 5"},
		{safe, http.MethodGet, "/userinfo", "user:password@"},
		{safe, http.MethodGet, "/meta", "cloud metadata"},
		{safe, http.MethodGet, "/localhost", "redirect to another host"},
		{safehttp.Options{}, http.MethodGet, "/here", "status 307"},
	} {
		if err := do(tt.options, tt.method, tt.path); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s %s: %v, want %q", tt.method, tt.path, err, tt.says)
		}
	}
	if n := len(other.seen()); n != 0 {
		t.Fatalf("%d requests reached the other origin", n)
	}

	// CRED-024: what may cross arrives without credentials.
	if err := do(safe, http.MethodGet, "/away"); err != nil {
		t.Fatal(err)
	}
	got := other.seen()[0].Header
	for _, h := range []string{"Authorization", "Cookie", "X-Api-Key", "Referer"} {
		if v := got.Get(h); v != "" {
			t.Errorf("%s crossed: %q", h, v)
		}
	}
	if diff := cmp.Diff("application/json", got.Get("Accept")); diff != "" {
		t.Errorf("Accept: %s", diff)
	}
}

func TestARedirectNeverLeavesTLS(t *testing.T) {
	plain := serve(t, ok)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, plain.URL, http.StatusFound)
	}))
	defer secure.Close()
	roots := secure.Client().Transport.(*http.Transport).TLSClientConfig
	c := newClient(t, safehttp.Options{AllowPrivate: safehttp.AnyHost, Redirects: safehttp.RedirectSafe, TLS: roots})
	_, _, err := get(t, c, secure.URL, nil)
	if !errors.Is(err, safehttp.ErrRefused) || !strings.Contains(err.Error(), "from https") || len(plain.seen()) != 0 {
		t.Errorf("%v, %d requests", err, len(plain.seen()))
	}
}

func TestARedirectDoesNotReuseAConnectionThatOnlyAFirstRequestMayMake(t *testing.T) {
	private := serve(t, ok)
	front := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://private.example:"+private.port()+"/", http.StatusFound)
	})
	c := newClient(t, safehttp.Options{AllowPrivate: safehttp.AnyHost, Redirects: safehttp.RedirectSafe, Resolver: &loopback{}})
	if _, _, err := get(t, c, "http://private.example:"+private.port()+"/", nil); err != nil {
		t.Fatal(err)
	}
	_, _, err := get(t, c, "http://front.example:"+front.port()+"/", nil)
	if !errors.Is(err, safehttp.ErrRefused) || len(private.seen()) != 1 {
		t.Fatalf("err %v, %d requests", err, len(private.seen()))
	}
}

func TestBodiesAreBoundedAfterDecompression(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 4 {
		_, _ = z.Write(zeros)
	}
	_ = z.Close()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/exact":
			_, _ = w.Write(make([]byte, 1000))
		case "/chunked-exact":
			for range 10 {
				_, _ = w.Write(make([]byte, 100))
				_ = http.NewResponseController(w).Flush()
			}
		case "/long":
			_, _ = w.Write(make([]byte, 1001))
		case "/chunked-long":
			for range 11 {
				_, _ = w.Write(make([]byte, 100))
				_ = http.NewResponseController(w).Flush()
			}
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write([]byte("hello " + r.Header.Get("Accept-Encoding")))
			_ = z.Close()
		case "/broken":
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte("this is not gzip"))
		case "/brotli":
			w.Header().Set("Content-Encoding", "br")
			_, _ = w.Write([]byte("x"))
		}
	})
	c := newClient(t, safehttp.Options{AllowPrivate: safehttp.AnyHost, MaxBodyBytes: 1000})
	for path, wantLen := range map[string]int{"/exact": 1000, "/chunked-exact": 1000, "/gzip": len("hello identity")} {
		if _, body, err := get(t, c, s.URL+path, nil); err != nil || len(body) != wantLen {
			t.Errorf("%s: %d bytes, %v", path, len(body), err)
		}
	}
	for _, path := range []string{"/long", "/chunked-long", "/bomb"} {
		_, body, err := get(t, c, s.URL+path, nil)
		if !fault.Is(err, fault.PayloadTooLarge) || len(body) > 1000 || !strings.Contains(err.Error(), "1000 bytes") {
			t.Errorf("%s: %d bytes, %v", path, len(body), err)
		}
	}
	if _, _, err := get(t, c, s.URL+"/brotli", nil); !fault.Is(err, fault.UpstreamProtocol) || !strings.Contains(err.Error(), `"br"`) {
		t.Errorf("/brotli: %v", err)
	}
	if _, _, err := get(t, c, s.URL+"/broken", nil); !errors.Is(err, gzip.ErrHeader) {
		t.Errorf("/broken: %v", err)
	}
	asking := newClient(t, safehttp.Options{AllowPrivate: safehttp.AnyHost, AskGzip: true})
	if _, body, err := get(t, asking, s.URL+"/gzip", nil); err != nil || body != "hello gzip" {
		t.Errorf("asking for gzip: %q, %v", body, err)
	}
}

func TestASlowOrEndlessServerIsLeftInBoundedTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				buf := make([]byte, 1024)
				n, _ := c.Read(buf)
				if bytes.HasPrefix(buf[:n], []byte("GET /silent")) {
					_, _ = io.Copy(io.Discard, c) // until the client gives up
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
				for {
					if _, err := io.WriteString(c, "X-Endless: "+strings.Repeat("a", 1000)+"\r\n"); err != nil {
						return
					}
				}
			})
		}
	})
	defer l.Close()
	base := "http://" + l.Addr().String()
	c := newClient(t, safehttp.Options{AllowPrivate: safehttp.AnyHost, HeaderTimeout: 100 * time.Millisecond})
	for path, want := range map[string]string{"/silent": "timeout awaiting response headers", "/endless": "headers exceeded"} {
		begin := time.Now()
		if _, _, err := get(t, c, base+path, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("%s took %v", path, d)
		}
	}
	c = newClient(t, safehttp.Options{AllowPrivate: safehttp.AnyHost, Timeout: 100 * time.Millisecond})
	if _, _, err := get(t, c, base+"/silent", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("total timeout: %v", err)
	}
}

func TestConcurrentRequestsShareTheConnectionsOfOneClient(t *testing.T) {
	s := serve(t, ok)
	c := newClient(t, safehttp.Options{AllowPrivate: safehttp.AnyHost})
	for range 10 {
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if _, body, err := get(t, c, s.URL, nil); err != nil || body != "ok" {
					t.Errorf("%q, %v", body, err)
				}
			})
		}
		wg.Wait()
	}
	if n := s.conns.Load(); n > 60 {
		t.Errorf("500 requests, 50 at a time, made %d connections", n)
	}
}

func TestProxiesAreUsedOnlyWhenAskedFor(t *testing.T) {
	proxy := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "proxied "+r.URL.String()) })
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	c := newClient(t, safehttp.Options{Resolver: &loopback{}})
	if _, _, err := get(t, c, "http://site.example/", nil); !errors.Is(err, safehttp.ErrRefused) {
		t.Errorf("without a proxy the private answer must be refused: %v", err)
	}
	u, _ := url.Parse(proxy.URL)
	c = newClient(t, safehttp.Options{Proxy: http.ProxyURL(u)})
	if _, body, err := get(t, c, "http://site.example/", nil); err != nil || body != "proxied http://site.example/" {
		t.Errorf("%q, %v", body, err)
	}
	for _, target := range []string{"http://10.0.0.1/", "http://169.254.169.254/", "http://metadata.google.internal/", "http://127.1/", "http://\uff11.example/"} {
		if _, _, err := get(t, c, target, nil); !errors.Is(err, safehttp.ErrRefused) {
			t.Errorf("%s through a proxy: %v", target, err)
		}
	}
}

func TestTheCallersRequestIsNotChanged(t *testing.T) {
	s := serve(t, ok)
	c := newClient(t, safehttp.Options{AllowPrivate: safehttp.AnyHost})
	h := http.Header{"Accept": {"x"}}
	if _, _, err := get(t, c, s.URL, h); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(http.Header{"Accept": {"x"}}, h); diff != "" {
		t.Error(diff)
	}
	if got := s.seen()[0].Header.Get("Accept-Encoding"); got != "identity" {
		t.Errorf("Accept-Encoding: %q", got)
	}
}

func TestOriginsCompareDefaultPortsAndCase(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"https://a.example", "https://A.example:443/x", true},
		{"http://a.example:80", "http://a.example.", true},
		{"http://a.example", "https://a.example", false},
		{"https://a.example", "https://a.example:8443", false},
		{"https://a.example", "https://b.a.example", false},
	} {
		a, _ := url.Parse(tt.a)
		b, _ := url.Parse(tt.b)
		if got := safehttp.SameOrigin(a, b); got != tt.same {
			t.Errorf("SameOrigin(%s, %s) = %v", tt.a, tt.b, got)
		}
	}
	u, _ := url.Parse("https://u:p@a.example/x?key=secret#f")
	if got := safehttp.SafeString(u); got != "https://a.example/x" {
		t.Errorf("SafeString = %s", got)
	}
}
