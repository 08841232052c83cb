// Package sse is the wire of MCP's first HTTP transport, HTTP with server-sent events of 2024-11-05.
//
// One GET opens the stream on which everything from the server comes; its first event names the endpoint to which
// every message is posted. The stream is the session: when it ends, so does the wire.
//
//	Run  ──▶ GET ──▶ event "endpoint" ──▶ event "message" ─▶ deliver … until the stream ends
//	Send ──▶ waits for the endpoint ──▶ POST ──▶ 2xx
//
// A POST that fails is the error of that Send alone: other calls of the session go on. The endpoint must have the
// origin of the stream, so that credentials go nowhere else. Each message carries the credentials of its own
// context ([exchange.WithHeader]).
package sse
