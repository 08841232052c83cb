package serverconfig

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/envref"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// Resolved is what a server is started or dialled with. It holds credentials in the clear, and prints as its name.
type Resolved struct {
	Name      string
	Transport Transport

	Command string // of a stdio server, as the next three
	Args    []string
	Env     map[string]string
	Cwd     string

	URL     string            // of a remote server, as all that follow
	Headers map[string]string // legal to send, no two of one name
	OAuth   *Block
	Auth    *Block
	// UserAuth has its literals, but its references to the environment are not resolved: that happens per call, and an
	// unset variable means that this one user has no credential.
	UserAuth *Block

	secrets []string
}

// Secrets returns every value that must not be seen, for a [secret.Redactor]: literals, what variables resolved to, and
// what looks like a credential in the result. Values of ordinary variables such as HOME are not among them.
func (r Resolved) Secrets() []string { return r.secrets }

// String returns a text that names the server.
func (r Resolved) String() string { return fmt.Sprintf("resolved server %q", r.Name) }

// Format writes [Resolved.String] whatever the verb and flags are.
func (r Resolved) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// LogValue is what slog shows.
func (r Resolved) LogValue() slog.Value { return slog.StringValue(r.String()) }

// MarshalJSON encodes as the JSON string of [Resolved.String].
func (r Resolved) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }

// Resolve puts the literal secrets back into the public JSON of e and resolves its references to the environment.
// lookup returns a variable's value and whether it is set, as [Environment] does; of TOOLHERD_* it is asked only for the
// two that Environment adds, and for none of PG*. The error is a fault of [Fault] that names every field,
// variable and literal that is missing, and how to write what was not meant as a reference; then nothing is resolved.
func Resolve(e Entry, public json.RawMessage, lookup func(string) (string, bool), secrets map[string]string) (Resolved, error) {
	root, err := strictjson.Parse(public, publicLimits)
	if err != nil {
		return Resolved{}, Fault([]Problem{{Server: e.Name, Reason: ReasonChanged, Message: "its stored configuration is not JSON: " + err.Error(), Hint: "save the server's entry again"}})
	}
	r := resolver{decoder: decoder{server: e.Name, resolved: true}, lookup: lookup, secrets: secrets, redact: map[string]bool{}, ordinary: map[string]bool{}}
	root = r.rewrite(root, e.Transport, r.restore)
	root = r.rewrite(root, e.Transport, r.expand)
	if err := Fault(r.problems); err != nil {
		return Resolved{}, err
	}
	typed := Entry{Transport: e.Transport} // an address that resolves to nothing does not make a command of it
	if e.Transport.IsRemote() {
		r.remote(&typed, root)
	} else {
		r.stdio(&typed, root)
	}
	if err := Fault(r.problems); err != nil {
		return Resolved{}, err
	}
	out := Resolved{
		Name: e.Name, Transport: e.Transport,
		Command: typed.Command, Args: typed.Args, Env: typed.Env, Cwd: typed.Cwd,
		URL: typed.URL, Headers: typed.Headers,
	}
	if e.Transport.IsRemote() {
		out.OAuth = resolvedBlock(e.OAuth, root.Get("oauth"))
		out.Auth = resolvedBlock(e.Auth, root.Get("auth"))
		out.UserAuth = resolvedBlock(e.UserAuth, root.Get("user_auth"))
	}
	r.collect(root, e.Transport)
	out.secrets = slices.Sorted(maps.Keys(r.redact))
	return out, nil
}

func resolvedBlock(b *Block, v strictjson.Value) *Block {
	if b == nil {
		return nil
	}
	return &Block{Enabled: b.Enabled, JSON: json.RawMessage(v.Raw())}
}

type resolver struct {
	decoder
	lookup   func(string) (string, bool)
	secrets  map[string]string
	redact   map[string]bool // values that must not be seen
	ordinary map[string]bool // paths whose text is made of ordinary variables alone
}

// rewrite returns root with each text that may hold a reference replaced by what change makes of it.
func (r *resolver) rewrite(root strictjson.Value, t Transport, change func(path string, v strictjson.Value) (json string, ok bool)) strictjson.Value {
	var edits []strictjson.Edit
	for path, v := range references(root, t) {
		if text, ok := change(path, v); ok {
			edits = append(edits, strictjson.Edit{Value: v, JSON: text})
		}
	}
	rewritten, err := strictjson.Parse([]byte(root.Splice(edits)), publicLimits)
	if err != nil {
		r.report(Problem{Reason: ReasonChanged, Message: "cannot be put together from what is stored: " + err.Error(), Hint: "save the server's entry again"})
		return root
	}
	return rewritten
}

