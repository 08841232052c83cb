package serverconfig

import (
	"encoding/json"
	"time"
)

// Transport is how a server is reached.
type Transport string

// The transports.
const (
	Stdio Transport = "stdio"
	HTTP  Transport = "http" // streamable HTTP
	SSE   Transport = "sse"  // HTTP with server-sent events, as before protocol 2025-03-26
)

// IsRemote reports whether the server is reached over HTTP rather than started.
func (t Transport) IsRemote() bool { return t == HTTP || t == SSE }

// Scope says who shares a session.
type Scope string

// The scopes.
const (
	ScopeThread Scope = "thread" // one user's conversation
	ScopeUser   Scope = "user"   // all conversations of one user
	ScopeShared Scope = "shared" // everybody
)

// Era is the generation of the protocol that a server speaks.
type Era string

// The eras.
const (
	EraAuto   Era = "auto"   // found out by asking
	EraLegacy Era = "legacy" // with the initialize handshake
	EraModern Era = "modern" // 2026-07-28 and later
)

// The timeouts of an entry that does not set them.
const (
	DefaultToolCallTimeout    = 300 * time.Second
	DefaultToolCallMaxTimeout = time.Hour
	DefaultSessionInitTimeout = 60 * time.Second
)

// Entry is a server entry in its normal form: aliases resolved, defaults filled in, references not resolved.
// Text may still be a reference such as ${TOKEN}; in an entry made by [DecodePublic] a literal secret reads as stars.
// What an Entry holds is not to be changed.
type Entry struct {
	Name        string
	Enabled     bool
	Transport   Transport
	Description string

	// Of stdio servers.
	Command string
	Args    []string
	Env     map[string]string
	Cwd     string // empty: decided where the server is started

	// Of remote servers.
	URL     string
	Headers map[string]string

	SessionScope       Scope
	Era                Era
	ToolCallTimeout    time.Duration // since the last progress; 0 means no own limit, as for the next two
	ToolCallMaxTimeout time.Duration
	SessionInitTimeout time.Duration // start, handshake and tool list together

	ToolNamePrefix bool
	AllowedTools   []string // patterns; nil means all tools
	DisabledTools  []string // patterns; nil means none
	Routing        Routing
	Tools          map[string]json.RawMessage // settings by raw tool name, as written

	// The credential layers; nil where the entry has none.
	OAuth              *Block
	Auth               *Block
	UserAuth           *Block
	HeadersFromContext *Block
	LoginScope         Scope // empty: decided by the broker

	AllowedUsers []string // nil means everybody
	AllowedRoles []string // nil means every role

	TaskToolsets []TaskToolset
}

// Block is a part of an entry that is kept as written, its shape checked.
type Block struct {
	Enabled bool // what its key enabled says; true without one
	JSON    json.RawMessage
}

// Routing is a hint to models on when to use a server's tools.
type Routing struct {
	Mode     string // "off" or "prefer"
	Priority int    // 0 to 100
	Keywords []string
}

// TaskToolset names the tools, by raw name, that submit and follow one kind of durable task.
type TaskToolset struct {
	Name            string
	SubmitTool      string
	StatusTool      string
	CancelTool      string
	AnswerTool      string // may be empty
	BackgroundScope Scope
}

// CredentialLayers returns the keys of the entry that decide who may call the server or with which credential, besides
// its static headers. A program that does not honour every one of them must not call the server at all.
func (e Entry) CredentialLayers() []string {
	var keys []string
	for _, layer := range []struct {
		key   string
		block *Block
	}{{"oauth", e.OAuth}, {"auth", e.Auth}, {"user_auth", e.UserAuth}, {"headers_from_context", e.HeadersFromContext}} {
		if layer.block != nil && layer.block.Enabled {
			keys = append(keys, layer.key)
		}
	}
	if e.AllowedUsers != nil {
		keys = append(keys, "allowed_users")
	}
	if e.AllowedRoles != nil {
		keys = append(keys, "allowed_roles")
	}
	return keys
}
