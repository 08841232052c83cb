package exchange

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// Header names of the protocol, in canonical form.
const (
	SessionIDHeader       = "Mcp-Session-Id"
	ProtocolVersionHeader = "Mcp-Protocol-Version"
	MethodHeader          = "Mcp-Method"
	NameHeader            = "Mcp-Name"
	LastEventIDHeader     = "Last-Event-Id"
)

// metaVersion is the member of _meta by which a request of 2026-07-28 and later says its version.
const metaVersion = "io.modelcontextprotocol/protocolVersion"

// reserved are the headers that no layer may set: the protocol's own, and those by which HTTP frames a message,
// routes it or negotiates its form. Session ids and the like belong to one hop.
var reserved = map[string]bool{
	SessionIDHeader: true, ProtocolVersionHeader: true, MethodHeader: true, NameHeader: true, LastEventIDHeader: true,
	"Accept": true, "Accept-Encoding": true, "Connection": true, "Content-Encoding": true, "Content-Length": true,
	"Content-Type": true, "Expect": true, "Host": true, "Http2-Settings": true, "Keep-Alive": true,
	"Proxy-Authorization": true, "Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

type headerKey struct{}

// WithHeader returns a context whose requests carry h above the headers of the server entry. A name in h replaces
// every value of that name below it. h must not be changed afterwards.
//
// Names that belong to the protocol or the connection are left out; an illegal name or value fails the request
// with CREDENTIAL_ILLEGAL before anything is sent.
func WithHeader(ctx context.Context, h http.Header) context.Context {
	return context.WithValue(ctx, headerKey{}, h)
}

// layer puts the values of from into to, one spelling per name.
func layer(to, from http.Header) error {
	for k, v := range from {
		name := textproto.CanonicalMIMEHeaderKey(k)
		if reserved[name] || len(v) == 0 {
			continue
		}
		if !isToken(name) {
			return fault.New(fault.CredentialIllegal, "a header has an illegal name; use letters, digits and hyphens")
		}
		for _, value := range v {
			if !legalValue(value) {
				return fault.New(fault.CredentialIllegal,
					"the value of header %s has a character that HTTP does not allow, such as a line break; correct the credential", name)
			}
		}
		to[name] = v
	}
	return nil
}

func isToken(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return true
}

// legalValue reports whether net/http would send s.
func legalValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// Reserved returns the names in h that a transport leaves out, for a warning about a server entry.
func Reserved(h http.Header) []string {
	var names []string
	for k := range h {
		if name := textproto.CanonicalMIMEHeaderKey(k); reserved[name] {
			names = append(names, name)
		}
	}
	return names
}

// ModernVersion returns the protocol version that a request states in its _meta, as those of 2026-07-28 do; "" if
// it states none.
func ModernVersion(m *jsonrpc.Message) string {
	v, _ := jsonrpc.String(jsonrpc.Member(jsonrpc.Member(m.Params, "_meta"), metaVersion))
	return v
}

// Mirror sets the headers that repeat the body of a message for intermediaries, as 2026-07-28 demands.
func Mirror(h http.Header, m *jsonrpc.Message, version string) {
	h[ProtocolVersionHeader] = []string{version}
	if m.Method == "" {
		return
	}
	h[MethodHeader] = []string{m.Method}
	var member string
	switch m.Method {
	case "tools/call", "prompts/get":
		member = "name"
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		member = "uri"
	case "tasks/get", "tasks/update", "tasks/cancel", "tasks/result":
		member = "taskId"
	default:
		return
	}
	if name, ok := jsonrpc.String(jsonrpc.Member(m.Params, member)); ok {
		h[NameHeader] = []string{EncodeHeader(name)}
	}
}

const (
	encodedPrefix = "=?base64?"
	encodedSuffix = "?="
)

// EncodeHeader returns s as a mirrored header carries it: as it is where that is safe, otherwise in the protocol's
// Base64 form.
func EncodeHeader(s string) string {
	ambiguous := strings.HasPrefix(s, encodedPrefix) && strings.HasSuffix(s, encodedSuffix)
	safe := s == strings.Trim(s, " \t") && !ambiguous
	for i := 0; safe && i < len(s); i++ {
		safe = s[i] >= ' ' && s[i] <= '~'
	}
	if safe {
		return s
	}
	return encodedPrefix + base64.StdEncoding.EncodeToString([]byte(s)) + encodedSuffix
}
