// Package background makes the calls that follow remote tasks, for workers, which have no session and no secret.
//
// A call brings the handle and the binding that the submit left. A [Resolver] turns the binding into a server that may be
// connected to, with the credentials of today; a [Service] gets the session that the binding's background_scope names,
// lets the driver ask, and answers with its snapshot.
//
//	worker ─handle, binding─▶ Service ─▶ Resolver: bound entry + today's credentials ─▶ pool ─▶ session ─▶ driver
//
// # Guarantees
//
//   - A call goes where the task was submitted, whatever the configuration says by then. A server that was removed or
//     switched off drains; one whose trust was revoked is called no more.
//   - The session of a task is held from before the call until the next one is due, and a margin; it is let go when the
//     task has ended.
//   - Once resolved, a binding costs nothing but a look-up until there is another snapshot, and no question to the registry
//     until credentials change.
//
// # Errors
//
// UPSTREAM_PROTOCOL: the tool's answer to a status call makes no sense, and will not the next time. SERVER_UNTRUSTED: the
// trust in the server was revoked. Both are final. SESSION_LIMIT says that no session was to be had, NOT_READY that
// there is no configuration yet; these and all others may heal. Messages quote at most 500 characters, and hold no secrets, no
// remote ids and no addresses of servers.
package background
