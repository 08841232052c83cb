package binding

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// limits are those of an entry in public form, generously.
var limits = strictjson.Limits{Bytes: 16 << 20, Depth: 4 * serverconfig.MaxDepth}

// kept are the keys of an entry that a binding keeps: what decides about the connection.
var kept = []string{
	"type", "transport", "command", "args", "env", "cwd", "url", "headers", "session_scope", "era",
	"tool_call_timeout", "tool_call_max_timeout", "session_init_timeout", "task_toolsets",
	"oauth", "auth", "user_auth", "headers_from_context", "login_scope", "allowed_users", "allowed_roles",
}

// pruned returns what a binding keeps of an entry.
func pruned(public json.RawMessage) json.RawMessage {
	root, err := strictjson.Parse(public, limits)
	if err != nil {
		return public // Entry reports it
	}
	fields := map[string]string{}
	for key, v := range root.Members() {
		if slices.Contains(kept, key) {
			fields[key] = v.Raw()
		}
	}
	out, err := canonical(fields)
	if err != nil {
		return public
	}
	return out
}

// Entry returns the public JSON of the entry that background calls connect with, given today's entry of the server's name
// in the same form, or nothing. Transport, command or URL, working directory, limits and tools are those of the binding.
// Today's credentials take the place of the bound ones where today's entry leads to the same place: a command with the same
// arguments and working directory, secret parts aside, or a URL of the same origin.
func (b *Binding) Entry(today json.RawMessage) (json.RawMessage, error) {
	bound, err := strictjson.Parse(b.Public, limits)
	if err != nil {
		return nil, err
	}
	current, err := strictjson.Parse(today, limits)
	if err != nil {
		current = strictjson.Value{} // as if there were none
	}
	fields := map[string]string{}
	for key, v := range bound.Members() {
		fields[key] = v.Raw()
	}
	for _, key := range renewable(b.Server, bound, current) {
		delete(fields, key)
		if v := current.Get(key); v.Kind() != strictjson.Missing {
			fields[key] = v.Raw()
		}
	}
	return canonical(fields)
}

// renewable returns the keys of an entry that today's entry renews.
func renewable(server string, bound, current strictjson.Value) []string {
	was, _ := serverconfig.DecodePublic(server, json.RawMessage(bound.Raw()))
	is, problems := serverconfig.DecodePublic(server, json.RawMessage(current.Raw()))
	if current.Kind() != strictjson.Object || serverconfig.HasErrors(problems) || was.Transport != is.Transport {
		return nil
	}
	if !was.Transport.IsRemote() {
		for _, key := range []string{"command", "args", "cwd"} {
			if looks(bound.Get(key)) != looks(current.Get(key)) {
				return nil
			}
		}
		return []string{"command", "args", "env"}
	}
	keys := []string{"headers", "oauth", "auth", "user_auth", "headers_from_context", "login_scope"}
	switch a, b := looks(bound.Get("url")), looks(current.Get("url")); {
	case a == b:
		return append(keys, "url")
	case origin(text(bound.Get("url"))) != "" && origin(text(bound.Get("url"))) == origin(text(current.Get("url"))):
		return keys
	default:
		return nil
	}
}

// looks returns canonical JSON of v with what may be seen of each literal secret in its place: the same of two values that
// differ in secrets only. A list that is empty and one that is absent look the same.
func looks(v strictjson.Value) string {
	switch v.Kind() {
	case strictjson.Missing, strictjson.Null:
		return ""
	case strictjson.Array:
		var b strings.Builder
		for _, element := range v.Elements() {
			b.WriteString(looks(element))
			b.WriteByte('\n') // canonical JSON has none
		}
		return b.String()
	case strictjson.Object:
		if v.Get("$secret").Kind() == strictjson.String {
			return string(strictjson.AppendString([]byte("secret "), text(v)))
		}
	default: // has no secret in it
	}
	return string(v.Canonical())
}

// text returns what may be seen of a text.
func text(v strictjson.Value) string {
	if v.Kind() == strictjson.Object {
		return v.Get("shown").Text()
	}
	return v.Text()
}

// origin returns scheme, host and port of a URL, or "" where they cannot be told, as where they are references to the
// environment.
func origin(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || strings.Contains(u.Host, "$") {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

func canonical(fields map[string]string) (json.RawMessage, error) {
	raw := []byte("{")
	keys := make([]string, 0, len(fields))
	for key := range fields {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for i, key := range keys {
		if i > 0 {
			raw = append(raw, ',')
		}
		raw = strictjson.AppendString(raw, key)
		raw = append(raw, ':')
		raw = append(raw, fields[key]...)
	}
	v, err := strictjson.Parse(append(raw, '}'), limits)
	if err != nil {
		return nil, err
	}
	return v.Canonical(), nil
}

// A Ref is a literal secret of an entry: where it stands, and the keyed digest by which the registry keeps it.
type Ref struct {
	FieldPath string
	MAC       string
}

// Refs returns the references to literal secrets in public JSON, in its order.
func Refs(public json.RawMessage) ([]Ref, error) {
	root, err := strictjson.Parse(public, limits)
	if err != nil {
		return nil, err
	}
	return refs(nil, "", root), nil
}

func refs(found []Ref, path string, v strictjson.Value) []Ref {
	if v.Kind() == strictjson.Object && path != "" && v.Get("$secret").Text() == path {
		if mac := v.Get("mac").Text(); mac != "" {
			return append(found, Ref{path, mac})
		}
	}
	for key, member := range v.Members() {
		found = refs(found, strictjson.Field(path, key), member)
	}
	for i, element := range v.Elements() {
		found = refs(found, strictjson.Item(path, i), element)
	}
	return found
}
