// Package toolproxy is the agents' way to the tools of many MCP servers.
//
// It owns the sessions to MCP servers, the tool lists and the path of a call. It has no database: killed and started
// again it serves the same tools, and nothing but open sessions is lost. What it knows comes from the registry, as
// immutable snapshots; it goes on with the last one while the registry cannot be reached.
//
//	registry ─snapshots─▶ discovery ─▶ catalog (one pointer) ◀─ ListTools, ListServers, WatchServers
//	         ─secrets───▶ activation      │
//	                                      ▼
//	agent ─CallTool─▶ call ─▶ pool ─▶ session ─▶ link ─▶ stdio │ streamhttp │ sse ─▶ MCP server
//	                    │ driver ▲     (a submit also tells taskworker, before and after: intake)
//	worker ─GetRemoteTask─▶ background
//
// # Guarantees
//
//   - It is ready with the first snapshot, never later: an MCP server that fails, hangs or is slow is a status of that
//     server and delays no other. Before the first snapshot calls are NOT_READY.
//   - A call is sent once. It is sent again only where the server provably did not run it.
//   - Nobody's session carries another's calls: stdio sessions are keyed by (server, fingerprint, user, thread) unless
//     the entry says otherwise.
//   - A changed configuration takes effect with one swap of a pointer; only sessions whose fingerprint changed end, after
//     the calls they carry.
//   - A durable task is called where it was submitted, whatever becomes of its entry, and holds its session until it has
//     ended; trust that was revoked ends that.
//   - An agent gets the handle of a durable task only once taskworker has stored it, and a submit that nobody knows the
//     outcome of is on record as a failed task. Whoever asked may go away meanwhile: the books are kept, and a task that
//     nobody was told of is cancelled.
//   - An ordinary call makes no call of another service, whether tasks run or not.
//   - An entry that asks for credentials or interceptors which this version does not have is in error and never called.
//   - No process of an MCP server outlives this one, however it ends (package watchdog).
//
// # Use
//
// New starts nothing; Run does, and waits for all of it. A program that runs toolproxy first asks [IsWatchdog] in its main
// function, and is the watchdog if so.
package toolproxy
