// Package exchange is what the HTTP transports of MCP have in common: one HTTP request to one MCP server, and what
// may go wrong with it.
//
// A request carries exactly the headers of its layers, each name once, the later layer winning: those of the server
// entry, those of the call ([WithHeader]), those of the protocol. There is no way in for anything else, so what a
// caller of Toolherd sent us (Authorization, Cookie) never leaves with it. Layers cannot set what belongs to the
// protocol or the connection.
//
// Errors concern one request and never the session; each says how much is known about its effect:
//
//	could not connect, refused by policy    nothing was sent           matches link.ErrNotSent
//	HTTP 401                                refused before executing   [NotRun] is true
//	session gone (404 and its family)       see [SessionLostError]
//	other HTTP status >= 400                [StatusError]
//	connection lost, answer cut             outcome unknown            fault SESSION_CLOSED
//
// A status >= 400 whose body is a JSON-RPC message is no error of the transport but the server's answer.
//
// Redirects are followed within one origin and only as 307 or 308, which keep method and body.
package exchange
