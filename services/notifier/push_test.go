package notifier_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/pkg/wake"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	"github.com/toolherd/toolherd/services/notifier"
)

const (
	pending    = notifierv1.NotificationStatus_NOTIFICATION_STATUS_PENDING
	claimed    = notifierv1.NotificationStatus_NOTIFICATION_STATUS_CLAIMED
	retry      = notifierv1.NotificationStatus_NOTIFICATION_STATUS_RETRY
	delivered  = notifierv1.NotificationStatus_NOTIFICATION_STATUS_DELIVERED
	deadLetter = notifierv1.NotificationStatus_NOTIFICATION_STATUS_DEAD_LETTER
)

// NOTE-001
func TestAnEventGoesToTheNamedSinkElseToTheDefaultElseToTheBuiltInStream(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		ops, audit := newHook(t, status(204)), newHook(t, status(204))
		cfg := notifier.Config{Sinks: []config.Sink{hookSink("ops", ops), hookSink("audit", audit)}}

		n := start(t, d, options{cfg: cfg})
		record(t, d, outbox.Event{TaskID: "named", Version: 1, Sink: "audit"}, outbox.Event{TaskID: "unnamed", Version: 1})
		if got := n.becomes("named", delivered); got.GetSink() != "audit" {
			t.Errorf("the event went to %s", got.GetSink())
		}
		if got := n.becomes("unnamed", pending); got.GetSink() != "events" {
			t.Errorf("the event without a sink went to %s", got.GetSink())
		}
		n.stop()

		cfg.DefaultSink = "ops"
		n = start(t, d, options{cfg: cfg})
		record(t, d, outbox.Event{TaskID: "defaulted", Version: 1}, outbox.Event{TaskID: "streamed", Version: 1, Sink: "events"})
		n.becomes("defaulted", delivered)
		n.becomes("streamed", pending)
		if ops.ids() != "defaulted:1" || audit.ids() != "named:1" {
			t.Errorf("ops got %q, audit got %q", ops.ids(), audit.ids())
		}
		// An unknown name, and one that is not for the caller, are refused to those who read; at the submit it is taskworker
		// that refuses them.
		refused(t, n, "nowhere", "agent", "SINK_UNKNOWN")
		refused(t, n, "ops", "agent", "SINK_UNKNOWN")
	})
}

// A sink that is configured later gets what waited for it, and what waits for it hinders no other.
func TestEventsForASinkThatIsNotConfiguredWait(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		ops, later := newHook(t, nil), newHook(t, nil)
		n := start(t, d, options{cfg: notifier.Config{Sinks: []config.Sink{hookSink("ops", ops)}}})
		record(t, d, outbox.Event{TaskID: "a", Version: 1, Sink: "later"}, outbox.Event{TaskID: "b", Version: 1, Sink: "ops"})
		n.becomes("b", delivered)
		n.becomes("a", pending)
		n.stop()
		n = start(t, d, options{cfg: notifier.Config{Sinks: []config.Sink{hookSink("ops", ops), hookSink("later", later)}}})
		n.becomes("a", delivered)
	})
}

// NOTE-008
func TestFailuresInARowUpToTheLimitEndAsADeadLetter(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		for _, c := range []struct {
			kind   string
			max    int
			wanted int
		}{
			{config.SinkWebhook, 0, 14},
			{config.SinkWebhook, 3, 3},
			{config.SinkAgentRuntime, 0, 5},
			{config.SinkAgentRuntime, 1, 1},
		} {
			task := fmt.Sprintf("%s-%d", c.kind, c.max)
			h := newHook(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				http.Error(w, fmt.Sprint("no ", n+1), http.StatusServiceUnavailable)
			})
			r := newRuntime(t, broken)
			s := hookSink("s", h)
			if c.kind == config.SinkAgentRuntime {
				s = r.sink("s")
			}
			n := start(t, d, options{cfg: notifier.Config{MaxAttempts: c.max, DefaultSink: "s", Sinks: []config.Sink{s}}})
			record(t, d, outbox.Event{TaskID: task, Version: 1})
			got := n.becomes(task, deadLetter)
			if int(got.GetAttemptCount()) != c.wanted || len(h.posts())+len(r.starts()) != c.wanted {
				t.Errorf("%s: %d failures counted, %d deliveries and %d starts were sent, want %d",
					task, got.GetAttemptCount(), len(h.posts()), len(r.starts()), c.wanted)
			}
			if c.kind == config.SinkWebhook && !strings.Contains(got.GetLastError(), "503") {
				t.Errorf("%s: last error %q does not say why", task, got.GetLastError())
			}
			if first := got.GetAttempts()[0]; first.GetOutcome() != "dead_letter" {
				t.Errorf("%s: the newest attempt is %v", task, first)
			}
			n.stop()
		}
	})
}

