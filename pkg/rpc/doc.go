// Package rpc is the edge of every process: the gRPC servers that take calls, the connections that make them, and
// the only place where gRPC status codes occur.
//
// # What a server does with a call
//
//	headers ─▶ authenticate ─▶ role? ─▶ decode ─▶ handler ─▶ fault to status ─▶ metrics, span, log
//	           UNAUTHENTICATED  PERMISSION_DENIED             a panic is INTERNAL
//
// Every method is wrapped when its service is registered. The wrapper reads the roles that may call it from the
// method option toolherd.core.v1.roles; a method without the option is refused to everyone. A call is refused before
// its body is read. grpc.health.v1 and reflection are open to every recognised caller.
//
// Who a caller is depends on the listener: with tokens (OpenTokens of pkg/authn) the bearer token says; without, the
// listener is bound to loopback (see [Listen]) and everyone is agent and operator; the in-process listener of
// [NewLoopback] is reachable by this process alone and its callers hold every role.
//
// A toolproxy forwards calls of TaskService and NotifierService to the processes that answer them, and names the
// principal it recognised ([ActFor]). A server honours that in these services, from a caller with the role toolproxy, and
// ignores it elsewhere and from anyone else. The principal's roles decide then: a toolproxy lends nobody its own, and
// nobody becomes a service by being named.
//
// # Errors
//
// A handler returns errors of pkg/fault. The server turns a fault's kind into a status code and adds
// google.rpc.ErrorInfo of domain "toolherd" with its reason and metadata, RetryInfo and BadRequest. Context errors are
// CANCELLED and DEADLINE_EXCEEDED; whatever else a handler returns is logged once and answered as INTERNAL with a fixed
// text. A connection made by [Dial] reverses this, so its callers test reasons and kinds and never codes.
//
// UNAVAILABLE invites a retry, so a call that was sent and lost its connection is UNKNOWN to the caller, unless the
// method is declared idempotent.
//
// # Tracing
//
// Spans are started by the wrappers, not by a stats handler: grpc's stats events cost a call as much as the rest of
// this package together. Only W3C trace context travels, no baggage.
package rpc
