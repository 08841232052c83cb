package notifier_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/outbox"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	"github.com/toolherd/toolherd/services/notifier"
)

func redriveOne(t *testing.T, n *node, id string) {
	t.Helper()
	resp, err := n.as("operator").RedriveNotification(t.Context(), &notifierv1.RedriveNotificationRequest{
		Target: &notifierv1.RedriveNotificationRequest_NotificationId{NotificationId: id},
	})
	if err != nil || resp.GetCount() != 1 {
		t.Fatalf("redrive of %s: %v, %v", id, resp, err)
	}
}

// NOTE-019
func TestDeadLettersAreRedrivenByIDSinkAndTime(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		var healthy atomic.Bool
		answer := func(_ int, w http.ResponseWriter, _ *http.Request) {
			if !healthy.Load() {
				w.WriteHeader(410) // pauses the sink too
			}
		}
		x, y := newHook(t, answer), newHook(t, answer)
		n := start(t, d, options{cfg: notifier.Config{Sinks: []config.Sink{hookSink("x", x), hookSink("y", y)}}})
		record(t, d, outbox.Event{TaskID: "x-1", Version: 1, Sink: "x"}, outbox.Event{TaskID: "y-1", Version: 1, Sink: "y"})
		n.becomes("x-1", deadLetter)
		n.becomes("y-1", deadLetter)
		between := time.Now()
		eventually(t, "a moment has passed", func() bool { return time.Since(between) > 20*time.Millisecond })
		if got := redriveAll(t, n, &notifierv1.RedriveFilter{SinceTime: timestamppb.New(between)}, true); got != 0 {
			t.Errorf("%d dead letters are newer than the last one", got)
		}
		healthy.Store(true)

		if got := redriveAll(t, n, &notifierv1.RedriveFilter{}, true); got != 2 {
			t.Errorf("a dry run counts %d, want 2", got)
		}
		if got := redriveAll(t, n, &notifierv1.RedriveFilter{Sink: "x"}, true); got != 1 {
			t.Errorf("a dry run of one sink counts %d, want 1", got)
		}
		for _, task := range []string{"x-1", "y-1"} {
			if got := n.of(task); got.GetStatus() != deadLetter || got.GetRedriveActor() != "" || got.GetRedriveTime() != nil {
				t.Errorf("a dry run changed %v", got)
			}
		}
		if got := len(x.posts()) + len(y.posts()); got != 2 {
			t.Errorf("%d deliveries after a dry run, want 2", got)
		}

		redriveOne(t, n, n.of("x-1").GetNotificationId())
		got := n.becomes("x-1", delivered)
		if got.GetAttemptCount() != 0 || got.GetRedriveActor() != "operator" || got.GetRedriveTime() == nil || x.ids() != "x-1:1 x-1:1" {
			t.Errorf("redriven: %v, sent %q", got, x.ids())
		}
		if got := n.of("y-1"); got.GetStatus() != deadLetter {
			t.Errorf("the other became %v", got)
		}
		if got := redriveAll(t, n, &notifierv1.RedriveFilter{Sink: "y", SinceTime: timestamppb.New(between.Add(-time.Hour))}, false); got != 1 {
			t.Errorf("%d were redriven, want 1", got)
		}
		n.becomes("y-1", delivered)
		for _, s := range sinks(t, n) {
			if s.GetPaused() != (s.GetName() != "events") {
				t.Errorf("a redrive resumed a sink: %v", s)
			}
		}

		// What was delivered is redriven only if the filter says so.
		if got := redriveAll(t, n, &notifierv1.RedriveFilter{}, false); got != 0 {
			t.Errorf("%d were redriven without a dead letter", got)
		}
		if got := redriveAll(t, n, &notifierv1.RedriveFilter{Sink: "x", Statuses: []notifierv1.NotificationStatus{delivered}}, false); got != 1 {
			t.Errorf("%d were redriven, want 1", got)
		}
		eventually(t, "it was delivered again", func() bool { return x.ids() == "x-1:1 x-1:1 x-1:1" })
	})
}

func sinks(t *testing.T, n *node) []*notifierv1.Sink {
	t.Helper()
	resp, err := n.as("operator").ListSinks(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetSinks()
}

func TestResumingSinceATimeDeliversAgainWhatWasRecorded(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		h := newHook(t, nil)
		n := start(t, d, options{cfg: notifier.Config{DefaultSink: "s", Sinks: []config.Sink{hookSink("s", h)}}})
		record(t, d, outbox.Event{TaskID: "before", Version: 1})
		n.becomes("before", delivered)
		since := time.Now()
		eventually(t, "a moment has passed", func() bool { return time.Since(since) > 20*time.Millisecond })
		record(t, d, outbox.Event{TaskID: "after", Version: 1})
		n.becomes("after", delivered)
		if _, err := n.as("operator").ResumeSink(t.Context(), &notifierv1.ResumeSinkRequest{Name: "s", SinceTime: timestamppb.New(since)}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the later one is delivered again", func() bool { return h.ids() == "before:1 after:1 after:1" })
	})
}

