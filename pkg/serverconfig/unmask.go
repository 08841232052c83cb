package serverconfig

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// Unmask reverses [Mask]: it returns the entry that sent asks to be stored, where sent is what somebody made of the
// masked form of stored. Stored is nil for an entry that is new.
//
//	sent                                            becomes
//	what Mask shows for the same field              what is stored there, byte for byte
//	null for a client_secret or refresh_token       what is stored there; "" becomes null
//	a list with a mask in it                        the stored list, if all of it is what Mask shows of that
//	a text with any other "***" in it               a Problem with ReasonMaskedValue
//
// What sent leaves out goes, but for these, which stay as they are stored: headers_from_context, routing, tools and keys
// that are not known, of the entry and of the blocks in it; client_secret and refresh_token of a block that is sent; and
// all of user_auth, as a block and key by key. Where null is sent they go.
//
// Without a problem no "***" is in the result that was not stored there before. What is not JSON is returned as it is.
func Unmask(server string, stored, sent json.RawMessage) (json.RawMessage, []Problem) {
	after, err := strictjson.Parse(sent, entryLimits)
	if err != nil {
		return sent, nil
	}
	u := &unmasker{decoder: decoder{server: server}}
	before, shown := u.read(stored)
	if shown.Kind() != strictjson.Missing && bytes.Equal(shown.Canonical(), after.Canonical()) {
		return stored, nil
	}
	return json.RawMessage(u.entry(before, shown, after)), u.all()
}

// UnmaskValue is [Unmask] for the value of a top-level key of a file other than mcpServers, as [MaskValue] shows it.
func UnmaskValue(key string, stored, sent json.RawMessage) (json.RawMessage, []Problem) {
	after, err := strictjson.Parse(sent, entryLimits)
	if err != nil {
		return sent, nil
	}
	u := &unmasker{}
	before, shown := u.read(nil)
	if stored != nil {
		if v, err := strictjson.Parse(stored, entryLimits); err == nil {
			before = v
		}
		if v, err := strictjson.Parse(MaskValue(key, stored), entryLimits); err == nil {
			shown = v
		}
	}
	return json.RawMessage(u.value(strictjson.Field("", key), before, shown, after)), u.all()
}

// MaskValue is [Mask] for the value of a top-level key of a file other than mcpServers: the rules for an unknown key of
// an entry are those for one of a file. What is too deep to look into becomes "***".
func MaskValue(key string, raw json.RawMessage) json.RawMessage {
	head := append(strictjson.AppendString([]byte{'{'}, key), ':')
	masked := Mask(slices.Concat(head, raw, []byte{'}'}))
	value, ok := bytes.CutPrefix(masked, head)
	if !ok {
		return masked
	}
	return bytes.TrimSuffix(value, []byte{'}'})
}

// Equal reports whether a and b differ in white space, the order of keys and the spelling of strings at most. What is not
// JSON is equal to nothing.
func Equal(a, b json.RawMessage) bool {
	limits := strictjson.Limits{Bytes: MaxBytes, Depth: MaxDepth}
	v, errV := strictjson.Parse(a, limits)
	w, errW := strictjson.Parse(b, limits)
	return errV == nil && errW == nil && bytes.Equal(v.Canonical(), w.Canonical())
}

type unmasker struct{ decoder }

// read returns what is stored and what Mask shows of it.
func (u *unmasker) read(stored json.RawMessage) (before, shown strictjson.Value) {
	if stored == nil {
		return before, shown
	}
	before, errBefore := strictjson.Parse(stored, entryLimits)
	shown, errShown := strictjson.Parse(Mask(stored), entryLimits)
	if errBefore != nil || errShown != nil {
		return strictjson.Value{}, strictjson.Value{}
	}
	return before, shown
}

// keptKeys are the known keys of an entry that stay where they are not sent.
var keptKeys = []string{"user_auth", "headers_from_context", "routing", "tools"}

// hiddenKeys are those of oauth and auth that are shown as null.
var hiddenKeys = []string{"client_secret", "refresh_token"}

// entry returns the text of an entry.
func (u *unmasker) entry(before, shown, after strictjson.Value) string {
	if after.Kind() != strictjson.Object {
		return u.value("", before, shown, after)
	}
	return u.object("", before, shown, after, func(key string) bool {
		return slices.Contains(keptKeys, key) || !slices.Contains(entryKeys, key)
	})
}

