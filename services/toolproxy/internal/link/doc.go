// Package link multiplexes JSON-RPC calls over one transport to one MCP server.
//
// A [Link] owns the ids: every call gets an integer of the link's own, so that callers never meet each other's
// answers whatever ids they use elsewhere. It keeps a table of the calls in flight and looks no deeper into a
// message than its envelope.
//
//	Call ──▶ id, table ──▶ Wire.Send ──▶ server
//	  ▲                                    │
//	  └── the entry's channel ◀── table ◀──┴── Wire.Run: deliver
//
// What it guarantees:
//
//   - A call ends when its answer comes, its context ends, or the wire ends, whichever is first. A context that
//     ends sends notifications/cancelled (never for initialize) and frees the caller at once; an answer that
//     comes after that is counted and dropped, and the session stays usable.
//   - When the wire ends every call in flight fails at once with SESSION_CLOSED and the wire's reason. A call that
//     provably never left matches [ErrNotSent] too; no other may be repeated.
//   - A slow consumer of progress or log messages delays only its own call. Its queue is bounded; the oldest
//     messages are dropped and counted.
//   - The server's own requests are answered: ping with an empty result, others by [Options.OnRequest], and with
//     "method not found" where there is none.
//   - What is no JSON-RPC message is skipped and counted, except that a broken answer to a call in flight fails
//     that call with UPSTREAM_PROTOCOL.
//
// It does not start processes or connections, knows no MCP method but those above, sets no deadlines and repeats
// nothing. Package session uses it; packages stdio, streamhttp and sse provide wires.
package link
