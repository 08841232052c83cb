package notifier_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/outbox"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	"github.com/toolherd/toolherd/services/notifier"
)

func isReason(err error, reason string) bool { return fault.ReasonOf(err) == fault.Reason(reason) }

// reader is an open stream of events.
type reader struct {
	t        *testing.T
	messages chan *notifierv1.WatchEventsResponse
	ended    chan error // one value
	stop     func()
	token    string // of the last message
}

// watch opens a stream.
func (n *node) watch(caller string, req *notifierv1.WatchEventsRequest) *reader {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	stream, err := n.as(caller).WatchEvents(ctx, req)
	if err != nil {
		n.t.Fatal(err)
	}
	r := &reader{t: n.t, messages: make(chan *notifierv1.WatchEventsResponse, 1000), ended: make(chan error, 1), stop: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := stream.Recv()
			if err != nil {
				r.ended <- err
				return
			}
			r.messages <- m
		}
	}()
	n.t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// next returns the next event; signs of life are passed over.
func (r *reader) next() *notifierv1.Event {
	r.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case m := <-r.messages:
			r.token = m.GetResumeToken()
			if m.GetEvent() != nil {
				return m.GetEvent()
			}
		case err := <-r.ended:
			r.t.Fatalf("the stream ended with %v", err)
		case <-deadline:
			r.t.Fatal("20 s passed before an event came")
		}
	}
}

// silent fails if an event is there.
func (r *reader) silent(d time.Duration) {
	r.t.Helper()
	deadline := time.After(d)
	for {
		select {
		case m := <-r.messages:
			if m.GetEvent() != nil {
				r.t.Errorf("unexpected event %s", m.GetEvent().GetEventId())
			}
		case err := <-r.ended:
			r.t.Fatalf("the stream ended with %v", err)
		case <-deadline:
			return
		}
	}
}

// refused fails unless a stream is refused for this reason.
func refused(t *testing.T, n *node, sink, caller, reason string) {
	t.Helper()
	r := n.watch(caller, &notifierv1.WatchEventsRequest{Sink: sink, Scope: &corev1.Scope{UserId: "alice", ThreadId: "t1"}})
	select {
	case err := <-r.ended:
		if !isReason(err, reason) {
			t.Errorf("watching %s as %s: %v, want %s", sink, caller, err, reason)
		}
	case m := <-r.messages:
		t.Errorf("watching %s as %s gives %v", sink, caller, m)
	case <-time.After(20 * time.Second):
		t.Errorf("watching %s as %s goes on", sink, caller)
	}
}

func (n *node) ack(caller, event, group string) error {
	_, err := n.as(caller).AckEvent(n.t.Context(), &notifierv1.AckEventRequest{EventId: event, Group: group})
	return err
}

func events(task string, versions int) (out []outbox.Event) {
	for v := range versions {
		out = append(out, outbox.Event{TaskID: fmt.Sprintf("%s-%d", task, v+1), Version: 1})
	}
	return out
}

// NOTE-018
func TestAStreamResumesFromATokenAndRepeatsWhatIsNotAcknowledged(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{cfg: notifier.Config{StreamLease: time.Second}})
		record(t, d, events("e", 3)...)
		r := n.watch("operator", &notifierv1.WatchEventsRequest{Group: "g"})
		var got []string
		for range 2 {
			got = append(got, r.next().GetEventId())
		}
		token := r.token
		got = append(got, r.next().GetEventId())
		if fmt.Sprint(got) != "[e-1:1 e-2:1 e-3:1]" {
			t.Errorf("read %v", got)
		}
		if err := n.ack("operator", "e-1:1", "g"); err != nil {
			t.Fatal(err)
		}
		if err := n.ack("operator", "e-1:1", "g"); err != nil {
			t.Errorf("a repeated acknowledgement: %v", err)
		}
		n.becomes("e-1", delivered)
		n.becomes("e-2", pending)
		r.stop()

		// The token is that of e-2, which was not acknowledged: what is new comes first, then it comes again.
		record(t, d, outbox.Event{TaskID: "e-4", Version: 1})
		r = n.watch("operator", &notifierv1.WatchEventsRequest{Group: "g", ResumeToken: token})
		seen := map[string]bool{}
		for len(seen) < 3 {
			id := r.next().GetEventId()
			if len(seen) == 0 && id == "e-2:1" {
				t.Errorf("what the token stands for came first")
			}
			seen[id] = true
		}
		if !seen["e-2:1"] || !seen["e-3:1"] || !seen["e-4:1"] {
			t.Errorf("after the token came %v", seen)
		}
		r.stop()

		// Without a token a stream begins with what is not acknowledged.
		r = n.watch("operator", &notifierv1.WatchEventsRequest{Group: "g"})
		for _, want := range []string{"e-2:1", "e-3:1", "e-4:1"} {
			e := r.next()
			if e.GetEventId() != want {
				t.Errorf("read %s, want %s", e.GetEventId(), want)
			}
			if err := n.ack("operator", e.GetEventId(), "g"); err != nil {
				t.Error(err)
			}
		}
		r.silent(1500 * time.Millisecond)
	})
}