// value returns the text of the value at path. Before, shown and after are what stands there in the stored entry, in its
// masked form and in what was sent.
func (u *unmasker) value(path string, before, shown, after strictjson.Value) string {
	switch after.Kind() {
	case strictjson.Null:
		if shown.Kind() == strictjson.Null {
			return before.Raw()
		}
	case strictjson.String:
		if strings.Contains(after.Text(), secret.Mask) {
			return u.masked(path, before, shown, after)
		}
		if after.Text() == "" && isHidden(path) {
			return "null"
		}
	case strictjson.Array:
		if at := findMask(path, after); at != "" {
			return u.masked(at, before, shown, after)
		}
	case strictjson.Object:
		return u.object(path, before, shown, after, keeps(path))
	default: // nothing can be hidden in it
	}
	return after.Raw()
}

// masked returns what is stored, if after is what is shown of it.
func (u *unmasker) masked(path string, before, shown, after strictjson.Value) string {
	if shown.Kind() != strictjson.Missing && bytes.Equal(shown.Canonical(), after.Canonical()) {
		return before.Raw()
	}
	u.report(Problem{
		Path: path, Reason: ReasonMaskedValue, Message: "is masked, and nothing that looks like this is stored here", Hint: "write the value itself",
	})
	return after.Raw()
}

// object returns the text of an object, with the members that are stored, not sent, and kept.
func (u *unmasker) object(path string, before, shown, after strictjson.Value, keep func(key string) bool) string {
	var edits []strictjson.Edit
	sent := map[string]bool{}
	for key, v := range after.Members() {
		at := strictjson.Field(path, key)
		sent[key] = true
		if strings.Contains(key, secret.Mask) && before.Get(key).Kind() == strictjson.Missing {
			u.report(Problem{Path: at, Reason: ReasonMaskedValue, Message: "has a mask for its name", Hint: "write the name itself"})
		}
		if text := u.value(at, before.Get(key), shown.Get(key), v); text != v.Raw() {
			edits = append(edits, strictjson.Edit{Value: v, JSON: text})
		}
	}
	text := after.Splice(edits)
	var kept []byte
	for key, v := range before.Members() {
		if sent[key] || !keep(key) {
			continue
		}
		sent[key] = true
		if len(kept) > 0 || !isEmpty(after) {
			kept = append(kept, ',')
		}
		kept = append(append(strictjson.AppendString(kept, key), ':'), v.Raw()...)
	}
	if kept == nil {
		return text
	}
	return text[:len(text)-1] + string(kept) + "}"
}

// keeps returns which keys of the object at path stay where they are not sent.
func keeps(path string) func(key string) bool {
	unknown := func(known []string) func(string) bool {
		return func(key string) bool { return !slices.Contains(known, key) }
	}
	switch {
	case path == "oauth", path == "auth":
		known := oauthKeys
		if path == "auth" {
			known = authKeys
		}
		return func(key string) bool { return slices.Contains(hiddenKeys, key) || !slices.Contains(known, key) }
	case path == "user_auth":
		return func(string) bool { return true }
	case path == "headers_from_context":
		return unknown(headersFromContextKeys)
	case isTool(path):
		return unknown(toolKeys)
	}
	return func(string) bool { return false }
}

// isTool reports whether path is that of the settings of one tool, whose name may be anything.
func isTool(path string) bool {
	name, ok := strings.CutPrefix(path, "tools")
	if !ok {
		return false
	}
	if name, ok := strings.CutPrefix(name, "."); ok {
		return !strings.ContainsAny(name, ".[")
	}
	quoted, ok := strings.CutPrefix(name, "[")
	if !ok {
		return false
	}
	// The only quote that no backslash precedes ends the name.
	for i := 1; i < len(quoted); i++ {
		switch quoted[i] {
		case '\\':
			i++
		case '"':
			return quoted[i+1:] == "]"
		}
	}
	return false
}

func isHidden(path string) bool {
	block, key, ok := strings.Cut(path, ".")
	return ok && (block == "oauth" || block == "auth") && slices.Contains(hiddenKeys, key)
}

// findMask returns the path of the first mask in v, or "".
func findMask(path string, v strictjson.Value) string {
	switch v.Kind() {
	case strictjson.String:
		if strings.Contains(v.Text(), secret.Mask) {
			return path
		}
	case strictjson.Array:
		for i, element := range v.Elements() {
			if at := findMask(strictjson.Item(path, i), element); at != "" {
				return at
			}
		}
	case strictjson.Object:
		for key, member := range v.Members() {
			at := strictjson.Field(path, key)
			if strings.Contains(key, secret.Mask) {
				return at
			}
			if at := findMask(at, member); at != "" {
				return at
			}
		}
	default: // no text in it
	}
	return ""
}
