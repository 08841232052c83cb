// Package notifier is the service that delivers task events: to agent runtimes, to webhooks, and to whoever reads a
// stream. A delivery's fate never changes its task, and notifier reads no task table: events reach it through the outbox.
//
//	outbox ──intake──▶ one delivery per task and sink ──┬─ delivery ─▶ webhook, agent runtime
//	        (same tx)    of the task's newest event     └─ WatchEvents ─▶ readers ─▶ AckEvent
//
// # What it promises
//
// Events are delivered at least once, under an id that stays the same over retries, redelivery after a crash, and
// redrive. A newer event of a task takes the place of an undelivered older one. What cannot be delivered ends as a dead
// letter, which an operator may redrive.
//
// An event goes to the sink that the submit named, else to the default sink, else to the stream sink `events`, which
// always exists. Events for a sink that is not configured here wait until it is.
//
// # Replicas
//
// Any number of notifiers may share a Postgres database. They share the work by leases; no event is lost with a notifier
// that dies, and what it had under way is delivered again once its leases have run out.
//
// # Failure
//
// While the database is away nothing is delivered, streams end with NOT_READY, and everything goes on by itself when it is
// back. A sink that fails or hangs delays no other. On shutdown attempts under way have 10 s to end.
//
// # Safety
//
// Sinks are the operator's, and yet what they answer is not trusted: it is bounded, and redacted before it is kept.
// References to the environment in secrets and tokens are resolved here and nowhere else, when the notifier is made; the
// values go to the sender that needs them and to the redactor. Agents see events of their own scope alone.
package notifier
