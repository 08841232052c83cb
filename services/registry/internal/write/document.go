package write

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// Member is a key of an object with its value.
type Member struct {
	Key  string
	JSON json.RawMessage
}

// Compose returns the configuration file stored with other contents: servers are all servers, and others are values of
// other top-level keys that change or are added. A value that says what is stored already stands in the result byte for
// byte as it stands in stored, and so does the value of every top-level key that is not named; all else is indented by 2.
// Servers and keys keep their order; what is new comes last. Stored is nil where there is no file.
//
// Stored has to be what serverconfig.ParseDocument reads without a problem.
func Compose(stored []byte, servers []Member, others []Member) ([]byte, error) {
	limits := strictjson.Limits{Bytes: serverconfig.MaxBytes, Depth: serverconfig.MaxDepth}
	if stored == nil {
		stored = []byte("{}")
	}
	root, err := strictjson.Parse(bytes.TrimPrefix(stored, []byte("\ufeff")), limits)
	if err != nil {
		return nil, fmt.Errorf("read what is stored: %w", err)
	}
	out := object{depth: 0}
	rest := newMembers(others)
	found := false
	for key, v := range root.Members() {
		switch {
		case key == "mcpServers" || key == "mcp_servers":
			found = true
			out.servers(key, v, servers)
		case rest.has(key):
			out.member(key, rest.take(key), v)
		default:
			out.raw(key, v.Raw())
		}
	}
	if !found {
		out.servers("mcpServers", strictjson.Value{}, servers)
	}
	for _, m := range others {
		if rest.has(m.Key) {
			out.member(m.Key, rest.take(m.Key), strictjson.Value{})
		}
	}
	if out.err != nil {
		return nil, out.err
	}
	return []byte(out.String() + "\n"), nil
}

// servers adds the object of all servers.
func (o *object) servers(key string, stored strictjson.Value, servers []Member) {
	out := object{depth: o.depth + 1}
	rest := newMembers(servers)
	for name, v := range stored.Members() {
		if rest.has(name) {
			out.member(name, rest.take(name), v)
		}
	}
	for _, m := range servers {
		if rest.has(m.Key) {
			out.member(m.Key, rest.take(m.Key), strictjson.Value{})
		}
	}
	o.raw(key, out.String())
	o.err = errors.Join(o.err, out.err)
}

// members are what is still to be written.
type members map[string]json.RawMessage

func newMembers(list []Member) members {
	m := members{}
	for _, x := range list {
		m[x.Key] = x.JSON
	}
	return m
}

func (m members) has(key string) bool { _, ok := m[key]; return ok }

func (m members) take(key string) json.RawMessage {
	v := m[key]
	delete(m, key)
	return v
}

// object is the text of an object that grows, indented.
type object struct {
	depth int // of the object itself
	text  bytes.Buffer
	err   error
}

const indent = "  "

func (o *object) indentation(extra int) string {
	return string(bytes.Repeat([]byte(indent), o.depth+extra))
}

// raw adds a member whose value is text.
func (o *object) raw(key, text string) {
	if o.text.Len() > 0 {
		o.text.WriteByte(',')
	}
	o.text.WriteString("\n" + o.indentation(1))
	o.text.Write(strictjson.AppendString(nil, key))
	o.text.WriteString(": " + text)
}

// member adds a member with the value v, in the spelling of stored if that says the same.
func (o *object) member(key string, v json.RawMessage, stored strictjson.Value) {
	if stored.Kind() != strictjson.Missing && serverconfig.Equal(v, json.RawMessage(stored.Raw())) {
		o.raw(key, stored.Raw())
		return
	}
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSpace(v), o.indentation(1), indent); err != nil {
		o.err = errors.Join(o.err, fmt.Errorf("indent %q: %w", key, err))
	}
	o.raw(key, b.String())
}

// String returns the text of the object.
func (o *object) String() string {
	if o.text.Len() == 0 {
		return "{}"
	}
	return "{" + o.text.String() + "\n" + o.indentation(0) + "}"
}
