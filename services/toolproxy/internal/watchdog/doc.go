// Package watchdog starts MCP server processes so that none of them outlives this service, however it ends.
//
// A [Guard] starts every child in a session and process group of its own and tells a second process, the
// watchdog, about the group. The watchdog is this same program executed again; it does nothing but hold the read
// end of a pipe. When the service ends, killed with SIGKILL included, the kernel closes the pipe, and the watchdog
// kills every group it was told of and exits.
//
//	service                                     watchdog (own session, ignores SIGINT, SIGTERM, SIGHUP)
//	  start 7 <pipes> ──────────── pipe ─────────▶ something with these pipes is about to exist
//	  fork, exec (parent-death signal SIGKILL)
//	  group 7 4711 ───────────────────────────────▶ its process group is 4711
//	  the leader exits: kill the group
//	  end 7 ──────────────────────────────────────▶ forget it
//	  reap the leader
//	  ✗ end of file ──────────────────────────────▶ kill all that is left, exit
//
// Two windows are closed by the order of these steps. Between fork and "group" the leader dies by its
// parent-death signal, and what it may have started meanwhile is recognised by the standard streams it inherited,
// which "start" announced. And since a leader is reaped only after its "end", no number in the watchdog's table
// can belong to another process. The parent-death signal fires when the thread that forked ends, so all children
// are started from one thread, which lives as long as [Guard.Run].
//
// On Linux the watchdog, and [Child.Reap] in the service, also find processes that left the group: those of the
// session, those that still hold the child's standard streams, and those that were seen below the leader before.
// What has escaped all of these, a daemon that forks twice and closes its streams between two looks of the
// watchdog, is beyond it. On other systems there is neither this search nor a parent-death signal: there the group
// is all that is killed.
//
// The program that uses a Guard calls [Main] first thing in its main function when [IsWatchdog] says so.
package watchdog
