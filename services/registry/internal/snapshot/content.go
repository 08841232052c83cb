package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// State is what the registry decided about an entry.
type State string

// The states. Only an active entry may be started.
const (
	Active    State = "active"
	Disabled  State = "disabled"
	Untrusted State = "untrusted"
	Error     State = "error"
)

// Class is the class of the file that defines an entry.
type Class string

// The classes.
const (
	User     Class = "user"
	Project  Class = "project"
	Explicit Class = "explicit"
)

// Entry is one server of a snapshot.
type Entry struct {
	Name string `json:"name"`
	// Synthetic marks an entry that stands for a file that cannot be used, and for no server. Its name is "<config:FILE>".
	Synthetic bool  `json:"synthetic,omitempty"`
	State     State `json:"state"`
	// Transport is stdio, http or sse, as far as the entry tells; config for a file.
	Transport string `json:"transport"`
	// Reason says why, for people; empty if and only if the entry is active and not stale.
	Reason string `json:"reason,omitempty"`
	// FixCommand is the exact command or edit that mends it, if there is one.
	FixCommand string `json:"fix_command,omitempty"`
	// JSON is the entry without its literal secrets, canonical. Of an invalid entry it is the type alone, since nobody
	// knows where in it a secret stands; of a file it is empty.
	JSON json.RawMessage `json:"entry,omitempty"`
	// Secrets has the keyed digest of each literal secret that JSON refers to, by field path.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Fingerprint changes with whatever decides about the connection.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Source is the file that defines it, as its user would name it. It is not part of the identity.
	Source   string    `json:"source,omitempty"`
	Class    Class     `json:"source_class"`
	Problems []Problem `json:"problems,omitempty"`
	// Stale is true where the last good content stands in for a broken update.
	Stale bool `json:"stale,omitempty"`
}

// Problem is one finding about an entry, without its place in the file, which white space moves.
type Problem struct {
	Severity string `json:"severity"` // "error" or "warning"
	Path     string `json:"path,omitempty"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
}

// Content is what a snapshot says. It is immutable once encoded.
type Content struct {
	// Servers holds every effective entry, in the order of [Compare].
	Servers []Entry `json:"servers"`
	// Interceptors are the mcpInterceptors entries in force, in the order in which they act.
	Interceptors []string `json:"interceptors"`
}

// Compare orders entries: servers by name in code points, then the files that could not be read.
func Compare(a, b Entry) int {
	if a.Synthetic != b.Synthetic {
		if a.Synthetic {
			return 1
		}
		return -1
	}
	return strings.Compare(a.Name, b.Name)
}

// Find returns the entry of that name, or nil. The caller must not change it.
func (c *Content) Find(name string) *Entry {
	i := slices.IndexFunc(c.Servers, func(e Entry) bool { return e.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Servers[i]
}

// Encode returns c as canonical JSON and its id: SHA-256 over that JSON without the sources.
func (c *Content) Encode() (ID, []byte, error) {
	plain := *c
	if plain.Servers == nil {
		plain.Servers = []Entry{} // an empty list and an absent one have one form
	}
	if plain.Interceptors == nil {
		plain.Interceptors = []string{}
	}
	content, err := canonical(plain)
	if err != nil {
		return "", nil, fmt.Errorf("encode snapshot: %w", err)
	}
	id, err := identify(content)
	if err != nil {
		return "", nil, fmt.Errorf("encode snapshot: %w", err)
	}
	return id, content, nil
}

// Decode reverses Encode. It refuses a content that has another id than the one it is stored under. Fields that a
// newer version has added count for the id and are left out of the Content.
func Decode(id ID, content []byte) (*Content, error) {
	var c Content
	if err := json.Unmarshal(content, &c); err != nil {
		return nil, fmt.Errorf("decode snapshot %s: %w", id, err)
	}
	got, err := identify(content)
	if err != nil {
		return nil, fmt.Errorf("decode snapshot %s: %w", id, err)
	}
	if got != id {
		return nil, fmt.Errorf("decode snapshot %s: its content has the id %s: the database was changed by hand or is damaged", id, got)
	}
	return &c, nil
}

// identify returns the id of an encoded content.
func identify(content []byte) (ID, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(content, &all); err != nil {
		return "", err
	}
	var servers []map[string]json.RawMessage
	if err := json.Unmarshal(all["servers"], &servers); err != nil {
		return "", err
	}
	for _, s := range servers {
		delete(s, "source")
	}
	var err error
	if all["servers"], err = canonical(servers); err != nil {
		return "", err
	}
	plain, err := canonical(all)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(plain)
	return ID("snap_" + hex.EncodeToString(sum[:16])), nil
}

// canonical marshals v and brings the result to its one form.
func canonical(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	parsed, err := strictjson.Parse(b.Bytes(), limits)
	if err != nil {
		return nil, err
	}
	return parsed.Canonical(), nil
}

// limits are far above what the files of one installation can hold: they only keep a damaged row from doing harm.
var limits = strictjson.Limits{Bytes: 256 << 20, Depth: 2 * serverconfig.MaxDepth}

var idPattern = regexp.MustCompile(`^snap_[0-9a-f]{32}$`)

// Valid reports whether id has the form of a snapshot's id.
func (id ID) Valid() bool { return idPattern.MatchString(string(id)) }
