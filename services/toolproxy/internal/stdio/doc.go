// Package stdio runs MCP servers as child processes and speaks to them over their standard streams: it provides a
// [link.Wire] for one session with one process.
//
// What it guarantees:
//
//   - A command that cannot be executed fails at once, with the command and the PATH that was searched.
//   - A process sees HOME, LOGNAME, PATH, SHELL, TERM and USER of this service and its entry's env, nothing else.
//   - When the process exits, answers it wrote before are delivered and then the wire ends at once, with exit code
//     and the last lines of its stderr.
//   - One message above the size limit is discarded as it passes by, and the call that it answers is told; the
//     session goes on. Memory for it is bounded by the limit.
//   - A process that takes no byte from its stdin for a while is killed: a frame is never left half written to a
//     process that lives on.
//   - Ending a session closes stdin, waits, sends SIGTERM to the process group, waits, sends SIGKILL, and reaps;
//     processes that have left the group are killed too, as far as package watchdog finds them.
//   - stderr is always drained. Its last lines are kept, with control characters stripped and secrets redacted.
//
// An idle session costs four goroutines, its pipes and no buffers.
package stdio
