// Package upstream describes the MCP servers that toolproxy may connect to.
//
// A [Server] is one entry of a snapshot after its references were resolved: it holds credential values, lives in
// memory only and is never logged or shown. It is immutable; a changed entry is a new Server.
package upstream

import (
	"net/http"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/serverconfig"
)

// Limit is a time limit and where it comes from.
type Limit struct {
	Duration time.Duration // 0 means no limit
	Source   string        // as CallInfo.deadline_source names it
}

// Server is an MCP server that may be connected to.
type Server struct {
	Name        string
	Fingerprint string // over what decides about the connection
	Transport   serverconfig.Transport
	Scope       serverconfig.Scope
	Era         serverconfig.Era

	// stdio
	Command string
	Args    []string
	Env     map[string]string // what the entry adds to the base environment
	Cwd     string            // empty: the project root or the thread's workspace

	// http and sse
	URL    string
	Header http.Header       // static headers, the lowest credential layer
	HTTP   http.RoundTripper // reaches the server and nothing that it may not reach

	InitTimeout    time.Duration // covers spawn, handshake and tool list; 0 means no limit
	CallTimeout    Limit         // of a call, from its last progress
	CallMaxTimeout Limit         // of a call, in all

	Secrets []string // values that must not be seen
}

// Shared reports whether callers who may not see each other's data use one session.
func (s *Server) Shared() bool { return s.Scope == serverconfig.ScopeShared }

// Key identifies sessions that may stand in for each other. It is a tuple: no two different keys are equal
// whatever characters their parts hold.
type Key struct {
	Server      string
	Fingerprint string
	UserID      string
	ThreadID    string
}

// Key returns the key of the session that serves calls of scope.
func (s *Server) Key(scope authn.Scope) Key {
	k := Key{Server: s.Name, Fingerprint: s.Fingerprint}
	switch s.Scope {
	case serverconfig.ScopeShared:
	case serverconfig.ScopeUser:
		k.UserID = scope.UserID
	default:
		k.UserID, k.ThreadID = scope.UserID, scope.ThreadID
	}
	return k
}

var staticLayer = []string{"static"}

// CredentialLayers names the layers of credentials that take part in calls. The caller must not change the slice.
func (s *Server) CredentialLayers() []string {
	if len(s.Header) > 0 {
		return staticLayer
	}
	return nil
}
