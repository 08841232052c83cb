// Package registry is the service that owns the configuration of MCP servers: what it says, which snapshot of it is
// effective, which project is trusted, and the literal secrets in it. It calls no tool and contacts no server.
//
// # From files to proxies
//
//	files ──source──▶ layers ──verdict──▶ content ──snapshot.Store──▶ revision ──feed──▶ WatchSnapshots
//	                                         └── literals, sealed ──────┘
//
// The files are read, merged by name (a higher layer replaces an entry whole), and each entry gets its verdict: active,
// disabled, untrusted or error. Precedence comes before trust and validity, so a rejected entry never brings back the
// one it shadows. One bad entry is an error of that server alone. The result is content-addressed; if it differs from
// what this replica published last, it becomes effective under the next revision.
//
// # Writes
//
// ReplaceConfig, PutServer, DeleteServer and SetServerEnabled change the writable layer: the last explicit file, else the
// user's. Each reads, merges, validates, writes and publishes under the lock of internal/write, and answers with what is
// in force then; a candidate with any error changes nothing. What a write touches must pass internal/policy and may refer
// to [Config.EnvRefs] alone. The entries of other files can be switched: that is noted in the database (internal/mark) and
// leaves the file as it is.
//
// # Replicas
//
// Any number of registries may share a Postgres database; they are meant to read the same files. A replica publishes when its own files say something else
// than before, and when it starts; it reads them again if another revision became effective meanwhile, so that old content
// never follows newer content. Equal content makes no revision. Every replica serves what the database says is
// effective: a wake-up makes it look at once, a poll every second makes it look in any case.
//
// # Holds
//
// An activation by an operator holds: what the files say meanwhile is recorded as a candidate, by whichever replica reads
// it, and the newest one becomes effective when the hold is released. The hold is a property of the newest activation in the
// database and is decided under the lock that publications take, so no publication gets past it, and no restart ends it.
// An activation is refused where something active in the snapshot is invalid, incomplete or untrusted today, and a server
// that loses trust is taken out of what is held.
//
// # Safety
//
// Entries of project files are untrusted unless [Config.TrustProjectMCP] is set, and nothing reads a variable for
// them. An entry that uses a credential layer, filter or interceptor that is not built is an error and never active.
// Snapshots hold no literal secret. Literals are sealed under [Deps].Key and handed out by ResolveSecrets: for active
// entries only, to the role toolproxy only, and never by what [Service.Register] registers. References to the
// environment stay as written; they are resolved where they are used. A sealed literal is deleted once no stored snapshot
// refers to it and it was neither in force nor handed out for a day longer than [Config].MaxTaskAge: no task that is bound
// to it is left then.
//
// # Failure
//
// Toolsets without durable tasks in the operator's own files stop the start; in project files, or written later, they are
// an error of their server.
//
// Before its first own publication a registry answers NOT_READY: an older snapshot in the database may hold what is no
// longer wanted or trusted. A file that breaks keeps its last good content, marked stale. While the database
// is away the registry goes on serving the snapshot it knows, reports itself as not ready, and catches up by itself.
package registry