func TestWhatAReaderLeavesBehindIsReadAtOnce(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{cfg: notifier.Config{StreamLease: time.Hour}})
		record(t, d, outbox.Event{TaskID: "a", Version: 1})
		for range 3 {
			r := n.watch("operator", &notifierv1.WatchEventsRequest{})
			if e := r.next(); e.GetEventId() != "a:1" {
				t.Errorf("read %v", e)
			}
			r.stop()
		}
	})
}

// NOTE-018: consumers of one group share the events, each group gets all.
func TestReadersOfAGroupShareTheEvents(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{})
		a := n.watch("operator", &notifierv1.WatchEventsRequest{Group: "g"})
		b := n.watch("operator", &notifierv1.WatchEventsRequest{Group: "g"})
		other := n.watch("operator", &notifierv1.WatchEventsRequest{}) // in a group of the caller's own name
		const count = 60
		got := map[string]int{}
		for i := range count { // one by one, so that both have a chance
			record(t, d, outbox.Event{TaskID: fmt.Sprintf("e-%d", i), Version: 1})
			select {
			case m := <-a.messages:
				got[m.GetEvent().GetEventId()]++
			case m := <-b.messages:
				got[m.GetEvent().GetEventId()]++
			case <-time.After(20 * time.Second):
				t.Fatal("no event came")
			}
		}
		for id, times := range got {
			if times != 1 {
				t.Errorf("%s came %d times to the group", id, times)
			}
		}
		if len(got) != count {
			t.Errorf("the group got %d of %d events", len(got), count)
		}
		all := map[string]bool{}
		for len(all) < count {
			all[other.next().GetEventId()] = true
		}
		a.silent(100 * time.Millisecond)
		b.silent(100 * time.Millisecond)
	})
}

func TestAnAgentSeesItsOwnScopeAlone(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{})
		for _, s := range []authn.Scope{{UserID: "alice", ThreadID: "t1"}, {UserID: "alice", ThreadID: "t2"}, {UserID: "bob", ThreadID: "t1"}} {
			record(t, d, outbox.Event{TaskID: s.UserID + "-" + s.ThreadID, Version: 1, Scope: s})
		}
		scope := func(user, thread string) *notifierv1.WatchEventsRequest {
			return &notifierv1.WatchEventsRequest{Scope: &corev1.Scope{UserId: user, ThreadId: thread}}
		}
		r := n.watch("alice", scope("", "t1"))
		if e := r.next(); e.GetEventId() != "alice-t1:1" || !strings.Contains(e.GetEventJson(), `"result_preview":"42"`) || e.GetCreateTime() == nil {
			t.Errorf("alice reads %v", e)
		}
		r.silent(200 * time.Millisecond)
		if e := n.watch("agent", scope("bob", "t1")).next(); e.GetTaskId() != "bob-t1" {
			t.Errorf("an agent that may act for anybody reads %v", e)
		}
		everything := map[string]bool{}
		all := n.watch("operator", &notifierv1.WatchEventsRequest{Group: "all"})
		for range 3 {
			everything[all.next().GetTaskId()] = true
		}
		some := n.watch("operator", &notifierv1.WatchEventsRequest{Group: "some", Scope: &corev1.Scope{UserId: "alice"}})
		for range 2 {
			everything["only "+some.next().GetTaskId()] = true
		}
		some.silent(200 * time.Millisecond)
		if len(everything) != 5 || !everything["only alice-t2"] {
			t.Errorf("an operator reads %v", everything)
		}
		for _, c := range []struct {
			caller string
			req    *notifierv1.WatchEventsRequest
			reason string
		}{
			{"alice", &notifierv1.WatchEventsRequest{}, "INVALID_ARGUMENTS"},
			{"proxy", &notifierv1.WatchEventsRequest{}, "INVALID_ARGUMENTS"},
			{"alice", scope("bob", "t1"), "FORBIDDEN"},
			{"plain", scope("bob", "t1"), "FORBIDDEN"},
			{"worker", scope("alice", "t1"), "FORBIDDEN"},
			{"alice", scope("alice", strings.Repeat("x", 129)), "INVALID_ARGUMENTS"},
		} {
			if err := <-n.watch(c.caller, c.req).ended; !isReason(err, c.reason) {
				t.Errorf("%s with %v: %v, want %s", c.caller, c.req, err, c.reason)
			}
		}
		// Acknowledging needs the owner too, and a foreign event looks like none.
		for caller, event := range map[string]string{"bob": "alice-t1:1", "alice": "bob-t1:1", "plain": "alice-t1:1", "operator": "nothing:1"} {
			if err := n.ack(caller, event, ""); !isReason(err, "NOTIFICATION_NOT_FOUND") {
				t.Errorf("%s acknowledges %s: %v", caller, event, err)
			}
		}
		if err := n.ack("alice", "alice-t1:1", ""); err != nil {
			t.Error(err)
		}
		n.becomes("alice-t1", delivered)
	})
}

