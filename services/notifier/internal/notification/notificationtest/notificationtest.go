// Package notificationtest is the conformance suite of notification.Store and notification.Streams. Every driver passes
// all of it.
package notificationtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/pkg/outbox/outboxtest"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
)

// Subject is what is tested.
type Subject interface {
	notification.Store
	notification.Streams
}

// Run runs the suite. open returns a store and its database, which is empty and has the current schema.
func Run(t *testing.T, open func(t *testing.T) (Subject, *db.DB)) {
	for _, tests := range []map[string]func(*testing.T, *fixture){intakeTests, claimTests, settleTests, operatorTests, streamTests, raceTests} {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				s, d := open(t)
				test(t, &fixture{Subject: s, t: t, db: d})
			})
		}
	}
}

// fixture is a store with what tests do to it. Its methods fail the test.
type fixture struct {
	Subject
	t  *testing.T
	db *db.DB
}

// The sinks of the tests: two that are sent to, and one that is read.
const (
	ops  = "ops"
	chat = "chat"
	feed = "feed"

	lease = time.Minute
)

var ada = authn.Scope{UserID: "ada", ThreadID: "t1"}

// event returns an event of ada's for the sink ops.
func event(task string, version int64) outbox.Event {
	return outbox.Event{
		TaskID: task, Version: version, Scope: ada, Sink: ops, TaskName: "report",
		Body: fmt.Appendf(nil, `{"task_id":%q,"event_version":%d}`, task, version),
	}
}

// to returns e with another sink.
func to(sink string, e outbox.Event) outbox.Event {
	e.Sink = sink
	return e
}

// in returns e with another scope.
func in(user, thread string, e outbox.Event) outbox.Event {
	e.Scope = authn.Scope{UserID: user, ThreadID: thread}
	return e
}

// add appends events without taking them in.
func (f *fixture) add(events ...outbox.Event) {
	f.t.Helper()
	if err := outboxtest.Append(f.t.Context(), f.db, events...); err != nil {
		f.t.Fatal(err)
	}
}

// record appends events one by one and takes each in.
func (f *fixture) record(events ...outbox.Event) {
	f.t.Helper()
	for _, e := range events {
		f.add(e)
		if n, err := f.Intake(f.t.Context(), feed, 100); err != nil || n != 1 {
			f.t.Fatalf("intake of event %d of %s: %d, %v", e.Version, e.TaskID, n, err)
		}
	}
}

// claim claims up to 100 deliveries to sinks.
func (f *fixture) claim(sinks ...string) []notification.Claim {
	f.t.Helper()
	return f.claimAs(notification.ClaimRequest{Notifier: "n1", Sinks: sinks, Known: sinks, Limit: 100, Lease: lease})
}

func (f *fixture) claimAs(r notification.ClaimRequest) []notification.Claim {
	f.t.Helper()
	claims, err := f.Claim(f.t.Context(), r)
	if err != nil {
		f.t.Fatal(err)
	}
	return claims
}

// claimOne claims the one delivery to ops that is due.
func (f *fixture) claimOne() notification.Claim {
	f.t.Helper()
	claims := f.claim(ops)
	if len(claims) != 1 {
		f.t.Fatalf("claimed %v, want one", claims)
	}
	return claims[0]
}

// settle ends a claim and wants that to be written.
func (f *fixture) settle(c notification.Claim, v notification.Verdict, more ...func(*notification.Outcome)) {
	f.t.Helper()
	if !f.trySettle(c, v, more...) {
		f.t.Fatalf("settling %s of %s: the lease is lost", v, c.Event.ID)
	}
}

func (f *fixture) trySettle(c notification.Claim, v notification.Verdict, more ...func(*notification.Outcome)) bool {
	f.t.Helper()
	o := notification.Outcome{Claim: c, Verdict: v}
	for _, set := range more {
		set(&o)
	}
	ok, err := f.Settle(f.t.Context(), o)
	if err != nil {
		f.t.Fatal(err)
	}
	return ok
}

func after(d time.Duration) func(*notification.Outcome) {
	return func(o *notification.Outcome) { o.Delay = d }
}

func as(run string) func(*notification.Outcome) {
	return func(o *notification.Outcome) { o.RunID = run }
}

func because(err string) func(*notification.Outcome) {
	return func(o *notification.Outcome) { o.Error = err }
}

// spoil makes a task's events in the outbox unfit for any sink.
func (f *fixture) spoil(task string) {
	f.t.Helper()
	if err := outboxtest.Spoil(f.t.Context(), f.db, task); err != nil {
		f.t.Fatal(err)
	}
}

// pass lets d pass for the due time, and so the lease, of every delivery.
func (f *fixture) pass(d time.Duration) {
	f.t.Helper()
	f.shift("notification_delivery", "due_time", d)
}

// shift moves a column of times into the past.
func (f *fixture) shift(table, column string, d time.Duration) {
	f.t.Helper()
	if f.db.Engine() == db.SQLite {
		f.exec(fmt.Sprintf("update %s set %s = %s - %d", table, column, column, d.Milliseconds()))
		return
	}
	f.exec(fmt.Sprintf("update %s set %s = %s - interval '%d milliseconds'", table, column, column, d.Milliseconds()))
}

func (f *fixture) exec(statement string) {
	f.t.Helper()
	var err error
	if f.db.Engine() == db.SQLite {
		_, err = f.db.SQL().ExecContext(f.t.Context(), statement)
	} else {
		_, err = f.db.Pool().Exec(f.t.Context(), statement)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// count returns the number of rows of a table.
func (f *fixture) count(table string) (n int) {
	f.t.Helper()
	query := "select count(*) from " + table
	var err error
	if f.db.Engine() == db.SQLite {
		err = f.db.Read().QueryRowContext(f.t.Context(), query).Scan(&n)
	} else {
		err = f.db.Pool().QueryRow(f.t.Context(), query).Scan(&n)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

// list returns what f chooses, on one page.
func (f *fixture) list(filter notification.Filter) []*notification.Notification {
	f.t.Helper()
	filter.Limit = 1000
	p, err := f.List(f.t.Context(), filter)
	if err != nil {
		f.t.Fatal(err)
	}
	return p.Notifications
}

// of returns the delivery of a task, with its attempts.
func (f *fixture) of(task string) *notification.Notification {
	f.t.Helper()
	found := f.list(notification.Filter{TaskID: task})
	if len(found) != 1 {
		f.t.Fatalf("task %s has %d deliveries, want 1", task, len(found))
	}
	n, err := f.Get(f.t.Context(), found[0].ID)
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

// stands fails the test unless the task's delivery is of this version and in this state.
func (f *fixture) stands(task string, version int64, status notification.Status) *notification.Notification {
	f.t.Helper()
	n := f.of(task)
	if n.EventVersion != version || n.Status != status {
		f.t.Errorf("the delivery of %s is %s with event %d, want %s with event %d", task, n.Status, n.EventVersion, status, version)
	}
	return n
}

// redrive redrives and wants count.
func (f *fixture) redrive(r notification.Redrive, want int64) {
	f.t.Helper()
	if n, err := f.Redrive(f.t.Context(), r); err != nil || n != want {
		f.t.Fatalf("redrive %+v: %d, %v, want %d", r, n, err, want)
	}
}

func (f *fixture) pause(sink string, paused bool) {
	f.t.Helper()
	if err := f.SetPaused(f.t.Context(), sink, paused, "it failed"); err != nil {
		f.t.Fatal(err)
	}
}