func TestAttemptsAreShownWithoutSecrets(t *testing.T) {
	d := dbtest.SQLite(t)
	h := newHook(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 0 {
			http.Error(w, strings.Repeat("é", 1000)+" Authorization: Bearer abcdefghijklmnop "+hookKey+" "+strings.TrimPrefix(hookKey, "whsec_"), 500)
			return
		}
		fmt.Fprint(w, "thanks for "+hookKey)
	})
	n := start(t, d, options{cfg: notifier.Config{DefaultSink: "s", Sinks: []config.Sink{hookSink("s", h)}}})
	record(t, d, outbox.Event{TaskID: "a", Version: 4})
	got := n.becomes("a", delivered)
	if len(got.GetAttempts()) != 2 || got.GetAttempts()[0].GetExcerpt() != "thanks for ***" || got.GetAttempts()[0].GetStatus() != "200" {
		t.Errorf("attempts %v", got.GetAttempts())
	}
	first := got.GetAttempts()[1]
	if first.GetOutcome() != "retry" || first.GetStatus() != "500" || first.GetEventVersion() != 4 || first.GetTime() == nil {
		t.Errorf("the first attempt is %v", first)
	}
	if e := first.GetExcerpt(); len(e) > 1<<10 || !strings.HasPrefix(e, "éé") || strings.Contains(e, "\ufffd") {
		t.Errorf("excerpt of %d bytes: %q", len(e), e)
	}
	for _, a := range got.GetAttempts() {
		if strings.Contains(a.GetExcerpt(), "MfKQ9r8G") || strings.Contains(a.GetExcerpt(), "abcdefgh") {
			t.Errorf("a secret is shown: %q", a.GetExcerpt())
		}
	}
}

