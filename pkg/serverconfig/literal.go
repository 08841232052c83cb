package serverconfig

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// treatment is how a place of an entry is kept from view.
type treatment uint8

const (
	inPart treatment = iota // only what looks like a credential in a text is secret
	whole                   // the value is secret, whatever it is
	hidden                  // the same, and a reader sees null
)

// place is a value that may be secret. Only strings are secret in part.
type place struct {
	field string // the key of the entry that it is under
	path  string
	value strictjson.Value
	how   treatment
	spans []secret.Span // of the text, where how is inPart; never empty
}

// places returns what may be secret in an entry, in the order of its text. Nothing else looks for secrets in entries:
// what is masked, what is externalised and what is redacted is decided here.
func places(root strictjson.Value) []place {
	w := &walker{}
	if root.Kind() != strictjson.Object {
		w.whole("", root)
		return w.found
	}
	for key, v := range root.Members() {
		path := strictjson.Field("", key)
		w.field = key
		switch key {
		case "env", "headers":
			w.values(path, v)
		case "command", "cwd", "url":
			w.anything(path, v)
		case "args":
			w.arguments(path, v)
		case "oauth":
			w.block(path, v, oauthKeys)
		case "auth":
			if v.Text() != "oauth" {
				w.block(path, v, authKeys)
			}
		case "user_auth":
			w.block(path, v, userAuthKeys)
		case "headers_from_context":
			w.block(path, v, headersFromContextKeys)
		case "tools":
			if v.Kind() != strictjson.Object {
				w.whole(path, v)
				continue
			}
			for name, tool := range v.Members() {
				w.block(strictjson.Field(path, name), tool, toolKeys)
			}
		default:
			switch {
			case slices.Contains(entryKeys, key):
				w.named(path, v)
			case slices.Contains([]string{"env", "headers"}, near(key, entryKeys)):
				w.values(path, v) // a slip of the pen, and what is in it is as secret
			default:
				w.extra(path, key, v)
			}
		}
	}
	return w.found
}

type walker struct {
	field string
	found []place
}

func (w *walker) add(path string, v strictjson.Value, how treatment) {
	if _, isRef := parseSecretRef(v, path); given(v) && !isRef {
		w.found = append(w.found, place{field: w.field, path: path, value: v, how: how})
	}
}

func (w *walker) whole(path string, v strictjson.Value) { w.add(path, v, whole) }

// values is for an object whose values are all secret.
func (w *walker) values(path string, v strictjson.Value) {
	if v.Kind() != strictjson.Object {
		w.whole(path, v)
		return
	}
	for key, member := range v.Members() {
		w.whole(strictjson.Field(path, key), member)
	}
}

// block is for an object with known keys, whose other keys are secret if they look so.
func (w *walker) block(path string, v strictjson.Value, known []string) {
	if v.Kind() != strictjson.Object {
		w.whole(path, v) // what stands in its place may well be the credential itself
		return
	}
	for key, member := range v.Members() {
		at := strictjson.Field(path, key)
		switch {
		case !slices.Contains(known, key):
			w.extra(at, key, member)
		case key == "client_secret" || key == "refresh_token":
			w.add(at, member, hidden)
		case key == "extra_token_params" || key == "users":
			w.values(at, member)
		case key == "headers": // names of headers, and of request secrets
			w.names(at, member)
		case key == "routing": // words for models
			w.named(at, member)
		default:
			w.anything(at, member)
		}
	}
}

// names is for an object whose strings are names. Whatever else stands there is out of place and may be anything.
func (w *walker) names(path string, v strictjson.Value) {
	if v.Kind() != strictjson.Object {
		w.whole(path, v)
		return
	}
	for key, member := range v.Members() {
		if member.Kind() != strictjson.String {
			w.whole(strictjson.Field(path, key), member)
		}
	}
}