// A delivery that has failed often enough already is not sent once more, whoever claims it: the limit may be lower than it was.
func TestTheLimitIsLookedAtBeforeAnythingIsSent(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		h := newHook(t, status(500))
		cfg := notifier.Config{DefaultSink: "s", Sinks: []config.Sink{hookSink("s", h)}, Backoff: config.Backoff{Base: time.Hour, Cap: time.Hour}}
		n := start(t, d, options{cfg: cfg})
		record(t, d, outbox.Event{TaskID: "a", Version: 1})
		n.becomes("a", retry)
		n.stop()
		cfg.MaxAttempts = 1
		n = start(t, d, options{cfg: cfg})
		// Due again, its failures as they are.
		if _, err := n.as("operator").ResumeSink(t.Context(), &notifierv1.ResumeSinkRequest{Name: "s"}); err != nil {
			t.Fatal(err)
		}
		n.becomes("a", deadLetter)
		if got := len(h.posts()); got != 1 {
			t.Errorf("%d deliveries were sent, want the first alone", got)
		}
	})
}

// NOTE-003
func TestTheEventIDStaysTheSameOverRetriesAndRedrive(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		h := newHook(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n < 3 {
				w.WriteHeader(500)
			}
		})
		n := start(t, d, options{cfg: notifier.Config{DefaultSink: "s", MaxAttempts: 2, Sinks: []config.Sink{hookSink("s", h)}}})
		record(t, d, outbox.Event{TaskID: "a", Version: 7})
		dead := n.becomes("a", deadLetter)
		_, err := n.as("operator").RedriveNotification(t.Context(), &notifierv1.RedriveNotificationRequest{
			Target: &notifierv1.RedriveNotificationRequest_NotificationId{NotificationId: dead.GetNotificationId()},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := n.becomes("a", delivered)
		if h.ids() != "a:7 a:7 a:7 a:7" || got.GetEventId() != "a:7" {
			t.Errorf("sent %q, notification of %s", h.ids(), got.GetEventId())
		}
		bodies := map[string]bool{}
		for _, p := range h.posts() {
			bodies[p.body] = true
		}
		if len(bodies) != 1 {
			t.Errorf("the body changed: %v", bodies)
		}
	})
}

// open returns a second handle on the database of d.
func open(t *testing.T, c db.Config) *db.DB {
	t.Helper()
	d, err := db.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// pairs runs test as subtests with two handles on the same database, as two processes have.
func pairs(t *testing.T, test func(t *testing.T, a, b *db.DB)) {
	t.Run("sqlite", func(t *testing.T) {
		c := db.Config{SQLitePath: filepath.Join(t.TempDir(), "toolherd.db")}
		a := open(t, c)
		if err := a.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, a, open(t, c))
	})
	t.Run("postgres", func(t *testing.T) {
		c := db.Config{PostgresDSN: dbtest.DSN(t)}
		test(t, open(t, c), open(t, c))
	})
}

// NOTE-003: a notifier that dies between the answer of the sink and its own commit leaves the delivery to the next one.
func TestACrashAfterSendingDeliversAgainUnderTheSameID(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *db.DB) {
		var first atomic.Pointer[node]
		h := newHook(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 0 {
				a.Close() // what the first notifier learns from here on is not written
			}
			w.WriteHeader(204)
		})
		cfg := notifier.Config{DefaultSink: "s", Lease: 500 * time.Millisecond, Sinks: []config.Sink{hookSink("s", h)}}
		record(t, b, outbox.Event{TaskID: "a", Version: 1})
		first.Store(start(t, a, options{cfg: cfg}))
		eventually(t, "the first notifier has sent", func() bool { return len(h.posts()) == 1 })
		second := start(t, b, options{cfg: cfg})
		second.becomes("a", delivered)
		if got := h.ids(); got != "a:1 a:1" {
			t.Errorf("sent %q, want the same id twice", got)
		}
		first.Load().stop()
	})
}

func TestASinkThatHangsDelaysNoOther(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		release := make(chan struct{})
		stuck := newHook(t, func(int, http.ResponseWriter, *http.Request) { <-release })
		healthy := newHook(t, status(204))
		cfg := notifier.Config{Sinks: []config.Sink{hookSink("stuck", stuck), hookSink("healthy", healthy)}}
		n := start(t, d, options{cfg: cfg})
		defer close(release) // before the notifier is stopped, which waits for its attempts
		var events []outbox.Event
		for i := range 300 {
			events = append(events, outbox.Event{TaskID: fmt.Sprintf("stuck-%d", i), Version: 1, Sink: "stuck"})
		}
		record(t, d, events...)
		eventually(t, "the stuck sink has all its senders busy", func() bool { return len(stuck.posts()) == 32 })
		begun := time.Now()
		record(t, d, outbox.Event{TaskID: "urgent", Version: 1, Sink: "healthy"})
		n.becomes("urgent", delivered)
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("the healthy sink waited %v", took)
		}
		if got := len(stuck.posts()); got != 32 {
			t.Errorf("%d attempts at once, want 32", got)
		}
	})
}

