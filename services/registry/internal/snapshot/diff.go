package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// Difference is what one content has otherwise than another. Files that cannot be used count as servers.
type Difference struct {
	Added   []string // names that only the later one has, in order
	Removed []string // names that only the earlier one has, in order
	Changed []Change // what both have, in order
	// Interceptors has both lists as JSON arrays; it is nil if they are the same.
	Interceptors *Field
}

// Change is what is different about an entry that both contents have.
type Change struct {
	Name       string
	Fields     []Field // of the definition, by field path
	Verdict    []Field // of what the registry decided, by word: state, reason, problems and so on
	Reconnects bool    // whether what decides about the connection is another
}

// Field is one value that is different. Before and After are JSON, empty where there is none, with a mask for each
// secret: one that was rotated has the same mask on both sides.
type Field struct{ Path, Before, After string }

// Diff compares two contents. The place where an entry is defined does not count.
func Diff(before, after *Content) (Difference, error) {
	var out Difference
	old := map[string]*Entry{}
	for i := range before.Servers {
		old[before.Servers[i].Name] = &before.Servers[i]
	}
	for i := range after.Servers {
		e := &after.Servers[i]
		o := old[e.Name]
		delete(old, e.Name)
		switch {
		case o == nil:
			out.Added = append(out.Added, e.Name)
		case !sameEntry(*o, *e):
			c, err := diffEntry(o, e)
			if err != nil {
				return Difference{}, fmt.Errorf("compare %q: %w", e.Name, err)
			}
			out.Changed = append(out.Changed, c)
		}
	}
	for _, e := range before.Servers {
		if old[e.Name] != nil {
			out.Removed = append(out.Removed, e.Name)
		}
	}
	if !slices.Equal(before.Interceptors, after.Interceptors) {
		b, errB := canonical(append([]string{}, before.Interceptors...))
		a, errA := canonical(append([]string{}, after.Interceptors...))
		if err := errors.Join(errB, errA); err != nil {
			return Difference{}, fmt.Errorf("compare interceptors: %w", err)
		}
		out.Interceptors = &Field{Path: "mcpInterceptors", Before: string(b), After: string(a)}
	}
	return out, nil
}

func diffEntry(before, after *Entry) (Change, error) {
	c := Change{Name: after.Name, Reconnects: before.Fingerprint != after.Fingerprint}
	b, err := definition(before)
	if err != nil {
		return c, err
	}
	a, err := definition(after)
	if err != nil {
		return c, err
	}
	diffValues("", b, a, &c.Fields)
	if b, err = decision(before); err != nil {
		return c, err
	}
	if a, err = decision(after); err != nil {
		return c, err
	}
	diffMembers("", b, a, &c.Verdict, func(path string, before, after strictjson.Value, out *[]Field) {
		if x, y := show(path, before), show(path, after); x != y { // whole: what is different about problems is not of interest
			*out = append(*out, Field{Path: path, Before: x, After: y})
		}
	})
	return c, nil
}

// definition returns the entry as JSON; that of a file that cannot be used is empty.
func definition(e *Entry) (strictjson.Value, error) {
	if len(e.JSON) == 0 {
		return strictjson.Parse([]byte("{}"), limits)
	}
	return strictjson.Parse(e.JSON, limits)
}

// decision returns all else that counts for the identity of an entry.
func decision(e *Entry) (strictjson.Value, error) {
	plain := *e
	plain.Name, plain.Source, plain.JSON, plain.Secrets, plain.Fingerprint = "", "", nil, nil, ""
	b, err := canonical(plain)
	if err != nil {
		return strictjson.Value{}, err
	}
	return strictjson.Parse(b, limits)
}

// diffValues adds to out what is different between two values that stand at path. Objects and arrays are looked into
// where both sides have one.
func diffValues(path string, before, after strictjson.Value, out *[]Field) {
	switch {
	case before.Kind() == strictjson.Object && after.Kind() == strictjson.Object && !isSecret(path, before) && !isSecret(path, after):
		diffMembers(path, before, after, out, diffValues)
	case before.Kind() == strictjson.Array && after.Kind() == strictjson.Array:
		b, a := elements(before), elements(after)
		for i := range max(len(b), len(a)) {
			diffValues(strictjson.Item(path, i), at(b, i), at(a, i), out)
		}
	case string(before.Canonical()) != string(after.Canonical()):
		*out = append(*out, Field{Path: path, Before: show(path, before), After: show(path, after)})
	}
}

// diffMembers calls diff for every member of two objects, by name.
func diffMembers(path string, before, after strictjson.Value, out *[]Field, diff func(string, strictjson.Value, strictjson.Value, *[]Field)) {
	names := map[string]bool{}
	for name := range before.Members() {
		names[name] = true
	}
	for name := range after.Members() {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		diff(strictjson.Field(path, name), before.Get(name), after.Get(name), out)
	}
}

func elements(v strictjson.Value) []strictjson.Value {
	var out []strictjson.Value
	for _, e := range v.Elements() {
		out = append(out, e)
	}
	return out
}

func at(list []strictjson.Value, i int) strictjson.Value {
	if i < len(list) {
		return list[i]
	}
	return strictjson.Value{}
}

// isSecret reports whether v, which stands at path, refers to a literal secret.
func isSecret(path string, v strictjson.Value) bool {
	return path != "" && v.Get("$secret").Text() == path && v.Get("mac").Text() != ""
}

// show returns the value at path with a mask, or what may be seen, in the place of each secret.
func show(path string, v strictjson.Value) string {
	if v.Kind() == strictjson.Missing {
		return ""
	}
	var edits []strictjson.Edit
	mask(path, v, &edits)
	return v.Splice(edits)
}

func mask(path string, v strictjson.Value, edits *[]strictjson.Edit) {
	if isSecret(path, v) {
		shown := cmp.Or(v.Get("shown").Text(), secret.Mask)
		*edits = append(*edits, strictjson.Edit{Value: v, JSON: string(strictjson.AppendString(nil, shown))})
		return
	}
	for name, member := range v.Members() {
		mask(strictjson.Field(path, name), member, edits)
	}
	for i, element := range v.Elements() {
		mask(strictjson.Item(path, i), element, edits)
	}
}