// restore returns the literal that a reference to the store stands for.
func (r *resolver) restore(path string, v strictjson.Value) (string, bool) {
	ref, ok := parseSecretRef(v, path)
	if !ok {
		return "", false
	}
	literal, ok := r.secrets[path]
	if !ok {
		r.report(Problem{Path: path, Reason: ReasonMissingSecret, Message: "its value is not in the secret store", Hint: "write the value again"})
		return "", false
	}
	if ref.isJSON {
		return literal, true
	}
	return string(strictjson.AppendString(nil, literal)), true
}

// expand resolves the references of a text, but not those that are resolved per call.
func (r *resolver) expand(path string, v strictjson.Value) (string, bool) {
	if v.Kind() != strictjson.String || strings.HasPrefix(path, "user_auth") {
		return "", false
	}
	text, values, problems := expand(path, v.Text(), r.lookup)
	r.reportAll(problems)
	if len(problems) > 0 {
		return "", false
	}
	length := 0
	r.ordinary[path] = len(values) > 0
	for _, value := range values {
		length += len(value.Literal)
		if !slices.Contains(ordinaryVariables, value.Name) {
			r.redact[value.Literal] = true
			r.ordinary[path] = false
		}
	}
	if length != len(text) {
		r.ordinary[path] = false
	}
	return string(strictjson.AppendString(nil, text)), true
}

// ordinaryVariables hold no credentials, and their values turn up everywhere.
var ordinaryVariables = []string{
	"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "PWD", "TMPDIR", "LANG", "TZ", envref.Executable, envref.ConfigDir,
}

// collect gathers what must not be seen from the places of the resolved entry where secrets are.
func (r *resolver) collect(root strictjson.Value, t Transport) {
	used := resolvable(t)
	for _, p := range places(root) {
		text := p.value.Text()
		switch {
		case !slices.Contains(used, p.field) || r.ordinary[p.path]:
		case p.how == inPart:
			for _, s := range p.spans {
				r.redact[text[s.Start:s.End]] = true
			}
		case p.value.Kind() != strictjson.String:
			for _, v := range texts("", p.value) {
				r.redact[v.Text()] = true
			}
		case p.field != "user_auth" || isLiteral(text):
			r.redact[text] = true
			if scheme, credential, ok := strings.Cut(text, " "); ok && secret.IsAuthScheme(scheme) {
				r.redact[strings.TrimLeft(credential, " ")] = true
			}
		}
	}
	delete(r.redact, "")
}

// resolvable returns the keys of an entry under which references are resolved, those without effect on the transport
// aside.
func resolvable(t Transport) []string {
	if t.IsRemote() {
		return []string{"url", "headers", "oauth", "auth", "user_auth"}
	}
	return []string{"command", "args", "env", "cwd"}
}

// references yields the texts of an entry in which references to the environment are resolved, and the references to
// the secret store that stand in their place, in the order of the entry.
func references(root strictjson.Value, t Transport) iter.Seq2[string, strictjson.Value] {
	fields := resolvable(t)
	return func(yield func(string, strictjson.Value) bool) {
		for key, v := range root.Members() {
			if !slices.Contains(fields, key) {
				continue
			}
			path := strictjson.Field("", key)
			if key == "user_auth" {
				v, path = v.Get("users"), strictjson.Field(path, "users")
			}
			for at, text := range texts(path, v) {
				if !yield(at, text) {
					return
				}
			}
		}
	}
}

// texts yields the strings in v at any depth, and the references to the secret store.
func texts(path string, v strictjson.Value) iter.Seq2[string, strictjson.Value] {
	return func(yield func(string, strictjson.Value) bool) { eachText(path, v, yield) }
}

func eachText(path string, v strictjson.Value, yield func(string, strictjson.Value) bool) bool {
	switch v.Kind() {
	case strictjson.String:
		return yield(path, v)
	case strictjson.Array:
		for i, element := range v.Elements() {
			if !eachText(strictjson.Item(path, i), element, yield) {
				return false
			}
		}
	case strictjson.Object:
		if _, isRef := parseSecretRef(v, path); isRef {
			return yield(path, v)
		}
		for key, member := range v.Members() {
			if !eachText(strictjson.Field(path, key), member, yield) {
				return false
			}
		}
	default: // no text in it
	}
	return true
}

// Variables returns the names of the environment variables that the entry reads, sorted. On public JSON it does not see
// those inside literals.
func Variables(raw json.RawMessage) []string {
	root, err := strictjson.Parse(raw, publicLimits)
	if err != nil {
		return nil
	}
	names := map[string]bool{}
	t, _, _, _ := transportOf(root)
	for _, v := range references(root, t) {
		segments, err := envref.Parse(v.Text())
		if err != nil {
			continue
		}
		for _, s := range segments {
			if s.Name != "" {
				names[s.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}
