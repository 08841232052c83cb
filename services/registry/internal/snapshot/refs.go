package snapshot

import (
	"fmt"

	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// Digests returns the keyed digest of each secret that the public JSON of an entry refers to, by field path. Only a
// reference that stands at the very path it names is one; whoever externalised the entry knows which of them
// are its own and which were written by hand.
func Digests(public []byte) (map[string]string, error) {
	root, err := strictjson.Parse(public, limits)
	if err != nil {
		return nil, fmt.Errorf("read public entry: %w", err)
	}
	out := map[string]string{}
	digests("", root, out)
	return out, nil
}

func digests(path string, v strictjson.Value, out map[string]string) {
	if v.Kind() == strictjson.Object && path != "" && v.Get("$secret").Text() == path {
		if mac := v.Get("mac").Text(); mac != "" {
			out[path] = mac
			return
		}
	}
	for key, member := range v.Members() {
		digests(strictjson.Field(path, key), member, out)
	}
	for i, element := range v.Elements() {
		digests(strictjson.Item(path, i), element, out)
	}
}

// Refs returns the references of e to its secrets, in no order.
func (e *Entry) Refs() []Ref {
	var out []Ref
	for path, mac := range e.Secrets {
		out = append(out, Ref{Server: e.Name, FieldPath: path, MAC: mac})
	}
	return out
}

// Bind returns what a secret's ciphertext is bound to, so that a row copied to another place does not open there.
func (r Ref) Bind() []byte {
	return fmt.Appendf(nil, "%d:%s%d:%s%s", len(r.Server), r.Server, len(r.FieldPath), r.FieldPath, r.MAC)
}