func TestResumeTokensOfOthersAreRefused(t *testing.T) {
	d := dbtest.SQLite(t)
	n := start(t, d, options{cfg: notifier.Config{Sinks: []config.Sink{{Name: "feed", Type: config.SinkStream}}}})
	record(t, d, outbox.Event{TaskID: "a", Version: 1})
	r := n.watch("operator", &notifierv1.WatchEventsRequest{Group: "g"})
	r.next()
	good := r.token
	for _, req := range []*notifierv1.WatchEventsRequest{
		{Group: "other", ResumeToken: good},
		{Group: "g", Sink: "feed", ResumeToken: good},
		{Group: "g", Scope: &corev1.Scope{UserId: "alice"}, ResumeToken: good},
		{Group: "g", ResumeToken: good + "x"},
		{Group: "g", ResumeToken: "1"},
		{Group: "g", ResumeToken: base64.RawURLEncoding.EncodeToString([]byte(`{"l":"events","f":["events","g","",""],"a":"-1"}`))},
		{Group: "g", ResumeToken: base64.RawURLEncoding.EncodeToString([]byte(`{"l":"sinks","a":"1"}`))},
		{Group: strings.Repeat("g", 129)},
		{Group: "a\nb"},
	} {
		if err := <-n.watch("operator", req).ended; !isReason(err, "INVALID_ARGUMENTS") {
			t.Errorf("%v: %v", req, err)
		}
	}
}

func TestSinksAreForTheRolesThatTheyAllow(t *testing.T) {
	d := dbtest.SQLite(t)
	h := newHook(t, nil)
	n := start(t, d, options{cfg: notifier.Config{Sinks: []config.Sink{
		{Name: "feed", Type: config.SinkStream, AllowedRoles: []string{"operator"}}, hookSink("ops", h),
	}}})
	refused(t, n, "feed", "alice", "FORBIDDEN")
	refused(t, n, "ops", "alice", "SINK_UNKNOWN")
	refused(t, n, "feeds", "alice", "SINK_UNKNOWN")
	if _, err := n.as("alice").AckEvent(t.Context(), &notifierv1.AckEventRequest{EventId: "a:1", Sink: "feed"}); !isReason(err, "FORBIDDEN") {
		t.Errorf("acknowledging: %v", err)
	}
	record(t, d, outbox.Event{TaskID: "a", Version: 1, Sink: "feed"})
	if e := n.watch("operator", &notifierv1.WatchEventsRequest{Sink: "feed"}).next(); e.GetEventId() != "a:1" {
		t.Errorf("read %v", e)
	}
}

func TestASilentStreamGivesSignsOfLifeAndEndsWithTheServer(t *testing.T) {
	d := dbtest.SQLite(t)
	n := start(t, d, options{cfg: notifier.Config{Heartbeat: 30 * time.Millisecond}})
	r := n.watch("operator", &notifierv1.WatchEventsRequest{})
	for range 3 {
		m := <-r.messages
		if m.GetEvent() != nil || m.GetResumeToken() == "" {
			t.Errorf("message %v", m)
		}
	}
	n.stop()
	if err := <-r.ended; !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
}

// A newer event takes the place of one that was read and not acknowledged; to acknowledge the old one changes nothing.
func TestANewerEventOfATaskIsReadInPlaceOfTheOlder(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{})
		r := n.watch("operator", &notifierv1.WatchEventsRequest{})
		record(t, d, outbox.Event{TaskID: "a", Version: 1})
		if e := r.next(); e.GetEventVersion() != 1 {
			t.Errorf("read %v", e)
		}
		record(t, d, outbox.Event{TaskID: "a", Version: 2})
		if e := r.next(); e.GetEventVersion() != 2 {
			t.Errorf("read %v", e)
		}
		if err := n.ack("operator", "a:1", ""); err != nil {
			t.Error(err)
		}
		n.becomes("a", pending)
		if err := n.ack("operator", "a:2", ""); err != nil {
			t.Error(err)
		}
		n.becomes("a", delivered)
	})
}