// NOTE-016: 410 disables the sink. NOTE-010: it cannot heal, so it is a dead letter at once, which a newer event revives.
func TestGonePausesTheSinkUntilItIsResumed(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		var gone atomic.Bool
		gone.Store(true)
		h := newHook(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			if gone.Load() {
				w.WriteHeader(410)
			}
		})
		n := start(t, d, options{cfg: notifier.Config{DefaultSink: "s", Sinks: []config.Sink{hookSink("s", h)}}})
		record(t, d, outbox.Event{TaskID: "a", Version: 1})
		if got := n.becomes("a", deadLetter); got.GetAttempts()[0].GetStatus() != "410" || got.GetAttemptCount() != 0 {
			t.Errorf("dead letter %v", got)
		}
		c := n.as("operator")
		sinks, err := c.ListSinks(t.Context(), &notifierv1.ListSinksRequest{})
		if err != nil {
			t.Fatal(err)
		}
		s := sinks.GetSinks()[1]
		if s.GetName() != "s" || !s.GetPaused() || !strings.Contains(s.GetPauseReason(), "410") || s.GetDeadLetterCount() != 1 {
			t.Errorf("sink %v", s)
		}
		gone.Store(false)
		record(t, d, outbox.Event{TaskID: "a", Version: 2}, outbox.Event{TaskID: "b", Version: 1})
		n.becomes("b", pending)
		if got := n.becomes("a", pending); got.GetEventId() != "a:2" || got.GetAttemptCount() != 0 {
			t.Errorf("after a newer event: %v", got)
		}
		resumed, err := c.ResumeSink(t.Context(), &notifierv1.ResumeSinkRequest{Name: "s"})
		if err != nil || resumed.GetSink().GetPaused() {
			t.Fatalf("resumed: %v, %v", resumed, err)
		}
		n.becomes("a", delivered)
		n.becomes("b", delivered)
		if got := h.posts()[0].id; got != "a:1" || len(h.posts()) != 3 {
			t.Errorf("sent %q", h.ids())
		}
	})
}

// NOTE-016: the next attempt is no sooner than Retry-After asks.
func TestRetryAfterIsHonoured(t *testing.T) {
	h := newHook(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 0 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(503)
		}
	})
	d := dbtest.SQLite(t)
	n := start(t, d, options{cfg: notifier.Config{DefaultSink: "s", Sinks: []config.Sink{hookSink("s", h)}, Backoff: config.Backoff{Base: time.Millisecond, Cap: time.Minute}}})
	record(t, d, outbox.Event{TaskID: "a", Version: 1})
	n.becomes("a", delivered)
	if p := h.posts(); len(p) != 2 || p[1].at.Sub(p[0].at) < 990*time.Millisecond {
		t.Errorf("%d attempts, the second %v after the first", len(p), p[len(p)-1].at.Sub(p[0].at))
	}
}

// NOTE-004
func TestNotifierReadsAndChangesNoTask(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		dropped := dropTaskTables(t, d)
		if len(dropped) == 0 {
			t.Fatal("there is no task table to drop")
		}
		h := newHook(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n < 2 {
				w.WriteHeader(500)
			}
		})
		n := start(t, d, options{cfg: notifier.Config{DefaultSink: "s", MaxAttempts: 2, Sinks: []config.Sink{hookSink("s", h)}}})
		record(t, d, outbox.Event{TaskID: "a", Version: 1}, outbox.Event{TaskID: "read", Version: 1, Sink: "events"})
		n.becomes("a", deadLetter)
		redriveAll(t, n, &notifierv1.RedriveFilter{}, false)
		n.becomes("a", delivered)
		events := n.watch("operator", &notifierv1.WatchEventsRequest{})
		if got := events.next(); got.GetEventId() != "read:1" {
			t.Errorf("read %v", got)
		}
		if _, err := n.as("operator").AckEvent(t.Context(), &notifierv1.AckEventRequest{EventId: "read:1"}); err != nil {
			t.Error(err)
		}
		n.becomes("read", delivered)
	})
}

