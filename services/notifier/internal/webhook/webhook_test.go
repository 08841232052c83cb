package webhook

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/sink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func claim() notification.Claim {
	return notification.Claim{ID: "ntf_1", Sink: "ops", Phase: notification.Claimed, Event: notification.Event{
		ID: "mcp-task-1:3", TaskID: "mcp-task-1", Version: 3, TaskName: "a <b> & c",
		Body:    json.RawMessage(`{"status":"completed","result_preview":"<1.50>","number":12345678901234567890,"task_id":"mcp-task-1"}`),
		Created: time.Date(2026, 1, 2, 3, 4, 5, 678000, time.FixedZone("", 3600)),
	}}
}

// receiver serves h and returns a sender to it.
func receiver(t *testing.T, o Options, h http.HandlerFunc) *Sender {
	t.Helper()
	server := httptest.NewServer(h)
	u, err := url.Parse(server.URL + "/hook?token=path-secret")
	if err != nil {
		t.Fatal(err)
	}
	o.Name, o.URL = "ops", u
	if o.Keys == nil {
		o.Keys = keys(t, symmetricKey)
	}
	s := New(o)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// verify checks Standard Webhooks as its specification says, with nothing of the package's own.
func verify(h http.Header, body []byte, now time.Time) error {
	id, stamp := h.Get("webhook-id"), h.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || id == "" || now.Sub(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return fmt.Errorf("id %q, timestamp %q", id, stamp)
	}
	signatures := strings.Split(h.Get("webhook-signature"), " ")
	if len(signatures) != 2 {
		return fmt.Errorf("%d signatures", len(signatures))
	}
	signed := []byte(id + "." + stamp + "." + string(body))
	secret, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(symmetricKey, "whsec_"))
	mac := hmac.New(sha256.New, secret)
	mac.Write(signed)
	got, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(signatures[0], "v1,"))
	if err != nil || !hmac.Equal(got, mac.Sum(nil)) {
		return fmt.Errorf("signature %s does not fit: %w", signatures[0], err)
	}
	seed, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(asymmetricKey, "whsk_"))
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	got, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(signatures[1], "v1a,"))
	if err != nil || !ed25519.Verify(public, signed, got) {
		return fmt.Errorf("signature %s does not fit: %w", signatures[1], err)
	}
	return nil
}

// NOTE-015
func TestADeliveryIsAStandardWebhookWithASignatureForEachKey(t *testing.T) {
	var got struct {
		method, contentType string
		header              http.Header
		body                []byte
	}
	s := receiver(t, Options{Keys: keys(t, symmetricKey, asymmetricKey)}, func(w http.ResponseWriter, r *http.Request) {
		got.method, got.contentType, got.header = r.Method, r.Header.Get("Content-Type"), r.Header
		got.body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	})
	if r := s.Send(t.Context(), claim()); r.Verdict != notification.Done || r.Status != "204" {
		t.Fatalf("result %+v", r)
	}
	if got.method != "POST" || got.contentType != "application/json" || got.header.Get("webhook-id") != "mcp-task-1:3" {
		t.Errorf("%s of %s with id %s", got.method, got.contentType, got.header.Get("webhook-id"))
	}
	if err := verify(got.header, got.body, time.Now()); err != nil {
		t.Error(err)
	}
	want := `{"type":"task.completed","timestamp":"2026-01-02T02:04:05.000678Z","data":{"event_id":"mcp-task-1:3","event_version":3,` +
		`"number":12345678901234567890,"result_preview":"<1.50>","status":"completed","task_id":"mcp-task-1","task_name":"a <b> & c"}}`
	if diff := cmp.Diff(want, string(got.body)); diff != "" {
		t.Error(diff)
	}
}

func TestABodyThatIsNoObjectIsADeadLetterAndIsNotSent(t *testing.T) {
	s := receiver(t, Options{}, func(http.ResponseWriter, *http.Request) { t.Error("a delivery was sent") })
	for _, body := range []string{`[1]`, `null`, `"x"`, `{`, ``} {
		c := claim()
		c.Event.Body = json.RawMessage(body)
		if r := s.Send(t.Context(), c); r.Verdict != notification.Dead || r.Error == "" {
			t.Errorf("body %q: %+v", body, r)
		}
	}
}

