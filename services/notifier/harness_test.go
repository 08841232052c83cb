package notifier_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/telemetry"
	"github.com/toolherd/toolherd/pkg/wake"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	"github.com/toolherd/toolherd/services/notifier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	hookKey  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherKey = "whsec_b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcg=="
)

// options are what a test says about a notifier.
type options struct {
	cfg     notifier.Config
	bus     wake.Bus
	env     map[string]string
	prepare func(*notifier.Service) // called before it runs
}

// quick makes a configuration fast, where the test did not say how fast.
func quick(c notifier.Config) notifier.Config {
	if c.PollInterval == 0 {
		c.PollInterval = 20 * time.Millisecond
	}
	if c.Backoff == (config.Backoff{}) {
		c.Backoff = config.Backoff{Base: time.Millisecond, Cap: 5 * time.Millisecond}
	}
	return c
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func newTelemetry(t *testing.T, redactor *secret.Redactor, out io.Writer) *telemetry.Telemetry {
	t.Helper()
	tel, err := telemetry.New(t.Context(), telemetry.Config{Service: "notifier", LogLevel: "debug", LogOutput: out, Redact: redactor.Redact})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tel.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return tel
}

// The tokens of the listener, by the caller's name.
var callers = map[string]string{
	"operator": "roles: [operator]",
	"agent":    "roles: [agent], act_as: any",
	"alice":    "roles: [agent], user_id: alice",
	"bob":      "roles: [agent], user_id: bob",
	"plain":    "roles: [agent]",
	"proxy":    "roles: [toolproxy]",
	"worker":   "roles: [worker]",
}

// node is a notifier with a listener.
type node struct {
	*notifier.Service
	t    *testing.T
	addr string
	stop func() // ends it and waits; may be called twice
}

// start returns a notifier that runs.
func start(t *testing.T, d *db.DB, o options) *node {
	t.Helper()
	if o.bus == nil {
		o.bus = wake.NewLocal()
	}
	redactor := secret.NewRedactor()
	tel := newTelemetry(t, redactor, t.Output())
	s, err := notifier.New(quick(o.cfg), notifier.Deps{
		DB: d, Wake: o.bus, Log: tel.Log, Telemetry: tel, Redactor: redactor, Environment: lookup(o.env),
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.prepare != nil {
		o.prepare(s)
	}
	server, err := rpc.NewServer(rpc.ServerOptions{
		Name: "notifier", Log: slog.New(slog.DiscardHandler), Tokens: tokens(t), DrainTimeout: 2 * time.Second, Redact: redactor.Redact,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.RegisterInternal(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- run.All(ctx,
			run.Task{Name: "listener", Run: func(ctx context.Context) error { return server.Serve(ctx, l) }},
			run.Task{Name: "notifier", Run: s.Run},
		)
	}()
	n := &node{Service: s, t: t, addr: l.Addr().String(), stop: sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("notifier ended with %v", err)
		}
	})}
	t.Cleanup(n.stop)
	eventually(t, "the notifier is ready", func() bool { return s.Ready(t.Context()) == nil })
	return n
}

func tokens(t *testing.T) *authn.Tokens {
	t.Helper()
	var b strings.Builder
	for name, rights := range callers {
		fmt.Fprintf(&b, "- { name: %s, sha256: %x, %s }\n", name, sha(name), rights)
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := authn.OpenTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// as returns a client that shows the token of a caller.
func (n *node) as(caller string) notifierv1.NotifierServiceClient {
	n.t.Helper()
	conn, err := rpc.Dial(n.addr, rpc.ClientOptions{Token: func() (string, error) { return caller, nil }})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	return notifierv1.NewNotifierServiceClient(conn)
}

// record appends events to the outbox, as a taskworker does.
func record(t *testing.T, d *db.DB, events ...outbox.Event) {
	t.Helper()
	for i := range events {
		if events[i].TaskName == "" {
			events[i].TaskName = "report"
		}
		if events[i].Scope == (authn.Scope{}) {
			events[i].Scope = authn.Scope{UserID: "alice", ThreadID: "t1"}
		}
		if events[i].Body == nil {
			events[i].Body = json.RawMessage(`{"status":"completed","result_preview":"42"}`)
		}
	}
	var err error
	if d.Engine() == db.Postgres {
		err = pgx.BeginFunc(t.Context(), d.Pool(), func(tx pgx.Tx) error { return outbox.AppendPostgres(t.Context(), tx, events...) })
	} else {
		err = d.WriteTx(t.Context(), func(tx *sql.Tx) error { return outbox.AppendSQLite(t.Context(), tx, events...) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// list returns all deliveries, newest first.
func (n *node) list() []*notifierv1.Notification {
	n.t.Helper()
	var out []*notifierv1.Notification
	req := &notifierv1.ListNotificationsRequest{PageSize: 1000}
	for {
		resp, err := n.as("operator").ListNotifications(n.t.Context(), req)
		if err != nil {
			n.t.Fatal(err)
		}
		out = append(out, resp.GetNotifications()...)
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return out
		}
	}
}

// of returns the delivery of a task with its attempts.
func (n *node) of(task string) *notifierv1.Notification {
	n.t.Helper()
	c := n.as("operator")
	resp, err := c.ListNotifications(n.t.Context(), &notifierv1.ListNotificationsRequest{TaskId: task})
	if err != nil {
		n.t.Fatal(err)
	}
	if len(resp.GetNotifications()) != 1 {
		return nil
	}
	got, err := c.GetNotification(n.t.Context(), &notifierv1.GetNotificationRequest{NotificationId: resp.GetNotifications()[0].GetNotificationId()})
	if err != nil {
		n.t.Fatal(err)
	}
	return got.GetNotification()
}

// becomes waits until the delivery of a task is in a state, and returns it.
func (n *node) becomes(task string, want notifierv1.NotificationStatus) *notifierv1.Notification {
	n.t.Helper()
	var got *notifierv1.Notification
	defer func() {
		if n.t.Failed() {
			n.t.Logf("the last state was %v", got)
		}
	}()
	eventually(n.t, fmt.Sprintf("%s is %v", task, want), func() bool {
		got = n.of(task)
		return got.GetStatus() == want
	})
	return got
}

// eventually waits until ok is true.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			tb.Fatalf("20 s passed before %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// posted is a delivery that reached a hook.
type posted struct {
	id, signature string
	body          string
	at            time.Time
}

// hook is a receiver of webhooks whose answers are a function of how many came before.
type hook struct {
	url    string
	mu     sync.Mutex
	got    []posted
	answer func(n int, w http.ResponseWriter, r *http.Request)
}

func newHook(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *hook {
	t.Helper()
	h := &hook{answer: answer}
	server := httptest.NewServer(h)
	h.url = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	n := len(h.got)
	h.got = append(h.got, posted{r.Header.Get("webhook-id"), r.Header.Get("webhook-signature"), string(body), time.Now()})
	h.mu.Unlock()
	if h.answer != nil {
		h.answer(n, w, r)
	}
}

func (h *hook) posts() []posted {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]posted(nil), h.got...)
}

// ids returns the ids that came, in order.
func (h *hook) ids() string {
	var out []string
	for _, p := range h.posts() {
		out = append(out, p.id)
	}
	return strings.Join(out, " ")
}

// status answers with this status.
func status(code int) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// hookSink is a sink that posts to h.
func hookSink(name string, h *hook) config.Sink {
	return config.Sink{Name: name, Type: config.SinkWebhook, URL: h.url, Secrets: []string{hookKey}}
}

func sha(text string) [32]byte { return sha256.Sum256([]byte(text)) }

func recorded(task string) outbox.Event { return outbox.Event{TaskID: task, Version: 1} }

// runFor runs a notifier without a listener while do goes on.
func runFor(t *testing.T, s *notifier.Service, do func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("notifier ended with %v", err)
		}
	}()
	do()
}