// NOTE-006: notifiers share the work by claims.
func TestNotifiersShareTheWork(t *testing.T) {
	dsn := dbtest.DSN(t)
	h := newHook(t, nil)
	var nodes []*node
	for range 3 {
		d := open(t, db.Config{PostgresDSN: dsn})
		nodes = append(nodes, start(t, d, options{bus: wake.None(), cfg: notifier.Config{DefaultSink: "s", Sinks: []config.Sink{hookSink("s", h)}}}))
	}
	d := open(t, db.Config{PostgresDSN: dsn})
	var wg sync.WaitGroup
	for batch := range 4 {
		wg.Go(func() {
			for i := range 50 {
				record(t, d, outbox.Event{TaskID: fmt.Sprintf("task-%d-%d", batch, i), Version: 1})
			}
		})
	}
	wg.Wait()
	eventually(t, "all are delivered", func() bool {
		all := nodes[0].list()
		return len(all) == 200 && !slices.ContainsFunc(all, func(n *notifierv1.Notification) bool { return n.GetStatus() != delivered })
	})
	sent := strings.Fields(h.ids())
	slices.Sort(sent)
	if got := len(slices.Compact(sent)); got != 200 || len(h.posts()) != 200 {
		t.Errorf("%d deliveries of %d events were sent, want each once", len(h.posts()), got)
	}
}

func TestTheDatabaseMayGoAwayAndComeBack(t *testing.T) {
	cluster := dbtest.NewCluster(t)
	d := cluster.Open(t)
	h := newHook(t, nil)
	n := start(t, d, options{cfg: notifier.Config{DefaultSink: "s", Lease: time.Second, Sinks: []config.Sink{hookSink("s", h)}}})
	record(t, d, outbox.Event{TaskID: "a", Version: 1})
	n.becomes("a", delivered)
	cluster.Stop()
	if _, err := n.as("operator").ListSinks(t.Context(), nil); !isReason(err, "NOT_READY") {
		t.Errorf("without a database: %v", err)
	}
	if err := n.Ready(t.Context()); !isReason(err, "NOT_READY") {
		t.Errorf("ready without a database: %v", err)
	}
	cluster.Start()
	eventually(t, "the notifier is ready again", func() bool { return n.Ready(t.Context()) == nil })
	record(t, d, outbox.Event{TaskID: "b", Version: 1})
	n.becomes("b", delivered)
}

// What the sink has taken when the shutdown begins is written down; nothing more is sent.
func TestShutdownLetsAttemptsEnd(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		arrived, release := make(chan struct{}), make(chan struct{})
		h := newHook(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 0 {
				close(arrived)
				<-release
			}
		})
		cfg := notifier.Config{DefaultSink: "s", Sinks: []config.Sink{hookSink("s", h)}}
		n := start(t, d, options{cfg: cfg})
		record(t, d, outbox.Event{TaskID: "a", Version: 1})
		<-arrived
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			n.stop()
		}()
		eventually(t, "the listener is closed", func() bool {
			_, err := n.as("operator").ListSinks(t.Context(), nil)
			return err != nil
		})
		record(t, d, outbox.Event{TaskID: "b", Version: 1})
		close(release)
		<-ended
		if got := h.ids(); got != "a:1" {
			t.Errorf("sent %q while shutting down", got)
		}
		n = start(t, d, options{cfg: cfg})
		n.becomes("b", delivered)
		n.becomes("a", delivered)
		if got := h.ids(); got != "a:1 b:1" {
			t.Errorf("sent %q: what was delivered is sent again", got)
		}
	})
}

func redriveAll(t *testing.T, n *node, f *notifierv1.RedriveFilter, dry bool) int64 {
	t.Helper()
	resp, err := n.as("operator").RedriveNotification(t.Context(), &notifierv1.RedriveNotificationRequest{
		Target: &notifierv1.RedriveNotificationRequest_Filter{Filter: f}, DryRun: dry,
	})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetCount()
}

// dropTaskTables removes every table of taskworker and returns their names.
func dropTaskTables(t *testing.T, d *db.DB) []string {
	t.Helper()
	var list string
	var err error
	if d.Engine() == db.Postgres {
		const query = `select coalesce(string_agg(tablename, ' '), '') from pg_tables where schemaname = current_schema() and tablename like 'task%'`
		err = d.Pool().QueryRow(t.Context(), query).Scan(&list)
	} else {
		const query = `select coalesce(group_concat(name, ' '), '') from sqlite_master where type = 'table' and name like 'task%'`
		err = d.SQL().QueryRowContext(t.Context(), query).Scan(&list)
	}
	names := strings.Fields(list)
	statements := []string{"pragma foreign_keys = off"}
	if d.Engine() == db.Postgres {
		statements = []string{"drop table " + strings.Join(names, ", ") + " cascade"}
	} else {
		for _, name := range names {
			statements = append(statements, "drop table "+name)
		}
	}
	for _, statement := range statements {
		if err != nil {
			break
		}
		if d.Engine() == db.Postgres {
			_, err = d.Pool().Exec(t.Context(), statement)
		} else {
			_, err = d.SQL().ExecContext(t.Context(), statement)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return names
}
