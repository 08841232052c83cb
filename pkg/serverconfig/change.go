package serverconfig

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/toolherd/toolherd/pkg/envref"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// SetEnabled returns the entry raw switched on or off, all else as written: its key enabled is set or, where it has none,
// added as its last, and a key disabled does not contradict it. It reports false where raw is no object.
func SetEnabled(raw json.RawMessage, enabled bool) (json.RawMessage, bool) {
	root, err := strictjson.Parse(raw, entryLimits)
	if err != nil || root.Kind() != strictjson.Object {
		return raw, false
	}
	word := strconv.FormatBool(enabled)
	var edits []strictjson.Edit
	found := false
	for key, v := range root.Members() {
		switch {
		case key == "enabled":
			found = true
			if v.Raw() != word {
				edits = append(edits, strictjson.Edit{Value: v, JSON: word})
			}
		case key == "disabled" && enabled && v.Raw() != "false":
			edits = append(edits, strictjson.Edit{Value: v, JSON: "false"})
		}
	}
	text := root.Splice(edits)
	if !found && enabled != isEnabled(text) {
		separator := ","
		if isEmpty(root) {
			separator = ""
		}
		text = text[:len(text)-1] + separator + `"enabled":` + word + "}"
	}
	return json.RawMessage(text), true
}

// isEnabled reports whether an entry says that it is on, as [Decode] reads it.
func isEnabled(raw string) bool {
	e, _ := Decode("x", json.RawMessage(raw))
	return e.Enabled
}

// CheckVariables returns an error for each reference of the entry raw to a variable that is not among allowed: what an
// entry may say that was written through the API.
func CheckVariables(server string, raw json.RawMessage, allowed []string) []Problem {
	root, err := strictjson.Parse(raw, entryLimits)
	if err != nil {
		return nil
	}
	d := &decoder{server: server}
	t, _, _, _ := transportOf(root)
	for path, v := range references(root, t) {
		segments, err := envref.Parse(v.Text())
		if err != nil {
			continue // Decode reports it
		}
		for _, s := range segments {
			if s.Name == "" || slices.Contains(allowed, s.Name) {
				continue
			}
			d.report(Problem{
				Path: path, Reason: ReasonForbiddenVariable,
				Message: fmt.Sprintf("the variable %s is not in registry.env_refs, and an entry written through the API resolves no others", s.Name),
				Hint:    "add " + s.Name + " to registry.env_refs in toolherd.yaml, or write the entry in its file",
			})
		}
	}
	return d.all()
}