// named looks in v, at any depth, for members whose name looks secret. Text is shown as it is.
func (w *walker) named(path string, v strictjson.Value) {
	for key, member := range v.Members() {
		at := strictjson.Field(path, key)
		if secret.LooksSecret(key) {
			w.whole(at, member)
		} else {
			w.named(at, member)
		}
	}
	for i, element := range v.Elements() {
		w.named(strictjson.Item(path, i), element)
	}
}

// extra is for a value under a key that is not known.
func (w *walker) extra(path, key string, v strictjson.Value) {
	if secret.LooksSecret(key) {
		w.whole(path, v)
		return
	}
	w.anything(path, v)
}

// anything looks for secrets in v at any depth.
func (w *walker) anything(path string, v strictjson.Value) {
	switch v.Kind() {
	case strictjson.Object:
		if _, isRef := parseSecretRef(v, path); isRef {
			return
		}
		for key, member := range v.Members() {
			w.extra(strictjson.Field(path, key), key, member)
		}
	case strictjson.Array:
		for i, element := range v.Elements() {
			w.anything(strictjson.Item(path, i), element)
		}
	case strictjson.String:
		w.text(path, v)
	default: // nothing to look into
	}
}

// arguments looks for secrets in a command line, where an option can make the next argument one.
func (w *walker) arguments(path string, v strictjson.Value) {
	if v.Kind() != strictjson.Array {
		w.anything(path, v)
		return
	}
	before := ""
	for i, element := range v.Elements() {
		at := strictjson.Item(path, i)
		if element.Kind() == strictjson.String && secret.IsSecretOption(before) && !strings.HasPrefix(element.Text(), "-") {
			w.whole(at, element)
		} else {
			w.anything(at, element)
		}
		before = element.Text()
	}
}

func (w *walker) text(path string, v strictjson.Value) {
	if spans := literalSpans(v.Text()); len(spans) > 0 {
		w.found = append(w.found, place{field: w.field, path: path, value: v, how: inPart, spans: spans})
	}
}

// literalSpans returns where text holds what looks like a credential and is not a reference to the environment.
func literalSpans(text string) []secret.Span {
	spans := append(secret.Find(text), querySecrets(text)...)
	return slices.DeleteFunc(spans, func(s secret.Span) bool {
		found := text[s.Start:s.End]
		if strings.HasPrefix(text[s.End:], "@") { // userinfo
			user, password, _ := strings.Cut(found, ":")
			return !isLiteral(user) && !isLiteral(password)
		}
		return !isLiteral(found)
	})
}

// querySecrets returns where the query of a URL in text has the value of a parameter that looks secret.
func querySecrets(text string) []secret.Span {
	scheme := strings.Index(text, "://")
	if scheme < 0 {
		return nil
	}
	start := strings.IndexByte(text[scheme:], '?')
	if start < 0 {
		return nil
	}
	var spans []secret.Span
	for at := scheme + start + 1; at < len(text); {
		end := len(text)
		if n := strings.IndexAny(text[at:], "&# \t\r\n\"'"); n >= 0 {
			end = at + n
		}
		name, value, _ := strings.Cut(text[at:end], "=")
		if decoded, err := url.QueryUnescape(name); err == nil && value != "" && (secret.LooksSecret(decoded) || strings.EqualFold(decoded, "key")) {
			spans = append(spans, secret.Span{Start: end - len(value), End: end})
		}
		at = end + 1
	}
	return spans
}

// secretRef is what stands for a literal secret in public JSON.
type secretRef struct {
	path   string // where the secret belongs, and its key in the store
	mac    string // changes with the secret
	shown  string // what may be seen of a text that is secret in part; else empty
	isJSON bool   // whether the stored text is JSON to be put back, rather than a string
}

