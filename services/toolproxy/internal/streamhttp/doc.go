// Package streamhttp is the wire of MCP's streamable HTTP transport, in both eras: with sessions, up to 2025-11-25,
// and stateless from 2026-07-28.
//
// Every message is a POST of its own. The answer, a JSON body or a stream of events, is read and delivered on the
// goroutine that sends, so a call costs no hand-over to another one:
//
//	Send ──▶ POST ──┬─▶ application/json ───────────▶ deliver ──────────────▶ return
//	                ├─▶ text/event-stream ─▶ events ─▶ deliver ─▶ answer seen ─▶ return, rest read behind
//	                │        └─ broken before the answer ─▶ GET with Last-Event-ID, bounded ─▶ events …
//	                ├─▶ 202, 204 (notifications, answers) ──────────────────▶ return
//	                └─▶ status >= 400 ─▶ JSON-RPC error body: deliver; else an error for this message alone
//
// What it guarantees:
//
//   - A failure of one POST is the error of that Send and of nothing else: see package exchange for what each error
//     says about the message's effect. Send of a request returns nil only when its answer has been delivered.
//   - Each message carries the credentials of its own context ([WithHeader]) and of no other.
//   - Session id, protocol version and the headers of 2026-07-28 that mirror the body belong to this hop and are
//     set here. A session id comes from the answer to initialize alone.
//   - [Wire.Close] reads the answers that are on their way, within bounds, before it deletes the session.
//   - A message above the limit fails its own call with PAYLOAD_TOO_LARGE.
//
// It sends nothing twice and opens no second session: that is for the one who knows whether a call may be repeated.
// A lost session does not end the wire, because a server may say so to one caller alone.
package streamhttp
