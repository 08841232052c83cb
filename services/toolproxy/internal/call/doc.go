// Package call carries a tool call from the caller to the server that owns the tool, and its result back.
//
//	request ─▶ scope ─▶ name ─▶ arguments ─▶ deadline ─▶ credentials ─▶ session ─▶ result ─▶ view
//
// On the way of an ordinary call there is no other RPC and no I/O but that with the server: the name is found in the
// catalog by one atomic load, the session is a pooled one. Results are not decoded beyond what the caller's view needs.
//
// A tool of a toolset submits a durable task, intent first: taskworker is told before the server is, and the answer is a
// handle that exists in its store.
//
//	request ─▶ scope ─▶ name ─▶ arguments ─▶ reserve ─▶ session ─▶ submit ─▶ commit ─▶ handle
//	                                            │                    ├─ an error the tool reports ─▶ abandon, the result
//	                                            │                    └─ nobody knows ─▶ abandon: a failed task says so
//	                                            └─ renewed while the submit runs
//
// A submit belongs to the Caller's Run from the moment it is reserved: whoever asked may go away, the books are kept, and a
// task that nobody was told of is cancelled. Nothing ever submits twice under one reservation.
//
// A call is sent once. It is sent again only where it provably never reached the server, or where the server refused it
// before executing because it no longer knew the session. Every error names the server, the cause and the next step;
// its reason is one of DESIGN §4.
package call