// parseSecretRef reads the reference that stands at path. Only what Externalize writes for that very place is one.
func parseSecretRef(v strictjson.Value, path string) (ref secretRef, ok bool) {
	if v.Kind() != strictjson.Object {
		return secretRef{}, false
	}
	for key, member := range v.Members() {
		switch {
		case key == "$secret" && member.Text() == path && path != "":
			ref.path = path
		case key == "mac" && isHex(member.Text()):
			ref.mac = member.Text()
		case key == "shown" && member.Text() != "":
			ref.shown = member.Text()
		case key == "json" && member.Raw() == "true":
			ref.isJSON = true
		default:
			return secretRef{}, false
		}
	}
	return ref, ref.path != "" && ref.mac != ""
}

func isHex(s string) bool {
	return s != "" && len(s)%2 == 0 && strings.Trim(s, "0123456789abcdef") == ""
}

func (r secretRef) append(dst []byte) []byte {
	dst = strictjson.AppendString(append(dst, `{"$secret":`...), r.path)
	if r.isJSON {
		dst = append(dst, `,"json":true`...)
	}
	dst = strictjson.AppendString(append(dst, `,"mac":`...), r.mac)
	if r.shown != "" {
		dst = strictjson.AppendString(append(dst, `,"shown":`...), r.shown)
	}
	return append(dst, '}')
}

// Mask returns raw as a reader of the configuration may see it, all else as written: the values of env, headers,
// user_auth.users and oauth.extra_token_params and of keys that look secret as "***", client_secret and refresh_token
// as null, and stars for what looks like a credential in args, URLs and other text. References to the environment are
// shown, except where all values are masked. What is not JSON becomes "***".
func Mask(raw json.RawMessage) json.RawMessage {
	root, err := strictjson.Parse(raw, entryLimits)
	if err != nil {
		return json.RawMessage(`"` + secret.Mask + `"`)
	}
	var edits []strictjson.Edit
	for _, p := range places(root) {
		shown := `"` + secret.Mask + `"`
		switch p.how {
		case hidden:
			shown = "null"
		case inPart:
			shown = string(strictjson.AppendString(nil, secret.Cut(p.value.Text(), p.spans)))
		case whole:
		}
		edits = append(edits, strictjson.Edit{Value: p.value, JSON: shown})
	}
	return json.RawMessage(root.Splice(edits))
}

// Externalize separates the entry of the server name from its literal secrets. In public, which is canonical JSON, each
// is replaced by
//
//	{"$secret": "<path>", "mac": "<hex>"}
//
// with what mac makes of it, so that a rotated secret changes the public JSON; "shown" is what may be seen of a text
// that is secret in part, and "json": true marks a secret that was no string. The label given to mac names server and
// field. secrets has the literals by path, for sealed storage. A value that consists of references to the environment
// alone, perhaps behind a word such as Bearer, is no literal and stays. What is not JSON becomes null.
func Externalize(name string, raw json.RawMessage, mac func(label string, data []byte) string) (public json.RawMessage, secrets map[string]string) {
	secrets = map[string]string{}
	root, err := strictjson.Parse(raw, entryLimits)
	if err != nil {
		return json.RawMessage("null"), secrets
	}
	var edits []strictjson.Edit
	for _, p := range places(root) {
		ref := secretRef{path: p.path}
		literal := p.value.Text()
		switch {
		case p.value.Kind() != strictjson.String:
			literal = string(p.value.Canonical())
			ref.isJSON = true
		case p.how != inPart && !isLiteral(literal):
			continue
		case p.how == inPart:
			ref.shown = secret.Cut(literal, p.spans)
		}
		ref.mac = mac("serverconfig:"+name+":"+p.path, []byte(literal))
		secrets[p.path] = literal
		edits = append(edits, strictjson.Edit{Value: p.value, JSON: string(ref.append(nil))})
	}
	if len(edits) == 1 && edits[0].Value == root {
		return json.RawMessage("null"), map[string]string{}
	}
	spliced, err := strictjson.Parse([]byte(root.Splice(edits)), publicLimits)
	if err != nil {
		return json.RawMessage("null"), map[string]string{}
	}
	return spliced.Canonical(), secrets
}
