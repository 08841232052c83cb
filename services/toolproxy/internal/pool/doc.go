// Package pool owns all sessions: one per key, started once, shared by the calls of that key, ended in the end.
//
// A session is in one of three states, and one goroutine of the pool opens it, waits for its end and closes it:
//
//	         first Get                    opened                     no call left and retired, reset,
//	(none) ────────────▶ starting ────────────────▶ ready ───┐       idle, evicted, or its wire ended
//	   ▲                    │ failed, reset, retired          ├──────────────────▶ closing ──▶ (none)
//	   └────────────────────┴─────────────────────────────────┘
//
// Concurrent Gets of one key share one start. A start runs on the pool's context under the server's own limit: a
// caller that goes away ends its wait only. A start that fails gives every waiter its error and leaves nothing behind;
// one that was reset or retired meanwhile is torn down, never handed out. An entry is removed by identity: the end of
// an old session cannot remove the one that replaced it.
//
// At most MaxSessions stdio sessions exist, those in their start or being closed included. The least recently used
// that carries no call makes room; where there is none, Get is SESSION_LIMIT. Sessions without a process have a limit
// of their own.
//
// A task may hold a session, with [Lease.Hold]: until the hold ends the session is not idle, makes no room and is not
// drained, and what ends it is a reset, its wire or the end of the pool. A session whose fingerprint is no longer in force is
// started for tasks alone, which say so in [Request].
//
// The pool never repeats a call. It knows nothing about tools.
package pool
