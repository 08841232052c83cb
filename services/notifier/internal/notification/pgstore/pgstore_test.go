package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/pkg/outbox/outboxtest"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/notificationtest"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/pgstore"
)

// NOTE-005, NOTE-006, NOTE-007: the suite names the tests.
func TestConformance(t *testing.T) {
	notificationtest.Run(t, func(t *testing.T) (notificationtest.Subject, *db.DB) {
		d := dbtest.Postgres(t)
		return pgstore.New(d.Pool()), d
	})
}

// The modes are those for PgBouncer in transaction mode. With one connection, whoever borrows a second one while it
// holds the first hangs.
func TestNothingBelongsToASession(t *testing.T) {
	for _, mode := range []string{"exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			d, err := db.Open(t.Context(), db.Config{PostgresDSN: dbtest.DSN(t) + "&default_query_exec_mode=" + mode, MaxConns: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			useAll(t, d)
			var left int
			var timeout string
			err = d.Pool().QueryRow(t.Context(), `select (select count(*) from pg_prepared_statements)
				+ (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
				current_setting('idle_in_transaction_session_timeout')`).Scan(&left, &timeout)
			if err != nil || left > 0 || timeout != "0" {
				t.Errorf("the session holds %d prepared statements and locks, and an idle time-out of %s: %v", left, timeout, err)
			}
		})
	}
}

// useAll calls every method of a store so that it reads and writes something.
func useAll(t *testing.T, d *db.DB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s := pgstore.New(d.Pool())
	must := func(what string, ok bool, err error) {
		t.Helper()
		if err != nil || !ok {
			t.Fatalf("%s: %v, %v", what, ok, err)
		}
	}
	body := []byte(`{"quote":"it's \\ \"'; drop table outbox; --"}`)
	add := func(version int64) {
		t.Helper()
		err := outboxtest.Append(ctx, d,
			outbox.Event{TaskID: "a", Version: version, Sink: "ops", Body: body},
			outbox.Event{TaskID: "b", Version: version, Body: body})
		must("append", true, err)
		n, err := s.Intake(ctx, "feed", 10)
		must("intake", n == 2, err)
	}
	claim := func() notification.Claim {
		t.Helper()
		claims, err := s.Claim(ctx, notification.ClaimRequest{Notifier: "n", Sinks: []string{"ops"}, Known: []string{"ops"}, Limit: 10, Lease: time.Minute})
		must("claim", len(claims) == 1 && string(claims[0].Event.Body) == string(body), err)
		return claims[0]
	}
	add(1)
	c := claim()
	lost, err := s.Renew(ctx, []notification.Claim{c}, time.Minute)
	must("renew", len(lost) == 0, err)
	add(2)
	ok, err := s.Settle(ctx, notification.Outcome{Claim: c, Verdict: notification.Failed, Delay: time.Hour, Error: "no", Status: "503"})
	must("settle", ok, err)
	wait, ok, err := s.NextDue(ctx, []string{"ops"})
	must("next due", ok && wait > 59*time.Minute, err)
	must("pause", true, s.SetPaused(ctx, "ops", true, "it failed"))
	must("resume", true, s.SetPaused(ctx, "ops", false, ""))
	states, err := s.SinkStates(ctx, []string{"ops", "feed"})
	must("states", states["ops"].Pending == 1 && states["feed"].Pending == 1, err)
	page, err := s.List(ctx, notification.Filter{Limit: 1, Since: time.Now().Add(-time.Hour), Statuses: []notification.Status{notification.Pending}})
	must("list", len(page.Notifications) == 1 && page.Next != "", err)
	page, err = s.List(ctx, notification.Filter{Limit: 1, After: page.Next})
	must("list on", len(page.Notifications) == 1 && page.Next == "", err)
	redriven, err := s.Redrive(ctx, notification.Redrive{Filter: notification.Filter{Sink: "ops"}, Actor: "ada"})
	must("redrive", redriven == 1, err)
	c = claim()
	ok, err = s.Settle(ctx, notification.Outcome{Claim: c, Verdict: notification.Done})
	must("settle", ok, err)
	n, err := s.Get(ctx, c.ID)
	must("get", err == nil && n.Status == notification.Delivered && len(n.Attempts) == 2, err)
	for _, scope := range []authn.Scope{{}, {UserID: "ada", ThreadID: "t"}} {
		events, err := s.Next(ctx, notification.StreamRequest{Sink: "feed", Group: "g", Consumer: "c", Scope: scope, Limit: 10, Lease: time.Minute})
		must("next", err == nil && len(events) == map[bool]int{true: 1}[scope.UserID == ""], err)
	}
	must("acknowledge", true, s.Ack(ctx, "feed", "g", "b:2", authn.Scope{}))
	pruned, err := s.Prune(ctx, -time.Minute, 1)
	must("prune", pruned == 1, err)
	add(3)
	forgotten, err := s.Forget(ctx, []string{"ops"}, -time.Minute, 10)
	must("forget", forgotten == 1, err)
}

