package wake_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/wake"
)

func TestPostgresWakesOtherProcesses(t *testing.T) {
	dsn := dbtest.DSN(t)
	a, b := listening(t, openPool(t, dsn)), listening(t, openPool(t, dsn))
	due, cancelDue := b.Subscribe("task.due")
	defer cancelDue()
	other, cancelOther := b.Subscribe("registry.snapshot")
	defer cancelOther()
	notify(t, a, "task.due")
	await(t, due, "a notification of another process")
	// Notifications keep their order, so this one would have come after a wrong one.
	notify(t, a, "last")
	awaitLast(t, b, a)
	if woken(other) {
		t.Error("a subscriber of another topic was woken")
	}
}

func TestPostgresWakesItsOwnProcessOnceAndWithoutListening(t *testing.T) {
	dsn := dbtest.DSN(t)
	deaf := wake.NewPostgres(openPool(t, dsn).Pool(), nil) // nobody runs it
	hints, cancel := deaf.Subscribe("task.due")
	defer cancel()
	notify(t, deaf, "task.due")
	if !woken(hints) {
		t.Error("not woken by its own process at once")
	}

	a, b := listening(t, openPool(t, dsn)), listening(t, openPool(t, dsn))
	own, cancelOwn := a.Subscribe("task.due")
	defer cancelOwn()
	notify(t, a, "task.due")
	if !woken(own) {
		t.Error("not woken by its own process at once")
	}
	awaitLast(t, a, b)
	if woken(own) {
		t.Error("woken again by the echo of its own notification")
	}
}

func TestSchemasOfOneDatabaseDoNotWakeEachOther(t *testing.T) {
	dsn := dbtest.DSN(t)
	a, b := listening(t, openPool(t, dsn)), listening(t, openPool(t, dsn))
	stranger := listening(t, dbtest.Postgres(t))
	hints, cancel := b.Subscribe("task.due")
	defer cancel()
	notify(t, stranger, "task.due")
	awaitLast(t, b, a)
	if woken(hints) {
		t.Error("woken by another schema")
	}
}

func TestListeningTakesNoConnectionOfThePool(t *testing.T) {
	d := dbtest.Postgres(t, dbtest.MaxConns(1))
	conn, err := d.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	listening(t, d) // waits until it listens
}

func TestLostConnectionIsReplacedAndEveryoneWoken(t *testing.T) {
	dsn := dbtest.DSN(t) + "&application_name=lost_connection"
	d := openPool(t, dsn)
	a, b := listening(t, openPool(t, dsn)), listening(t, d)
	due, cancelDue := b.Subscribe("task.due")
	defer cancelDue()
	snapshot, cancelSnapshot := b.Subscribe("registry.snapshot")
	defer cancelSnapshot()

	const terminate = `select count(pg_terminate_backend(pid)) from pg_stat_activity
		where application_name = 'lost_connection' and pid <> pg_backend_pid()`
	var ended int
	if err := d.Pool().QueryRow(t.Context(), terminate).Scan(&ended); err != nil || ended < 2 {
		t.Fatalf("ended %d listening connections, %v, want both", ended, err)
	}
	await(t, due, "the wake-up after listening again")
	await(t, snapshot, "the wake-up after listening again, of every topic")
	notify(t, a, "task.due")
	await(t, due, "a notification over the new connection")
}

func TestRunOutlivesAServerThatStopsAndStarts(t *testing.T) {
	c := dbtest.NewCluster(t)
	dsn := c.DSN(t)
	a, b := listening(t, openPool(t, dsn)), listening(t, openPool(t, dsn))
	hints, cancel := b.Subscribe("task.due")
	defer cancel()
	c.Stop()
	if err := a.Notify(t.Context(), "task.due"); err == nil {
		t.Error("Notify does not say that the server is gone")
	}
	if woken(hints) {
		t.Error("woken by a notification that was lost")
	}
	c.Start()
	await(t, hints, "the wake-up after the server is back")
	notify(t, a, "task.due")
	await(t, hints, "a notification after the server is back")
}

func TestNotifyWorksWithoutPreparedStatements(t *testing.T) {
	dsn := dbtest.DSN(t)
	a, b := openPool(t, dsn+"&default_query_exec_mode=simple_protocol"), listening(t, openPool(t, dsn))
	hints, cancel := b.Subscribe("task.due")
	defer cancel()
	notify(t, wake.NewPostgres(a.Pool(), nil), "task.due")
	await(t, hints, "a notification by the simple protocol")
}

func openPool(t *testing.T, dsn string) *db.DB {
	t.Helper()
	d, err := db.Open(t.Context(), db.Config{PostgresDSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// listening returns a bus whose Run has begun to listen, and ends it with the test.
func listening(t *testing.T, d *db.DB) *wake.Postgres {
	t.Helper()
	bus := wake.NewPostgres(d.Pool(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	begun, cancelBegun := bus.Subscribe("begun") // everyone is woken when the bus listens
	defer cancelBegun()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- bus.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	await(t, begun, "the bus to listen")
	return bus
}

// awaitLast returns when everything that was notified before has reached bus: notifications keep their order.
func awaitLast(t *testing.T, bus, from wake.Bus) {
	t.Helper()
	last, cancel := bus.Subscribe("last")
	defer cancel()
	notify(t, from, "last")
	await(t, last, "the last notification")
}

func await(t *testing.T, hints <-chan struct{}, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("timed out"))
	defer cancel()
	select {
	case <-hints:
	case <-ctx.Done():
		t.Fatalf("waiting for %s: %v", what, context.Cause(ctx))
	}
}