func TestListsArePagedAndFiltered(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		h := newHook(t, nil)
		var configured []config.Sink
		for i := range 4 {
			configured = append(configured, hookSink(fmt.Sprintf("s%d", i), h))
		}
		n := start(t, d, options{cfg: notifier.Config{Sinks: configured}})
		for i := range 7 {
			record(t, d, outbox.Event{TaskID: fmt.Sprintf("task-%d", i), Version: 1, Sink: []string{"events", "s1"}[i%2]})
		}
		eventually(t, "all are recorded", func() bool { return len(n.list()) == 7 })
		n.becomes("task-5", delivered)
		c := n.as("operator")
		var seen []*notifierv1.Notification
		req := &notifierv1.ListNotificationsRequest{PageSize: 3}
		pages := 0
		for {
			resp, err := c.ListNotifications(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			pages++
			for _, m := range resp.GetNotifications() {
				seen = append(seen, m)
				if len(m.GetAttempts()) != 0 || m.GetScope().GetUserId() != "alice" || m.GetEventVersion() != 1 {
					t.Errorf("listed %v", m)
				}
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		newestFirst := func(a, b *notifierv1.Notification) int {
			return b.GetCreateTime().AsTime().Compare(a.GetCreateTime().AsTime())
		}
		ids := map[string]bool{}
		for _, m := range seen {
			ids[m.GetTaskId()] = true
		}
		if !slices.IsSortedFunc(seen, newestFirst) || len(seen) != 7 || len(ids) != 7 || pages != 3 {
			t.Errorf("%d pages list %v", pages, seen)
		}
		for _, f := range []struct {
			req  *notifierv1.ListNotificationsRequest
			want int
		}{
			{&notifierv1.ListNotificationsRequest{Sink: "s1"}, 3},
			{&notifierv1.ListNotificationsRequest{TaskId: "task-3"}, 1},
			{&notifierv1.ListNotificationsRequest{Statuses: []notifierv1.NotificationStatus{pending}}, 4},
			{&notifierv1.ListNotificationsRequest{Statuses: []notifierv1.NotificationStatus{deadLetter}, Sink: "s1"}, 0},
			{&notifierv1.ListNotificationsRequest{PageSize: 5000}, 7},
		} {
			resp, err := c.ListNotifications(t.Context(), f.req)
			if err != nil || len(resp.GetNotifications()) != f.want {
				t.Errorf("%v: %d, %v, want %d", f.req, len(resp.GetNotifications()), err, f.want)
			}
		}
		var names []string
		for token := ""; ; {
			resp, err := c.ListSinks(t.Context(), &notifierv1.ListSinksRequest{PageSize: 2, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range resp.GetSinks() {
				names = append(names, s.GetName()+" "+s.GetType())
			}
			if token = resp.GetNextPageToken(); token == "" {
				break
			}
		}
		if got := strings.Join(names, ", "); got != "events stream, s0 webhook, s1 webhook, s2 webhook, s3 webhook" {
			t.Errorf("sinks %s", got)
		}
		if s := sinks(t, n)[0]; s.GetPendingCount() != 4 {
			t.Errorf("sink %v, want 4 that wait", s)
		}
	})
}

func TestWrongRequestsAreRefused(t *testing.T) {
	d := dbtest.SQLite(t)
	n := start(t, d, options{})
	c := n.as("operator")
	for i := range 3 {
		record(t, d, outbox.Event{TaskID: fmt.Sprint("t", i), Version: 1})
	}
	eventually(t, "they are recorded", func() bool { return len(n.list()) == 3 })
	page, err := c.ListNotifications(t.Context(), &notifierv1.ListNotificationsRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	wrong := func(what string, err error, reason string) {
		t.Helper()
		if !isReason(err, reason) {
			t.Errorf("%s: %v, want %s", what, err, reason)
		}
	}
	listed := func(r *notifierv1.ListNotificationsRequest) error {
		_, err := c.ListNotifications(t.Context(), r)
		return err
	}
	wrong("negative page", listed(&notifierv1.ListNotificationsRequest{PageSize: -1}), "INVALID_ARGUMENTS")
	wrong("no token", listed(&notifierv1.ListNotificationsRequest{PageToken: "x"}), "INVALID_ARGUMENTS")
	wrong("token of another filter", listed(&notifierv1.ListNotificationsRequest{Sink: "events", PageToken: page.GetNextPageToken()}), "INVALID_ARGUMENTS")
	wrong("no state", listed(&notifierv1.ListNotificationsRequest{Statuses: []notifierv1.NotificationStatus{0}}), "INVALID_ARGUMENTS")
	redriven := func(r *notifierv1.RedriveNotificationRequest) error {
		_, err := c.RedriveNotification(t.Context(), r)
		return err
	}
	byID := func(id string) *notifierv1.RedriveNotificationRequest {
		return &notifierv1.RedriveNotificationRequest{Target: &notifierv1.RedriveNotificationRequest_NotificationId{NotificationId: id}}
	}
	byFilter := func(f *notifierv1.RedriveFilter) *notifierv1.RedriveNotificationRequest {
		return &notifierv1.RedriveNotificationRequest{Target: &notifierv1.RedriveNotificationRequest_Filter{Filter: f}}
	}
	wrong("no target", redriven(&notifierv1.RedriveNotificationRequest{}), "INVALID_ARGUMENTS")
	wrong("empty id", redriven(byID("")), "INVALID_ARGUMENTS")
	wrong("unknown id", redriven(byID("ntf_00000000000000000000000000000000")), "NOTIFICATION_NOT_FOUND")
	wrong("unknown sink", redriven(byFilter(&notifierv1.RedriveFilter{Sink: "event"})), "SINK_UNKNOWN")
	wrong("no time", redriven(byFilter(&notifierv1.RedriveFilter{SinceTime: &timestamppb.Timestamp{Nanos: -1}})), "INVALID_ARGUMENTS")
	_, err = c.GetNotification(t.Context(), &notifierv1.GetNotificationRequest{NotificationId: "ntf_00000000000000000000000000000000"})
	wrong("unknown notification", err, "NOTIFICATION_NOT_FOUND")
	_, err = c.GetNotification(t.Context(), &notifierv1.GetNotificationRequest{})
	wrong("no notification", err, "INVALID_ARGUMENTS")
	_, err = c.ListSinks(t.Context(), &notifierv1.ListSinksRequest{PageSize: -1})
	wrong("negative page of sinks", err, "INVALID_ARGUMENTS")
	_, err = c.ListSinks(t.Context(), &notifierv1.ListSinksRequest{PageToken: page.GetNextPageToken()})
	wrong("token of another list", err, "INVALID_ARGUMENTS")
	_, err = c.ResumeSink(t.Context(), &notifierv1.ResumeSinkRequest{Name: "event"})
	wrong("unknown sink to resume", err, "SINK_UNKNOWN")
	if !strings.Contains(err.Error(), `did you mean "events"?`) {
		t.Errorf("no near match in %v", err)
	}
	_, err = c.AckEvent(t.Context(), &notifierv1.AckEventRequest{})
	wrong("no event", err, "INVALID_ARGUMENTS")
	_, err = n.as("alice").ListNotifications(t.Context(), nil)
	wrong("an agent lists notifications", err, "FORBIDDEN")
}
