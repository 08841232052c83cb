// Package jsonrpc reads and writes JSON-RPC 2.0 envelopes without touching what they carry.
//
// [Parse] checks that a message is one JSON value and finds the members of its envelope in a single pass over
// the bytes, with no reflection and, for answers, no allocation. What an envelope carries (params, result,
// error, ids) stays as the bytes that came over the wire, token for token: key order, number spelling, escapes
// and unknown members survive. The Append functions build messages around raw values the same way.
//
// Envelope keys are case-sensitive, a message is classified by the presence of its keys, and whatever two
// readers might understand differently is refused: duplicate envelope keys, batches, a wrong or missing
// version, an answer with both result and error. Strings may hold invalid UTF-8: it is passed on as it came.
//
// [Head] finds the id of a message that is too large to keep. [Member], [Members] and [Elements] look one
// level into a raw value.
package jsonrpc