// NOTE-006
func TestALockedDeliveryIsSkipped(t *testing.T) {
	d := dbtest.Postgres(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a claim that waits for the lock fails
	defer cancel()
	s := pgstore.New(d.Pool())
	body := []byte("{}")
	err := outboxtest.Append(ctx, d, outbox.Event{TaskID: "a", Version: 1, Sink: "ops", Body: body}, outbox.Event{TaskID: "b", Version: 1, Sink: "ops", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Intake(ctx, "feed", 10); err != nil {
		t.Fatal(err)
	}
	claim := func(want string) {
		t.Helper()
		claims, err := s.Claim(ctx, notification.ClaimRequest{Notifier: "n", Sinks: []string{"ops"}, Limit: 10, Lease: time.Minute})
		if err != nil || len(claims) != 1 || claims[0].Event.TaskID != want {
			t.Errorf("claimed %v, %v, want %s", claims, err, want)
		}
	}
	err = pgx.BeginFunc(ctx, d.Pool(), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "select from notification_delivery where task_id = 'a' for update")
		claim("b")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	claim("a")
}

func TestWhoStopsWithTheSequenceLockedDoesNotStopOthersForEver(t *testing.T) {
	pool := dbtest.Postgres(t).Pool()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if err := pgstore.LockSequence(t.Context(), tx); err != nil {
			return err
		}
		var timeout string
		err := tx.QueryRow(t.Context(), "show idle_in_transaction_session_timeout").Scan(&timeout)
		if timeout != "30s" {
			t.Errorf("the server waits %s for the transaction to go on, want 30s", timeout)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// An intake under way has seen no group, and so offers its event to none; what it records must not be missed.
func TestAGroupThatComesDuringAnIntakeGetsItsEvent(t *testing.T) {
	d := dbtest.Postgres(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	intake, err := d.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer intake.Rollback(ctx) // a no-op after the commit
	if err := pgstore.LockSequence(ctx, intake); err != nil {
		t.Fatal(err)
	}
	if _, err := intake.Exec(ctx, `insert into notification_delivery (notification_id, task_id, sink, user_id, thread_id, task_name, run_id,
		traceparent, event_version, body, event_time, event_sequence, status, due_time)
		values ('ntf_00000000000000000000000000000000', 'a', 'feed', '', '', '', '', '', 1, '{}', now(), 1, 'pending', now())`); err != nil {
		t.Fatal(err)
	}
	read := make(chan []notification.StreamEvent, 1)
	go func() {
		events, err := pgstore.New(d.Pool()).Next(ctx, notification.StreamRequest{Sink: "feed", Group: "g", Consumer: "c", Limit: 10, Lease: time.Minute})
		if err != nil {
			t.Error(err)
		}
		read <- events
	}()
	for waits := false; !waits && len(read) == 0; {
		const query = `select exists (select from pg_stat_activity where wait_event_type = 'Lock' and query like '%notification_sequence%' and pid <> pg_backend_pid())`
		if err := d.Pool().QueryRow(ctx, query).Scan(&waits); err != nil {
			t.Fatalf("the reader does not wait for the intake: %v", err)
		}
	}
	if err := intake.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if events := <-read; len(events) != 1 {
		t.Errorf("the group reads %v, want the event", events)
	}
}
