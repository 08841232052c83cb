// Package taskworker owns durable tasks: their intake, leases, polling, cancelling and results.
//
//	toolproxy ─reserve, renew, commit, abandon─▶ intake ─▶ store ◀─ claims, outcomes ─ worker ─▶ toolproxy ─▶ remote
//	agent ─get, list, watch, cancel─▶ tasks ──────────────▶  │                           (BackgroundToolService)
//	                              upkeep ─reap, expire, prune┘ ─ events, same transaction ─▶ outbox ─▶ notifier
//
// # Guarantees
//
//   - Intent first: a submit is on record before the remote hears of it. It ends as a task, as nothing where the remote
//     provably did nothing, or as a failed task with reason outcome_unknown. Nothing is lost silently.
//   - A task that was taken in reaches one final state and keeps it. Every write of a worker needs the fence of its claim
//     and a lease that lives by the database's clock; what comes too late is dropped and counted.
//   - Never are two remote calls of one task under way that hold a lease. Remote cancels are at least once.
//   - The event of a change is written with the change.
//   - One hung or failing call, or one that panics, delays and fails no other task.
//   - Any number of taskworkers share a Postgres database; on SQLite there is one. Both behave alike, with wake-ups or without.
//
// It talks no MCP and holds no secret: handle and binding of a remote task are bytes to it, which toolproxy made and
// understands. It promises nothing about the remote beyond that.
//
// # Failure
//
// While the database is away it is not ready; every loop backs off and goes on when the database is back, and says so once.
// Outcomes are kept while their leases live. Watches wait. While toolproxy is away polls fail, are counted and repeated with
// a growing delay. A worker that is killed leaves its leases to run out, and others take over.
//
// # Switched off
//
// With tasks.enabled false no new task is taken in: TASKS_UNAVAILABLE says what to set. A submit that was under way when
// the service was switched off may still be committed. Tasks are shown as ever, but this process claims none, so that they
// rest, and CancelTask is NO_WORKER unless another taskworker works. Reservations and times to live run out as ever.
package taskworker