// NOTE-016
func TestTheAnswersStatusDecides(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	header := http.Header{}
	status := 0
	s := receiver(t, Options{MaxRetryAfter: time.Hour}, func(w http.ResponseWriter, _ *http.Request) {
		maps.Copy(w.Header(), header)
		w.WriteHeader(status)
		if status != 204 {
			fmt.Fprintf(w, "body of %d", status)
		}
	})
	for _, c := range []struct {
		status  int
		header  http.Header
		verdict notification.Verdict
		after   time.Duration
		says    string
	}{
		{200, nil, notification.Done, 0, ""},
		{202, nil, notification.Done, 0, ""},
		{204, nil, notification.Done, 0, ""},
		{299, nil, notification.Done, 0, ""},
		{410, nil, notification.Dead, 0, "410 Gone"},
		{301, http.Header{"Location": {other.URL}}, notification.Failed, 0, "not followed"},
		{302, http.Header{"Location": {"http://169.254.169.254/latest/meta-data"}}, notification.Failed, 0, "not followed"},
		{307, http.Header{"Location": {other.URL}}, notification.Failed, 0, "not followed"},
		{308, http.Header{"Location": {"http://%zz"}}, notification.Failed, 0, "not followed"},
		{304, nil, notification.Failed, 0, "not followed"},
		{400, nil, notification.Failed, 0, "400 Bad Request"},
		{404, nil, notification.Failed, 0, "404"},
		{500, nil, notification.Failed, 0, "500"},
		{503, http.Header{"Retry-After": {"120"}}, notification.Failed, 2 * time.Minute, "503"},
		{429, http.Header{"Retry-After": {" 7 "}}, notification.Failed, 7 * time.Second, "429"},
		{503, http.Header{"Retry-After": {"999999999"}}, notification.Failed, time.Hour, "503"},
		{503, http.Header{"Retry-After": {"-5"}}, notification.Failed, 0, "503"},
		{503, http.Header{"Retry-After": {"soon"}}, notification.Failed, 0, "503"},
		{503, http.Header{"Retry-After": {"Fri, 02 Jan 2026 00:01:30 GMT"}, "Date": {"Fri, 02 Jan 2026 00:00:00 GMT"}}, notification.Failed, 90 * time.Second, "503"},
		{503, http.Header{"Retry-After": {"Fri, 02 Jan 2026 00:00:00 GMT"}, "Date": {"Fri, 02 Jan 2026 00:01:00 GMT"}}, notification.Failed, 0, "503"},
	} {
		status, header = c.status, c.header
		r := s.Send(t.Context(), claim())
		if r.Verdict != c.verdict || r.After != c.after || !strings.Contains(r.Error, c.says) || r.Status != strconv.Itoa(c.status) {
			t.Errorf("%d %v: %+v, want %s after %v", c.status, c.header, r, c.verdict, c.after)
		}
		if c.status != 204 && c.status != 304 && r.Excerpt != fmt.Sprintf("body of %d", c.status) {
			t.Errorf("%d: excerpt %q", c.status, r.Excerpt)
		}
		if (r.Pause != "") != (c.status == 410) {
			t.Errorf("%d: pause %q", c.status, r.Pause)
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("%d requests went to where a redirect leads", n)
	}
}

// NOTE-016: time and size of the answer are capped.
func TestAHostileReceiverIsCutShort(t *testing.T) {
	block := []byte(strings.Repeat("x", 64<<10))
	for _, c := range []struct {
		name    string
		answer  http.HandlerFunc
		verdict notification.Verdict
		excerpt int
		within  time.Duration
	}{
		{"endless body", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}, notification.Done, maxAnswer, 10 * time.Second},
		{"endless body of an error", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			for r.Context().Err() == nil {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}, notification.Failed, maxAnswer, 10 * time.Second},
		{"a length that is too large", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10000000000")
			_, _ = w.Write([]byte("x"))
		}, notification.Done, 1, 10 * time.Second},
		{"silence", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, notification.Failed, 0, 10 * time.Second},
		{"a body that drips", func(w http.ResponseWriter, r *http.Request) {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-r.Context().Done():
					return
				case <-tick.C:
					_, _ = w.Write([]byte("x"))
					_ = http.NewResponseController(w).Flush()
				}
			}
		}, notification.Done, -1, bodyTimeout + 5*time.Second},
		{"a broken connection", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, notification.Failed, 0, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := receiver(t, Options{AnswerTimeout: 300 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // only then does the server see that the caller has gone
				c.answer(w, r)
			})
			start := time.Now()
			r := s.Send(t.Context(), claim())
			if took := time.Since(start); took > c.within {
				t.Errorf("took %v", took)
			}
			if r.Verdict != c.verdict || c.excerpt >= 0 && len(r.Excerpt) != c.excerpt {
				t.Errorf("verdict %s, excerpt of %d bytes: %s", r.Verdict, len(r.Excerpt), r.Error)
			}
			if strings.Contains(r.Error, "path-secret") {
				t.Errorf("the error shows the URL: %s", r.Error)
			}
		})
	}
}

type resolver map[string][]netip.Addr

func (r resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if a := r[host]; a != nil {
		return a, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// NOTE-010: a blocked address cannot heal; a name that does not resolve can.
func TestARefusedAddressIsADeadLetterAtOnce(t *testing.T) {
	names := resolver{
		"rebound.example.com": {netip.MustParseAddr("169.254.169.254")},
		"inside.example.com":  {netip.MustParseAddr("::ffff:169.254.169.254")},
	}
	for target, want := range map[string]notification.Verdict{
		"http://rebound.example.com/":  notification.Dead,
		"https://inside.example.com/x": notification.Dead,
		"http://unknown.example.com/":  notification.Failed,
		"http://127.0.0.1:1/":          notification.Failed, // the operator named it; nobody listens
	} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		s := New(Options{Name: "ops", URL: u, Keys: keys(t, symmetricKey), Resolver: names})
		if r := s.Send(t.Context(), claim()); r.Verdict != want || r.Error == "" {
			t.Errorf("%s: %+v, want %s", target, r, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, strings.Repeat("x", 1000))
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Name: "ops", URL: u, Keys: keys(t, symmetricKey), MaxConns: 4})
	defer s.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				if r := s.Send(t.Context(), claim()); r.Verdict != notification.Done {
					t.Errorf("result %+v", r)
				}
			}
		})
	}
	wg.Wait()
	if n := connections.Load(); n > 4 {
		t.Errorf("%d connections for 4 senders", n)
	}
}

func TestAnAttemptThatIsCancelledFails(t *testing.T) {
	arrived := make(chan struct{})
	s := receiver(t, Options{}, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan sink.Result, 1)
	go func() { results <- s.Send(ctx, claim()) }()
	<-arrived
	cancel()
	if r := <-results; r.Verdict != notification.Failed {
		t.Errorf("result %+v", r)
	}
}
