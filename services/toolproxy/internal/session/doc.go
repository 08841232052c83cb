// Package session speaks MCP with one server over one connection.
//
// [Open] connects, agrees on a protocol version and returns a [Session] that carries calls until its wire ends or
// [Session.Close]. It speaks the stateless 2026-07-28, called modern, and the four versions before it, called
// legacy, which open with an initialize handshake:
//
//	modern:  dial ──▶ server/discover ──▶ open
//	legacy:  dial ──▶ initialize ──▶ notifications/initialized ──▶ open
//	auto:    dial ──▶ server/discover, bounded ──┬─▶ offers 2026-07-28 ─────────▶ open
//	                                             ├─▶ answers anything else ─────▶ legacy on the same connection
//	                                             └─▶ exits, hangs, breaks ──▶ dial again ──▶ legacy
//
// A refused login (401, 403) is never taken for evidence of an era.
//
// Tools and results stay raw JSON: what the package does not need to understand it does not decode. It declares no
// capability that it does not handle, and refuses every request of the server but ping.
//
// A session keeps no retries, no pool and no credentials; its owner decides when it ends. Calls may run concurrently.
package session
