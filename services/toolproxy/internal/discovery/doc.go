// Package discovery finds out how every configured server fares and which tools it has, and keeps the catalog current.
//
// A [Discovery] takes snapshots from the registry. For each server that may be started one goroutine, its monitor,
// performs checks: it activates the entry, gets the session of scope default from the pool (which is from then on that
// scope's own) and lists the tools.
//
//	          ┌────────── back-off 1 s … 5 min ──────────┐
//	          ▼                                          │
//	STARTING ─▶ check ──┬─ listed ────────────▶ OK       │
//	          ▲         ├─ wants a login ─────▶ UNAUTHENTICATED ─┤
//	          │         └─ anything else ─────▶ ERROR ───┘
//	          └─ asked to, list_changed, ttl, the session's server ended it
//
// STARTING is shown only before the first verdict. At most Concurrency checks run at once; one that hangs holds up
// nobody but those who wait for one of the slots, and ends with the server's session_init_timeout. The last good list of
// a server that fails is served, marked stale, until three checks in a row have failed.
//
// Toolsets are held against the whole list. A server that lacks one of their tools is in error and serves nothing, and so
// is one that has toolsets while durable tasks are switched off; both are tried again like any other failure.
//
// An entry whose fingerprint stays keeps its session, its list and its verdict whatever else changes about it.
package discovery
