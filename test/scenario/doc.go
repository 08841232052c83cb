// Package scenario tests Toolherd as its users meet it: built programs, real databases, real MCP servers, and nothing
// of ours in this process but a gRPC client.
//
// A [Herd] is a running Toolherd in one of three topologies: the all-in-one on SQLite, the all-in-one on Postgres, and
// programs of their own on Postgres, with TLS between all and tokens for everyone: a registry, a toolproxy, and as many
// taskworkers and notifiers as the test wants. [Each] runs a test in all of them; what a topology cannot change is tested
// in one.
//
//	test ──gRPC──▶ Herd { up | registry, toolproxy, taskworker × N, notifier × N } ──▶ fakemcp, evilmcp, npm servers
//	  └── edits mcp.json, kills processes, looks at /proc, reads everything that was written
//
// Durable tasks are tested on a Stage: a Herd beside a task server that outlives it and keeps a journal of every call, and
// a far end of each kind of sink. What must hold whoever was killed is checked by a Ledger, from that journal, the tasks and
// what the sinks were told. Tests that kill are called TestCrash…; they are made to be repeated, under the race detector too,
// which then watches the programs as well:
//
//	go test -race -run TestCrash -count 20 -timeout 3h .
//
// Every process of a Herd, MCP servers and what these start included, has the Herd's own directory as HOME in its
// environment. That is how [Herd.Processes] finds those that should be gone, whoever their parent is by now.
//
// Nothing waits for a time to pass: [Eventually] polls for an event that it names, up to a bound that only a failing
// test meets. The package needs Linux, for /proc.
package scenario
